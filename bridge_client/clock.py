"""Time as the home side sees it: handed in everywhere, so that a test can be its master."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two clocks and a way to wait."""

    def monotonic(self) -> float:
        """Seconds that never go back; they may stand still while the machine sleeps."""

    def wall(self) -> float:
        """Seconds since 1970, as the machine believes; may jump."""

    async def sleep(self, seconds: float) -> None:
        """Wait that long by the monotonic clock; at once for 0 or less."""


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def rfc3339(wall: float) -> str:
    """A wall clock's seconds as the home writes a time: RFC 3339 in UTC, with `Z` and milliseconds."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
