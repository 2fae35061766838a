"""The live tier in this process's memory: gone with it."""

from bisect import bisect_right

from bridge_server.history import Kept

_OVERHEAD = 250
"""Bytes one event costs beside its data (the objects that hold it)."""


class MemoryLog:
    """Events in two parallel lists, evicted from a moving start; bounded by count, bytes and age.

    `append` and eviction are O(1) amortised (the dead start is cut off when it is half of the list), a page is
    O(log n + its length).
    """

    def __init__(self, floor: int, max_events: int, max_bytes: int, max_age: float) -> None:
        self.floor = floor
        self.head = floor
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._max_age = max_age
        self._ids: list[int] = []
        self._events: list[Kept | None] = []
        self._start = 0
        self._bytes = 0

    def append(self, event: Kept) -> None:
        """See the contract. The newest event is kept even if it alone is over the budget."""
        self._ids.append(event.event_id)
        self._events.append(event)
        self._bytes += len(event.data) + _OVERHEAD
        self.head = event.event_id
        while len(self._ids) - self._start > self._max_events or (
            self._bytes > self._max_bytes and len(self._ids) - self._start > 1
        ):
            self._evict()

    def page(self, after: int, to: int, max_bytes: int) -> list[Kept] | None:
        """See the contract."""
        if after < self.floor:
            return None
        start = bisect_right(self._ids, after, self._start)
        stop = bisect_right(self._ids, to, start)
        page: list[Kept] = []
        size = 0
        for index in range(start, stop):
            event = self._events[index]
            assert event is not None  # only what lies before _start was evicted
            size += len(event.data)
            if page and size > max_bytes:
                break
            page.append(event)
        return page

    def expire(self, now: float) -> None:
        """See the contract."""
        while self._start < len(self._ids):
            oldest = self._events[self._start]
            if oldest is None or now - oldest.at <= self._max_age:
                return
            self._evict()

    def _evict(self) -> None:
        event = self._events[self._start]
        assert event is not None
        self._events[self._start] = None
        self._start += 1
        self._bytes -= len(event.data) + _OVERHEAD
        self.floor = event.event_id
        if self._start > 64 and self._start * 2 > len(self._ids):
            del self._ids[: self._start]
            del self._events[: self._start]
            self._start = 0


class MemoryHistory:
    """Makes logs with one set of bounds: events, bytes (data and overhead) and seconds per home."""

    def __init__(self, max_events: int = 10_000, max_bytes: int = 8 * 2**20, max_age: float = 86_400) -> None:
        self._bounds = (max_events, max_bytes, max_age)

    def open(self, server_id: str, floor: int) -> MemoryLog:
        """See the contract."""
        return MemoryLog(floor, *self._bounds)
