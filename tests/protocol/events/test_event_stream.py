"""EventStream: rows B90 to B104, and the signal when eviction overtook the cursor."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.events.event_stream import BUFFER_SIZE, EventStream, Gap
from protocol.events.session_manager import Event, EventError
from tests.protocol.events.making import event


def stream(*numbers: int | None, size: int = BUFFER_SIZE) -> EventStream:
    made = EventStream("s-1", "r-1", buffer_size=size)
    for number in numbers:
        made.push(event(number=number))
    return made


def numbers(events: list[Event]) -> list[int | None]:
    return [each.sequence_number for each in events]


@pytest.mark.parametrize(
    ("ids", "said"),
    [(("", "r"), "session_id cannot be empty"), ((None, "r"), "session_id is required"), (("s", ""), "run_id cannot")],
)
def test_B90_session_and_run_are_required(ids: tuple[Any, Any], said: str) -> None:
    with pytest.raises(EventError, match=said) as caught:
        EventStream(*ids)
    assert caught.value.code == "validation_error"


def test_B91_push_adds_an_event_and_numbers_it_where_it_has_no_number() -> None:
    made = stream()
    assert made.push(event()).sequence_number == 0
    assert made.push(event(number=7)).sequence_number == 7
    assert made.push(event()).sequence_number == 8
    assert numbers(made.get_events()) == [0, 7, 8]


def test_B92_push_batch_adds_all_or_none() -> None:
    made = stream()
    assert numbers(made.push_batch([event(), event()])) == [0, 1]
    assert made.push_batch([]) == []
    for wrong in ({"session_id": "other"}, {"run_id": "other"}):
        with pytest.raises(EventError) as caught:
            made.push_batch([event(), event(**wrong)])
        assert caught.value.code == "context_mismatch"
    assert made.count == 2


def test_B93_peek_moves_nothing() -> None:
    made = stream(0, 1, 2)
    assert numbers(made.peek(2).events) == numbers(made.peek(2).events) == [0, 1]
    assert numbers(made.peek(9).events) == [0, 1, 2]
    with pytest.raises(ValueError, match="-1"):
        made.peek(-1)


def test_B94_take_moves_the_cursor() -> None:
    made = stream(0, 1, 2)
    assert numbers(made.take(2).events) == [0, 1]
    assert made.cursor == 2
    assert made.take(0).events == []
    assert numbers(made.take(5).events) == [2]
    assert made.take(5).events == []


def test_B94_events_that_share_a_number_are_each_taken_once() -> None:
    made = EventStream("s-1", "r-1")
    pushed = [made.push(event(number=5)) for _ in range(4)]
    taken = [*made.take(1).events, *made.take(2).events, *made.take(9).events]
    assert sorted(each.id for each in taken) == sorted(each.id for each in pushed)
    assert made.cursor == 6


def test_B95_B96_count_and_remaining() -> None:
    made = stream(0, 1, 2)
    made.take(1)
    assert (made.count, made.remaining) == (3, 2)


def test_B97_events_come_sorted_by_number() -> None:
    assert numbers(stream(5, 1, 3).get_events()) == [1, 3, 5]


def test_B98_filters() -> None:
    made = EventStream("s-1", "r-1")
    made.push_batch([event("run_started"), event("message_streamed"), event("run_completed")])
    made.take(1)
    assert numbers(made.get_events(from_cursor=True)) == [1, 2]
    assert numbers(made.get_events(types="run_started")) == [0]
    assert numbers(made.get_events(types=["run_started", "run_completed"])) == [0, 2]
    assert numbers(made.get_events(from_cursor=True, types={"run_started", "run_completed"})) == [2]
    assert numbers(made.get_events(limit=2)) == [0, 1]


def test_B99_the_buffer_holds_1000_by_default() -> None:
    assert EventStream("s", "r").buffer_size == 1000
    with pytest.raises(ValueError, match="at least 1"):
        EventStream("s", "r", buffer_size=0)


def test_B100_a_full_buffer_keeps_the_highest_numbers() -> None:
    made = stream(0, 1, 2, 3, size=3)
    assert numbers(made.get_events()) == [1, 2, 3]
    made.push(event(number=0))
    assert numbers(made.get_events()) == [1, 2, 3]


def test_B100_eviction_that_overtook_the_cursor_is_said_once() -> None:
    made = stream(*range(9), size=3)
    assert made.peek(1).gap == Gap(0, 5, 6)
    assert made.peek(0).gap is None
    taken = made.take(2)
    assert (numbers(taken.events), taken.gap) == ([6, 7], Gap(0, 5, 6))
    assert made.take(2) == ([made.get_events()[-1]], None)


def test_B100_eviction_of_what_was_read_is_no_gap() -> None:
    made = stream(0, 1, 2, size=3)
    made.take(3)
    for number in (3, 4, 5):
        made.push(event(number=number))
    assert made.take(9).gap is None


def test_B100_the_cursor_may_skip_over_a_gap() -> None:
    made = stream(*range(9), size=3)
    made.advance_cursor(5)
    assert made.peek(1).gap == Gap(0, 5, 6)
    made.advance_cursor(6)
    assert made.peek(1).gap is None
    with pytest.raises(EventError) as caught:
        made.advance_cursor(5)
    assert caught.value.code == "invalid_cursor"
    made.advance_cursor(100)
    assert made.remaining == 0


def test_B101_B102_an_event_of_another_session_or_run_is_refused() -> None:
    made = stream()
    for wrong, code in (
        ({"session_id": "other"}, "session_mismatch"),
        ({"run_id": "other"}, "run_mismatch"),
        ({"run_id": None}, "run_mismatch"),
        ({"session_id": "other", "run_id": "other"}, "session_mismatch"),
    ):
        with pytest.raises(EventError) as caught:
            made.push(event(**wrong))
        assert caught.value.code == code
    assert made.count == 0


def test_B103_B104_a_closed_stream_takes_nothing_and_can_still_be_looked_at() -> None:
    made = stream(0, 1)
    assert not made.closed
    made.close()
    made.close()
    assert made.closed
    assert (made.remaining, made.take(2).events, made.count) == (0, [], 2)
    for refused in (lambda: made.push(event()), lambda: made.push_batch([])):
        with pytest.raises(EventError) as caught:
            refused()
        assert caught.value.code == "stream_closed"
    assert numbers(made.get_events()) == [0, 1]


Steps = st.lists(st.tuples(st.sampled_from(["push", "take"]), st.integers(1, 4)), max_size=40)


@given(Steps, st.integers(1, 6))
@settings(max_examples=60)
def test_B100_every_number_is_taken_or_said_to_be_missing(steps: list[tuple[str, int]], size: int) -> None:
    made = EventStream("s-1", "r-1", buffer_size=size)
    seen: list[int | None] = []
    for what, n in [*steps, ("take", 99)]:
        if what == "push":
            for _ in range(n):
                made.push(event())
        else:
            taken = made.take(n)
            if taken.gap is not None:
                seen += range(taken.gap.first, taken.gap.last + 1)
            seen += numbers(taken.events)
    assert seen == list(range(sum(n for what, n in steps if what == "push")))
