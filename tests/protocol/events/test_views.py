"""Canonical events in the words of the other vocabularies, and back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings

from protocol.events import agent_app, streaming
from protocol.events.agent_app import text_of
from protocol.events.normalize import ALIASES
from protocol.events.readings import from_agent_app, read
from protocol.events.session_manager import TYPES, Draft, Event, stamp
from protocol.events.views import AgentAppView, to_session_manager, to_streaming
from tests.protocol.events.making import context, objects, texts_in
from tests.protocol.events.test_vocabulary import AGENT_APP

Json = dict[str, Any]
REQUEST = {"session_id": "s-1", "request_id": "r-1"}


def event(type: str, metadata: Json | None = None, **data: Any) -> Event:
    return stamp(Draft(type, data, metadata or {}), context(), 0)


def told(*events: Event) -> list[Json]:
    view = AgentAppView()
    return [line for each in events for line in view.tell(each)]


def types(events: list[Json]) -> list[str]:
    return [each["type"] for each in events]


RUN = [
    event("run_started"),
    event("message_streamed", {"model": "m"}, delta="Hel"),
    event("message_streamed", {"model": "m"}, delta="lo", thinking="Hm."),
    event("message_received", {"model": "m"}, content="Hello", thinking="Hm."),
    event("tool_call_started", tool_call_id="c-1", tool_name="ls", tool_input={"path": "."}),
    event("message_streamed", role="tool", tool_call_id="c-1", delta="a\n"),
    event("tool_call_completed", tool_call_id="c-1", tool_name="ls", tool_output="a\nb\n"),
    event("run_completed", status="completed"),
]


def test_A42_to_A69_a_run_is_told_as_a_request() -> None:
    lines = told(*RUN)
    assert types(lines) == [
        *("request_started", "assistant_message", "partial", "partial", "assistant_message", "final"),
        *("tool_calls", "tool_partial", "tool_results", "request_completed"),
    ]
    assert all(line["session_id"] == "s-1" and line["request_id"] == "r-1" for line in lines)
    assert "".join(line["message"]["content"] for line in lines if line["type"] == "partial") == "Hello"
    (reply,) = lines[5]["messages"]
    assert (reply["role"], reply["content"], reply["metadata"]["thinking"]) == ("assistant", "Hello", "Hm.")
    assert reply["metadata"]["model"] == "m"
    (call,) = lines[6]["tool_calls"]
    assert (call["id"], call["function"]) == ("c-1", {"name": "ls", "arguments": '{"path":"."}'})
    assert lines[7]["payload"] == {"part": "a\n"}
    (result,) = lines[8]["messages"]
    assert (result["role"], result["content"]) == ("tool", "a\nb\n")
    assert result["metadata"]["tool_call_id"] == "c-1"
    assert result["metadata"]["tool_name"] == "ls"


def test_every_line_of_a_run_is_of_the_document() -> None:
    for line in told(*RUN):
        agent_app.VOCABULARY.read(line)
        assert line["type"] in agent_app.VOCABULARY


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (event("run_failed", error_message="no"), ["error", "request_completed"]),
        (event("run_timeout"), ["error", "request_completed"]),
        (event("run_cancelled"), ["request_cancelled", "request_completed"]),
        (event("run_completed"), ["request_completed"]),
    ],
)
def test_A44_A45_A46_A47_the_completion_comes_last_and_once(end: Event, expected: list[str]) -> None:
    assert types(told(event("run_started"), end, end))[1 : 1 + len(expected)] == expected
    assert types(told(end, end)).count("request_completed") == 1
    broken_off = types(told(event("message_streamed", delta="x"), end))
    assert broken_off == ["assistant_message", "partial", "assistant_message", *expected]


def test_A47_an_error_that_ends_the_run_is_told_once() -> None:
    lines = told(event("error_occurred", error_message="no"), event("run_failed", error_message="no"))
    assert types(lines) == ["error", "request_completed"]
    assert lines[0]["detail"] == "no"
    lines = told(event("error_occurred", error_message="one"), event("run_failed", error_message="two"))
    assert types(lines) == ["error", "error", "request_completed"]


def test_A47_an_error_that_ends_nothing_is_no_error_of_the_request() -> None:
    (line,) = told(event("error_occurred", error_message="a warning", fatal=False))
    assert line["type"] == "error_occurred"
    assert line["data"]["error_message"] == "a warning"


def test_a_failed_tool_says_so() -> None:
    (line,) = told(event("tool_call_failed", tool_call_id="c", tool_name="ls", error_message="no such file"))
    (message,) = line["messages"]
    assert message["content"] == "no such file"
    assert message["metadata"]["is_error"] is True


def test_what_has_no_counterpart_keeps_its_name_and_data() -> None:
    (line,) = told(event("token_usage_updated", input_tokens=1, output_tokens=2))
    assert line == {
        "type": "token_usage_updated",
        **REQUEST,
        "data": {"input_tokens": 1, "output_tokens": 2},
        "metadata": {"provider": "claude"},
    }


def test_C40_to_C54_a_run_is_told_as_a_workflow() -> None:
    lines = [line for each in RUN for line in to_streaming(each)]
    assert types(lines) == [
        *("WORKFLOW_STARTED", "LLM_PARTIAL", "LLM_PARTIAL", "AGENT_THINKING", "LLM_OUTPUT"),
        *("TOOL_INVOKED", "TOOL_OBSERVATION", "WORKFLOW_COMPLETED"),
    ]
    for line in lines:
        assert line["workflow_id"] == "r-1"
        assert line["timestamp"] == "2026-01-02T03:04:05Z"
        streaming.VOCABULARY.read(line)
    assert "".join(line["message"] for line in lines if line["type"] == "LLM_PARTIAL") == "Hello"
    assert lines[4]["message"] == "Hello"
    assert lines[5]["message"] == 'Calling ls with {"path":"."}'
    assert lines[5]["payload"]["tool"] == "ls"
    assert lines[5]["payload"]["params"] == {"path": "."}
    assert lines[6]["payload"]["success"] is True


def test_C43_C53_long_texts_are_cut_there() -> None:
    (output,) = to_streaming(event("message_received", content="字" * 10_001))
    assert (len(output["message"]), output["message"][-3:]) == (10_000, "...")
    (observation,) = to_streaming(event("tool_call_failed", tool_output="字" * 2_001, tool_name="ls"))
    assert len(observation["message"]) == 2_000
    assert observation["payload"]["success"] is False
    (thought, _) = to_streaming(event("message_received", content="x", thinking="t" * 300))
    assert len(thought["message"]) == 200


def test_C44_C47_usage_is_the_payload_where_it_is_known() -> None:
    usage = {"input_tokens": 1, "output_tokens": 2}
    (line,) = to_streaming(event("message_received", {"model": "m"}, content="x", usage=usage))
    assert line["payload"] == {**usage, "model_used": "m", "provider": "claude"}


@pytest.mark.parametrize("type", TYPES)
def test_every_canonical_type_is_told_in_the_shape_of_its_vocabulary(type: str) -> None:
    """Also where its data say nothing."""
    for data in ({}, {"delta": "x", "content": "x", "error_message": "x", "tool_input": {"a": 1}, "agent_id": "a"}):
        for line in told(event(type, **data)):
            agent_app.VOCABULARY.read(line)
        for line in to_streaming(event(type, **data)):
            streaming.VOCABULARY.read(line)


@pytest.mark.parametrize("type", ["tool_approval_requested", "tool_approval_granted", "tool_approval_denied"])
def test_an_approval_comes_back_as_what_it_was(type: str) -> None:
    """In the words of a workflow, of an agent application, and as an answer that names its question."""
    asked = {"tool_name": "rm", "tool_call_id": "c-1", "tool_input": {"path": "x"}}
    (line,) = to_streaming(event(type, **asked))
    assert [draft.type for draft in read(line)] == [type]
    if type == "tool_approval_requested":
        assert line["message"] == 'Asks to call rm with {"path":"x"}'
    for named in ({}, {"approval_id": "q-1"}):
        (line,) = told(event(type, **asked, **named))
        assert line["tool_call"] == {"id": "c-1", "function": {"name": "rm", "arguments": '{"path":"x"}'}}
        assert line.get("approval_id") == named.get("approval_id")
        (draft,) = read(line)
        assert (draft.type, draft.data) == (type, {**asked, **named})


def test_the_canonical_view_is_the_event_itself() -> None:
    assert to_session_manager(RUN[1])["data"] == {"delta": "Hel"}


@pytest.mark.parametrize("raw", AGENT_APP, ids=lambda raw: raw["type"])
def test_an_agent_applications_event_is_recognised(raw: Json) -> None:
    assert read(raw) == from_agent_app(raw)


def test_names_that_vocabularies_share_are_told_apart() -> None:
    assert read({"type": "assistant_message", "content": "Hi"})[0].type == "message_received"
    assert read({"type": "assistant_message", "phase": "start"})[0].type == "assistant_message"
    assert read({"type": "session_created", "session_id": "s", "data": {"a": 1}})[0].data["a"] == 1
    assert read({"type": "error", "error": "no"})[0].type == "error_occurred"
    assert read({"type": "LLM_PARTIAL", "workflow_id": "w", "message": "x"}) == [
        Draft("message_streamed", {"delta": "x"})
    ]


@pytest.mark.parametrize("line", told(*RUN), ids=lambda line: line["type"])
def test_a_line_goes_back_to_what_it_was(line: Json) -> None:
    canonical = {
        "request_started": "run_started",
        "assistant_message": "assistant_message",
        "partial": "message_streamed",
        "final": "message_received",
        "tool_calls": "tool_call_started",
        "tool_partial": "message_streamed",
        "tool_results": "tool_call_completed",
        "request_completed": "run_completed",
    }
    (draft,) = read(line)
    assert draft.type == canonical[line["type"]]
    if line["type"] == "tool_calls":
        assert draft.data["tool_input"] == {"path": "."}
        assert (draft.data["tool_call_id"], draft.data["tool_name"]) == ("c-1", "ls")
    if line["type"] == "final":
        assert (draft.data["content"], draft.data["thinking"], draft.metadata["model"]) == ("Hello", "Hm.", "m")


@pytest.mark.parametrize(
    "name", ["TOOL_OBSERVATION", "LLM_OUTPUT", "TASKLIST_UPDATED", "ERROR_OCCURRED", "TOOL_INVOKED"]
)
def test_a_workflows_event_keeps_message_and_payload(name: str) -> None:
    raw = {
        "type": name,
        "workflow_id": "w",
        "message": "said",
        "payload": {"tool": "ls", "success": False, "tasks": ["t"]},
    }
    (draft,) = read({**raw, "timestamp": "2026-01-02T03:04:05Z", "agent_id": "a", "seq": 4})
    assert draft.metadata == {"agent_id": "a", "seq": 4}
    assert draft.timestamp is not None
    assert {"said", "ls", "t"} <= set(texts_in(draft.data))


ANY = objects((*agent_app.VOCABULARY.types, *streaming.VOCABULARY.types, *TYPES, *ALIASES))


@given(ANY)
@settings(max_examples=100)
def test_anything_can_be_read_and_shown_in_every_vocabulary(raw: Json) -> None:
    view = AgentAppView()
    for draft in read(raw):
        made = stamp(draft, context(), 0)
        for line in (*view.tell(made), *to_streaming(made), to_session_manager(made)):
            json.dumps(line, allow_nan=False)
            assert isinstance(line["type"], str)


SAID = {
    "message_streamed": ("delta", "thinking"),
    "message_received": ("content", "thinking"),
    "error_occurred": ("error_message",),
    "run_failed": ("error_message",),
}
"""Where a type keeps what is said; elsewhere such a member is only one of many."""


def values_in(value: Any) -> Iterator[Any]:
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from values_in(inner)


@given(ANY)
@example({"content": ["0", {"type": "1"}, "0"]})
@settings(max_examples=100)
def test_no_text_of_a_reply_is_lost_on_the_way(raw: Json) -> None:
    view = AgentAppView()
    for draft in read(raw):
        lines = view.tell(stamp(draft, context(), 0))
        for member in SAID.get(draft.type, ()):
            if text := text_of(draft.data.get(member)):
                # As it is, or in pieces: the parts of a content have members besides their text.
                assert text in "".join(texts_in(lines)) or text in map(text_of, values_in(lines))
