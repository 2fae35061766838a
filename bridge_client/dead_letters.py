"""Events that the hub will not take, kept for their owner: listed, shown, published anew, dropped.

They lie in one SQLite file: the event store itself, or a file of their own beside the cursor of a source that is not
ours. A row outlives its event's text (dropped, sent anew, or pushed out by newer ones): it says that a tombstone stands
in the event's place, which has to be the same each time the place is sent again.

An event counts once: buried again under a later epoch of its store, it moves there.
"""

import asyncio
import logging
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Struct

from bridge_client.clock import Clock, SystemClock
from bridge_client.store import StoreError
from bridge_client.tombstones import tombstone

MOST_LETTERS: Final = 1_000
MOST_BYTES: Final = 64 << 20
"""What is kept of dead events at most, whichever is reached first: the oldest text goes, and the log says so."""

MOST_ROWS: Final = 10_000
"""Places in which a tombstone is known to stand. What is older is tried again when it has to be sent again."""

LONGEST_SESSION: Final = 256
"""Characters of a `session_id` that a tombstone repeats; it has to be small, whatever killed the event."""

TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS dead_letters (
        number INTEGER PRIMARY KEY AUTOINCREMENT,
        epoch TEXT NOT NULL,
        event_id INTEGER NOT NULL,
        at REAL NOT NULL,
        reason TEXT NOT NULL,
        type TEXT,
        session_id TEXT,
        size INTEGER NOT NULL,
        replaced INTEGER NOT NULL,
        data BLOB,
        UNIQUE (epoch, event_id)
    )""",
)
"""What has to be in the file; an event store has it by itself."""

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_Letters = list["Letter"]  # inside the class, `list` is a method

_MEMORY: Final = Path(":memory:")
_COLUMNS: Final = "number, epoch, event_id, at, reason, type, session_id, size, replaced, data"


class Letter(NamedTuple):
    """One event that could not be forwarded."""

    number: int
    """What its owner calls it by; rises with time."""
    epoch: str
    event_id: int
    at: float
    """When it was given up, in wall clock seconds."""
    reason: str
    type: str | None
    session_id: str | None
    size: int
    replaced: bool
    """Whether a tombstone went out in its place; it did not where the event came too late to have a place."""
    data: bytes
    """The event as its source has it, which may be no JSON at all."""


class _Head(Struct):
    type: Any = None
    session_id: Any = None


_HEAD: Final = msgspec.json.Decoder(_Head)


class DeadLetters:
    """The dead events of one source. Made by `open`; also a `Tombstones`. Methods raise StoreError."""

    def __init__(self, connection: sqlite3.Connection, path: Path, clock: Clock | None = None) -> None:
        self._connection = connection
        self._path = path
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._stones: dict[tuple[str, int], tuple[str, str | None]] = {}
        self._limit: int | None = None  # as noted last by this process

    @classmethod
    async def open(cls, connect: Callable[[], sqlite3.Connection], path: Path, clock: Clock | None = None) -> Self:
        """Those kept in the SQLite file `path`, to which `connect` gives a connection in a thread of its choice."""
        return await asyncio.to_thread(cls._open, connect, path, clock)

    @classmethod
    def in_memory(cls, clock: Clock | None = None) -> Self:
        """Those of this process alone, gone with whoever holds them: they need not be closed."""
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for statement in TABLES:
            connection.execute(statement)
        letters = cls(connection, _MEMORY, clock)
        weakref.finalize(letters, connection.close)
        return letters

    @classmethod
    def _open(cls, connect: Callable[[], sqlite3.Connection], path: Path, clock: Clock | None) -> Self:
        letters = cls(connect(), path, clock)
        try:
            query = "SELECT epoch, event_id, reason, session_id FROM dead_letters WHERE replaced"
            rows = letters._connection.execute(query)
            letters._stones = {(epoch, number): (reason, session) for epoch, number, reason, session in rows}
        except sqlite3.Error as error:
            letters._connection.close()
            raise _unusable(path, error) from error
        return letters

    async def close(self) -> None:
        """Let go of the file."""
        await asyncio.to_thread(self._connection.close)

    # For those who send.

    def tombstone(self, epoch: str, event_id: int) -> bytes | None:
        """What stands in for that event, None where none does."""
        stone = self._stones.get((epoch, event_id))
        if stone is None:
            return None
        reason, session_id = stone
        fits = session_id is not None and len(session_id) <= LONGEST_SESSION
        return tombstone(event_id, reason, session_id if fits else None)

    async def bury(self, epoch: str, event_id: int, data: bytes, reason: str, *, replaced: bool = True) -> bool:
        """Keep an event that can't be forwarded; on the disk when this returns. False if it is kept already.

        From now on a tombstone stands in its place, unless it is not `replaced`.
        """
        return await self._do(lambda: self.bury_now(epoch, event_id, data, reason, replaced=replaced))

    def bury_now(self, epoch: str, event_id: int, data: bytes, reason: str, *, replaced: bool = True) -> bool:
        """`bury`, for a thread that may block. Raises sqlite3.Error."""
        if (epoch, event_id) in self._stones:
            return False
        type, session_id = _read_head(data)
        row = (epoch, event_id, self._clock.wall(), reason, type, session_id, len(data), replaced, data)
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                again = "DELETE FROM dead_letters WHERE event_id = ? AND epoch <> ? AND data = ?"
                self._connection.execute(again, (event_id, epoch, data))
                columns = _COLUMNS.removeprefix("number, ")
                insert = f"INSERT OR IGNORE INTO dead_letters ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
                fresh = self._connection.execute(insert, row).rowcount > 0
                pushed_out = self._make_room()
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            if replaced:
                self._stones[epoch, event_id] = (reason, session_id)
        for number, old in pushed_out:
            log.warning(
                "too many dead letters: number %d (event %d) is dropped, which was the oldest kept in %s",
                number,
                old,
                self._path,
            )
        return fresh

    async def note_limit(self, max_event_bytes: int) -> None:
        """Remember the longest event that the hub takes, as it said last. Never raises: it is for advice only."""
        if max_event_bytes == self._limit:
            return
        query = (
            "INSERT INTO about VALUES ('hub_max_event_bytes', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
            " WHERE value <> excluded.value"
        )
        try:
            await self._do(lambda: self._connection.execute(query, (str(max_event_bytes),)))
            self._limit = max_event_bytes
        except StoreError as error:
            log.warning("%s", error)

    # For their owner.

    async def limit(self) -> int | None:
        """The longest event that the hub takes, as it said last; None before it was ever reached."""
        query = "SELECT value FROM about WHERE key = 'hub_max_event_bytes'"
        row = await self._do(lambda: self._connection.execute(query).fetchone())
        return None if row is None else int(row[0])

    async def count(self) -> int:
        """How many there are."""
        query = "SELECT count(*) FROM dead_letters WHERE data IS NOT NULL"
        row = await self._do(lambda: self._connection.execute(query).fetchone())
        return int(row[0])

    async def list(self) -> _Letters:
        """All of them, oldest first."""
        query = f"SELECT {_COLUMNS} FROM dead_letters WHERE data IS NOT NULL ORDER BY number"  # noqa: S608 - a constant
        rows = await self._do(lambda: self._connection.execute(query).fetchall())
        return [_letter(row) for row in rows]

    async def get(self, number: int) -> Letter | None:
        """The one with this number."""
        query = f"SELECT {_COLUMNS} FROM dead_letters WHERE data IS NOT NULL AND number = ?"  # noqa: S608 - a constant
        row = await self._do(lambda: self._connection.execute(query, (number,)).fetchone())
        return None if row is None else _letter(row)

    async def drop(self, number: int) -> bool:
        """Forget the event; the tombstone stays. Whether it was there."""
        query = "UPDATE dead_letters SET data = NULL WHERE number = ? AND data IS NOT NULL"
        return await self._do(lambda: self._connection.execute(query, (number,)).rowcount) > 0

    def _make_room(self) -> Sequence[tuple[int, int]]:
        query = "SELECT number, event_id, size FROM dead_letters WHERE data IS NOT NULL ORDER BY number DESC"
        letters = self._connection.execute(query).fetchall()
        kept = size = 0
        for _, _, one in letters:
            size += one
            if kept and (kept == MOST_LETTERS or size > MOST_BYTES):
                break
            kept += 1
        pushed_out = [(number, event_id) for number, event_id, _ in letters[kept:]]
        self._connection.executemany(
            "UPDATE dead_letters SET data = NULL WHERE number = ?", [(number,) for number, _ in pushed_out]
        )
        self._connection.execute(
            "DELETE FROM dead_letters WHERE number <= (SELECT max(number) FROM dead_letters) - ?", (MOST_ROWS,)
        )
        return pushed_out

    async def _do(self, work: Callable[[], _T]) -> _T:
        try:
            return work() if self._path == _MEMORY else await asyncio.to_thread(work)
        except sqlite3.Error as error:
            raise _unusable(self._path, error) from error


def _unusable(path: Path, error: Exception) -> StoreError:
    return StoreError(f"can't use the dead letters in {path}: {error}; check the disk and its free space")


def plain_text(letter: Letter) -> bytes:
    """The event without the id that our store gave it: what can be published anew. Raises StoreError."""
    start = b'{"event_id":"%d",' % letter.event_id
    if not letter.data.startswith(start):
        raise StoreError(f"dead letter {letter.number} is no event of this store; read it with: dead-letters show")
    return b"{" + letter.data.removeprefix(start)


def _letter(row: Sequence[Any]) -> Letter:
    number, epoch, event_id, at, reason, type, session_id, size, replaced, data = row
    return Letter(number, epoch, event_id, at, reason, type, session_id, size, bool(replaced), data)


def _read_head(data: bytes) -> tuple[str | None, str | None]:
    try:
        head = _HEAD.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, None
    type, session_id = (value if isinstance(value, str) else None for value in (head.type, head.session_id))
    return type, session_id
