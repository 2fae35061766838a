"""Time, handed in: one monotonic clock to measure with, one wall clock to show."""

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime


class Clock:
    """Seconds of a monotonic clock, and how to show one of its instants. Tests and simulations pass their own two."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self.now = monotonic
        self.wall = wall
        self._last: tuple[float, float, str] = (math.nan, 0.0, "")

    def shown(self, instant: float | None) -> str | None:
        """An instant of `now` as RFC 3339 in UTC with milliseconds, by what the wall clock says at this moment.

        All apps of a home are told the same instant: the last answer is given again for up to a second.
        """
        if instant is None:
            return None
        now = self.now()
        last, asked, text = self._last
        if last == instant and 0 <= now - asked < 1:
            return text
        moment = datetime.fromtimestamp(self.wall() - (now - instant), UTC)
        text = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._last = (instant, now, text)
        return text
