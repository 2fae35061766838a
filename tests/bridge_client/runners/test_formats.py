"""Each provider's format: what its lines become. The streams are excerpts of our own making."""

from typing import Any

import pytest

from bridge_client.runners.anthropic import AnthropicTranslator
from bridge_client.runners.claude import INTERRUPTED, ClaudeTranslator
from bridge_client.runners.codex import CodexTranslator
from bridge_client.runners.gemini import GeminiTranslator
from bridge_client.runners.json_lines import FORMATS, JsonLinesTranslator, format_of
from bridge_client.runners.openai_chunks import OpenAIChunksTranslator
from bridge_client.runners.openai_responses import OpenAIResponsesTranslator
from bridge_client.runners.opencode import OpenCodeTranslator
from bridge_client.runners.pi import PiTranslator
from bridge_client.runners.translation import MAX_UNKNOWN_BYTES
from bridge_client.runners.turn import MAX_TEXT_CHARS
from protocol.events.session_manager import Draft
from tests.bridge_client.runners.drafts import of_type, said, shown, translate
from tests.bridge_client.runners.excerpts import ANTHROPIC, CLAUDE, EXCERPTS, OPENAI, RESPONSES

Json = dict[str, Any]
LOOK: list[tuple[str, Any]] = [("message_received", "I'll look."), ("tool_call_started", {"path": "."})]
THOUGHT: list[tuple[str, Any]] = [("message_received", "")]

BECOMES: dict[str, list[tuple[str, Any]]] = {
    "anthropic": [
        *(("message_received", "I'll look. 👀"), ("tool_call_started", {"path": "."}), ("token_usage_updated", None)),
        *(("message_received", "One file."), ("token_usage_updated", None), ("turn_completed", "end_turn")),
    ],
    "claude": [
        *(("run_started", None), *LOOK, ("tool_call_completed", "a.py"), ("message_received", "One file.")),
        *(("token_usage_updated", None), ("run_completed", None)),
    ],
    "codex": [
        *(("run_started", None), *THOUGHT, ("message_received", "I'll look.")),
        *(("tool_call_started", {"command": "ls"}), ("tool_call_completed", "a.py\nb.py\n")),
        *(("message_received", " Two files."), ("token_usage_updated", None), ("turn_completed", None)),
        ("run_completed", None),
    ],
    "openai": [*LOOK, ("tool_call_started", {}), ("token_usage_updated", None)],
    "openai-responses": [*LOOK, ("token_usage_updated", None), ("turn_completed", "completed")],
    "gemini": [
        *(*LOOK, ("tool_call_started", {"a": [{"b": "xy"}], "n": 2})),
        *(("token_usage_updated", None), ("turn_completed", "STOP")),
    ],
    "cohere": [*LOOK, ("token_usage_updated", None)],
    "bedrock": [*LOOK, ("token_usage_updated", None)],
    "opencode": [
        *(
            *THOUGHT,
            *LOOK,
            ("tool_call_completed", "a.py\n"),
            ("token_usage_updated", None),
            ("turn_completed", "stop"),
        ),
    ],
    "pi": [
        *(("run_started", None), LOOK[0], ("token_usage_updated", None), LOOK[1], ("tool_call_completed", "ab")),
        *(("turn_completed", "stop"), ("run_completed", None)),
    ],
}


@pytest.mark.parametrize("format", EXCERPTS)
def test_a_stream_becomes_canonical(format: str) -> None:
    drafts = translate(FORMATS[format](), EXCERPTS[format])
    assert shown(drafts) == BECOMES[format]
    thoughts = "".join(data.get("thinking", "") for data in of_type(drafts, "message_received"))
    assert thoughts == "Look first."


@pytest.mark.parametrize("format", EXCERPTS)
def test_any_program_in_a_known_format_is_recognised(format: str) -> None:
    translator = JsonLinesTranslator()
    assert shown(translate(translator, EXCERPTS[format])) == BECOMES[format]
    assert translator.format == format


# Claude Code.


def test_partial_messages_are_not_told_twice() -> None:
    """With --include-partial-messages the events of a message come first, and its lines repeat them."""
    events = [{"type": "stream_event", "event": event, "parent_tool_use_id": None} for event in ANTHROPIC]
    lines = [CLAUDE[0], *events[:4], CLAUDE[1], *events[4:14], CLAUDE[2], *events[14:], *CLAUDE[3:]]
    drafts = translate(ClaudeTranslator(), lines)
    assert [data["content"] for data in of_type(drafts, "message_received")] == ["I'll look. 👀", "One file."]
    assert len(of_type(drafts, "tool_call_started")) == 1
    assert len([draft for draft in drafts if draft.type == "message_streamed"]) > 3


