"""An event store in one SQLite file, shared by as many processes as like.

Threads: one writes, with its own connection; one reads, with another; the event loop touches neither. The writer takes
everything queued into one transaction (group commit), so that the cost of making it durable is shared by all who wait.

Order: ids are given inside `BEGIN IMMEDIATE`, which holds the file's write lock until the commit, so they become
readable in id order even with several processes. `AUTOINCREMENT` remembers the last id beyond deletions and restarts.

Failure: a failed commit is rolled back and fails the publishes in it, no others. Once the file is no longer the one
that was opened (removed, or another in its place), everything but `close` raises: what SQLite still reads and writes
then is a file without a name, which nobody will ever open again. `recent` notices that last, when `wait` has looked.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Self, TypeVar

from bridge_client.event_json import repair_text
from bridge_client.store import MAX_EVENT_BYTES, StoreClosed, Stored, StoreError
from bridge_client.store.admission import Admitted, Page, admit, admit_many, check_page
from bridge_client.store.following import SLOWEST_LOOK, Followed
from bridge_client.store.group_commit import Apply, Write, Written, commit
from bridge_client.store.sqlite_file import FLOOR, check_same, connect, explain, identify, open_file, renew_epoch
from protocol.event_id import MAX_EVENT_ID

MAX_QUEUED_BYTES: Final = 8 << 20
MAX_QUEUED_EVENTS: Final = 4096

_NEWS: Final = """
    SELECT last.id, about.value, last.data, (SELECT data FROM events WHERE id = ?)
    FROM about LEFT JOIN (SELECT id, data FROM events ORDER BY id DESC LIMIT 1) AS last WHERE about.key = 'epoch'
