"""The live tier's contract, against every backend."""

import random

import pytest

from bridge_server.history import History, Kept
from bridge_server.history.memory import MemoryHistory


def kept(number: int, size: int = 10, at: float = 0.0) -> Kept:
    return Kept(number, b"x" * size, "partial", "s", at)


@pytest.fixture(params=["memory"])
def history() -> History:
    """At most 5 events, 10,000 bytes, 100 seconds."""
    return MemoryHistory(5, 10_000, 100.0)


def ids(page: object) -> list[int] | None:
    return None if page is None else [event.event_id for event in page]  # type: ignore[attr-defined]


def test_a_new_log_is_empty_at_its_floor(history: History) -> None:
    log = history.open("a", 7)
    assert (log.floor, log.head) == (7, 7)
    assert ids(log.page(7, 7, 1000)) == []
    assert log.page(6, 7, 1000) is None


def test_what_is_appended_is_in_the_next_page(history: History) -> None:
    log = history.open("a", 0)
    event = Kept(3, b'{"odd":  1}', "final", None, 1.5)
    log.append(event)
    assert log.page(0, 3, 1000) == [event]
    assert (log.floor, log.head) == (0, 3)


def test_the_first_event_may_have_the_floors_own_id(history: History) -> None:
    log = history.open("a", 5)
    log.append(kept(5))
    log.append(kept(6))
    assert (log.floor, log.head) == (5, 6)
    assert ids(log.page(5, 6, 1000)) == [6]
    assert log.page(4, 6, 1000) is None


def test_a_page_holds_the_open_closed_range(history: History) -> None:
    log = history.open("a", 0)
    for number in (2, 4, 7, 9):
        log.append(kept(number))
    assert ids(log.page(0, 9, 1000)) == [2, 4, 7, 9]
    assert ids(log.page(2, 7, 1000)) == [4, 7]
    assert ids(log.page(3, 8, 1000)) == [4, 7]  # a cursor need not be an id
    assert ids(log.page(9, 9, 1000)) == []
    assert ids(log.page(20, 30, 1000)) == []


def test_a_page_is_bounded_and_holds_at_least_one_event(history: History) -> None:
    log = history.open("a", 0)
    for number in range(1, 6):
        log.append(kept(number, 100))
    assert ids(log.page(0, 5, 250)) == [1, 2]
    assert ids(log.page(0, 5, 200)) == [1, 2]
    assert ids(log.page(0, 5, 1)) == [1]
    assert ids(log.page(4, 5, 1)) == [5]


def test_too_many_events_evict_the_oldest_and_the_floor_says_so(history: History) -> None:
    log = history.open("a", 0)
    for number in range(10, 80, 10):
        log.append(kept(number))
    assert (log.floor, log.head) == (20, 70)
    assert log.page(19, 70, 1000) is None
    assert ids(log.page(20, 70, 1000)) == [30, 40, 50, 60, 70]


def test_too_many_bytes_evict_the_oldest_but_never_the_newest(history: History) -> None:
    log = history.open("a", 0)
    log.append(kept(1, 4000))
    log.append(kept(2, 4000))
    log.append(kept(3, 4000))
    assert log.floor == 1
    log.append(kept(4, 50_000))
    assert (log.floor, log.head) == (3, 4)
    assert ids(log.page(3, 4, 1)) == [4]
    log.append(kept(5, 10))
    assert log.floor == 4


def test_what_is_too_old_is_evicted_on_demand(history: History) -> None:
    log = history.open("a", 0)
    for number in range(1, 5):
        log.append(kept(number, at=number * 10.0))
    log.expire(110.0)
    assert log.floor == 0
    log.expire(125.0)
    assert log.floor == 2
    assert ids(log.page(2, 4, 1000)) == [3, 4]
    log.expire(10_000.0)
    assert (log.floor, log.head) == (4, 4)
    assert ids(log.page(4, 4, 1000)) == []
    log.append(kept(9, at=10_000.0))
    assert ids(log.page(4, 9, 1000)) == [9]


def test_the_logs_of_two_homes_know_nothing_of_each_other(history: History) -> None:
    one, two = history.open("a", 0), history.open("b", 0)
    one.append(kept(1))
    assert two.head == 0
    assert ids(two.page(0, 10, 1000)) == []


def test_opening_again_starts_empty(history: History) -> None:
    history.open("a", 0).append(kept(1))
    log = history.open("a", 40)
    assert (log.floor, log.head) == (40, 40)
    assert ids(log.page(40, 99, 1000)) == []


@pytest.mark.parametrize("seed", range(20))
def test_any_history_equals_a_plain_list(history: History, seed: int) -> None:
    chance = random.Random(seed)
    log = history.open("a", 0)
    model: list[Kept] = []
    floor, now = 0, 0.0
    for _ in range(500):
        now += chance.choice((0.0, 1.0, 30.0))
        if chance.random() < 0.8:
            model.append(kept(log.head + chance.choice((1, 1, 5)), chance.choice((10, 900)), now))
            log.append(model[-1])
            while len(model) > 5:
                floor = model.pop(0).event_id
        else:
            log.expire(now)
            while model and now - model[0].at > 100.0:
                floor = model.pop(0).event_id
        assert (log.floor, log.head) == (floor, model[-1].event_id if model else log.head)
        after = chance.randint(max(0, floor - 2), log.head)
        to = chance.randint(after, log.head + 1)
        expected = [event.event_id for event in model if after < event.event_id <= to]
        assert ids(log.page(after, to, 10**9)) == (None if after < floor else expected)


def test_memory_in_particular_cuts_off_its_dead_start() -> None:
    log = MemoryHistory(100, 10**9, 10**9).open("a", 0)
    for number in range(1, 100_001):
        log.append(kept(number))
    assert len(log._ids) <= 300
    assert len(log._events) == len(log._ids)
