"""What stands in for an event that can't be forwarded: a tombstone, in its place and under its id.

So order and cursor stay whole, and whoever reads a source to send it (the forwarder, a refill, a page of the past) says
the same of an event each time.
"""

from hashlib import sha256
from typing import Any, Final, Protocol

import msgspec

from bridge_client.sources import Source, SourceEvent

TOMBSTONE: Final = "unforwardable"
"""The `type` of what stands in for an event that can't travel."""


def tombstone(event_id: int, reason: str, session_id: str | None = None) -> bytes:
    """What goes out in the place of an event that can't."""
    members: dict[str, Any] = {"event_id": str(event_id), "type": TOMBSTONE}
    if session_id is not None:
        members["session_id"] = session_id
    return msgspec.json.encode(members | {"reason": reason[:200]})


class Tombstones(Protocol):
    """Which events are dead, and what stands in for them (`bridge_client.dead_letters.DeadLetters`)."""

    def tombstone(self, epoch: str, event_id: int) -> bytes | None:
        """What goes out in the place of that event, None while it is alive. Always the same bytes."""


class Tombstoned:
    """`Source` over another one."""

    def __init__(self, source: Source, tombstones: Tombstones) -> None:
        self._source = source
        self._tombstones = tombstones

    @property
    def epoch(self) -> str:
        return self._source.epoch

    async def head(self) -> int | None:
        return await self._source.head()

    async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
        page = await self._source.page(after, limit)
        for place, event in enumerate(page):
            stone = self._tombstones.tombstone(self._source.epoch, event.event_id)
            if stone is not None:
                page[place] = event._replace(data=stone)
        return page

    async def wait(self, after: int) -> None:
        await self._source.wait(after)

    async def knows(self, event_id: int, digest: str) -> bool | None:
        stone = self._tombstones.tombstone(self._source.epoch, event_id)
        if stone is not None and sha256(stone).hexdigest() == digest:
            return True
        return await self._source.knows(event_id, digest)

    async def renew_epoch(self) -> str:
        return await self._source.renew_epoch()
