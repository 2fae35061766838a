"""The invariant of the product: each app gets every event once, in id order, byte for byte, or is told a true gap.

A `Record` is what one app was given. `faults` compares it with what the home's store holds and lists every breach:

- an event that is not the next one behind the app's place: lost, doubled, or out of order;
- other bytes than the store's;
- a gap that does not start at the app's place, or that names nothing missing;
- after a gap, anything but the event behind `resumed_after`, where the app was told it would go on. When the hub held
  nothing (`hub_reset`) a later verdict may withdraw the gap: then the event behind the app's place;
- at the end, a place before the last event of the store.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Held(Protocol):
    """One event of the home's store (`bridge_client.store.Stored`)."""

    @property
    def event_id(self) -> int: ...
    @property
    def data(self) -> bytes: ...


class Got(NamedTuple):
    """One event as an app received it."""

    event_id: int
    data: bytes


class Missed(NamedTuple):
    """One gap as an app was told it; `resumed_after` is None when the hub held nothing to resume behind."""

    reason: str
    from_id: int | None
    resumed_after: int | None


class Record:
    """What one app was given, in order. `since` is the cursor it began with; None = from the first event it gets."""

    def __init__(self, name: str, since: int | None = None) -> None:
        self.name = name
        self.since = since
        self.entries: list[Got | Missed] = []
        self.last_id = since
        """Behind which event the app would resume: the last one received, or the cursor it began with."""

    def got(self, event_id: int, data: bytes) -> None:
        self.entries.append(Got(event_id, data))
        self.last_id = event_id

    def missed(self, reason: str, from_id: int | None, resumed_after: int | None) -> None:
        self.entries.append(Missed(reason, from_id, resumed_after))

    @property
    def gaps(self) -> list[Missed]:
        return [entry for entry in self.entries if isinstance(entry, Missed)]

    @property
    def ids(self) -> list[int]:
        return [entry.event_id for entry in self.entries if isinstance(entry, Got)]


def faults(record: Record, store: Sequence[Held], *, to_the_end: bool = True) -> list[str]:
    """Every breach of the invariant, in words; empty when there is none."""
    ids = [event.event_id for event in store]
    data = {event.event_id: event.data for event in store}

    def after(place: int) -> int | None:
        index = bisect_right(ids, place)
        return ids[index] if index < len(ids) else None

    found: list[str] = []
    place, told = record.since, None
    for entry in record.entries:
        if isinstance(entry, Missed):
            if told is not None and told.resumed_after is not None and entry.from_id == told.resumed_after:
                place = told.resumed_after  # one gap behind the other
            if entry.from_id != place:
                found.append(f"a gap behind {entry.from_id}, but the app's place is {place}: {entry}")
            if entry.resumed_after is None and entry.reason != "hub_reset":
                found.append(f"a gap that nothing follows: {entry}")
            if entry.resumed_after is not None and place is not None and after(place) == after(entry.resumed_after):
                found.append(f"a gap in which nothing is missing: {entry}")
            told = entry
            continue
        expected = [] if place is None else [after(place)]
        if told is not None:
            expected = [after(told.resumed_after)] if told.resumed_after is not None else expected
        if expected and entry.event_id not in expected:
            found.append(f"behind {place} (gap told: {told}) came {entry.event_id} instead of {expected[0]}")
        if entry.data != data.get(entry.event_id):
            found.append(f"event {entry.event_id} is not as the store has it: {entry.data[:80]!r}")
        place, told = entry.event_id, None
    if told is not None and told.resumed_after is not None:
        place = told.resumed_after
    if to_the_end and ids and place != ids[-1]:
        found.append(f"ends at {place}, the store at {ids[-1]}")
    return found


def nothing_lost(store: Sequence[Held], *records: Record, to_the_end: bool = True) -> None:
    """Assert the invariant for each record."""
    for record in records:
        found = faults(record, store, to_the_end=to_the_end)
        shown = "\n  ".join(found[:5])
        assert not found, f"{record.name}: {len(found)} breaches\n  {shown}\ngaps: {record.gaps[:5]}"
