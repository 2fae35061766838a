"""Event ids: a canonical decimal string up to 2^53 - 1, checked before it is converted."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import BadEventId
from protocol.event_id import MAX_EVENT_ID, parse, parse_since

few = settings(max_examples=60, deadline=None, derandomize=True)

BAD_TEXTS = [
    "", "00", "01", "-1", "+1", " 1", "1 ", "1\n", "1.0", "1e3", "0x1", "1_000", "٣", "１", "a", "null",
    "9007199254740992", "99999999999999999", "9" * 5_000,
]  # fmt: skip


@few
@given(st.integers(0, MAX_EVENT_ID))
def test_an_id_reads_as_it_is_written(number: int) -> None:
    assert parse(str(number)) == number
    assert parse_since(str(number)) == number
    assert parse_since(number) == number


@pytest.mark.parametrize("number", [0, 1, 2**53 - 2, 2**53 - 1])
def test_the_ends_of_the_range(number: int) -> None:
    assert parse(str(number)) == number


@few
@given(st.integers(0, MAX_EVENT_ID), st.integers(0, MAX_EVENT_ID))
def test_ids_are_ordered_as_numbers_not_as_texts(one: int, other: int) -> None:
    assert (parse(str(one)) < parse(str(other))) == (one < other)


@pytest.mark.parametrize("text", BAD_TEXTS, ids=lambda text: repr(text)[:20])
def test_any_other_text_is_refused(text: str) -> None:
    for reader in (parse, parse_since):
        with pytest.raises(BadEventId) as caught:
            reader(text)
        assert len(str(caught.value)) < 80, "a long text is not repeated in full"


@few
@given(st.text(max_size=20))
def test_a_text_is_an_id_only_if_it_is_what_its_number_is_written_as(text: str) -> None:
    try:
        number = parse(text)
    except BadEventId:
        assert not (text.isascii() and text.isdigit() and str(int(text)) == text and int(text) <= MAX_EVENT_ID)
    else:
        assert str(number) == text


@pytest.mark.parametrize("value", [1, 7.0, True, None, b"1", ["1"], {"a": 1}, float("nan")])
def test_in_an_event_only_a_text_is_an_id(value: Any) -> None:
    with pytest.raises(BadEventId):
        parse(value)


@pytest.mark.parametrize(("value", "number"), [(7, 7), (7.0, 7), (0, 0), (-0.0, 0), (float(2**53 - 1), 2**53 - 1)])
def test_a_client_may_send_its_cursor_back_as_a_whole_number(value: Any, number: int) -> None:
    assert parse_since(value) == number
    assert type(parse_since(value)) is int


@pytest.mark.parametrize(
    "value", [7.5, -1, -1.0, 2**53, float(2**53), 1e300, float("inf"), float("nan"), True, False, None, [], {}]
)
def test_any_other_value_is_no_cursor(value: Any) -> None:
    with pytest.raises(BadEventId):
        parse_since(value)
