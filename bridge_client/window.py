"""What a forwarder has read and sent on one join and not yet had answered: sizes and places, no I/O.

Two limits at once, events and bytes, both counted until the hub has answered. One event is always let through when
nothing is under way, however large it is.
"""

from collections import deque
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple

from bridge_client.sources import Mark, SourceEvent

BATCH_EVENTS: Final = 200
BATCH_BYTES: Final = 256 * 1024
"""Limits of one `session_events` push; a larger event goes alone."""

_AROUND = 64  # bytes of a payload that are not events, at most


class Batch(NamedTuple):
    """One push that the hub has not answered."""

    last_id: int
    events: int
    bytes: int
    digest: str
    """Of the last event: see `Mark`."""


class Window:
    """The events of one join: acknowledged (forgotten), in flight (sizes only), read but not yet sent."""

    def __init__(self, *, start: int, held: int | None, events: int, size: int, max_event_bytes: int) -> None:
        """`held` is the last id the hub holds, None if it holds nothing: then events go from behind `start`."""
        self._start = start
        self._events = max(1, events)
        self._bytes = size
        self.max_event_bytes = max_event_bytes
        self.mark: Mark | None = None
        """The last event of the last batch that was acknowledged, on this join."""
        self.restart(held)

    def restart(self, held: int | None) -> None:
        """Forget what is in flight and what was read; go on behind `held`, the last id the hub holds."""
        self.in_flight: dict[str, Batch] = {}  # by ref, in the order sent
        self._events_out = 0
        self._bytes_out = 0
        self._read: deque[SourceEvent] = deque()
        self.read_after = self._start if held is None else held
        self.sent = held  # what the hub will hold once all that is in flight has arrived

    def add(self, page: Iterable[SourceEvent]) -> None:
        """Take a page of the source; ids at or below what was read before are dropped, the rest is sorted."""
        fresh = sorted(event for event in page if event.event_id > self.read_after)
        self._read.extend(fresh)
        if fresh:
            self.read_after = fresh[-1].event_id

    @property
    def next(self) -> SourceEvent | None:
        """The first event read and not sent."""
        return self._read[0] if self._read else None

    def cut(self, *, alone: bool) -> list[SourceEvent]:
        """Take the next batch there is room for, maybe none. `alone` = one event under way at a time.

        Never takes an event above `max_event_bytes`.
        """
        if self.in_flight and alone:
            return []
        room, batched = self._bytes - self._bytes_out, _AROUND
        limit = 1 if alone else min(BATCH_EVENTS, self._events - self._events_out)
        batch: list[SourceEvent] = []
        while self._read and len(batch) < limit:
            event = self._read[0]
            if len(event.data) > self.max_event_bytes:
                break
            size = len(event.data) + 1
            if (size > room or (batch and batched + size > BATCH_BYTES)) and (batch or self.in_flight):
                break
            room -= size
            batched += size
            batch.append(self._read.popleft())
        return batch

    def previous(self, event: SourceEvent) -> int | None:
        """The `prev_id` to state for the next event: the id sent before it, unless the source knows of one between."""
        if self.sent is None or (event.prev_id is not None and event.prev_id > self.sent):
            return event.prev_id
        return self.sent

    def flies(self, ref: str, batch: list[SourceEvent]) -> None:
        """A batch was sent under `ref`."""
        size = sum(len(event.data) + 1 for event in batch)
        self.in_flight[ref] = Batch(batch[-1].event_id, len(batch), size, sha256(batch[-1].data).hexdigest())
        self._events_out += len(batch)
        self._bytes_out += size
        self.sent = batch[-1].event_id

    def acknowledged(self, acked: int) -> None:
        """The hub holds everything up to `acked`."""
        for ref in [ref for ref, batch in self.in_flight.items() if batch.last_id <= acked]:
            batch = self.in_flight.pop(ref)
            self.mark = Mark(batch.last_id, batch.digest)
            self._events_out -= batch.events
            self._bytes_out -= batch.bytes
