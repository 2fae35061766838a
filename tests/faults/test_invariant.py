"""The measure itself: it finds every kind of loss, and accepts every true account of one."""

from collections.abc import Sequence

import pytest

from bridge_client.store import Stored
from tests.support.invariant import Got, Missed, Record, faults

STORE = [Stored(number, b'{"event_id":"%d"}' % number) for number in (1, 2, 3, 5, 8, 9)]  # ids rise, not densely


def account(since: int | None, *entries: int | Got | Missed) -> Record:
    record = Record("app", since)
    for entry in entries:
        record.entries.append(Got(entry, b'{"event_id":"%d"}' % entry) if isinstance(entry, int) else entry)
    return record


@pytest.mark.parametrize(
    "record",
    [
        account(0, 1, 2, 3, 5, 8, 9),
        account(3, 5, 8, 9),
        account(9),
        account(None, 5, 8, 9),
        account(1, Missed("expired", 1, 5), 8, 9),
        account(1, Missed("expired", 1, 9)),
        account(1, Missed("expired", 1, 3), Missed("expired", 3, 8), 9),
        account(1, 2, Missed("hub_reset", 2, None), 3, 5, 8, 9),
        account(1, 2, Missed("hub_reset", 2, None), Missed("expired", 2, 5), 8, 9),
    ],
)
def test_a_true_account_has_no_breach(record: Record) -> None:
    assert faults(record, STORE) == []


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (account(0, 1, 3, 5, 8, 9), ["came 3 instead of 2"]),
        (account(0, 1, 2, 2, 3, 5, 8, 9), ["came 2 instead of 3"]),
        (account(0, 2, 1, 3, 5, 8, 9), ["came 2 instead of 1", "came 1 instead of 3", "came 3 instead of 2"]),
        (account(0, 1, 2, 3, 5, 8), ["ends at 8"]),
        (account(0), ["ends at 0"]),
        (account(None), ["ends at None"]),
        (account(3, 5, Got(8, b'{"event_id": "8"}'), 9), ["not as the store has it"]),
        (account(5, 8, 9, Got(10, b"{}")), ["came 10 instead of None", "not as the store has it", "ends at 10"]),
        (account(1, Missed("expired", 1, 5), 9), ["came 9 instead of 8"]),
        (account(1, Missed("expired", 1, 5), 5, 8, 9), ["came 5 instead of 8"]),
        (account(1, Missed("expired", 2, 5), 8, 9), ["the app's place is 1"]),
        (account(3, Missed("expired", 3, 4), 5, 8, 9), ["nothing is missing"]),
        (account(1, Missed("expired", 1, None), 2, 3, 5, 8, 9), ["nothing follows"]),
        (account(1, Missed("hub_reset", 1, None), 3, 5, 8, 9), ["came 3 instead of 2"]),
        (account(1, Missed("expired", 1, 5)), ["ends at 5"]),
    ],
)
def test_every_breach_is_found(record: Record, said: Sequence[str]) -> None:
    found = faults(record, STORE)
    assert len(found) == len(said), found
    for breach, words in zip(found, said, strict=True):
        assert words in breach
