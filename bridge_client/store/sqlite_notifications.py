"""Application notifications in the file of the event store (rows A126 to A129)."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bridge_client import notification_rules as rules
from bridge_client.event_json import repair_text
from bridge_client.notification_rules import Record
from bridge_client.session_records import RecordMoved
from bridge_client.store.sqlite import SqliteStore

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode

_Listed = list[Record]  # inside the class, `list` is a method


class SqliteNotifications:
    """`ApplicationNotificationStore` in the file of a SqliteStore, which stays the caller's to close."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def apply(self, record: Record, before: Record | None, event: Mapping[str, Any]) -> None:
        id, key, active, data = record["id"], record["key"], rules.is_active(record), msgspec.json.encode(record)

        def change(file: sqlite3.Connection, _: Sequence[Any]) -> None:
            rival = _one(file, "key = ? AND active", key) if active else None
            if _one(file, "id = ?", id) != before or (rival is not None and rival["id"] != id):
                raise RecordMoved(id)
            if before is None and active:
                count = "SELECT count(*) FROM application_notifications WHERE active"
                rules.check_room(file.execute(count).fetchone()[0])
            last = file.execute("SELECT coalesce(max(number), 0) FROM application_notifications").fetchone()[0]
            file.execute(
                "INSERT INTO application_notifications (number, id, key, active, data) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (id) DO UPDATE"
                " SET number = excluded.number, active = excluded.active, data = excluded.data",
                (last + 1, id, key, active, data),  # the number says which was changed last
            )
            file.execute(
                "DELETE FROM application_notifications WHERE NOT active AND number <= (SELECT number FROM"
                " application_notifications WHERE NOT active ORDER BY number DESC LIMIT 1 OFFSET ?)",
                (rules.MAX_ENDED,),
            )

        await self._store.transact([event], change)

    async def get(self, notification_id: str) -> Record | None:
        return await self._store.query(lambda file: _one(file, "id = ?", notification_id))

    async def active(self, key: str) -> Record | None:
        return await self._store.query(lambda file: _one(file, "key = ? AND active", key))

    async def list(self, *, include_terminal: bool = False) -> _Listed:
        which = "" if include_terminal else "WHERE active"
        query = f"SELECT data FROM application_notifications {which} ORDER BY number DESC"  # noqa: S608
        return await self._store.query(lambda file: [_decode(row[0]) for row in file.execute(query)])


def _one(file: sqlite3.Connection, condition: str, value: str) -> Record | None:
    query = f"SELECT data FROM application_notifications WHERE {condition}"  # noqa: S608
    row = file.execute(query, (repair_text(value),)).fetchone()
    return None if row is None else _decode(row[0])
