"""What apps have asked, in the file of the event store: ids with their answers for a day, and the audit."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from bridge_client.requests import KEPT_SECONDS, MAX_AUDITED, MAX_KEPT, MAX_KEPT_BYTES, Answer, Audited, Full, Kept
from bridge_client.store.sqlite import SqliteStore

_HEADERS: Final = msgspec.json.Decoder(dict[str, str])


class SqliteAnswers:
    """`Answers` in the file of a SqliteStore, which stays the caller's to close."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def begin(self, device_id: str, request_id: str, fingerprint: bytes, line: Audited) -> Kept | None:
        def apply(file: sqlite3.Connection, _: Sequence[Any]) -> Kept | None:
            file.execute("DELETE FROM device_requests WHERE begun_at < ?", (line.at - KEPT_SECONDS,))
            key = (device_id, request_id)
            row = file.execute(
                "SELECT fingerprint, status, headers, body FROM device_requests WHERE device_id = ? AND request_id = ?",
                key,
            ).fetchone()
            if row is not None:
                known, status, headers, body = row
                return Kept(known, None if status is None else Answer(status, _HEADERS.decode(headers), body))
            count, size = file.execute(
                "SELECT count(*), coalesce(sum(size), 0) FROM device_requests WHERE device_id = ?", (device_id,)
            ).fetchone()
            if count >= MAX_KEPT or size >= MAX_KEPT_BYTES:
                raise Full
            file.execute(
                "INSERT INTO device_requests (device_id, request_id, fingerprint, begun_at, line, size)"
                " VALUES (?, ?, ?, ?, ?, 0)",
                (*key, fingerprint, line.at, _write(file, line)),
            )
            return None

        kept: Kept | None = (await self._store.transact([], apply)).value
        return kept

    async def finish(self, device_id: str, request_id: str, answer: Answer) -> None:
        def apply(file: sqlite3.Connection, _: Sequence[Any]) -> None:
            headers = msgspec.json.encode(answer.headers)
            file.execute(
                "UPDATE device_requests SET status = ?, headers = ?, body = ?, size = ?"
                " WHERE device_id = ? AND request_id = ?",
                (answer.status, headers, answer.body, len(answer.body), device_id, request_id),
            )
            file.execute(
                "UPDATE request_audit SET outcome = ? WHERE id ="
                " (SELECT line FROM device_requests WHERE device_id = ? AND request_id = ?)",
                (str(answer.status), device_id, request_id),
            )

        await self._store.transact([], apply)

    async def audit(self, line: Audited) -> None:
        await self._store.transact([], lambda file, _: _write(file, line))

    async def audited(self, limit: int) -> Sequence[Audited]:
        def read(file: sqlite3.Connection) -> list[Audited]:
            query = "SELECT at, device_id, method, path, outcome FROM request_audit ORDER BY id DESC LIMIT ?"
            return [Audited(*row) for row in file.execute(query, (limit,))]

        return await self._store.query(read)


def _write(file: sqlite3.Connection, line: Audited) -> int:
    query = "INSERT INTO request_audit (at, device_id, method, path, outcome) VALUES (?, ?, ?, ?, ?)"
    written = file.execute(query, line).lastrowid
    assert written is not None
    file.execute("DELETE FROM request_audit WHERE id <= ?", (written - MAX_AUDITED,))
    return written
