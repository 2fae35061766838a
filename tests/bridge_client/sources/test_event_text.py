"""Events that somebody else wrote, brought into the form that travels."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_client.sources.event_text import find_id, place
from bridge_client.tombstones import tombstone
from protocol.errors import BadEventId, InvalidEvent

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "event_id", "placed"),
    [
        (b'{"event_id":"7","type":"x"}', None, b'{"event_id":"7","type":"x"}'),
        (b' {"type" : "x" , "event_id" : "7"}\n', None, b'{"type" : "x" , "event_id" : "7"}'),
        (b'{"event_id":7,"type":"x"}', None, b'{"event_id":"7","type":"x"}'),
        (b'{"type":"x", "event_id" : 7 , "n":1.0}', None, b'{"type":"x", "event_id" :"7", "n":1.0}'),
        (b'{"type":"x","event_id":7}', None, b'{"type":"x","event_id":"7"}'),
        (b'{"type":"x"}', 7, b'{"event_id":"7","type":"x"}'),
        (b'{ "type":"x"}', 7, b'{"event_id":"7","type":"x"}'),
        (b'{"event_id":"abc","type":"x"}', 7, b'{"event_id":"7","type":"x"}'),
        (b'{"event_id":{"a":[1,{"event_id":2}],"b":"}"},"type":"x"}', 7, b'{"event_id":"7","type":"x"}'),
        (b'{"type":"x","in":{"event_id":9},"event_id":7}', None, b'{"type":"x","in":{"event_id":9},"event_id":"7"}'),
        (b'{"event_id":7,"type":"x","event_id":7}', None, b'{"event_id":"7","type":"x","event_id":"7"}'),
        (
            b'{"a":"event_id","event_id":7,"type":"\\"event_id\\":1"}',
            None,
            b'{"a":"event_id","event_id":"7","type":"\\"event_id\\":1"}',
        ),
        (b'{"event_id":7,"type":"\\ud800"}', None, b'{"event_id":"7","type":"\\ufffd"}'),
    ],
)  # fmt: skip
def test_only_the_id_is_changed_and_only_when_it_must_be(text: bytes, event_id: int | None, placed: bytes) -> None:
    assert place(text, event_id) == (7, placed)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4), st.integers(1, 2**53 - 1), st.booleans())
def test_any_event_keeps_its_members(members: dict[str, Any], event_id: int, inside: bool) -> None:
    event = {**members, "type": "x", "event_id": event_id} if inside else {**members, "type": "x"}
    text = json.dumps(event, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if "\ud800" <= max(json.dumps(event, ensure_ascii=False)) <= "\udfff":
        return  # not UTF-8
    number, placed = place(text, None if inside else event_id)
    assert number == event_id
    assert json.loads(placed) == {**event, "event_id": str(event_id)}


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"7", b'{"event_id":1}', b'{"type":7}', b'{"type":""}', b'{"type":"\xff"}', b"{}{}",
     b'{"type":"x","deep":' + b"[" * 200 + b"]" * 200 + b"}", b'{"type":NaN}'],
)  # fmt: skip
def test_what_no_hub_would_take_is_found_here(text: bytes) -> None:
    with pytest.raises(InvalidEvent):
        place(text, 1)


@pytest.mark.parametrize("own", [b"-1", b"1.5", b'"01"', b'"x"', b"null", b"true", b"9007199254740992", b"1e3", b"[1]"])
def test_an_id_that_is_none_is_refused(own: bytes) -> None:
    with pytest.raises(BadEventId):
        place(b'{"type":"x","event_id":' + own + b"}")
    assert find_id(b'{"event_id":' + own + b"}") is None


def test_a_type_for_those_that_have_none() -> None:
    assert place(b'{"a":1}', 7, "note") == (7, b'{"event_id":"7","type":"note","a":1}')
    assert place(b"{}", 7, "note") == (7, b'{"event_id":"7","type":"note"}')
    assert place(b'{"type":"x"}', 7, "note") == (7, b'{"event_id":"7","type":"x"}')


def test_a_tombstone_says_what_it_stands_for() -> None:
    assert json.loads(tombstone(7, "because", "s")) == {
        "event_id": "7", "type": "unforwardable", "session_id": "s", "reason": "because",
    }  # fmt: skip
    assert place(tombstone(7, "x" * 1000))[0] == 7
