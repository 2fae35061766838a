"""The newest events of a store in memory, for a reader that keeps up with it: no I/O, no thread."""

from collections.abc import Sequence
from typing import Final

from bridge_client.store import Stored

TAIL_EVENTS: Final = 512
TAIL_BYTES: Final = 1 << 20
"""What is kept at most, whichever is reached first."""


class Tail:
    """A run of events without a gap: every event the store holds from the first kept to the last is here.

    Ids in it are dense. An id that was skipped may be another process's event, so the run begins anew behind it.
    """

    def __init__(self, *, events: int = TAIL_EVENTS, size: int = TAIL_BYTES) -> None:
        self._most_events = events
        self._most_bytes = size
        self._events: list[Stored] = []
        self._bytes = 0
        self._floor = 0  # the id in front of the first kept

    def append(self, batch: Sequence[Stored]) -> None:
        """Events that were committed one after the other, none of anybody else between them."""
        if batch[0].event_id != self._floor + len(self._events) + 1:
            self.clear()
            self._floor = batch[0].event_id - 1
        self._events.extend(batch)
        self._bytes += sum(len(event.data) for event in batch)
        surplus = 0
        while len(self._events) - surplus > self._most_events or self._bytes > self._most_bytes:
            self._bytes -= len(self._events[surplus].data)
            surplus += 1
        del self._events[:surplus]
        self._floor += surplus

    def clear(self) -> None:
        """Forget all of it."""
        self._events.clear()
        self._bytes = 0

    def after(self, event_id: int, limit: int) -> list[Stored]:
        """At most `limit` events with ids above `event_id`; none when the one behind it is not kept."""
        place = event_id - self._floor
        return self._events[place : place + limit] if place >= 0 else []
