"""An event store and its session log in a PostgreSQL database: the extra `session-bridge[postgres]`.

Order: the row of `bridge_about` is locked from the first statement of a transaction to its end, and holds the last id:
so ids have no holes, become readable in their order, and any number of processes may write. Everything queued goes into
one transaction (group commit).

Failure: a transaction whose end was not heard, because the connection broke during the commit, is looked up by its own
token once the database answers again, so that a publish which raises StoreError is not stored. Only if it does not
answer within `DEADLINE` is that unknown, and the error says so: an append with an `id` can then be repeated.

A database that was restored is noticed when its last id is below the one known.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final, Self
from urllib.parse import urlsplit

import asyncpg
from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, stop_after_delay, wait_fixed

from bridge_client.event_json import repair_text
from bridge_client.session_log import Sequenced
from bridge_client.store import MAX_EVENT_BYTES, MAX_PAGE_BYTES, StoreClosed, Stored, StoreError
from bridge_client.store.admission import Admitted, admit, admit_many, check_page
from bridge_client.store.appending import admit_appended
from bridge_client.store.following import SLOWEST_LOOK, Followed
from bridge_client.store.postgres_tables import Outcomes, Placed, Write, Writes, insert, key, prepare, session_filter
from bridge_client.store.waiters import Filtered, Wanted
from protocol.event_id import MAX_EVENT_ID
from protocol.events.session_manager import Event

MAX_QUEUED_BYTES: Final = 8 << 20
MAX_QUEUED_EVENTS: Final = 4096

DEADLINE: Final = 30.0
"""Seconds that the database has for one transaction, and to come back after a broken commit."""

CONNECTIONS: Final = 4
_FAILURES: Final = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)

_Events = list[Stored]  # inside the class, `list` is a method
_Found = list[Sequenced]
_Texts = list[str]
_Values = list[Any]


class PostgresStore(Followed, Filtered):
    """`EventStore` and `SessionLog` in PostgreSQL (13 or newer). Made by `open`."""

    def __init__(
        self, pool: Any, name: str, max_event_bytes: int, max_queued_bytes: int, wall: Callable[[], float]
    ) -> None:
        super().__init__()
        self._pool = pool
        self._name = name
        self._max_event_bytes = max_event_bytes
        self._max_queued_bytes = max_queued_bytes
        self._wall = wall
        self._epoch = ""
        self._queue: Writes = []
        self._queued_events = 0  # those being written included
        self._queued_bytes = 0
        self._entrance = asyncio.Lock()  # held while waiting for room, so that nobody overtakes
        self._room = asyncio.Event()
        self._work = asyncio.Event()
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        max_event_bytes: int = MAX_EVENT_BYTES,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> Self:
        """Open the database of a `postgresql://` URL, and make its tables if they are missing.

        Query parameters that are no options of the connection are settings of the server, such as `search_path`.
        Raises StoreError if it can't be used.
        """
        name = _shown(url)
        pool = None
        try:
            pool = await asyncpg.create_pool(
                url,
                min_size=1,
                max_size=CONNECTIONS,
                timeout=DEADLINE,
                command_timeout=DEADLINE,
                server_settings={"synchronous_commit": "on", "application_name": "session-bridge"},
            )
            store = cls(pool, name, max_event_bytes, max_queued_bytes, wall)
            async with pool.acquire() as connection, connection.transaction():
                await prepare(connection, name)
            await store._look()
        except BaseException as error:
            if pool is not None:
                pool.terminate()
            if isinstance(error, (*_FAILURES, ValueError)):
                raise _explained("open", name, error) from error
            raise
        store._writing = asyncio.create_task(store._write(), name="event-store-writer")
        return store

    _writing: asyncio.Task[None]

    @property
    def epoch(self) -> str:
        return self._epoch

    async def publish(self, event: Mapping[str, Any] | bytes) -> Stored:
        self._check_open()
        return (await self._store([admit(event, self._max_event_bytes)]))[0].stored

    async def publish_many(self, events: Sequence[Mapping[str, Any] | bytes]) -> _Events:
        self._check_open()
        admitted, refused = admit_many(events, self._max_event_bytes)
        written = await self._store(admitted) if admitted else []
        if refused is not None:
            raise refused
        return [one.stored for one in written]

    async def append_event_with_sequence(self, session_id: str, event: Mapping[str, Any] | bytes | Event) -> Sequenced:
        self._check_open()
        return (await self._store([admit_appended(session_id, event, self._max_event_bytes)]))[0]

    async def _store(self, events: Sequence[Admitted]) -> _Found:
        """Queued at once, so that one transaction stores them all."""
        size = sum(len(event.members) for event in events)
        writes = [Write(event, self._loop.create_future()) for event in events]
        async with self._entrance:
            self._check_open()
            while self._queued_events and (
                self._queued_bytes + size > self._max_queued_bytes or self._queued_events >= MAX_QUEUED_EVENTS
            ):
                self._room.clear()
                await self._room.wait()
                self._check_open()
            self._queue += writes
            self._queued_events += len(writes)
            self._queued_bytes += size
            self._work.set()
        return await asyncio.gather(*(write.done for write in writes))

    async def list(
        self,
        *,
        since_id: int | None = None,
        limit: int = 500,
        session_id: str | None = None,
        request_id: str | None = None,
    ) -> _Events:
        self._check_open()
        where: _Texts = ["id > $1"]
        values: _Values = [check_page(since_id, limit)]
        for column, value in (("session", session_id), ("request", request_id)):
            if value is not None:
                values.append(key(repair_text(value)))
                where.append(f"{column} = ${len(values)}")
        rows = await self._page(where, values, "id", limit)
        return [Stored(row["id"], row["data"]) for row in rows]

    async def find(self, wanted: Wanted) -> _Found:
        deadline = self._loop.time() + wanted.wait
        while True:
            with self.waiters.waiting(wanted) as woken:
                rows = await self._page(*session_filter(wanted), "sequence", wanted.limit)
                if rows or self._loop.time() >= deadline:
                    return [Sequenced(Stored(row["id"], row["data"]), row["sequence"]) for row in rows]
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self.wait_for(woken)

    async def get_latest_sequence(self, session_id: str) -> int:
        query = "SELECT last FROM bridge_sequences WHERE session = $1"
        rows = await self._read(query, key(repair_text(session_id)))
        return int(rows[0]["last"]) if rows else 0

    async def head(self) -> int | None:
        rows = await self._read("SELECT max(id) AS head FROM bridge_events")
        head: int | None = rows[0]["head"]
        self._advance(head or 0)
        return head

    async def floor(self) -> int:
        """Nothing is ever removed here."""
        self._check_open()
        return 0

    async def preceding(self, event_id: int) -> int | None:
        place = min(event_id, MAX_EVENT_ID)
        found: int | None = (await self._read("SELECT max(id) AS id FROM bridge_events WHERE id <= $1", place))[0]["id"]
        return found

    async def renew_epoch(self) -> str:
        await self._look()
        epoch = token_hex(16)
        await self._read("UPDATE bridge_about SET epoch = $1 RETURNING epoch", epoch)
        self._epoch = epoch
        return epoch

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._room.set()
            self._work.set()
            self._wake_all()
        await asyncio.shield(self._writing)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the event store is closed")

    # --- reading

    async def _look(self) -> None:
        known = self._known_head
        row = (await self._read("SELECT last_id, epoch FROM bridge_about"))[0]
        self._pause = min(2 * self._pause, SLOWEST_LOOK)
        self._epoch = row["epoch"]
        if row["last_id"] < known:
            self._went_back(row["last_id"])
        else:
            self._looked(row["last_id"])

    async def _page(self, where: Sequence[str], values: Sequence[Any], order: str, limit: int) -> Sequence[Any]:
        """Rows up to the limits of a page, measured where they are: none is fetched in vain."""
        rows = (
            f"SELECT id, sequence, data, sum(length(data)) OVER (ORDER BY {order}) - length(data) AS before"  # noqa: S608
            f" FROM bridge_events WHERE {' AND '.join(where)} ORDER BY {order} LIMIT ${len(values) + 1}"
        )
        query = f"SELECT id, sequence, data FROM ({rows}) AS page WHERE before < {MAX_PAGE_BYTES} ORDER BY {order}"  # noqa: S608
        return await self._read(query, *values, limit)

    async def _read(self, query: str, *values: object) -> Sequence[Any]:
        self._check_open()
        try:
            found: Sequence[Any] = await self._pool.fetch(query, *values)
        except _FAILURES as error:
            self._check_open()  # a closed pool is no other error
            raise _explained("read from", self._name, error) from error
        self._check_open()
        return found

    # --- writing

    async def _write(self) -> None:
        while self._queue or not self._closed:
            await self._work.wait()
            self._work.clear()
            while self._queue:
                batch, self._queue = self._queue, []
                try:
                    outcomes = await self._commit(batch)
                except Exception as error:  # whatever it was, nobody may wait for ever
                    outcomes = [_explained("write to", self._name, error) for _ in batch]
                self._written(batch, outcomes)
        try:
            await asyncio.wait_for(self._pool.close(), 1.0)
        except TimeoutError:
            self._pool.terminate()

    def _written(self, batch: Writes, outcomes: Outcomes) -> None:
        self._queued_events -= len(batch)
        self._queued_bytes -= sum(len(write.event.members) for write in batch)
        self._room.set()
        stored: _Events = []
        for write, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Placed) and not outcome.repeated:
                stored.append(outcome.sequenced.stored)
                self.waiters.tell(write.event, outcome.sequenced.sequence_number, outcome.at)
            if write.done.done():  # cancelled ones are
                continue
            if isinstance(outcome, Placed):
                write.done.set_result(outcome.sequenced)
            else:
                write.done.set_exception(outcome)
        if stored:
            self._stored(stored)

    async def _commit(self, batch: Writes) -> Outcomes:
        """Store it, all in one transaction. Raises what says that nothing of it is stored, or StoreError."""
        token = token_hex(16)
        async with self._pool.acquire(timeout=DEADLINE) as connection:
            transaction = connection.transaction()
            await transaction.start()
            try:
                outcomes, first = await insert(connection, batch, token, int(self._wall() * 1_000_000))
            except BaseException:
                with suppress(*_FAILURES):
                    await transaction.rollback()
                raise
            try:
                await transaction.commit()
            except _FAILURES as error:
                failure = error
            else:
                return outcomes
        if first is not None and not await self._happened(first, token):
            raise failure
        return outcomes

    async def _happened(self, first: int, token: str) -> bool:
        """Whether a transaction was committed whose end was not heard. Raises StoreError if nobody can say."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_FAILURES), wait=wait_fixed(0.25), stop=stop_after_delay(DEADLINE)
        )
        try:
            found: bool = await retrying(self._look_up, first, token)
        except RetryError as error:
            raise StoreError(
                f"the event store {self._name} broke off during a commit and does not answer: whether the last events"
                " were stored is not known"
            ) from error.last_attempt.exception()
        return found

    async def _look_up(self, first: int, token: str) -> bool:
        async with self._pool.acquire(timeout=DEADLINE) as connection, connection.transaction():
            # Whoever is still at it holds this row.
            await connection.execute("SELECT 1 FROM bridge_about FOR UPDATE")
            query = "SELECT 1 FROM bridge_events WHERE id = $1 AND batch = $2"
            return await connection.fetchval(query, first, token) is not None


def _shown(url: str) -> str:
    """The address without what is secret in it."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or ''}{'' if parts.port is None else f':{parts.port}'}{parts.path}"
    except ValueError:
        return "postgresql://…"


def _explained(what: str, name: str, error: BaseException) -> StoreError:
    """`error` as what it means for the store, with advice where there is any."""
    if isinstance(error, StoreError):
        return StoreError(str(error))
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "")
    explained = StoreError(f"can't {what} the event store {name}: {str(error) or type(error).__name__}{advice}")
    explained.__cause__ = error
    return explained


_ADVICE: Final[dict[type[BaseException], str]] = {
    ConnectionRefusedError: ": is PostgreSQL running there?",
    asyncpg.InvalidAuthorizationSpecificationError: ": check its user and password",
    asyncpg.InvalidCatalogNameError: ": make the database first, createdb NAME",
    asyncpg.InsufficientPrivilegeError: ": its user must be allowed to make tables in the schema",
    asyncpg.DiskFullError: ": make room on its disk",
}
