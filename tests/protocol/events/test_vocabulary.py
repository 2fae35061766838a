"""The closed unions: known types become models, what is beyond them is kept, unknown types pass through untouched."""

from typing import Any

import pytest
from hypothesis import given

from protocol.errors import InvalidEvent
from protocol.events import agent_app, session_manager, streaming
from protocol.events.vocabulary import Unknown
from tests.protocol.events.making import objects

REQUEST = {"session_id": "s-1", "request_id": "r-1"}
CALL = {"id": "c-1", "type": "function", "function": {"name": "ls", "arguments": "{}"}, "index": 0}
MESSAGE = {"role": "assistant", "content": "Hi", "metadata": {"model": "m"}}

AGENT_APP: list[dict[str, Any]] = [
    {"type": "request_started", **REQUEST, "stream": True},
    {"type": "request_cancelled", **REQUEST},
    {"type": "request_completed", **REQUEST},
    {"type": "error", **REQUEST, "detail": "it broke"},
    {"type": "assistant_message", **REQUEST, "phase": "start"},
    {"type": "partial", **REQUEST, "message": MESSAGE},
    {"type": "final", **REQUEST, "messages": [MESSAGE, {"role": "tool", "content": "x"}]},
    {"type": "tool_calls", **REQUEST, "tool_calls": [CALL]},
    {"type": "tool_partial", **REQUEST, "tool_call_id": "c-1", "phase": "stream", "payload": {"part": "x"}},
    {"type": "tool_results", **REQUEST, "messages": [{"role": "tool", "content": "x", "metadata": {}}]},
    *(
        {"type": f"tool_approval_{what}", **REQUEST, "approval_id": "q-1", "tool_call": CALL}
        for what in ("requested", "granted", "denied")
    ),
    {"type": "session_checkpoint", **REQUEST, "session": {}},
    {"type": "checkpoint", "session_id": "s-1", "timestamp": "2026-01-01T00:00:00Z"},
    {"type": "session_created", "session_id": "s-1", "agent_id": "default", "session": {"id": "s-1"}},
    {"type": "message_appended", "session_id": "s-1", **MESSAGE, "message": MESSAGE, "session": {}},
    {"type": "message_modified", "session_id": "s-1", "index": 0, "content": "new", "session": {}},
    {"type": "messages_deleted", "session_id": "s-1", "indices": [0, 1], "session": {}},
    *(
        {"type": f"application_notification_{what}", "notification": {"id": "n"}, "display": {"type": "banner"}}
        for what in ("created", "updated", "dismissed", "expired")
    ),
    *(
        {"type": f"session_notification_{what}", "session_id": "s-1", "notification": {"id": "n"}}
        for what in ("created", "updated", "resolved", "dismissed", "expired")
    ),
]


def test_A10_A13_every_type_of_the_document_has_a_model() -> None:
    assert tuple(event["type"] for event in AGENT_APP) == agent_app.VOCABULARY.types


@pytest.mark.parametrize("event", AGENT_APP, ids=lambda event: event["type"])
def test_A10_A13_an_event_is_read_and_written_whole(event: dict[str, Any]) -> None:
    """Rows A42 to A55, A60 to A69, A81 to A87, A100 to A108, A120 to A124."""
    stored = {"event_id": "7", **event, "added_by_somebody": {"deep": [1, None]}}
    model = agent_app.VOCABULARY.read(stored)
    assert not isinstance(model, Unknown)
    assert model.extra == {"added_by_somebody": {"deep": [1, None]}}
    assert agent_app.VOCABULARY.write(model) == stored


@pytest.mark.parametrize(
    ("event", "where"),
    [
        ({"type": "partial", **REQUEST, "message": "text"}, "message"),
        ({"type": "assistant_message", **REQUEST, "phase": "middle"}, "phase"),
        ({"type": "tool_partial", **REQUEST, "tool_call_id": "c", "phase": "stop", "payload": {}}, "phase"),
        ({"type": "error", **REQUEST}, "detail"),
        ({"type": "final", "session_id": "s", "messages": []}, "request_id"),
        ({"type": "session_notification_created", "notification": {}}, "session_id"),
        ({"type": ""}, "type"),
        ({"type": 7}, "type"),
        ({}, "type"),
    ],
)
def test_a_known_type_of_another_shape_is_refused_and_says_where(event: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidEvent, match=where):
        agent_app.VOCABULARY.read(event)


def test_C223_an_unknown_type_passes_through_untouched() -> None:
    for vocabulary in (agent_app.VOCABULARY, streaming.VOCABULARY):
        event = {"type": "AGENT_MESSAGE_SENT", "extra": 1, "payload": {"a": [None]}}
        read = vocabulary.read(event)
        assert read == Unknown("AGENT_MESSAGE_SENT", {"extra": 1, "payload": {"a": [None]}})
        assert vocabulary.write(read) == event


@given(objects((*agent_app.VOCABULARY.types, *streaming.VOCABULARY.types, "new_type")))
def test_whatever_is_read_is_written_back(event: dict[str, Any]) -> None:
    for vocabulary in (agent_app.VOCABULARY, streaming.VOCABULARY):
        try:
            model = vocabulary.read(event)
        except InvalidEvent:
            continue
        assert vocabulary.write(model) == event


