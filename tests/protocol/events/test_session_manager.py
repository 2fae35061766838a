"""Canonical events: made once, numbered, sorted, filtered, and read back from their eleven members."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from protocol.errors import InvalidEvent
from protocol.events import session_manager as sm
from protocol.events.vocabulary import Unknown
from tests.protocol.events.making import NOW, context, counting, event

MADE: dict[str, Any] = {"new_id": counting(), "now": lambda: NOW}


def test_B30_B31_B32_an_event_gets_an_id_and_a_time_where_it_has_none() -> None:
    made = sm.new_event("message_received", "s", run_id="r", data={"content": "Hi"}, metadata={"model": "m"}, **MADE)
    assert made.id.startswith("evt_")
    assert len(made.id) == 36
    assert made.timestamp == NOW
    assert (made.type, made.session_id, made.run_id) == ("message_received", "s", "r")
    assert (made.data, made.metadata, made.schema_version) == ({"content": "Hi"}, {"model": "m"}, 1)
    then = datetime(2020, 1, 1, tzinfo=UTC)
    given = sm.new_event("run_started", "s", id="evt_mine", timestamp=then, **MADE)
    assert (given.id, given.timestamp) == ("evt_mine", then)


@pytest.mark.parametrize(
    ("type", "session_id", "code"),
    [
        (None, "s", "validation_error"),
        ("message_recieved", "s", "invalid_event_type"),
        ("run_started", None, "validation_error"),
        ("run_started", "", "validation_error"),
    ],
)
def test_B33_what_can_be_no_event_is_an_error(type: str | None, session_id: str | None, code: str) -> None:
    with pytest.raises(sm.EventError) as caught:
        sm.new_event(type, session_id, **MADE)
    assert caught.value.code == code


def test_B34_an_event_does_not_change() -> None:
    data = {"content": ["Hi"]}
    made = sm.new_event("message_received", "s", data=data, **MADE)
    data["content"].append("there")
    assert made.data == {"content": ["Hi"]}
    with pytest.raises(AttributeError):
        made.type = "message_sent"  # type: ignore[misc]


def test_the_json_object_has_all_eleven_members_and_reads_back() -> None:
    made = sm.new_event("run_started", "s", **MADE)
    members = sm.to_map(made)
    assert list(members) == list(sm.MEMBERS)
    assert len(members) == 11
    assert members["run_id"] is None
    assert members["timestamp"] == "2026-01-02T03:04:05Z"
    assert sm.from_map(members) == made
    naive = sm.from_map({**members, "timestamp": "2026-01-02T03:04:05"})
    assert naive == made


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema_version": None}, "schema_version is required"),
        ({"schema_version": 0}, "schema_version"),
        ({"schema_version": True}, "schema_version"),
        ({"session_id": ""}, "session_id cannot be empty"),
        ({"timestamp": "yesterday"}, "timestamp"),
        ({"data": "text"}, "data"),
        ({"type": 1}, "type"),
    ],
)
def test_a_json_object_that_is_no_event_is_refused(change: dict[str, Any], said: str) -> None:
    members = sm.to_map(sm.new_event("run_started", "s", **MADE))
    with pytest.raises(sm.EventError, match=said):
        sm.from_map({**members, **change})


def test_B82_sorted_by_number_then_time_then_id() -> None:
    later = NOW + timedelta(seconds=1)
    events = [
        event(number=2, id="evt_a"),
        event(number=1, id="evt_c", timestamp=later),
        event(number=1, id="evt_z"),
        event(number=1, id="evt_b"),
        event(number=None, id="evt_0"),
    ]
    assert [each.id for each in sm.sort_events(events)] == ["evt_0", "evt_b", "evt_z", "evt_c", "evt_a"]


def test_B83_filtered_by_type_or_types_or_run() -> None:
    events = [event("run_started"), event("message_sent"), event("run_started", run_id="other")]
    assert sm.filter_by_type(events, "run_started") == [events[0], events[2]]
    assert sm.filter_by_type(events, ["message_sent", "run_failed"]) == [events[1]]
    assert sm.filter_by_run(events, "r-1") == events[:2]


def test_B130_to_B134_a_draft_keeps_what_its_adapter_knows() -> None:
    then = datetime(2025, 1, 27, 12, tzinfo=UTC)
    draft = sm.Draft("run_started", {"a": 1}, {"model": "m", "provider": "somebody"}, "evt-theirs", then)
    made = sm.stamp(draft, context(provider="codex"), 3)
    assert made.timestamp == then
    assert made.metadata == {"model": "m", "provider": "codex", "provider_event_id": "evt-theirs"}
    assert (made.provider, made.sequence_number, made.run_id) == ("codex", 3, "r-1")
    assert made.id.startswith("nevt_")
    assert sm.stamp(sm.Draft("run_started"), context(), 0).timestamp == NOW


@pytest.mark.parametrize(
    ("type", "data", "model"),
    [
        ("message_streamed", {"delta": "a", "thinking": "b", "more": 1}, sm.MessageStreamed),
        ("message_received", {"content": "a", "incomplete": True}, sm.MessageReceived),
        ("message_sent", {"content": [1]}, sm.MessageSent),
        ("tool_call_started", {"tool_name": "ls", "tool_call_id": "c", "tool_input": {}}, sm.ToolCallStarted),
        ("tool_call_completed", {"tool_output": None}, sm.ToolCallCompleted),
        ("tool_call_failed", {"error_message": "no"}, sm.ToolCallFailed),
        ("error_occurred", {"error_message": "no", "provider_error": {}}, sm.ErrorOccurred),
        ("run_failed", {"error_message": "no", "details": {}}, sm.RunFailed),
        ("session_failed", {"error_message": "no"}, sm.SessionFailed),
        ("token_usage_updated", {"input_tokens": 1, "output_tokens": 2}, sm.TokenUsageUpdated),
    ],
)
def test_B111_to_B115_the_data_of_an_event_has_a_model(type: str, data: dict[str, Any], model: type) -> None:
    read = sm.read_data(event(type, data=data))
    assert isinstance(read, model)
    assert sm.DATA.members_of(read) == data  # type: ignore[arg-type]


def test_data_of_any_other_type_is_kept_and_of_the_wrong_shape_is_refused() -> None:
    read = sm.read_data(event("policy_violation", data={"rule": 7, "type": "inner"}))
    assert not isinstance(read, Unknown)
    assert read.extra == {"rule": 7, "type": "inner"}
    passed = sm.stamp(sm.Draft("checkpoint", {"a": 1}), context(), 0)
    assert sm.read_data(passed) == Unknown("checkpoint", {"a": 1})
    with pytest.raises(InvalidEvent, match="delta"):
        sm.read_data(event("message_streamed", data={"delta": {"text": "x"}}))