"""

_PRECEDING: Final = f"SELECT coalesce((SELECT max(id) FROM events WHERE id <= ?), min(?, ({FLOOR})))"  # noqa: S608

_T = TypeVar("_T")
_Events = list[Stored]  # inside the class, `list` is a method


class SqliteStore(Followed):
    """`EventStore` in a SQLite file (WAL, `synchronous=FULL`). Made by `open`."""

    def __init__(
        self, path: Path, max_event_bytes: int, max_queued_bytes: int, wall: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self._path = path.absolute()  # SQLite too stays with it when the working directory changes
        self._file = (0, 0)
        self._wall = wall
        self.max_event_bytes = max_event_bytes
        self._max_queued_bytes = max_queued_bytes
        self._queue: SimpleQueue[Write | None] = SimpleQueue()
        self._queued_bytes = 0
        self._queued_events = 0
        self._entrance = asyncio.Lock()  # held while waiting for room, so that nobody overtakes
        self._room = asyncio.Event()
        self._last: Stored | None = None  # an event that was the last one: how a restored file is known
        self._epoch = ""
        self._data_version: int | None = None  # the reader thread's
        self._closed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._reader_thread = ThreadPoolExecutor(1, thread_name_prefix="event-store-reader")

    @classmethod
    async def open(
        cls,
        path: Path | str,
        *,
        max_event_bytes: int = MAX_EVENT_BYTES,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
        wall: Callable[[], float] = time.time,
    ) -> Self:
        """Open the file, or make it (0600, in a directory made 0700). Raises StoreError if it can't be used.

        `wall` tells the time (seconds since 1970) of events that say none.
        """
        store = cls(Path(path), max_event_bytes, max_queued_bytes, wall)
        try:
            writer = await asyncio.to_thread(open_file, store._path)
            try:
                store._file = await asyncio.to_thread(identify, store._path)
                store._reader = await store._read(lambda: connect(store._path))
                await store._look()
            except BaseException:
                writer.close()
                raise
        except BaseException:
            store._reader_thread.shutdown(wait=False)
            raise
        # A daemon: a process that ends without `close` loses nothing that was acknowledged, and must not hang on us.
        threading.Thread(target=store._write, args=(writer,), name="event-store-writer", daemon=True).start()
        return store

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def epoch(self) -> str:
        return self._epoch

    async def publish(self, event: Mapping[str, Any] | bytes) -> Stored:
        self._check_open()
        written = await self._store([admit(event, self.max_event_bytes)])
        return written.stored[0]

    async def publish_many(self, events: Sequence[Mapping[str, Any] | bytes]) -> _Events:
        self._check_open()
        admitted, refused = admit_many(events, self.max_event_bytes)
        written = await self._store(admitted) if admitted else None
        if refused is not None:
            raise refused
        return [] if written is None else written.stored

    async def transact(self, events: Sequence[Mapping[str, Any] | bytes], apply: Apply) -> Written:
        """Store the events and what `apply` changes in other tables of the file: all of it, or nothing.

        `apply` runs on the writer's thread, within the transaction, and must not end it. The order of publishes holds
        for these events too. Raises what `publish` raises, and whatever `apply` raises.
        """
        self._check_open()
        return await self._store([admit(event, self.max_event_bytes) for event in events], apply)

    async def append(self, event: Admitted) -> Written:
        """Store an event that was admitted, once if it has an id of its own. Raises StoreError, EventIdTaken."""
        self._check_open()
        return await self._store([event])

    async def query(self, read: Callable[[sqlite3.Connection], _T]) -> _T:
        """What `read` sees in one snapshot of the file, on the reader's thread. Raises StoreError."""
        self._check_open()

        def snapshot() -> _T:
            self._reader.execute("BEGIN")
            try:
                return read(self._reader)
            finally:
                self._reader.execute("ROLLBACK")

        return await self._read(snapshot)

    async def _store(self, events: Sequence[Admitted], apply: Apply | None = None) -> Written:
        write = Write(events, self._loop.create_future(), apply)
        size = write.size
        async with self._entrance:
            self._check_open()
            while self._queued_events and (
                self._queued_bytes + size > self._max_queued_bytes or self._queued_events >= MAX_QUEUED_EVENTS
            ):
                self._room.clear()
                await self._room.wait()
                self._check_open()
            self._queued_events += len(events)
            self._queued_bytes += size
            self._queue.put(write)
        return await write.done

    async def list(
        self,
        *,
        since_id: int | None = None,
        limit: int = 500,
        session_id: str | None = None,
        request_id: str | None = None,
    ) -> list[Stored]:
        self._check_open()
        query = "SELECT id, data FROM events WHERE id > ?"
        values: list[Any] = [check_page(since_id, limit)]
        if session_id is not None:
            # With both, the index of requests: a request is a small part of its session, hardly ever the other way.
            query += " AND session_id = ?" if request_id is None else " AND +session_id = ?"
            values.append(repair_text(session_id))
        if request_id is not None:
            query += " AND request_id = ?"
            values.append(repair_text(request_id))
        return await self._read(lambda: self._page(query + " ORDER BY id", values, limit))

    async def head(self) -> int | None:
        self._check_open()
        head = await self._read(lambda: self._one("SELECT max(id) FROM events"))
        self._advance(head or 0)
        return head

    async def preceding(self, event_id: int) -> int | None:
        self._check_open()
        place = min(event_id, MAX_EVENT_ID)
        return await self._read(lambda: self._one(_PRECEDING, place, place)) or None

    async def floor(self) -> int:
        self._check_open()
        return await self._read(lambda: self._one(FLOOR)) or 0

    async def renew_epoch(self) -> str:
        self._check_open()
        await self._look()
        self._epoch = await asyncio.to_thread(renew_epoch, self._path)
        return self._epoch

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._room.set()
            self._wake_all()
            self._queue.put(None)
        await asyncio.shield(self._ended)

    # --- on the event loop

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the event store is closed")

    async def _look(self) -> None:
        """See what other connections have committed."""
        known, last = self._known_head, self._last
        seen = await self._read(lambda: self._news(0 if last is None else last.event_id))
        self._pause = min(2 * self._pause, SLOWEST_LOOK)
        if seen is None:
            return
        head, self._epoch, newest, then = seen
        if head < known or (last is not None and then not in (None, last.data)):
            # What is in the file now is not what was in it, or less: a copy was restored into it.
            self._last = newest
            self._went_back(head)
        elif self._looked(head):
            self._last = newest

    def _written(self, batch: Sequence[Write], outcomes: Sequence[Written | Exception]) -> None:
        self._queued_events -= sum(len(write.events) for write in batch)
        self._queued_bytes -= sum(write.size for write in batch)
        self._room.set()
        stored: _Events = []
        for write, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Written):
                stored += outcome.stored
                if self.waiters:
                    self._tell_waiters(write, outcome)
            if write.done.done():  # cancelled ones are
                continue
            if isinstance(outcome, Written):
                write.done.set_result(outcome)
            else:
                write.done.set_exception(outcome)
        if stored:
            if stored[-1].event_id > self._known_head:
                self._last = stored[-1]
            self._stored(stored)

    def _tell_waiters(self, write: Write, written: Written) -> None:
        now = int(self._wall() * 1_000_000)  # a little later than what was stored: who waits for it is woken
        for event, sequence in zip(write.events, written.sequences, strict=False):  # a repeat has none
            if sequence is not None:
                self.waiters.tell(event, sequence, now if event.at is None else event.at)

    # --- on the reader thread

    async def _read(self, query: Callable[[], _T]) -> _T:
        def read() -> _T:
            check_same(self._path, self._file)
            return query()

        try:
            return await self._loop.run_in_executor(self._reader_thread, read)
        except (sqlite3.Error, OSError, RuntimeError) as error:
            self._check_open()  # a closed connection or executor is no other error
            raise explain(self._path, "read from", error) from error

    _reader: sqlite3.Connection

    def _one(self, query: str, *values: int) -> int | None:
        found: int | None = self._reader.execute(query, values).fetchone()[0]
        return found

    def _page(self, query: str, values: Sequence[Any], limit: int) -> _Events:
        page = Page(limit)
        cursor = self._reader.execute(query, values)
        try:
            for event_id, data in cursor:
                if not page.add(Stored(event_id, data)):
                    break
        finally:
            cursor.close()  # ends the read transaction, which would keep the WAL from being reused
        return page.events

    def _news(self, then: int) -> tuple[int, str, Stored | None, bytes | None] | None:
        """Head, epoch, last event, and what event `then` holds; None when no other connection has committed since."""
        version = self._one("PRAGMA data_version")
        if version == self._data_version:
            return None
        head, epoch, newest, data = self._reader.execute(_NEWS, (then,)).fetchone()
        self._data_version = version
        return head or 0, epoch, None if head is None else Stored(head, newest), data

    # --- on the writer thread

    def _write(self, connection: sqlite3.Connection) -> None:
        last = False
        while not last:
            batch, last = self._take()
            if batch:
                self._tell(self._written, batch, self._attempt(connection, batch))
        self._reader_thread.submit(self._reader.close)
        self._reader_thread.shutdown(wait=True)
        connection.close()
        self._tell(self._ended.set_result, None)

    def _take(self) -> tuple[Sequence[Write], bool]:
        """Wait for work: everything queued, and whether that was the last of it."""
        batch: list[Write] = []
        item = self._queue.get()
        while item is not None:
            batch.append(item)
            try:
                item = self._queue.get_nowait()
            except Empty:
                return batch, False
        return batch, True

    def _attempt(self, connection: sqlite3.Connection, batch: Sequence[Write]) -> Sequence[Written | Exception]:
        try:
            outcomes = commit(connection, batch, int(self._wall() * 1_000_000))
            check_same(self._path, self._file)  # after the commit: what is acknowledged is in the file of this name
        except Exception as error:  # whatever it was, nobody may wait for ever
            if connection.in_transaction:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            return [self._explained(error) for _ in batch]  # each its own: a raised exception collects its traceback
        return [self._explained(outcome) if isinstance(outcome, sqlite3.Error) else outcome for outcome in outcomes]

    def _explained(self, error: Exception) -> StoreError:
        explained = StoreError(str(error)) if isinstance(error, StoreError) else explain(self._path, "write to", error)
        explained.__cause__ = error.__cause__ if isinstance(error, StoreError) else error
        return explained

    def _tell(self, call: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop was closed without closing the store: nobody is left to tell
            self._loop.call_soon_threadsafe(call, *args)
