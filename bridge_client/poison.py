"""Which event the hub will not take: refusals and broken sockets are counted against events. Pure: no I/O, no clock.

An event is condemned after STRIKES refusals, whatever came between them: other answers, reconnects, restarts of the
hub. Where the hub does not say which event of several it was, those under way are suspects, and go one at a time from
then on, so that the next refusal names it. An acknowledgement clears those it covers.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from bridge_client.window import Batch

STRIKES: Final = 3
"""How often an event is tried before it is given up."""

FRAME_FAULTS: Final = frozenset({1003, 1007, 1009})
"""Close codes by which a peer says that it can't take what it was sent."""


class Condemned(NamedTuple):
    """An event that the hub will not take, and why, in words."""

    event_id: int
    reason: str


class Suspicion:
    """What is held against the events of one epoch."""

    def __init__(self) -> None:
        self._suspects_to: int | None = None
        self._strikes: tuple[int, int] = (0, 0)  # an event, and how often it was refused; one is tried at a time

    @property
    def alone(self) -> bool:
        """Whether events are to go one at a time, because one of those that come next broke something."""
        return self._suspects_to is not None

    def acknowledged(self, event_id: int) -> None:
        """The hub has taken everything up to `event_id`."""
        if self._suspects_to is not None and event_id >= self._suspects_to:
            self._suspects_to = None

    def refused(self, event_id: int, reason: str) -> Condemned | None:
        """The hub named the event that it refuses. Returns it once that was one time too many."""
        strikes = self._strikes[1] + 1 if self._strikes[0] == event_id else 1
        self._strikes = (event_id, strikes)
        return Condemned(event_id, f"{reason}, {strikes} times") if strikes >= STRIKES else None

    def broke(self, under_way: Collection[Batch], reason: str) -> Condemned | None:
        """One of the events `under_way` (at least one batch) made the hub refuse or end the socket; which, is not said.

        One alone counts as named; of several, all become suspects.
        """
        self._suspects_to = max(self._suspects_to or 0, *(batch.last_id for batch in under_way), 0)
        first = next(iter(under_way))
        return self.refused(first.last_id, reason) if len(under_way) == 1 and first.events == 1 else None