def test_a_line_that_is_stored_twice_is_told_once() -> None:
    drafts = translate(ClaudeTranslator(), [CLAUDE[4], CLAUDE[4]])
    assert said(drafts) == "One file."
    twice = {**CLAUDE[4], "message": {"id": "m-9", "content": [{"type": "text", "text": "again"}] * 2}}
    assert said(translate(ClaudeTranslator(), [twice])) == "againagain", "twice in one line is meant"


def test_a_result_nobody_has_said_is_said() -> None:
    assert said(translate(ClaudeTranslator(), [CLAUDE[0], CLAUDE[5]])) == "One file."
    long = "x" * (MAX_TEXT_CHARS + 10)
    message = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": long}]}}
    drafts = translate(ClaudeTranslator(), [message, {**CLAUDE[5], "result": long}])
    assert said(drafts) == long


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"subtype": "error_during_execution", "is_error": True, "errors": ["a", "b"]}, "a\nb"),
        ({"subtype": "error_max_turns"}, "error_max_turns"),
        ({"subtype": "success", "is_error": True, "result": "API Error: 529"}, "API Error: 529"),
        ({"is_error": True, "result": {"a": 1}}, '{"a":1}'),
        ({"is_error": True, "result": None}, "the run failed"),
    ],
)
def test_a_result_that_is_an_error_fails_the_run(result: Json, message: str) -> None:
    drafts = translate(ClaudeTranslator(), [{"type": "result", **result}])
    (failed,) = of_type(drafts, "run_failed")
    assert failed["error_message"] == message
    assert failed["provider_error"]["provider"] == "claude"


def test_sub_agents_permissions_interruptions_and_times() -> None:
    lines: list[Json] = [
        {**CLAUDE[4], "parent_tool_use_id": "t-9", "timestamp": "2026-01-02T03:04:05.678Z"},
        {"type": "control_request", "request_id": "q", "request": {"subtype": "can_use_tool", "tool_name": "rm"}},
        {"type": "user", "message": {"content": f"{INTERRUPTED}]"}},
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "t", "is_error": True}]}},
        {"type": "system", "subtype": "compact_boundary"},
        {"type": "progress"},
    ]
    translator = ClaudeTranslator()
    drafts = translate(translator, lines)
    received = next(draft for draft in drafts if draft.type == "message_received")
    assert received.metadata == {"parent_tool_call_id": "t-9", "model": "small"}
    assert received.timestamp is not None
    assert received.timestamp.microsecond == 678_000
    assert received.provider_event_id == CLAUDE[4]["uuid"]
    (asked,) = of_type(drafts, "tool_approval_requested")
    assert (asked["provider_approval_id"], asked["tool_name"]) == ("q", "rm")
    assert len(of_type(drafts, "run_cancelled")) == len(of_type(drafts, "tool_call_failed")) == 1
    assert dict(translator.ignored) == {"system/compact_boundary": 1, "progress": 1}


def test_what_is_new_in_claude_code_goes_through_untouched_and_trouble_is_a_warning() -> None:
    new = {"type": "system", "subtype": "of_tomorrow", "session_id": "x", "deep": [{"a": 1.5}], "uuid": "u"}
    retry = {"type": "system", "subtype": "api_retry", "attempt": 2, "max_retries": 10, "error_status": 529}
    limits = [{"type": "rate_limit_event", "rate_limit_info": {"status": s}} for s in ("allowed", "allowed_warning")]
    huge = {"type": "huge_one", "text": "x" * MAX_UNKNOWN_BYTES}
    translator = ClaudeTranslator()
    drafts = translate(translator, [new, {"type": "tomorrow"}, retry, *limits, huge, {"type": "no name"}])
    assert [draft.type for draft in drafts] == ["claude.system/of_tomorrow", "claude.tomorrow", *["error_occurred"] * 2]
    assert drafts[0].data == new
    warnings = of_type(drafts, "error_occurred")
    assert [one["fatal"] for one in warnings] == [False, False]
    assert "trying again (2 of 10)" in warnings[0]["error_message"]
    assert warnings[1]["error_message"] == "rate limit: allowed_warning"
    assert dict(translator.ignored) == {"huge_one": 1, "no name": 1}


