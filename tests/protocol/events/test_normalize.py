"""Raw provider events become canonical ones: rows B70 to B84."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from protocol.events.normalize import ALIASES, INFERENCES, REFINEMENTS, normalize, normalize_batch, type_of
from protocol.events.session_manager import TYPES, EventError, to_map
from tests.protocol.events.making import NOW, context, objects, texts_in

TABLE = {
    "message_sent": "user_message human_message user",
    "message_received": "assistant_message ai_message assistant message",
    "message_streamed": "delta content_block_delta text_delta stream chunk",
    "tool_call_started": "tool_use tool_call function_call",
    "tool_call_completed": "tool_result function_result",
    "run_started": "run_start run_started start",
    "run_completed": "run_end run_completed end done complete",
    "error_occurred": "error exception",
    "token_usage_updated": "usage token_usage",
}


def test_B70_B71_a_raw_event_becomes_a_canonical_one() -> None:
    raw = {"type": "assistant_message", "content": "Hello!", "model": "some-model"}
    event = normalize(raw, context(provider="anthropic", sequence_number=5))
    assert (event.type, event.session_id, event.run_id) == ("message_received", "s-1", "r-1")
    assert event.data == {"content": "Hello!"}
    assert event.id.startswith("nevt_")
    assert len(event.id) == 37
    assert event.timestamp == NOW
    assert raw == {"type": "assistant_message", "content": "Hello!", "model": "some-model"}


def test_B72_it_maps_the_type_numbers_the_event_and_finds_its_metadata() -> None:
    raw = {"type": "ai_message", "content": "Hi", "model": "m", "metadata": {"stop_reason": "end"}, "id": "msg_1"}
    event = normalize(raw, context(provider="anthropic", sequence_number=5))
    assert (event.type, event.sequence_number) == ("message_received", 5)
    expected = {"model": "m", "stop_reason": "end", "provider": "anthropic", "provider_event_id": "msg_1"}
    assert event.metadata == expected
    assert event.provider == "anthropic"
    assert normalize({"type": "ai_message"}, context(provider="generic")).provider == "generic"


@pytest.mark.parametrize(("type", "alias"), [(type, alias) for type, names in TABLE.items() for alias in names.split()])
def test_B73_B74_B75_B76_B77_B79_an_alias_means_its_canonical_type(type: str, alias: str) -> None:
    assert type_of({"type": alias}) == type
    assert type_of({"event": alias}) == type
    assert type_of({"type": alias.upper()}) == "error_occurred", "exact and case-sensitive"


def test_B77_there_are_29_aliases() -> None:
    assert {alias: type for type, names in TABLE.items() for alias in names.split()} == ALIASES
    assert len(ALIASES) == 29


@pytest.mark.parametrize("type", TYPES)
def test_B77_a_canonical_name_is_itself(type: str) -> None:
    assert type_of({"type": type}) == type


@pytest.mark.parametrize(
    ("alias", "status", "type"),
    [
        ("run_end", "error", "run_failed"),
        ("done", "failed", "run_failed"),
        ("run_completed", "cancelled", "run_cancelled"),
        ("end", "canceled", "run_cancelled"),
        ("complete", "timeout", "run_timeout"),
        ("tool_use", "completed", "tool_call_completed"),
        ("tool_call", "done", "tool_call_completed"),
        ("function_call", "failed", "tool_call_failed"),
        ("tool_call_started", "error", "tool_call_failed"),
        ("run_end", "completed", "run_completed"),
        ("tool_use", "running", "tool_call_started"),
        ("message", "failed", "message_received"),
        ("run_end", 7, "run_completed"),
    ],
)
def test_B77_a_status_refines(alias: str, status: Any, type: str) -> None:
    assert type_of({"type": alias, "status": status}) == type


def test_B77_the_refinements_are_nine() -> None:
    assert len(REFINEMENTS) == 9


@pytest.mark.parametrize(
    ("raw", "type"),
    [
        ({"delta": "x", "tool_use": {}, "content": "x", "error": "x"}, "message_streamed"),
        ({"tool_use": {}, "content": "x", "error": "x"}, "tool_call_started"),
        ({"content": "x", "error": "x"}, "message_received"),
        ({"error": "x"}, "error_occurred"),
        ({}, "error_occurred"),
        ({"type": "never_heard_of", "content": "x"}, "message_received"),
        ({"type": None, "event": "chunk"}, "message_streamed"),
        ({"type": "never_heard_of", "event": "chunk"}, "error_occurred"),
        ({"tool_use": {}, "status": "failed"}, "tool_call_failed"),
    ],
)
def test_B77_an_unknown_name_is_judged_by_the_members(raw: dict[str, Any], type: str) -> None:
    assert type_of(raw) == type
    assert [member for member, _ in INFERENCES] == ["delta", "tool_use", "content", "error"]


def test_B78_B79_B116_what_an_adapter_calls_back_with_is_canonical() -> None:
    raws = [{"type": "run_start"}, {"type": "delta", "data": {"delta": "x"}}, {"type": "run_end", "status": "failed"}]
    events = normalize_batch(raws, context())
    assert [event.type for event in events] == ["run_started", "message_streamed", "run_failed"]
    assert events[1].data == {"delta": "x"}


def test_B80_B81_a_batch_is_numbered_in_its_order() -> None:
    raws = [{"type": "delta", "delta": text} for text in "abc"]
    assert [event.sequence_number for event in normalize_batch(raws, context())] == [0, 1, 2]
    numbered = normalize_batch(iter(raws), context(sequence_number=10))
    assert [(event.sequence_number, event.data["delta"]) for event in numbered] == [(10, "a"), (11, "b"), (12, "c")]
    assert len({event.id for event in numbered}) == 3
    assert normalize_batch([], context()) == []


def test_B80_a_batch_with_something_that_is_no_object_is_refused_whole() -> None:
    with pytest.raises(EventError, match=r"event 1: .*list") as caught:
        normalize_batch([{"type": "delta"}, []], context())  # type: ignore[list-item]
    assert caught.value.code == "validation_error"


@pytest.mark.parametrize("missing", ["session_id", "run_id"])
def test_B70_a_context_needs_session_and_run(missing: str) -> None:
    with pytest.raises(EventError, match=missing):
        normalize({"type": "delta"}, context(**{missing: ""}))


def test_B84_a_webhooks_payload() -> None:
    """A content block as its provider sends it: its parts end up where consumers look, and nothing is thrown away."""
    raw = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}}
    event = normalize(raw, context())
    assert event.data == {"index": 0, "delta": "Hel", "provider_delta": {"type": "text_delta", "text": "Hel"}}


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        ({"type": "chunk", "text": "x"}, {"text": "x", "delta": "x"}),
        ({"type": "stream", "delta": ""}, {"delta": ""}),
        ({"type": "delta"}, {"delta": ""}),
        (
            {"type": "tool_use", "id": "c-1", "name": "ls", "input": {"path": "."}},
            {"tool_call_id": "c-1", "name": "ls", "tool_name": "ls", "tool_input": {"path": "."}},
        ),
        (
            {"type": "tool_result", "tool_use_id": "c-1", "content": "ok"},
            {"tool_use_id": "c-1", "tool_call_id": "c-1", "tool_output": "ok"},
        ),
        (
            {"type": "usage", "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
            {"usage": {"prompt_tokens": 3, "completion_tokens": 4}, "input_tokens": 3, "output_tokens": 4},
        ),
        ({"type": "token_usage", "input_tokens": 1}, {"input_tokens": 1}),
        ({"type": "error", "error": {"message": "no"}}, {"error": {"message": "no"}, "error_message": "no"}),
        ({"type": "exception", "message": "no"}, {"message": "no", "error_message": "no"}),
    ],
)
def test_B111_to_B115_the_members_that_consumers_rely_on(raw: dict[str, Any], data: dict[str, Any]) -> None:
    assert normalize(raw, context()).data == data


def test_B115_stderr_and_exit_code_become_a_provider_error_within_its_limits() -> None:
    raw = {"type": "run_end", "status": "error", "message": "exit 1", "exit_code": 1, "stderr": "x\n" * 500}
    data = normalize(raw, context(provider="codex")).data
    assert data["error_message"] == "exit 1"
    assert data["provider_error"]["exit_code"] == 1
    assert data["provider_error"]["provider"] == "codex"
    assert data["provider_error"]["truncated?"] is True
    assert "stderr" not in data


def test_an_event_nobody_knows_says_its_name() -> None:
    data = normalize({"type": "heartbeat"}, context()).data
    assert data == {"provider_type": "heartbeat", "error_message": "an event of the unknown type 'heartbeat'"}


@pytest.mark.parametrize(
    ("timestamp", "at"),
    [
        ("2025-01-27T12:00:00Z", datetime(2025, 1, 27, 12, tzinfo=UTC)),
        ("2025-01-27T12:00:00", datetime(2025, 1, 27, 12, tzinfo=UTC)),
        (1737979200, datetime(2025, 1, 27, 12, tzinfo=UTC)),
        (1737979200000, datetime(2025, 1, 27, 12, tzinfo=UTC)),
        (datetime(2025, 1, 27, 12, tzinfo=UTC), datetime(2025, 1, 27, 12, tzinfo=UTC)),
        ("a while ago", NOW),
        (True, NOW),
        (-5, NOW),
        (10**30, NOW),
    ],
)
def test_B130_the_adapters_time_is_kept(timestamp: Any, at: datetime) -> None:
    event = normalize({"type": "run_start", "timestamp": timestamp}, context())
    assert event.timestamp == at
    assert ("timestamp" in event.data) is (at is NOW)


def test_B131_B132_B133_the_adapters_metadata_and_id_are_kept_and_the_provider_is_ours() -> None:
    raw = {
        "type": "run_start",
        "provider_event_id": "e-9",
        "id": "other",
        "metadata": {"a": 1, "provider": "somebody", "provider_event_id": "older"},
    }
    event = normalize(raw, context(provider="claude"))
    assert event.metadata == {
        "a": 1,
        "provider": "claude",
        "provider_event_id": "e-9",
        "original_provider": "somebody",
        "original_provider_event_id": "older",
    }
    assert event.data == {"id": "other"}


def test_the_providers_own_session_stays_in_the_data() -> None:
    raw = {"type": "run_start", "session_id": "theirs", "run_id": "r-1"}
    assert normalize(raw, context()).data == {"session_id": "theirs"}


def test_data_that_would_hide_a_member_stays_inside() -> None:
    raw = {"type": "message", "content": "outside", "data": {"content": "inside"}}
    assert normalize(raw, context()).data == {"content": "outside", "data": {"content": "inside"}}


RAW = objects((*ALIASES, *TYPES, "never_heard_of"))


@given(RAW)
@settings(max_examples=80)
def test_any_object_becomes_an_event_that_can_be_stored(raw: dict[str, Any]) -> None:
    event = normalize(raw, context())
    assert event.type in TYPES
    assert msgspec.json.decode(msgspec.json.encode(to_map(event))) == json.loads(json.dumps(to_map(event)))


@given(RAW)
@settings(max_examples=80)
def test_normalizing_twice_is_normalizing_once(raw: dict[str, Any]) -> None:
    once = normalize(raw, context(sequence_number=4))
    assert normalize(to_map(once), context(sequence_number=9)) == once


@given(RAW)
@settings(max_examples=80)
def test_no_text_is_lost(raw: dict[str, Any]) -> None:
    raw.pop("stderr", None)  # cut by rule: B22
    members = to_map(normalize(raw, context()))
    # What says only which type and which time it is need not be there word for word.
    meant = texts_in([raw.get("type"), raw.get("event"), raw.get("timestamp")])
    assert not set(texts_in(raw)) - set(texts_in(members)) - set(meant)


def test_normalizing_an_event_of_another_run_makes_it_one_of_this() -> None:
    other = to_map(normalize({"type": "delta", "delta": "x"}, context(run_id="other")))
    event = normalize(other, context())
    assert (event.run_id, event.data["delta"], event.data["run_id"]) == ("r-1", "x", "other")
    assert event.metadata["provider_event_id"] == other["id"]
