"""A table or view in somebody else's SQLite file as a source. The file is opened to read, and never written.

The rows are an append-only log: a whole number that rises, and an event. New rows are noticed by `PRAGMA data_version`;
an id behind a hole is held back for a second (`holes.py`), and one that comes later still is logged by its id.

The file may be replaced, truncated or restored meanwhile. The last event read is remembered by a digest (`Mark`): where
its row is gone or holds something else, this is another life of the file, and another epoch begins.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

from bridge_client.clock import Clock, SystemClock
from bridge_client.dead_letters import DeadLetters
from bridge_client.source_spec import SqliteSpec
from bridge_client.sources import Mark, SourceEvent, SourceRefused
from bridge_client.sources.absence import Absence, Unreadable
from bridge_client.sources.event_text import place
from bridge_client.sources.holes import PATIENCE, Holes
from bridge_client.sources.own_epoch import OwnEpoch
from bridge_client.tombstones import tombstone
from protocol.errors import InvalidEvent
from protocol.event_id import MAX_EVENT_ID

FASTEST: Final = 0.010
SLOWEST: Final = 0.250
"""Seconds between two looks: doubled from the fastest while nothing comes."""

BUSY_SECONDS: Final = 5.0
MAX_PAGE_BYTES: Final = 8 << 20
MARK_SECONDS: Final = 5.0
"""How often the last event read is remembered on the disk."""

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class _Row(NamedTuple):
    event_id: int
    values: tuple[Any, ...]


class ForeignSqlite:
    """`Source` over one table. Made by `open`, ended by `close`."""

    def __init__(
        self, spec: SqliteSpec, epoch: OwnEpoch, clock: Clock | None = None, letters: DeadLetters | None = None
    ) -> None:
        self._spec = spec
        self._letters = letters or DeadLetters.in_memory(clock)
        self._epoch = epoch
        self._clock = clock or SystemClock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="foreign-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._version: int | None = None
        self._head = 0
        self._mark = epoch.mark
        self._mark_saved = 0.0
        self._turned = False
        self._holes = Holes()
        self._absence = Absence(f"{spec.path}, table {spec.table}", self._clock)
        columns = [*spec.members.values()] if spec.members else [spec.body]
        self._id = _column(spec.id_column)
        wanted = ", ".join([self._id, *map(_column, columns)])
        self._from = f"FROM {_quoted(spec.table)} WHERE typeof({self._id}) = 'integer' AND {self._id}"
        self._select = f"SELECT {wanted} {self._from}"

    @classmethod
    async def open(
        cls, spec: SqliteSpec, epoch: OwnEpoch, clock: Clock | None = None, letters: DeadLetters | None = None
    ) -> Self:
        """A source whose file has been read once. Raises SourceRefused when it is not what the spec says.

        What can't be forwarded, and what came too late to be, goes to `letters`.
        """
        source = cls(spec, epoch, clock, letters)
        try:
            await source._until_read(source._check)
            await source._until_read(source._look)
            source._turned = False
            source._holes.restart(source._head)
            if spec.dense and await source._until_read(source._has_recent_holes):
                await source._clock.sleep(PATIENCE)
        except BaseException:
            await source.close()
            raise
        return source

    async def close(self) -> None:
        """Remember the last event read, and let go of the file. May be called again."""
        if self._connection is not None or self._mark is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown(wait=False)

    @property
    def epoch(self) -> str:
        return self._epoch.value

    async def head(self) -> int | None:
        await self._until_read(self._look)
        self._turned = False
        return self._head or None

    async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
        try:
            events = await self._read(lambda: self._look_and_page(after, limit))
        except Unreadable as error:
            log.debug("%s: %s", self._spec.path, error)
            return []
        if self._turned:
            return []
        self._holes.note(self._head, self._clock.monotonic())
        if self._spec.dense:
            events = self._holes.ready(after, events)
        self._holes.passed(after, events)
        if events and (self._mark is None or events[-1].event_id > self._mark.event_id):
            self._mark = Mark(events[-1].event_id, _digest(events[-1].data))
            if self._clock.monotonic() - self._mark_saved >= MARK_SECONDS:
                self._mark_saved = self._clock.monotonic()
                await asyncio.to_thread(self._epoch.remember, self._mark)
        return events

    async def wait(self, after: int) -> None:
        pause = FASTEST
        while True:
            try:
                await self._read(self._look)
                first = await self._read(lambda: self._look_and_page(after, 1)) if self._head > after else []
            except Unreadable as error:
                await self._absence.wait(error)
                continue
            self._holes.note(self._head, self._clock.monotonic())
            if self._turned or (first and (not self._spec.dense or self._holes.ready(after, first))):
                return
            await self._clock.sleep(pause)
            pause = min(2 * pause, SLOWEST)

    async def peek(self) -> int | None:
        """The last id as it is now, noticing nothing. Raises Unreadable."""
        query = f"SELECT max({self._id}) {self._from} <= ?"
        row = await self._read(lambda: self._connected().execute(query, (MAX_EVENT_ID,)).fetchone())
        return row[0] or None

    async def knows(self, event_id: int, digest: str) -> bool | None:
        return None  # its owner may change a row; whether another file came in its place is seen by the mark

    async def renew_epoch(self) -> str:
        await asyncio.to_thread(self._epoch.renew)
        self._mark = None
        self._holes.restart(self._head)
        return self.epoch

    # --- on the event loop

    async def _read(self, work: Callable[[], _T]) -> _T:
        try:
            result = await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as error:
            raise Unreadable(_explain(error)) from None
        self._absence.over()
        return result

    async def _until_read(self, work: Callable[[], _T]) -> _T:
        while True:
            try:
                return await self._read(work)
            except Unreadable as error:
                await self._absence.wait(error)

    # --- on the thread

    def _check(self) -> None:
        """Raises SourceRefused unless table and columns are there and ids are whole numbers."""
        spec, connection = self._spec, self._connect()
        found = [row[0].decode() for row in connection.execute("SELECT name FROM pragma_table_xinfo(?)", (spec.table,))]
        if not found:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name")
            names = ", ".join(row[0].decode("utf-8", "replace") for row in tables) or "none"
            raise SourceRefused(f"{spec.path} has no table or view {spec.table!r}; it has {names}")
        needed = [spec.id_column, *(spec.members.values() or [spec.body])]
        # SQLite takes a quoted name that is no column for a text: it must be known to be one.
        for name in needed:
            if name.lower() not in {
                *(column.lower() for column in found),
                *(["rowid"] if name == spec.id_column else []),
            }:
                raise SourceRefused(
                    f"table {spec.table!r} of {spec.path} has no column {name!r}; it has {', '.join(found)}"
                )
        odd = f"SELECT typeof({self._id}) FROM {_quoted(spec.table)} WHERE typeof({self._id}) != 'integer' LIMIT 1"  # noqa: S608 - quoted
        try:
            row = connection.execute(odd).fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise
            raise SourceRefused(f"table {spec.table!r} of {spec.path} can't be read: {error}") from None
        if row is not None:
            advice = "name a column of rising whole numbers: id=COLUMN, or id=rowid"
            raise SourceRefused(f"column {spec.id_column!r} of {spec.path} holds {row[0].decode()}; {advice}")

    def _connect(self) -> sqlite3.Connection:
        facts = self._spec.path.stat()
        identity = (facts.st_dev, facts.st_ino)
        if self._connection is not None and identity == self._identity:
            return self._connection
        self._disconnect()
        connection = sqlite3.connect(
            f"file:{quote(str(self._spec.path.absolute()))}?mode=ro",
            uri=True,
            timeout=BUSY_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )
        connection.text_factory = bytes  # what is no UTF-8 is to become a tombstone, not an error of the page
        self._connection, self._identity, self._version = connection, identity, None
        return connection

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise FileNotFoundError
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _end(self) -> None:
        self._disconnect()
        if self._mark is not None:
            self._epoch.remember(self._mark)

    def _look(self, connection: sqlite3.Connection | None = None) -> None:
        """See what was written since the last look, and whether this is still the same life of the file.

        Inside a transaction the connection is given, and the file is read whether it has changed or not.
        """
        inside, connection = connection is not None, connection or self._connect()
        version = connection.execute("PRAGMA data_version").fetchone()[0]
        replaced = self._version is None
        if version == self._version and not inside:
            return
        head = connection.execute(f"SELECT max({self._id}) {self._from} <= ?", (MAX_EVENT_ID,)).fetchone()[0] or 0
        why = self._another_life(connection, head, replaced)
        self._head, self._version = head, version
        if why is not None:
            self._mark = None
            self._epoch.renew()
            self._holes.restart(head)
            self._turned = True
            log.warning(
                "%s went back in time (%s): epoch %s begins, all is sent again", self._spec.path, why, self.epoch
            )
        else:
            self._find_late(connection)

    def _another_life(self, connection: sqlite3.Connection, head: int, replaced: bool) -> str | None:
        mark = self._mark
        if mark is None:
            return None
        if head < mark.event_id:
            return f"its last event is {head}, but {mark.event_id} was read"
        if not replaced:
            return None
        row = connection.execute(f"{self._select} = ?", (mark.event_id,)).fetchone()
        if row is None:
            return f"event {mark.event_id} is gone"
        if _digest(self._event(_Row(row[0], row[1:]))) != mark.digest:
            return f"event {mark.event_id} is another one now"
        return None

    def _find_late(self, connection: sqlite3.Connection) -> None:
        for first, last in self._holes.closed:
            for event_id, *values in connection.execute(f"{self._select} BETWEEN ? AND ?", (first, last)).fetchall():
                text = self._text(_Row(event_id, tuple(values)))
                why = "it came after later events had been forwarded"
                self._letters.bury_now(self.epoch, event_id, text, why, replaced=False)
                self._holes.late(event_id)
                log.error(
                    "event %d of %s is not sent: %s; see bridge-client dead-letters", event_id, self._spec.path, why
                )

    def _has_recent_holes(self) -> bool:
        """Whether ids are missing among the last hundred: then a write may be under way that fills one."""
        query = f"SELECT count(*) {self._from} BETWEEN ? AND ?"
        first = max(1, self._head - 99)
        count = self._connect().execute(query, (first, self._head)).fetchone()[0]
        return bool(self._head) and count < self._head - first + 1

    def _look_and_page(self, after: int, limit: int) -> list[SourceEvent]:
        """Both in one snapshot: what is read belongs to the life of the file that was looked at."""
        connection = self._connect()
        connection.execute("BEGIN")
        try:
            self._look(connection)
            return [] if self._turned else self._page(connection, after, limit)
        finally:
            connection.execute("ROLLBACK")

    def _page(self, connection: sqlite3.Connection, after: int, limit: int) -> list[SourceEvent]:
        events: list[SourceEvent] = []
        size = 0
        previous: int | None = None
        cursor = connection.execute(
            f"{self._select} BETWEEN ? AND ? ORDER BY {self._id} LIMIT ?", (after + 1, MAX_EVENT_ID, limit)
        )
        try:
            for event_id, *values in cursor:
                if not events:
                    previous = connection.execute(f"SELECT max({self._id}) {self._from} < ?", (event_id,)).fetchone()[0]
                    if previous is not None and previous < 1:
                        previous = None
                    if previous is None and event_id > 1:
                        previous = event_id - 1  # rows may have been removed before anybody looked
                data = self._event(_Row(event_id, tuple(values)))
                events.append(SourceEvent(event_id, previous, data))
                previous, size = event_id, size + len(data)
                if size >= MAX_PAGE_BYTES:
                    break
        finally:
            cursor.close()  # ends the read transaction, which would keep their WAL from being reused
        return events

    def _event(self, row: _Row) -> bytes:
        try:
            text = self._made_of_columns(row.values) if self._spec.members else _bytes(row.values[0])
            return place(text, row.event_id, self._spec.type)[1]
        except InvalidEvent as error:
            if self._letters.bury_now(self.epoch, row.event_id, self._text(row), str(error)):
                log.error("event %d of %s can't be forwarded: %s", row.event_id, self._spec.path, error)
            return tombstone(row.event_id, str(error))

    def _text(self, row: _Row) -> bytes:
        """What a row holds, for people: the event's text, whatever it is."""
        if self._spec.members:
            return self._made_of_columns(row.values)
        value = row.values[0]
        return value if isinstance(value, bytes) else b"" if value is None else str(value).encode()

    def _made_of_columns(self, values: tuple[Any, ...]) -> bytes:
        members = []
        for (member, column), value in zip(self._spec.members.items(), values, strict=True):
            if value is None:
                continue
            if column in self._spec.json_columns:
                text = _bytes(value)
            else:
                plain = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                text = json.dumps(plain, ensure_ascii=False, allow_nan=False).encode() if _finite(plain) else b"null"
            members.append(json.dumps(member).encode() + b":" + text)
        return b"{" + b",".join(members) + b"}"


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise InvalidEvent(f"the column holds {'nothing' if value is None else 'a number'}, not the text of a JSON object")


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or value - value == 0


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _column(name: str) -> str:
    return "rowid" if name.lower() == "rowid" else _quoted(name)


def _explain(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    advice = {
        sqlite3.SQLITE_BUSY: "its owner holds it locked",
        sqlite3.SQLITE_NOTADB: "it is no SQLite file",
        sqlite3.SQLITE_CORRUPT: "it is damaged",
        sqlite3.SQLITE_CANTOPEN: "it may not be read, or its -wal and -shm may not",
    }.get(code)
    return f"can't be read: {error}" + (f" ({advice})" if advice else "")
