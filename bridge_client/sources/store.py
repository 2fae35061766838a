"""An event store in this process as a source.

The store's file may be restored from a backup while it is open: the store says so, or else it shows by the last event
given, under whose id it then holds another one. That is another history, and another epoch begins.
"""

import logging
from hashlib import sha256

from bridge_client.sources import SourceEvent
from bridge_client.store import EventStore, Stored

log = logging.getLogger(__name__)


class StoreSource:
    """`Source` over an `EventStore`, which stays the caller's to close."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._given: Stored | None = None  # the last event given: one of the store's, so the one before the next
        self._restored = store.restored
        self._turned = False  # another epoch began, and nobody has asked for the head since

    @property
    def epoch(self) -> str:
        return self._store.epoch

    async def head(self) -> int | None:
        self._turned = False
        return await self._store.head()

    async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
        if self._turned:
            return []
        given = self._given if self._given is not None and self._given.event_id == after else None
        events = self._store.recent(after, limit)
        if events is None:
            # With the one given last, to see in one look that what follows it belongs to the same history.
            overlap = 0 if given is None else 1
            found = await self._store.list(since_id=after - overlap, limit=limit + overlap)
            # Sorted because any store may stand here, also one that keeps the order less well than ours.
            events = sorted(found)
            if given is not None and events and events[0].event_id != after:
                given = None  # removed to make room, maybe more behind it with it: the store knows what comes before
            elif given is not None and events:
                if events.pop(0).data != given.data:
                    await self._turn(f"event {after} is another one now")
                    return []
                if not events:  # the largest page there can be holds one event, which was that one
                    events = sorted(await self._store.list(since_id=after, limit=limit))
        if not events:
            return []
        previous = after if given is not None else await self._store.preceding(events[0].event_id - 1)
        page = []
        for event in events:
            page.append(SourceEvent(event.event_id, previous, event.data))
            previous = event.event_id
        self._given = events[-1]
        return page

    async def wait(self, after: int) -> None:
        if not self._turned and self._store.restored == self._restored:
            await self._store.wait(after)
        if not self._turned and self._store.restored != self._restored:
            await self._turn("a copy was restored into its file")

    async def knows(self, event_id: int, digest: str) -> bool | None:
        found = await self._store.list(since_id=event_id - 1, limit=1)
        if not found or found[0].event_id != event_id:
            return None  # every id up to the head was an event: this one was removed, as old ones may be
        return sha256(found[0].data).hexdigest() == digest

    async def renew_epoch(self) -> str:
        self._given = None
        epoch = await self._store.renew_epoch()
        self._restored = self._store.restored
        return epoch

    async def _turn(self, why: str) -> None:
        epoch = await self.renew_epoch()
        self._turned = True
        log.warning("the event store went back in time (%s): it begins epoch %s, all is sent again", why, epoch)
