"""How long the oldest unacknowledged event has been waiting: the age of a lag, not only its length.

Events carry no time that could be trusted, so the time at which this process first saw each head of the source stands
for it. What was there when the process began counts from then.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from bridge_client.clock import Clock

INTERVAL: Final = 1.0
"""Seconds between two looks by default, and so the precision."""

_MOST: Final = 512

log = logging.getLogger(__name__)

Peek = Callable[[], Awaitable[int | None]]


class Lag:
    """Heads of a source with the time each was first seen. Bounded: a long lag is remembered more coarsely."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: deque[tuple[int, float]] = deque()
        self._step = 0.0  # seconds between two that are remembered
        self.head: int | None = None
        """The last head seen, None while the source is empty or was never seen."""

    def note(self, head: int | None, acked: int | None) -> None:
        """The source's head is `head` now, and everything up to `acked` is acknowledged."""
        if self.head is not None and (head or 0) < self.head:
            self._seen.clear()  # another life of the source
        self.head = head
        while self._seen and self._seen[0][0] <= (acked or 0):
            self._seen.popleft()
        now = self._clock.monotonic()
        if not self._seen:
            self._step = 0.0
        if head is not None and head > (acked or 0):
            last, at = self._seen[-1] if self._seen else (0, -inf)
            if head > last and now - at >= self._step:
                self._seen.append((head, now))
        if len(self._seen) > _MOST:
            self._step = max(2 * self._step, (now - self._seen[0][1]) / (_MOST / 2))
            self._seen = deque(row for place, row in enumerate(self._seen) if place % 2 == 0)

    def seconds(self, acked: int | None) -> float:
        """How long an event behind `acked` has been known; 0 when there is none."""
        first = next((at for head, at in self._seen if head > (acked or 0)), None)
        return 0.0 if first is None else max(0.0, self._clock.monotonic() - first)


async def watch(
    lag: Lag, peek: Peek, acked: Callable[[], int | None], clock: Clock, interval: float = INTERVAL
) -> None:
    """Keep `lag` up to date, until cancelled. A source that can't be read leaves it as it is.

    `peek` gives the source's last id without disturbing whoever else reads it.
    """
    while True:
        try:
            lag.note(await peek(), acked())
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.debug("the source's head can't be read: %s", error)
        await clock.sleep(interval)
