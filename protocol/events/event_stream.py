"""EventStream: a bounded buffer of one run's events, read by a cursor (rows B90 to B104).

The cursor is the sequence number to read next. A full buffer drops its lowest numbers, read or not. Where that
overtakes the cursor, `Taken.gap` says so: which numbers were dropped unread. The first `take` of at least one event
afterwards ends the gap; `peek` shows it until then. An event that comes late, with a number below the cursor, counts as
read. Nothing here waits.
"""

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable
from typing import Any, Final, NamedTuple

import msgspec

from protocol.events.session_manager import Event, EventError, require_id, sort_key

BUFFER_SIZE: Final = 1000
"""Row B99."""


class Gap(NamedTuple):
    """Events that were dropped before they were read."""

    first: int
    last: int
    dropped: int
    """How many events; not always `last - first + 1`, as numbers may be missing or come twice."""


class Taken(NamedTuple):
    """Events in order, and what is missing before them."""

    events: list[Event]
    gap: Gap | None


class EventStream:
    """The events of one run of one session. `session_id` and `run_id` are required (row B90).

    Raises EventError `validation_error` for an empty or missing id, ValueError for a buffer size below 1.
    """

    def __init__(self, session_id: str, run_id: str, *, buffer_size: int = BUFFER_SIZE) -> None:
        if buffer_size < 1:
            raise ValueError(f"buffer_size must be at least 1, not {buffer_size}")
        self.session_id: Final = require_id("session_id", session_id)
        self.run_id: Final = require_id("run_id", run_id)
        self.buffer_size: Final = buffer_size
        self._events: list[Event] = []  # by sort_key, whose first part is the sequence number: each has one
        self._read: tuple[Any, ...] = (0,)  # all keys up to this one are read; a number alone: all numbers below it
        self._next = 0
        self._gap: Gap | None = None
        self._closed = False

    @property
    def cursor(self) -> int:
        """The sequence number to read next."""
        return int(self._read[0])

    @property
    def closed(self) -> bool:
        """Row B103."""
        return self._closed

    @property
    def count(self) -> int:
        """How many events are buffered, read and unread (row B95)."""
        return len(self._events)

    @property
    def remaining(self) -> int:
        """How many buffered events are unread (row B96)."""
        return len(self._events) - self._unread_from()

    def push(self, event: Event) -> Event:
        """Buffer one event and return it with its number: its own, else the next (row B91).

        Raises EventError `stream_closed` (row B104), `session_mismatch` (row B101) or `run_mismatch` (row B102), in
        this order of precedence.
        """
        self._refuse_when_closed()
        if event.session_id != self.session_id:
            raise EventError("session_mismatch", f"the event is of session {event.session_id!r:.80}")
        if event.run_id != self.run_id:
            raise EventError("run_mismatch", f"the event is of run {event.run_id!r:.80}")
        return self._add(event)

    def push_batch(self, events: Iterable[Event]) -> list[Event]:
        """Buffer several events, or none of them (row B92).

        Raises EventError `stream_closed`, also for an empty batch, and `context_mismatch` if one is of another session
        or run.
        """
        self._refuse_when_closed()
        batch = list(events)
        for index, event in enumerate(batch):
            if (event.session_id, event.run_id) != (self.session_id, self.run_id):
                raise EventError("context_mismatch", f"event {index} of the batch is of another session or run")
        return [self._add(event) for event in batch]

    def peek(self, n: int) -> Taken:
        """Up to `n` unread events; the cursor stays (row B93). Raises ValueError for a negative `n`."""
        if n < 0:
            raise ValueError(f"can't read {n} events")
        start = self._unread_from()
        return Taken(self._events[start : start + n], self._gap if n else None)

    def take(self, n: int) -> Taken:
        """Up to `n` unread events; the cursor moves behind them (row B94). `take(0)` changes nothing."""
        taken = self.peek(n)
        if n:
            self._gap = None
        if taken.events:
            last = taken.events[-1]
            rest = self._events[self._unread_from() + len(taken.events) :][:1]
            # Events may share a number: those behind the cut are read next time.
            split = bool(rest) and _number(rest[0]) == _number(last)
            self._read = sort_key(last) if split else (_number(last) + 1,)
        return taken

    def advance_cursor(self, sequence_number: int) -> None:
        """Skip to a number, which may lie beyond the end. Raises EventError `invalid_cursor` for a step back."""
        if sequence_number < self.cursor:
            raise EventError("invalid_cursor", f"Cannot move cursor backwards, from {self.cursor}")
        if sequence_number > self.cursor:
            self._read = (sequence_number,)
        if self._gap is not None and self._gap.last < sequence_number:
            self._gap = None

    def get_events(
        self, *, from_cursor: bool = False, types: str | Collection[str] | None = None, limit: int | None = None
    ) -> list[Event]:
        """Buffered events in order of number, time and id (row B97), filtered (row B98); the cursor stays."""
        wanted = {types} if isinstance(types, str) else types
        start = self._unread_from() if from_cursor else 0
        found = [event for event in self._events[start:] if wanted is None or event.type in wanted]
        return found if limit is None else found[:limit]

    def close(self) -> None:
        """Take no more events, and count all as read; they stay readable by `get_events` (row B103)."""
        self._closed = True
        self._read = (max(self.cursor, self._next),)
        self._gap = None

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise EventError("stream_closed", "Cannot push to a closed stream")

    def _unread_from(self) -> int:
        return bisect_right(self._events, self._read, key=_key)

    def _add(self, event: Event) -> Event:
        if event.sequence_number is None:
            event = msgspec.structs.replace(event, sequence_number=self._next)
        self._next = max(self._next, _number(event) + 1)
        insort(self._events, event, key=_key)
        if len(self._events) > self.buffer_size:
            unread = self._unread_from() == 0
            dropped = _number(self._events.pop(0))
            if unread:
                gap = self._gap or Gap(dropped, dropped, 0)
                self._gap = Gap(min(gap.first, dropped), max(gap.last, dropped), gap.dropped + 1)
        return event


def _number(event: Event) -> int:
    assert event.sequence_number is not None  # `_add` gave it one
    return event.sequence_number


def _key(event: Event) -> tuple[Any, ...]:
    return sort_key(event)
