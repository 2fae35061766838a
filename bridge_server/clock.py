"""Time, handed in: one monotonic clock to measure with, one wall clock to show."""

import time
from collections.abc import Callable
from datetime import UTC, datetime


class Clock:
    """Seconds of a monotonic clock, and how to show one of its instants. Tests and simulations pass their own two."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self.now = monotonic
        self.wall = wall

    def shown(self, instant: float | None) -> str | None:
        """An instant of `now` as RFC 3339 in UTC with milliseconds, by what the wall clock says at this moment."""
        if instant is None:
            return None
        moment = datetime.fromtimestamp(self.wall() - (self.now() - instant), UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
