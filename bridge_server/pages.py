"""Pages of homes' pasts while apps read them: what a page is, what bounds them, and the cache that all homes share."""

import asyncio
from bisect import bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from bridge_server.history import Kept
from bridge_server.metrics import Reading

_OVERHEAD: Final = 250  # bytes an event costs beside its data, as in the live tier

_T = TypeVar("_T")


class Limits(NamedTuple):
    """The bounds of backfill. Bytes are those of the events themselves, times are seconds."""

    page_events: int = 500
    """Events asked for at a time."""
    page_bytes: int = 256 * 1024
    """Most that a page may hold, unless it is one event."""
    page_seconds: float = 10.0
    """How long a home may take over one page."""
    home_fetches: int = 2
    """Pages under way from one home at a time; from them one for each device."""
    mute_seconds: float = 30.0
    """How long a home is not asked after it failed."""
    part_bytes: int = 64 * 1024
    """What an app is handed at a time."""
    cache_bytes: int = 32 * 2**20
    """Pages of all homes together, while somebody reads them."""
    device_burst: int = 64 * 2**20
    """What a device may read at full speed."""
    device_rate: int = 4 * 2**20
    """Bytes a second at which it goes on, and at which the allowance comes back."""


class Page(NamedTuple):
    """All events of a home with `after < id <= to`."""

    after: int
    to: int
    events: Sequence[Kept]

    @property
    def size(self) -> int:
        """What it costs to hold."""
        return _OVERHEAD + sum(len(event.data) + _OVERHEAD for event in self.events)

    def part(self, place: int, to: int, most: int) -> tuple[list[Kept], int]:
        """The events behind `place` up to `to`, at least one if there is one, then up to `most` bytes; where they end.

        `place` lies in the page.
        """
        part: list[Kept] = []
        size = 0
        for event in self.events[bisect_right(self.events, place, key=lambda kept: kept.event_id) :]:
            size += len(event.data)
            if event.event_id > to:
                return part, to
            if part and size > most:
                return part, part[-1].event_id
            part.append(event)
        return part, min(self.to, to)


class Places(Generic[_T]):
    """Things by the place they start at."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._things: dict[int, _T] = {}

    def put(self, start: int, thing: _T) -> None:
        if start not in self._things:
            insort(self._starts, start)
        self._things[start] = thing

    def pop(self, start: int) -> None:
        if self._things.pop(start, None) is not None:
            del self._starts[bisect_right(self._starts, start) - 1]

    def before(self, place: int) -> _T | None:
        """The last one that starts at or before `place`."""
        at = bisect_right(self._starts, place)
        return self._things[self._starts[at - 1]] if at else None

    def all(self) -> list[_T]:
        return list(self._things.values())


class Owner(Protocol):
    """Whose pages they are."""

    pages: Places[Page]


class Shared:
    """What all homes of a hub share: bounds, the page cache, counters, and whose turn it is."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.started = 0
        self.fetches = 0
        self.failures: Counter[str] = Counter()
        self.cached = 0
        self._cache: OrderedDict[tuple[Owner, int], int] = OrderedDict()
        self._turn = asyncio.Lock()

    async def turn(self) -> None:
        """Wait for a turn of the loop of one's own: between any two parts that apps are handed, live events pass."""
        async with self._turn:
            await asyncio.sleep(0)

    def readings(self) -> tuple[Reading, ...]:
        """What an operator can watch of it."""
        return (
            Reading("bridge_backfills", "counter", "Replays that read the home's store.", lambda: {"": self.started}),
            Reading("bridge_backfill_pages", "counter", "Pages that homes were asked for.", lambda: {"": self.fetches}),
            Reading(
                "bridge_backfill_failures",
                "counter",
                "Replays that ended in a gap because a page was not to be had.",
                lambda: dict(self.failures),
                "reason",
            ),
        )

    def keep(self, owner: Owner, page: Page) -> None:
        self.forget(owner, page.after)
        self._cache[owner, page.after] = page.size
        self.cached += page.size
        while self.cached > self.limits.cache_bytes and len(self._cache) > 1:
            (other, start), size = self._cache.popitem(last=False)
            self.cached -= size
            other.pages.pop(start)

    def touch(self, owner: Owner, start: int) -> None:
        self._cache.move_to_end((owner, start))

    def forget(self, owner: Owner, start: int) -> None:
        self.cached -= self._cache.pop((owner, start), 0)
