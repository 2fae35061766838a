"""Events of every vocabulary become the same blocks, in pieces, merged or whole."""

import json
from typing import Any

import pytest

from bridge_client import transcript
from bridge_client.app_client import CaughtUp, Event, Gap, ServerStatus
from bridge_client.transcript import Block, Transcript

Json = dict[str, Any]


def event(type: str, number: int = 1, session: str | None = "s", request: str | None = "r", **more: Any) -> Event:
    whose = {name: value for name, value in (("session_id", session), ("request_id", request)) if value is not None}
    return Event(number, type, session, json.dumps({"event_id": str(number), "type": type, **whose, **more}).encode())


def partial(text: str, **more: Any) -> Event:
    return event("partial", message={"role": "assistant", "content": text}, **more)


def final(text: str, **metadata: Any) -> Event:
    return event("final", messages=[{"role": "assistant", "content": text, "metadata": metadata}])


def told(*items: Any) -> list[tuple[str, str, str]]:
    seen = Transcript()
    return [(block.kind, block.title, block.text) for item in items for block in seen.take(item)]


CALL = event("tool_calls", tool_calls=[{"id": "t", "function": {"name": "ls", "arguments": '{"path":"."}'}}])
CHUNK = event("tool_partial", tool_call_id="t", phase="stream", payload={"part": "a.py\n"})
RESULT_MESSAGE = {"role": "tool", "content": "a.py\nb.py", "metadata": {"tool_call_id": "t", "tool_name": "ls"}}
RESULTS = event("tool_results", messages=[RESULT_MESSAGE])
REQUEST = [
    event("request_started", stream=True),
    event("assistant_message", phase="start"),
    partial("I'll "),
    partial("look."),
    event("assistant_message", phase="end"),
    final("I'll look."),
    CALL,
    event("tool_partial", tool_call_id="t", phase="start", payload={"part": ""}),
    CHUNK,
    event("tool_partial", tool_call_id="t", phase="end", payload={"result": RESULT_MESSAGE}),
    RESULTS,
    event("token_usage_updated", data={"input_tokens": 3, "output_tokens": 9}, metadata={}),
    event("checkpoint", timestamp="2026-01-01T00:00:00Z"),
    event("request_completed"),
]


def test_A220_a_request_is_readable() -> None:
    assert told(*REQUEST) == [
        ("line", "request started r", ""),
        ("reply", "assistant", "I'll look."),
        ("tool", 'ls {"path":"."}', "a.py\nb.py"),
        ("line", "tokens: 3 in, 9 out", ""),
        ("line", "request completed", ""),
    ]


def test_A220_a_question_and_its_answer_are_seen() -> None:
    call = {"id": "t", "function": {"name": "rm", "arguments": '{"path":"x"}'}}
    for answer, seen in (("granted", ("line", "allowed")), ("denied", ("warning", "not allowed"))):
        about = {"approval_id": "q", "tool_call": call}
        assert told(event("tool_approval_requested", **about), event(f"tool_approval_{answer}", **about)) == [
            ("question", 'asks to use rm {"path":"x"}', "it waits: allow or deny it in an app"),
            (seen[0], f'{seen[1]}: rm {{"path":"x"}}', ""),
        ]
    (elsewhere,) = told(event("tool_approval_requested", tool_call=call))
    assert elsewhere[2] == "it waits for an answer where the agent runs"


def test_A224_A226_merged_or_left_out_pieces_change_nothing_of_what_is_finished() -> None:
    compact = [one for one in REQUEST if one.type not in ("partial", "tool_partial")]
    merged = [*REQUEST[:2], partial("I'll look."), *REQUEST[4:]]
    assert told(*compact) == told(*merged) == told(*REQUEST)


def test_A220_what_grows_is_seen_growing() -> None:
    seen = Transcript()
    for one in REQUEST[:4]:
        seen.take(one)
    assert [(block.kind, block.grown) for block in seen.growing] == [("reply", "I'll look.")]
    for one in REQUEST[4:9]:
        seen.take(one)
    assert [(block.title, block.grown) for block in seen.growing] == [('ls {"path":"."}', "a.py\n")]
    for one in REQUEST[9:]:
        seen.take(one)
    assert seen.growing == []


def test_A221_A71_a_text_display_is_preferred_and_another_is_not() -> None:
    shown = {"type": "text", "content": "shown"}
    assert told(final("said", display=shown))[0][2] == "shown"
    assert told(final("said", display={"type": "html", "content": "<b>"}))[0][2] == "said"
    tool = {**RESULT_MESSAGE, "metadata": {**RESULT_MESSAGE["metadata"], "display": shown}}  # type: ignore[dict-item]
    assert told(event("tool_results", messages=[tool]))[0][2] == "shown"


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (event("request_cancelled"), [("warning", "request cancelled", "")]),
        (event("error", detail="no quota"), [("error", "no quota", "")]),
        (event("request_completed"), [("line", "request completed", "")]),
    ],
)
def test_what_is_broken_off_stays_and_says_so(ending: Event, said: list[Any]) -> None:
    seen = Transcript()
    seen.take(partial("half an ans"))
    other = partial("of another request", request="r2")
    seen.take(other)
    first, *rest = seen.take(ending)
    assert (first.kind, first.text, first.broken_off) == ("reply", "half an ans", True)
    assert [(block.kind, block.title, block.text) for block in rest] == said
    assert [block.grown for block in seen.growing] == ["of another request"]


