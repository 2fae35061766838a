"""Retention in the file of the event store: marks, the floor, and the removal of events in small transactions."""

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bridge_client.retention import (
    MARK_BYTES,
    MARK_EVENTS,
    MARK_SECONDS,
    STEP_BYTES,
    STEP_EVENTS,
    Extent,
    Mark,
    Removed,
    Rules,
    due,
)
from bridge_client.retention_report import Outlook
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_file import FLOOR

MARKS_AT_ONCE: Final = 20

FREE_SHARE: Final = 4
LEAST_FREE: Final = 4 << 20
"""Space is given back while more than one part in so many of the file is free, and more than so many bytes: what is
freed is mostly filled again soon, and giving it back only to take it anew would cost twice."""

_GIVE_BACK_PAGES: Final = 64
_INCREMENTAL: Final = 2

_SET_FLOOR: Final = (
    "INSERT INTO about VALUES ('floor', ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    " WHERE CAST(value AS INTEGER) < CAST(excluded.value AS INTEGER)"
)


class SqliteRetention:
    """`Stock` in the file of a SqliteStore, which stays the caller's to close."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def mark(self, now: float) -> bool:
        marks = await self._store.query(lambda file: _next_marks(file, now))
        if not marks:
            return False

        def apply(file: sqlite3.Connection, _: Sequence[Any]) -> None:
            last = _one(file, "SELECT max(id) FROM event_marks") or 0
            if last < marks[0].event_id:  # else another process has set them
                file.executemany("INSERT INTO event_marks VALUES (?, ?, ?, ?)", marks)

        await self._store.transact([], apply)
        return len(marks) == MARKS_AT_ONCE

    async def marks(self) -> Sequence[Mark]:
        query = "SELECT id, at, events, size FROM event_marks ORDER BY id"
        return await self._store.query(lambda file: [Mark(*row) for row in file.execute(query)])

    async def remove(self, to: Mark, acked: int) -> Removed:
        def apply(file: sqlite3.Connection, _: Sequence[Any]) -> Removed:
            here = file.execute("SELECT id, at, events, size FROM event_marks WHERE id = ?", (to.event_id,)).fetchone()
            return Removed(0, 0, False) if here != tuple(to) else _remove(file, min(to.event_id, acked - 1))

        removed: Removed = (await self._store.transact([], apply)).value
        return removed

    async def give_back(self) -> bool:
        def apply(file: sqlite3.Connection, _: Sequence[Any]) -> bool:
            if not _much_free(file):
                return False
            file.execute(f"PRAGMA incremental_vacuum({_GIVE_BACK_PAGES})").fetchall()  # each row it yields is a page
            return _much_free(file)

        more: bool = await self._store.query(_much_free) and (await self._store.transact([], apply)).value
        return more

    async def outlook(self, rules: Rules, now: float) -> Outlook:
        """What the store holds, and what of it may go by these rules. Raises StoreError."""
        extent = await self._store.query(lambda file: _extent(file, self._store.path))
        to = None if rules.keep_all else due(await self.marks(), rules, now)
        return Outlook(extent, rules, 0 if to is None else to.event_id)


def _one(file: sqlite3.Connection, query: str, *values: object) -> Any:
    return file.execute(query, values).fetchone()[0]


def _next_marks(file: sqlite3.Connection, now: float) -> list[Mark]:
    """Marks for what lies behind the last one; what is too little and too young for a mark waits for the next look."""
    last, at = file.execute("SELECT id, at FROM event_marks ORDER BY id DESC LIMIT 1").fetchone() or (0, 0.0)
    rows = file.execute("SELECT id, length(data) FROM events WHERE id > ? ORDER BY id", (last,))
    marks: list[Mark] = []
    events = size = newest = 0
    for newest, length in rows:
        events, size = events + 1, size + length
        if events == MARK_EVENTS or size >= MARK_BYTES:
            marks.append(Mark(newest, now, events, size))
            at, events, size = now, 0, 0
            if len(marks) == MARKS_AT_ONCE:
                break
    rows.close()
    if events and abs(now - at) >= MARK_SECONDS:
        marks.append(Mark(newest, now, events, size))
    return marks


def _remove(file: sqlite3.Connection, to: int) -> Removed:
    """One step of the events up to `to`, unless they are needed."""
    newest = _one(file, "SELECT max(id) FROM events") or 0
    needed = _one(file, "SELECT min(cursor_event_id) FROM sessions WHERE request_id IS NOT NULL")
    to = min(to, newest - 1, to if needed is None else needed)
    found = file.execute(
        "SELECT id, length(data) FROM events WHERE id <= ? ORDER BY id LIMIT ?", (to, STEP_EVENTS)
    ).fetchall()
    events = size = floor = 0
    for event_id, length in found:
        if events and size + length > STEP_BYTES:
            break
        events, size, floor = events + 1, size + length, event_id
    if events:
        file.execute("DELETE FROM events WHERE id <= ?", (floor,))
        file.execute("DELETE FROM event_marks WHERE id <= ?", (floor,))
        file.execute(_SET_FLOOR, (str(floor),))
    return Removed(events, floor, bool(events) and floor < to)


def _much_free(file: sqlite3.Connection) -> bool:
    """Whether the file has more free space than it should keep, and can give it back."""
    if _one(file, "PRAGMA auto_vacuum") != _INCREMENTAL:
        return False
    free = _one(file, "PRAGMA freelist_count")
    size: int = _one(file, "PRAGMA page_size")
    return bool(free * size > LEAST_FREE and free * FREE_SHARE > _one(file, "PRAGMA page_count"))


def _extent(file: sqlite3.Connection, path: Path) -> Extent:
    last, events, size = file.execute("SELECT max(id), sum(events), sum(size) FROM event_marks").fetchone()
    more, tail = file.execute("SELECT count(*), sum(length(data)) FROM events WHERE id > ?", (last or 0,)).fetchone()
    # Of what the first mark counted, a part may be gone.
    for first, events_then, size_then in file.execute("SELECT id, events, size FROM event_marks ORDER BY id LIMIT 1"):
        left, bytes_left = file.execute(
            "SELECT count(*), coalesce(sum(length(data)), 0) FROM events WHERE id <= ?", (first,)
        ).fetchone()
        events, size = events + left - events_then, size + bytes_left - size_then
    oldest = _one(file, "SELECT min(id) FROM events")
    row = file.execute("SELECT at FROM event_marks WHERE id >= ? ORDER BY id LIMIT 1", (oldest or 0,)).fetchone()
    page: int = _one(file, "PRAGMA page_size")
    main, wal = (os.stat(name).st_size if os.path.exists(name) else 0 for name in (path, f"{path}-wal"))
    return Extent(
        events=(events or 0) + more,
        size=(size or 0) + (tail or 0),
        oldest=oldest,
        oldest_at=None if oldest is None or row is None else row[0],
        floor=_one(file, FLOOR),
        file_size=main + wal,
        free=page * int(_one(file, "PRAGMA freelist_count")),
        gives_back=_one(file, "PRAGMA auto_vacuum") == _INCREMENTAL,
        wal=wal,
    )
