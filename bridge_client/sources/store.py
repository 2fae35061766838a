"""An event store in this process as a source."""

from bridge_client.sources import SourceEvent
from bridge_client.store import EventStore


class StoreSource:
    """`Source` over an `EventStore`, which stays the caller's to close."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._given: int | None = None  # the last id given: one of the store's, so the one before the next

    @property
    def epoch(self) -> str:
        return self._store.epoch

    async def head(self) -> int | None:
        return await self._store.head()

    async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
        events = self._store.recent(after, limit)
        if events is None:
            # Sorted because any store may stand here, also one that keeps the order less well than ours.
            events = sorted(await self._store.list(since_id=after, limit=limit))
        if not events:
            return []
        previous = after if after == self._given else await self._store.preceding(events[0].event_id - 1)
        page = []
        for event_id, data in events:
            page.append(SourceEvent(event_id, previous, data))
            previous = self._given = event_id
        return page

    async def wait(self, after: int) -> None:
        await self._store.wait(after)

    async def renew_epoch(self) -> str:
        return await self._store.renew_epoch()
