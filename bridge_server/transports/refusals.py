"""Who was refused before it was a peer: counted by reason, and said in the log without a flood.

Reasons are ours (the table in docs/wire.md), so both maps stay as small as that table.
"""

import logging
from typing import Final

from bridge_server.clock import Clock

log = logging.getLogger("bridge_server.refusals")

QUIET_SECONDS: Final = 1.0
"""From one line at INFO to the next of the same reason; those between are lines at DEBUG, and counted in the next."""


class Refusals:
    """Counts and logs refusals. Neither a path nor a header is logged: both may hold a credential."""

    def __init__(self, clock: Clock) -> None:
        self.counts: dict[str, int] = {}
        """By reason, since the start."""
        self._clock = clock
        self._said: dict[str, tuple[float, int]] = {}

    def add(self, status: int, reason: str, address: str) -> None:
        """One request from `address` was answered `status` for this reason."""
        count = self.counts[reason] = self.counts.get(reason, 0) + 1
        now = self._clock.now()
        said, counted = self._said.get(reason, (now - QUIET_SECONDS, count - 1))
        more, level = "", logging.DEBUG
        if now - said >= QUIET_SECONDS:
            self._said[reason] = (now, count)
            level = logging.INFO
            if count - counted > 1:
                more = f", and {count - counted - 1} more since the last such line"
        log.log(level, "refused a connection from %s: %s (%d)%s", address, reason, status, more)
