"""Who was refused before it was a peer: counted by reason, and said in the log without a flood.

Reasons are ours (the table in docs/wire.md), so both maps stay as small as that table.
"""

import logging

from bridge_server.clock import Clock
from bridge_server.seldom import Seldom

log = logging.getLogger("bridge_server.refusals")


class Refusals:
    """Counts and logs refusals. Neither a path nor a header is logged: both may hold a credential."""

    def __init__(self, clock: Clock) -> None:
        self.counts: dict[str, int] = {}
        """By reason, since the start."""
        self._lines = Seldom(clock.now)

    def add(self, status: int, reason: str, address: str) -> None:
        """One request from `address` was answered `status` for this reason."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self._lines.log(log, logging.INFO, reason, "refused a connection from %s: %s (%d)", address, reason, status)