def test_what_is_new_in_codex_goes_through_untouched() -> None:
    new = {"type": "request_user_input", "questions": [{"id": "q"}]}
    collab = {"id": "i", "type": "collab_tool_call", "tool": "spawn_agent", "prompt": "look", "status": "completed"}
    usage = {"input_tokens": 1, "output_tokens": 2, "reasoning_output_tokens": 3}
    ended = {"type": "turn.completed", "usage": usage}
    drafts = translate(CodexTranslator(), [new, {"type": "item.completed", "item": collab}, ended])
    assert [draft.type for draft in drafts[:3]] == [
        *("codex.request_user_input", "tool_call_started", "tool_call_completed")
    ]
    assert drafts[0].data == new
    assert drafts[1].data["tool_input"]["tool"] == "spawn_agent"
    assert of_type(drafts, "token_usage_updated") == [usage]


# Codex.


def item(kind: str, when: str = "completed", **members: Any) -> Json:
    return {"type": f"item.{when}", "item": {"id": "i", "type": kind, **members}}


@pytest.mark.parametrize(
    ("line", "name", "input", "end", "output"),
    [
        (item("file_change", changes=[1], status="completed"), "file_change", {"changes": [1]}, "completed", [1]),
        (item("file_change", changes=[1], status="failed"), "file_change", {"changes": [1]}, "failed", [1]),
        (item("web_search", query="q"), "web_search", {"query": "q"}, "completed", ""),
        (
            item("mcp_tool_call", server="s", tool="t", arguments={"a": 1}, result={"content": [{"text": "x"}]}),
            *("s.t", {"a": 1}, "completed", "x"),
        ),
        (
            item("mcp_tool_call", server="s", tool="t", arguments=None, error={"message": "no"}),
            *("s.t", {}, "failed", "no"),
        ),
        (
            item("command_execution", command="false", exit_code=1, aggregated_output="x"),
            "command_execution",
            None,
            "failed",
            "x",
        ),
        (item("a_new_kind", what=1), "a_new_kind", {"what": 1}, "completed", ""),
    ],
)
def test_items_are_tool_calls(line: Json, name: str, input: Json | None, end: str, output: Any) -> None:
    drafts = translate(CodexTranslator(), [line])
    (started,) = of_type(drafts, "tool_call_started")
    assert started["tool_name"] == name
    assert input is None or started["tool_input"] == input
    (ended,) = of_type(drafts, f"tool_call_{end}")
    assert ended["tool_output"] == output


def test_output_of_a_running_command_comes_as_it_grows() -> None:
    drafts = translate(CodexTranslator(), EXCERPTS["codex"])
    pieces = [data["delta"] for data in of_type(drafts, "message_streamed") if data.get("role") == "tool"]
    assert pieces == ["a.py\n"]


def test_two_messages_that_grow_at_once_stay_apart() -> None:
    lines = [
        {"type": "item.updated", "item": {"id": "a", "type": "agent_message", "text": "One"}},
        {"type": "item.updated", "item": {"id": "b", "type": "agent_message", "text": "Two"}},
        {"type": "item.completed", "item": {"id": "a", "type": "agent_message", "text": "One more"}},
        {"type": "item.completed", "item": {"id": "b", "type": "agent_message", "text": "Two."}},
    ]
    assert [text for _, text in shown(translate(CodexTranslator(), lines))] == ["One", "Two", " more", "."]


def test_errors_of_a_turn_and_of_an_item() -> None:
    for error, reason in (("x", "x"), ({"code": 5}, '{"code":5}'), (None, "the run failed")):
        (told,) = translate(CodexTranslator(), [{"type": "turn.failed", "error": error}])
        assert told.data["error_message"] == reason
    failed = translate(CodexTranslator(), [{"type": "turn.failed", "error": {"message": "no npm"}}])
    assert shown(failed) == [("run_failed", "no npm")]
    warned = translate(
        CodexTranslator(), [item("error", message="cut"), {"type": "error", "message": "Reconnecting 1/5"}]
    )
    assert [data["fatal"] for data in of_type(warned, "error_occurred")] == [False, False]
    (fatal,) = of_type(translate(CodexTranslator(), [{"type": "error", "message": "gone"}]), "error_occurred")
    assert "fatal" not in fatal


# Model APIs.


def chunk(delta: Json, **choice: Any) -> Json:
    return {"choices": [{"index": 0, "delta": delta, **choice}]}


