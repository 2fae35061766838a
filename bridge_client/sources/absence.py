"""A source that can't be read for a while: how often to try again, and how that is told."""

import logging
import random
from typing import Final

from bridge_client.clock import Clock

LONGEST: Final = 30.0
"""Seconds between two tries at most, unless the source asks for more."""

_ASKED_AT_MOST: Final = 600.0

log = logging.getLogger(__name__)


class Unreadable(Exception):
    """The source could not be read now; `retry_after` are the seconds it asked to wait, if it did."""

    def __init__(self, why: str, *, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class Absence:
    """Counts failures in a row. The n-th is followed by rand(0, min(30, 0.25 * 2^n)) seconds, or what was asked for."""

    def __init__(self, name: str, clock: Clock, rng: random.Random | None = None) -> None:
        self._name = name
        self._clock = clock
        self._rng = rng or random.SystemRandom()
        self._failures = 0
        self._last = ""

    async def wait(self, error: Unreadable) -> None:
        """Tell of one failure (the first of its kind as a warning) and wait until the next try."""
        why = str(error)
        level = logging.DEBUG if why == self._last else logging.WARNING
        self._last = why
        asked = min(error.retry_after or 0.0, _ASKED_AT_MOST)
        pause = asked + self._rng.uniform(0, min(LONGEST, 0.25 * 2 ** min(self._failures, 20)))
        self._failures += 1
        log.log(level, "%s: %s; trying again", self._name, why)
        await self._clock.sleep(max(pause, 0.01))

    def over(self) -> None:
        """It was read."""
        if self._failures:
            log.info("%s can be read again", self._name)
        self._failures, self._last = 0, ""
