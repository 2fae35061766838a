"""Application notifications in memory, for tests and for programs that embed a home; told in any event store."""

import asyncio
from collections.abc import Mapping
from typing import Any

from bridge_client import notification_rules as rules
from bridge_client.notification_rules import Record
from bridge_client.session_records import RecordMoved
from bridge_client.store import EventStore

_Listed = list[Record]  # inside the class, `list` is a method


class MemoryNotifications:
    """`ApplicationNotificationStore` in memory. Records go with the process; the events are the event store's."""

    def __init__(self, events: EventStore) -> None:
        self._events = events
        self._records: dict[str, Record] = {}  # by id, the last changed last
        self._changing = asyncio.Lock()

    async def apply(self, record: Record, before: Record | None, event: Mapping[str, Any]) -> None:
        async with self._changing:
            rival = await self.active(record["key"]) if rules.is_active(record) else None
            if self._records.get(record["id"]) != before or (rival is not None and rival["id"] != record["id"]):
                raise RecordMoved(record["id"])
            if before is None and rules.is_active(record):
                rules.check_room(sum(map(rules.is_active, self._records.values())))
            await self._events.publish(event)  # first: what fails leaves everything as it was
            self._records.pop(record["id"], None)
            self._records[record["id"]] = dict(record)
            ended = [id for id, one in self._records.items() if not rules.is_active(one)]
            for id in ended[: -rules.MAX_ENDED]:
                del self._records[id]

    async def get(self, notification_id: str) -> Record | None:
        return self._records.get(notification_id)

    async def active(self, key: str) -> Record | None:
        return next((one for one in self._records.values() if one["key"] == key and rules.is_active(one)), None)

    async def list(self, *, include_terminal: bool = False) -> _Listed:
        return rules.listed(list(self._records.values()), include_terminal=include_terminal)
