"""What happens often is counted, and said in the log seldom: how many lines were left out is in the next one."""

import logging
from collections.abc import Callable
from typing import Final

QUIET_SECONDS: Final = 1.0
"""From one line of a kind to the next; those between are lines at DEBUG."""


class Seldom:
    """Lets one line of each kind through at a time. Kinds are ours, and few."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._said: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def log(self, log: logging.Logger, level: int, kind: str, text: str, *values: object) -> None:
        """Log `text % values`, at `level` if a line of this kind is due."""
        now = self._now()
        if now - self._said.get(kind, now - QUIET_SECONDS) < QUIET_SECONDS:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            log.debug(text, *values)
            return
        self._said[kind] = now
        count = self._left_out.pop(kind, 0)
        if count:
            text, values = f"{text}, and %d more since the last such line", (*values, count)
        log.log(level, text, *values)
