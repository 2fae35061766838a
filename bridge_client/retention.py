"""Retention: which of its oldest events a home may let go, by age and by size, and the task that does it.

Events go in the order of their ids, so that what is left has one beginning, the *floor*: the last id removed. A reader
that stood below it is told. What never goes, whatever the rules say: events that the hub has not acknowledged, events
behind the cursor of a session with a request under way, and the newest event, by which the store knows its place.

Events carry no time that could be trusted, so the store keeps *marks*: up to this id, everything was stored by that
time, and so large is what lies between this mark and the one before. Ages are exact to `MARK_SECONDS`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, NoReturn, Protocol

from bridge_client.clock import Clock
from bridge_client.store import StoreError

INTERVAL: Final = 60.0
"""Seconds between two passes."""

MARK_SECONDS: Final = 3_600.0
MARK_EVENTS: Final = 1_000
MARK_BYTES: Final = 1 << 20
"""A mark is set once so much lies behind the one before, whichever comes first."""

STEP_EVENTS: Final = 200
STEP_BYTES: Final = 512 * 1024
"""What one transaction removes at most (one event at least): so long may it hold up a publish."""

REST: Final = 4.0
SHORTEST_REST: Final = 0.02
"""A pass rests so many times as long as a step took, and so many seconds at least: the disk is the publishers'."""

log = logging.getLogger(__name__)


class Rules(NamedTuple):
    """What is kept: None = without end."""

    seconds: float | None = None
    size: int | None = None
    """Bytes of the events' JSON; the file is larger by its indexes, and by what else lies in it."""

    @property
    def keep_all(self) -> bool:
        """Whether nothing is ever removed."""
        return self.seconds is None and self.size is None


class Mark(NamedTuple):
    """Every event up to `event_id` was stored by `at` (wall clock seconds).

    `events` and `size` (bytes of JSON) are those behind the mark before.
    """

    event_id: int
    at: float
    events: int
    size: int


class Removed(NamedTuple):
    """What one step did. `more`: the next one may remove more."""

    events: int
    floor: int
    more: bool


class Extent(NamedTuple):
    """What a store holds."""

    events: int
    size: int
    """Bytes of the events' JSON."""
    oldest: int | None
    """The id of the oldest event, None while there is none."""
    oldest_at: float | None
    """When it was stored at the latest, None while no mark says."""
    floor: int
    """The last id removed, 0 while none was."""
    file_size: int
    """Bytes of the file with its write-ahead log."""
    free: int
    """Bytes of the file that are free for events to come."""
    gives_back: bool
    """Whether much free space is given back to the disk; a file of an older version keeps it."""
    wal: int = 0
    """Bytes of `file_size` that are the write-ahead log: changes on disk that are not in the main file yet, or were."""


class Stock(Protocol):
    """A store whose oldest events can be removed. Methods raise StoreError."""

    async def mark(self, now: float) -> bool:
        """Set the marks that are due; whether there are more to set."""

    async def marks(self) -> Sequence[Mark]:
        """All of them, in the order of their ids."""

    async def remove(self, to: Mark, acked: int) -> Removed:
        """Remove one step of the events up to that mark, as far as they may go; durable when it returns.

        `acked` is the last event that the hub has acknowledged: it and what follows it stays. Removes nothing once the
        store does not have this mark any more: then it is another history.
        """

    async def give_back(self) -> bool:
        """Give a step of the file's free space back to the disk if there is much; whether there is more."""


def due(marks: Sequence[Mark], rules: Rules, now: float) -> Mark | None:
    """The last mark up to which everything is too old or too much, None while nothing is.

    A clock that went back leaves a young mark in front of older ones: what lies behind it is as young.
    """
    size = sum(mark.size for mark in marks)
    found = None
    for mark in marks:
        old = rules.seconds is not None and mark.at <= now - rules.seconds
        if not old and (rules.size is None or size <= rules.size):
            break
        size -= mark.size
        found = mark
    return found


class Keeper:
    """Keeps a store to its rules. `acked` says how far the hub has acknowledged, None while that is not known."""

    def __init__(self, stock: Stock, rules: Rules, acked: Callable[[], int | None], clock: Clock) -> None:
        self._stock = stock
        self._rules = rules
        self._acked = acked
        self._clock = clock

    async def run(self) -> NoReturn:
        """A pass now and one every `INTERVAL`, until cancelled. A store that can't be used is tried again."""
        while True:
            try:
                await self.run_once()
            except StoreError as error:
                log.warning("retention has to wait: %s", error)
            await self._clock.sleep(INTERVAL)

    async def run_once(self) -> None:
        """One pass: set marks, remove what is due, give space back. Raises StoreError."""
        while await self._stock.mark(self._clock.wall()):
            await self._clock.sleep(SHORTEST_REST)
        if self._rules.keep_all:
            return
        to = due(await self._stock.marks(), self._rules, self._clock.wall())
        if to is not None:
            await self._remove(to)
        while await self._rested(self._stock.give_back):
            pass

    async def _remove(self, to: Mark) -> None:
        events, floor = 0, None

        async def step() -> bool:
            nonlocal events, floor
            removed = await self._stock.remove(to, self._acked() or 0)
            if removed.events:
                events, floor = events + removed.events, removed.floor
            return removed.more

        while await self._rested(step):
            pass
        if events:
            log.info("retention removed %d events, up to event %d", events, floor)

    async def _rested(self, step: "Step") -> bool:
        began = self._clock.monotonic()
        more = await step()
        await self._clock.sleep(max(SHORTEST_REST, REST * (self._clock.monotonic() - began)))
        return more


class Step(Protocol):
    async def __call__(self) -> bool: ...