def test_an_error_of_a_program_brings_its_diagnostics() -> None:
    failed = event("error", detail="claude exited with status 1", provider_error={"stderr": "not logged in"})
    assert told(failed) == [("error", "claude exited with status 1", "not logged in")]
    warning = event("error_occurred", request=None, data={"error_message": "a hiccup", "fatal": False})
    assert told(warning)[0][0] in ("warning", "error")


def test_canonical_and_streaming_events_are_read_too() -> None:
    canonical = [
        event("message_streamed", request=None, run_id="r", data={"delta": "Hi"}),
        event("message_received", request=None, run_id="r", data={"content": "Hi"}),
        event("tool_call_failed", request=None, run_id="r", data={"tool_name": "ls", "tool_output": "no"}),
    ]
    assert told(*canonical) == [("reply", "assistant", "Hi"), ("tool", "ls", "no")]
    workflow = {"request": None, "workflow_id": "w", "timestamp": "2026-01-01T00:00:00Z"}
    streaming = [event("LLM_PARTIAL", message="Hi", **workflow), event("LLM_OUTPUT", message="Hi", **workflow)]
    assert told(*streaming) == [("reply", "assistant", "Hi")]


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("application_notification_created", {"display": {"title": "Update", "body": "now"}}, ("Update", "now")),
        (
            "session_notification_dismissed",
            {"notification": {"title": "Look", "body": "here"}},
            ("Look (dismissed)", "here"),
        ),
        (
            "application_notification_updated",
            {"notification": {"title": "Disk", "status": "resolved"}},
            ("Disk (resolved)", ""),
        ),
        ("session_notification_updated", {"notification": {"title": "Disk", "status": []}}, ("Disk (updated)", "")),
        ("session_notification_created", {"display": "odd", "notification": 7}, ("notification", "")),
    ],
)
def test_notifications_are_notices(kind: str, more: Json, said: tuple[str, str]) -> None:
    assert told(event(kind, request=None, **more)) == [("notice", *said)]


def test_what_has_no_form_of_its_own_is_a_line_and_nothing_is_dropped_unseen() -> None:
    assert told(event("deployed", data={"text": "to production"})) == [("line", "deployed: to production", "")]
    assert told(event("session_created", agent_id="a")) == [("line", "session created", "")], "known, so in words"
    assert told(event("deployed_to", text="production")) == [("line", "deployed_to: production", "")]
    assert told(event("deployed", text="to production")) == [("line", "deployed: to production", "")]
    ingested = event(
        "assistant", request=None, data={"message": {"content": [{"type": "text", "text": "from a file"}]}}
    )
    assert told(ingested) == [("line", "assistant: from a file", "")]
    broken = Event(1, "odd", None, b'{"a": ' + b"[" * 5000)
    assert told(broken) == [("line", "odd", "")]


def test_gaps_status_and_place() -> None:
    seen = Transcript()
    seen.take(partial("half"))
    first, gap = seen.take(Gap("expired", 4, None))
    assert first.broken_off
    assert gap == Block("warning", "gap: expired: the hub no longer has all of what followed 4")
    assert seen.take(ServerStatus(False, None)) == [Block("line", "home offline")]
    assert seen.take(CaughtUp(9)) == []
    seen.take(event("checkpoint", 12, timestamp="1970-01-01T00:00:07Z"))
    standing = seen.standing
    assert (standing.home, standing.live, standing.last_id, standing.last_time) == (False, True, 12, 7.0)


def test_what_strangers_write_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Transcript()
    for number in range(transcript.MAX_OPEN + 50):
        seen.take(partial("x", request=f"r{number}"))
        seen.take(event("tool_calls", request=f"r{number}", tool_calls=[{"id": "t", "function": {"name": "ls"}}]))
    assert len(seen.growing) == transcript.MAX_OPEN
    seen = Transcript()
    for _ in range(4):
        seen.take(partial("y" * 30_000))
    assert len(seen.growing[0].grown) == transcript.MAX_TEXT_CHARS
    (block,) = seen.take(final("z" * 100_000))
    assert len(block.text) == transcript.MAX_TEXT_CHARS + 1
    huge = event("tool_calls", tool_calls=[{"id": "t", "function": {"name": "n" * 9_000, "arguments": "a" * 90_000}}])
    assert seen.take(huge) == []


@pytest.mark.parametrize("value", [None, 7, "x", [], {}, [[]], {"role": 7}, [{"content": {"text": 1}}]])
@pytest.mark.parametrize(
    "type", ["partial", "final", "tool_calls", "tool_partial", "tool_results", "error", "message_appended"]
)
def test_odd_members_never_raise(type: str, value: Any) -> None:
    names = ("message", "messages", "tool_calls", "payload", "detail", "content", "tool_call_id", "phase")
    told(event(type, **dict.fromkeys(names, value)), event("request_completed"))