def test_chat_completion_chunks_in_the_dialects_of_others() -> None:
    lines: list[Any] = [
        chunk(
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]},
                    {"type": "text", "text": "a"},
                ]
            }
        ),
        chunk({"refusal": "b"}),
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        chunk({"tool_calls": [{"id": "1", "function": {"name": "x", "arguments": {"k": 1}}}]}),
        chunk({"tool_calls": [{"index": 0, "id": "2", "function": {"name": "y", "arguments": "{}"}}]}),
        chunk({"tool_calls": [{"index": 0, "id": "3", "function": {"name": "", "arguments": ""}}]}),
        chunk({"function_call": {"name": "old", "arguments": "{}"}}, finish_reason="function_call"),
        {"choices": [], "x_groq": {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}},
        "data: [DONE]",
    ]
    drafts = translate(OpenAIChunksTranslator(), lines)
    (received,) = of_type(drafts, "message_received")
    assert (received["content"], received["thinking"], received["refusal"]) == ("ab", "t", True)
    calls = [
        (data["tool_call_id"], data["tool_name"], data["tool_input"]) for data in of_type(drafts, "tool_call_started")
    ]
    assert calls == [("1", "x", {"k": 1}), ("2", "y", {}), ("3", "", {}), ("", "old", {})]
    assert of_type(drafts, "token_usage_updated")[0]["output_tokens"] == 2


def test_chat_completions_that_break_off_or_were_never_streamed() -> None:
    (cut,) = of_type(translate(OpenAIChunksTranslator(), OPENAI[:3]), "message_received")
    assert (cut["content"], cut["incomplete"]) == ("I'll look.", True)
    whole = {"object": "chat.completion", "choices": [{"message": {"content": "All."}, "finish_reason": "stop"}]}
    assert shown(translate(OpenAIChunksTranslator(), [whole])) == [
        ("message_received", "All."),
        ("turn_completed", "stop"),
    ]
    error = translate(OpenAIChunksTranslator(), [OPENAI[1], {"error": {"message": "overloaded", "code": 529}}])
    assert shown(error) == [("message_received", "I'll "), ("error_occurred", "overloaded")]
    assert shown(translate(OpenAIChunksTranslator(), [{"error": "text"}])) == [("error_occurred", "text")]
    cumulative = [{**chunk({"content": "a"}), "usage": {"prompt_tokens": 1}}, "[DONE]"]
    assert shown(translate(OpenAIChunksTranslator(), cumulative))[-1] == ("token_usage_updated", None)


@pytest.mark.parametrize("end", ["response.completed", "response.incomplete"])
def test_a_response_whose_items_have_no_end(end: str) -> None:
    output = [{"type": "message", "content": [{"type": "output_text", "text": "I'll look."}]}]
    status = end.removeprefix("response.")
    last = {"type": end, "response": {"status": status, "output": output}}
    drafts = translate(OpenAIResponsesTranslator(), [*RESPONSES[:6], last])
    (received,) = of_type(drafts, "message_received")
    assert received["content"] == "I'll look."
    assert received.get("incomplete", False) is (status == "incomplete")


def test_responses_tools_of_the_provider_and_failures() -> None:
    def done(**members: Any) -> Json:
        return {"type": "response.output_item.done", "item": members}

    lines = [
        done(id="1", type="web_search_call", action={"query": "q"}),
        done(id="2", type="mcp_call", name="ls", arguments="{}", output="a.py"),
        done(id="3", type="mcp_call", name="ls", arguments="{}", error={"message": "no"}),
        done(id="4", type="mcp_approval_request", name="rm", arguments="{}"),
        done(id="5", type="custom_tool_call", name="apply", input="not json"),
        {"type": "error", "error": {"message": "quota"}},
        {"type": "response.failed", "response": {"error": {"message": "quota"}}},
    ]
    drafts = translate(OpenAIResponsesTranslator(), lines)
    assert [data["tool_name"] for data in of_type(drafts, "tool_call_started")] == ["web_search", "ls", "ls", "apply"]
    assert of_type(drafts, "tool_call_started")[3]["tool_input"] == "not json"
    assert len(of_type(drafts, "tool_call_completed")) == len(of_type(drafts, "tool_call_failed")) == 1
    assert of_type(drafts, "tool_approval_requested")[0]["tool_name"] == "rm"
    assert shown(drafts)[-2:] == [("error_occurred", "quota"), ("run_failed", "quota")]


def test_a_message_that_breaks_off_where_the_next_begins() -> None:
    drafts = translate(
        AnthropicTranslator(), [*ANTHROPIC[:7], *ANTHROPIC[:1], {"type": "error", "error": {"message": "x"}}]
    )
    (first,) = of_type(drafts, "message_received")
    assert (first["content"], first["incomplete"]) == ("I'll ", True)
    assert shown(drafts)[-1] == ("error_occurred", "x")


