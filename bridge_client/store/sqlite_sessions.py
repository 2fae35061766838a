"""Sessions in the file of the event store, so that a change and its events are one transaction."""

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from bridge_client.session_records import Change, RecordMoved, SessionRecord, Snapshot
from bridge_client.store import Stored
from bridge_client.store.sqlite import SqliteStore


class _About(Struct, omit_defaults=True):
    agent_id: str
    created_at: str
    updated_at: str
    metadata: dict[str, Any] = {}
    source_session_id: str | None = None


_decode_about: Final = msgspec.json.Decoder(_About).decode
_encode: Final = msgspec.json.encode
_COLUMNS: Final = "session_id, revision, cursor_event_id, request_id, message_count, message_bytes, about"
_Records = list[SessionRecord]  # inside the class, `list` is a method


class SqliteSessions:
    """`SessionRecords` in the file of a SqliteStore, which stays the caller's to close."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def apply(self, change: Change) -> tuple[SessionRecord, Sequence[Stored]]:
        written = await self._store.transact(change.events, _applying(change))
        return written.value, written.stored

    async def get(self, session_id: str) -> SessionRecord | None:
        return await self._store.query(lambda file: _find(file, session_id))

    async def snapshot(self, session_id: str, offset: int, limit: int, max_bytes: int) -> Snapshot | None:
        def read(file: sqlite3.Connection) -> Snapshot | None:
            record = _find(file, session_id)
            if record is None:
                return None
            start = max(0, record.message_count + offset) if offset < 0 else offset
            messages: list[bytes] = []
            room = max_bytes
            rows = file.execute(
                "SELECT data FROM session_messages WHERE session_id = ? ORDER BY position LIMIT ? OFFSET ?",
                (session_id, limit, start),
            )
            for (data,) in rows:
                room -= len(data)
                if messages and room < 0:
                    break
                messages.append(data)
            rows.close()
            return Snapshot(record, start, messages)

        return await self._store.query(read)

    async def list(self, before: int | None, limit: int) -> _Records:
        bound = "" if before is None else "WHERE cursor_event_id < ?"
        values = (limit,) if before is None else (before, limit)
        return await self._select(f"{bound} ORDER BY cursor_event_id DESC LIMIT ?", values)

    async def with_request(self) -> _Records:
        return await self._select("WHERE request_id IS NOT NULL ORDER BY cursor_event_id", ())

    async def count(self) -> int:
        def read(file: sqlite3.Connection) -> int:
            found: int = file.execute("SELECT count(*) FROM sessions").fetchone()[0]
            return found

        return await self._store.query(read)

    async def _select(self, rest: str, values: tuple[int, ...]) -> _Records:
        query = f"SELECT {_COLUMNS} FROM sessions {rest}"  # noqa: S608 - of this module's own texts
        return await self._store.query(lambda file: [_record(row) for row in file.execute(query, values)])


def _find(file: sqlite3.Connection, session_id: str) -> SessionRecord | None:
    query = f"SELECT {_COLUMNS} FROM sessions WHERE session_id = ?"  # noqa: S608
    row = file.execute(query, (session_id,)).fetchone()
    return None if row is None else _record(row)


def _record(row: Sequence[Any]) -> SessionRecord:
    session_id, revision, cursor, request_id, count, size, text = row
    about = _decode_about(text)
    return SessionRecord(
        session_id=session_id,
        agent_id=about.agent_id,
        created_at=about.created_at,
        updated_at=about.updated_at,
        metadata=about.metadata,
        source_session_id=about.source_session_id,
        request_id=request_id,
        revision=revision,
        cursor_event_id=cursor,
        message_count=count,
        message_bytes=size,
    )


def _applying(change: Change) -> Callable[[sqlite3.Connection, Sequence[Stored]], SessionRecord]:
    wanted = change.record
    session_id = wanted.session_id
    about = _encode(
        _About(wanted.agent_id, wanted.created_at, wanted.updated_at, wanted.metadata, wanted.source_session_id)
    )

    def apply(file: sqlite3.Connection, stored: Sequence[Stored]) -> SessionRecord:
        found = _find(file, session_id)
        if (0 if found is None else found.revision) != wanted.revision:
            raise RecordMoved(session_id)
        count, size, cursor = (found.message_count, found.message_bytes, found.cursor_event_id) if found else (0, 0, 0)
        if change.copy_from is not None:
            more, bytes_more = _copy(file, change)
            count, size = count + more, size + bytes_more
        if change.replace is not None:
            size += _replace(file, session_id, *change.replace)
        if change.delete:
            count, size = count - len(change.delete), size - _delete(file, session_id, change.delete)
        if change.append:
            _append(file, session_id, change.append)
            count, size = count + len(change.append), size + sum(map(len, change.append))
        if change.cursor_at is not None:
            cursor = stored[change.cursor_at].event_id
        row = (session_id, wanted.revision + 1, cursor, wanted.request_id, count, size, about)
        file.execute(f"INSERT OR REPLACE INTO sessions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608
        return _record(row)

    return apply


def _copy(file: sqlite3.Connection, change: Change) -> tuple[int, int]:
    assert change.copy_from is not None
    source = _find(file, change.copy_from)
    if source is None or source.revision != change.copy_revision:
        raise RecordMoved(change.copy_from)
    file.execute(
        "INSERT INTO session_messages SELECT ?, position, data FROM session_messages WHERE session_id = ?",
        (change.record.session_id, source.session_id),
    )
    return source.message_count, source.message_bytes


def _replace(file: sqlite3.Connection, session_id: str, index: int, data: bytes) -> int:
    position, before = file.execute(
        "SELECT position, length(data) FROM session_messages WHERE session_id = ? ORDER BY position LIMIT 1 OFFSET ?",
        (session_id, index),
    ).fetchone()
    file.execute(
        "UPDATE session_messages SET data = ? WHERE session_id = ? AND position = ?", (data, session_id, position)
    )
    return len(data) - int(before)


def _delete(file: sqlite3.Connection, session_id: str, indices: Sequence[int]) -> int:
    rows = file.execute(
        "SELECT position, length(data) FROM session_messages WHERE session_id = ? ORDER BY position", (session_id,)
    ).fetchall()
    gone = [rows[index] for index in indices]
    file.executemany(
        "DELETE FROM session_messages WHERE session_id = ? AND position = ?",
        [(session_id, position) for position, _ in gone],
    )
    return sum(size for _, size in gone)


def _append(file: sqlite3.Connection, session_id: str, messages: Sequence[bytes]) -> None:
    last = file.execute("SELECT max(position) FROM session_messages WHERE session_id = ?", (session_id,)).fetchone()[0]
    file.executemany(
        "INSERT INTO session_messages VALUES (?, ?, ?)",
        [(session_id, position, data) for position, data in enumerate(messages, (last or 0) + 1)],
    )