def test_A56_A80_A207_what_is_internal_stays_inside() -> None:
    assert agent_app.public({"type": "session_checkpoint", **REQUEST, "session": object()}) is None
    final = {"type": "final", **REQUEST, "messages": []}
    assert agent_app.public({**final, "session": object()}) == final
    created = {"type": "session_created", "session_id": "s", "agent_id": "a", "session": {}}
    assert agent_app.public(created) == created


def test_A62_A63_a_call_has_its_id_under_either_name_and_keeps_what_else_it_has() -> None:
    assert agent_app.call_id({"id": "a", "tool_call_id": "b"}) == "a"
    assert agent_app.call_id({"tool_call_id": "b"}) == "b"
    assert agent_app.call_id({"id": None, "tool_call_id": "b"}) == "b"
    assert agent_app.call_id({"function": {}}) is None
    model = agent_app.VOCABULARY.read({"type": "tool_calls", **REQUEST, "tool_calls": [CALL]})
    assert isinstance(model, agent_app.ToolCalls)
    assert model.tool_calls[0]["index"] == 0


def test_A71_A72_a_text_display_is_shown_instead_of_the_content() -> None:
    shown = {"content": "everything", "metadata": {"display": {"type": "text", "content": "a part"}}}
    assert agent_app.shown_text(shown) == "a part"
    for display in ({"type": "html", "content": "a part"}, {"type": "text"}, {"type": "text", "content": 7}, "text"):
        assert agent_app.shown_text({"content": "everything", "metadata": {"display": display}}) == "everything"
    assert agent_app.shown_text({"content": [{"type": "text", "text": "a"}, "b", {"content": ["c"]}, 7]}) == "abc"
    assert agent_app.shown_text({}) == ""


def test_B2_to_B15_the_documents_types_and_four_more() -> None:
    document = [types for group, types in session_manager.GROUPS.items() if group != "policy"]
    assert sum(map(len, document)) == 24
    assert len(session_manager.TYPES) == len(set(session_manager.TYPES)) == 28
    assert session_manager.DATA.types == session_manager.TYPES


def test_B24_a_type_has_a_group() -> None:
    assert session_manager.group_of("session_paused") == "session"
    assert session_manager.group_of("run_timeout") == "run"
    assert session_manager.group_of("message_streamed") == "messages"
    assert session_manager.group_of("tool_call_failed") == "tool calls"
    assert session_manager.group_of("turn_completed") == "errors and usage"
    assert session_manager.group_of("workspace_diff_computed") == "workspace"
    assert session_manager.group_of("partial") is None


def test_C20_C21_C22_an_event_of_the_streaming_apis() -> None:
    event = {
        "workflow_id": "w",
        "type": "AGENT_STARTED",
        "agent_id": "takao",
        "message": "started",
        "timestamp": "2026-01-01T00:00:00Z",
        "seq": 9,
        "stream_id": "1700000000000-0",
        "payload": {"role": "researcher"},
    }
    model = streaming.VOCABULARY.read(event)
    assert streaming.VOCABULARY.write(model) == event
    with pytest.raises(InvalidEvent, match="workflow_id"):
        streaming.VOCABULARY.read({"type": "AGENT_COMPLETED"})
    with pytest.raises(InvalidEvent, match="payload"):
        streaming.VOCABULARY.read({"type": "TASKLIST_UPDATED", "workflow_id": "w"})


def test_C7_to_C14_what_the_permanent_tier_keeps() -> None:
    kept = (
        *("WORKFLOW_COMPLETED", "WORKFLOW_FAILED", "AGENT_COMPLETED", "AGENT_FAILED", "TOOL_INVOKED"),
        *("TOOL_OBSERVATION", "TOOL_ERROR", "ERROR_OCCURRED", "LLM_OUTPUT", "STREAM_END", "ROLE_ASSIGNED"),
        *("DELEGATION", "BUDGET_THRESHOLD", "final", "message_received", "never_heard_of"),
    )
    left_out = ("LLM_PARTIAL", "LLM_PROMPT", "HEARTBEAT", "PING", "partial", "tool_partial", "message_streamed")
    assert all(streaming.is_permanent(type) for type in kept)
    assert not any(streaming.is_permanent(type) for type in left_out)


def test_C44_C215_usage_in_either_form() -> None:
    flat = {
        "tokens_used": 3,
        "input_tokens": 1,
        "output_tokens": 2,
        "cost_usd": 0.5,
        "model_used": "m",
        "provider": "p",
    }
    nested = {"usage": {"total_tokens": 3, "input_tokens": 1, "output_tokens": 2}, "model": "m", "provider": "p"}
    assert streaming.read_usage(flat) == streaming.Usage(3, 1, 2, 0.5, "m", "p")
    assert streaming.read_usage(nested) == streaming.Usage(3, 1, 2, None, "m", "p")
    assert streaming.read_usage({"usage": "many", "input_tokens": True}) == streaming.Usage()
