"""The envelope: what a relay reads of an event, and the events that it refuses."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.envelope import Envelope, read
from protocol.errors import InvalidEvent

VALUES = (
    st.sampled_from(["7", "0", "final"])
    | st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)


def event(**fields: Any) -> bytes:
    return json.dumps({"event_id": "7", "type": "final", "session_id": "s"} | fields).encode()


def test_id_type_and_session_are_read_and_nothing_else() -> None:
    assert read(event(data={"a": [1, {"b": None}]}, other=1.5)) == Envelope(7, "final", "s")


def test_an_event_may_belong_to_no_session() -> None:
    assert read(b'{"type":"notification","event_id":"0"}') == Envelope(0, "notification", None)
    for strange in (None, 5, ["s"], {"a": 1}):
        assert read(event(session_id=strange)) == Envelope(7, "final", None)


@pytest.mark.parametrize("bad", [None, 7, 7.0, True, "", "07", "-1", "7.0", "9007199254740992", ["7"], {"id": "7"}])
def test_an_event_without_a_usable_id_is_refused_and_named(bad: Any) -> None:
    with pytest.raises(InvalidEvent) as caught:
        read(event(event_id=bad))
    assert caught.value.args[1] == (bad if isinstance(bad, str) else None)


def test_a_long_id_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidEvent) as caught:
        read(event(event_id="9" * 5_000))
    assert caught.value.args[1] == "9" * 40


@pytest.mark.parametrize("bad", [None, 5, "", ["final"], {}])
def test_an_event_without_a_type_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidEvent):
        read(event(type=bad))


@pytest.mark.parametrize(
    "text", [b"", b"null", b"5", b'"x"', b"[]", b"[1]", b"{}", b'{"event_id":"7"}', b'{"type":"t"', b"nonsense"]
)
def test_what_is_no_event_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidEvent):
        read(text)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from(["event_id", "type", "session_id", "data"]), VALUES))
def test_any_object_is_read_or_refused(fields: dict[str, Any]) -> None:
    number, kind = fields.get("event_id"), fields.get("type")
    usable = isinstance(number, str) and number.isascii() and number.isdigit() and str(int(number)) == number
    if usable and isinstance(kind, str) and kind:
        assert read(json.dumps(fields).encode())[:2] == (int(number), kind)
    else:
        with pytest.raises(InvalidEvent):
            read(json.dumps(fields).encode())