@pytest.mark.parametrize(
    "path", ["$", "", None, "$.a[99999]", "$.a[0]", "$.n.x", "$.n[0]", "$" + ".a" * 100, "$[0]"], ids=repr
)
def test_a_path_that_leads_nowhere_is_passed(path: Any) -> None:
    def part(**call: Any) -> Json:
        return {"candidates": [{"content": {"parts": [{"functionCall": call}]}}]}

    def value(path: Any) -> list[Json]:
        return [{"jsonPath": path, "numberValue": 1}]

    lines = [
        part(name="f", willContinue=True),
        part(partialArgs=value("$.n"), willContinue=True),
        part(partialArgs=value(path)),
    ]
    (call,) = of_type(translate(GeminiTranslator(), lines), "tool_call_started")
    assert call["tool_input"]["n"] == 1


def test_errors_and_retries_of_the_smaller_ones() -> None:
    gemini = translate(GeminiTranslator(), [{"error": {"message": "quota"}, "candidates": []}])
    assert shown(gemini) == [("error_occurred", "quota")]
    bedrock = translate(FORMATS["bedrock"](), [{"throttlingException": {"message": "slow down"}}])
    assert shown(bedrock) == [("error_occurred", "slow down")]
    error = {"type": "error", "error": {"name": "APIError", "data": {"message": "timeout"}}}
    assert shown(translate(OpenCodeTranslator(), [error])) == [("error_occurred", "timeout")]
    tool = {"type": "tool_use", "part": {"tool": "x", "callID": "c", "state": {"status": "error", "error": "no"}}}
    assert shown(translate(OpenCodeTranslator(), [tool]))[1] == ("tool_call_failed", "no")
    failing = {"role": "assistant", "content": [], "stopReason": "error", "errorMessage": "Rate limit"}
    lines = [
        {"type": "message_end", "message": failing},
        {"type": "agent_end"},
        {"type": "auto_retry_end", "success": True},
    ]
    assert shown(translate(PiTranslator(), lines)) == [("run_failed", "Rate limit"), ("error_recovered", None)]


# Any program.


def test_a_programs_text_is_its_reply() -> None:
    drafts = translate(JsonLinesTranslator(), ["building…\n", "\n", '{"level": "info", "msg": "done"}\r\n', b"\xff\n"])
    assert said(drafts) == 'building…\n\n{"level": "info", "msg": "done"}\n\ufffd\n'
    assert len(of_type(drafts, "message_streamed")) == 4


def test_what_looks_like_the_head_of_an_event_is_text_if_no_event_follows() -> None:
    text = "id: 7\n: a comment\n\nevent: x\n"
    assert said(translate(JsonLinesTranslator(), text.splitlines(keepends=True))) == text
    assert said(translate(JsonLinesTranslator(), [*text.splitlines(), "that was all"])) == text + "that was all\n"
    assert said(translate(JsonLinesTranslator(), ["event: x", 'data: {"delta": "y"}'])) == "y"


def test_lines_that_say_what_they_are() -> None:
    lines: list[Any] = [
        {"type": "run_start"},
        {"type": "delta", "delta": "Hel", "model": "m"},
        {"type": "partial", "session_id": "s", "request_id": "r", "message": {"role": "assistant", "content": "lo"}},
        {"type": "ai_message", "content": "Hello"},
        {"type": "LLM_OUTPUT", "workflow_id": "w", "message": "All."},
        {"type": "message", "content": [{"text": "in parts"}]},
        {"type": "tool_call", "id": "c", "name": "ls"},
        {"type": "run_end", "status": "failed", "error": "no"},
    ]
    drafts = translate(JsonLinesTranslator(), lines)
    assert shown(drafts) == [
        *(("run_started", None), ("message_received", "Hello"), ("message_received", "All.")),
        *(("message_received", "in parts"), ("tool_call_started", None), ("run_failed", "no")),
    ]


def test_a_format_may_be_named() -> None:
    translator = JsonLinesTranslator("codex")
    assert translator.format == "codex"
    assert [draft.type for draft in translator.feed("plain text")] == ["error_occurred"]
    with pytest.raises(KeyError):
        JsonLinesTranslator("klingon")
    assert format_of({"type": "unheard"}) is format_of({}) is format_of({"object": 7}) is None


def test_text_before_a_format_is_known_is_kept() -> None:
    drafts = translate(JsonLinesTranslator(), ["npm warn\n", *EXCERPTS["codex"]])
    assert drafts[0] == Draft("message_streamed", {"delta": "npm warn\n"})
    assert shown(drafts) == [("message_received", "npm warn\n"), *BECOMES["codex"]]
