"""What happens often is counted, and said in the log seldom: how many lines were left out is in the next one."""

import logging
import math
from collections.abc import Callable
from typing import Final

QUIET_SECONDS: Final = 1.0
"""From one line of a kind to the next; those between are lines at DEBUG."""


class Seldom:
    """Lets one line of each kind through at a time. Kinds are ours, and few."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kinds: dict[str, tuple[float, int]] = {}
        """When a line of that kind was last said, and how many were left out since."""

    def log(self, log: logging.Logger, level: int, kind: str, text: str, *values: object) -> None:
        """Log `text % values`, at `level` if a line of this kind is due."""
        now = self._now()
        said, left_out = self._kinds.get(kind, (-math.inf, 0))
        if now - said < QUIET_SECONDS:
            self._kinds[kind] = said, left_out + 1
            log.debug(text, *values)
            return
        self._kinds[kind] = now, 0
        if left_out:
            text, values = f"{text}, and %d more since the last such line", (*values, left_out)
        log.log(level, text, *values)
