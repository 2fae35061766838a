"""The events of source document 002, told by real programs and endpoints: to a callback as they happen, and stored."""

import json
from pathlib import Path
from typing import Any

import pytest

from bridge_client.runners import process as processes
from bridge_client.runners.command import Command, CommandRunner
from bridge_client.runners.process import Limits
from bridge_client.store.memory import MemoryStore
from protocol.events import readings
from protocol.events.session_manager import TYPES, Draft, Event
from tests.bridge_client.runners import excerpts
from tests.bridge_client.runners.running import answer, asking
from tests.support.running_home import running_home

Json = dict[str, Any]

ABOUT = {
    "message_sent": "content",
    "message_received": "content",
    "message_streamed": "delta",
    "tool_call_started": "tool_name",
    "tool_call_completed": "tool_output",
    "tool_call_failed": "tool_output",
    "token_usage_updated": "output_tokens",
    "error_occurred": "error_message",
    "run_failed": "error_message",
}
STOPPED = {"type": "user", "message": {"role": "user", "content": "[Request interrupted by user]"}}
RETRIED = {"type": "auto_retry_end", "success": True, "attempt": 1}


def about(event: Event | Draft) -> tuple[str, Any]:
    return event.type, event.data.get(ABOUT.get(event.type, ""))


async def run(script: str, *lines: Json, limits: Limits | None = None, **context: Any) -> list[Event]:
    """What a callback gets while a shell script runs that may print these lines (`$1`)."""
    seen: list[Event] = []
    text = "".join(json.dumps(line) + "\n" for line in lines)
    runner = CommandRunner(Command(("/bin/sh", "-c", script, "sh", text)), limits=limits, on_event=seen.append)
    await answer(runner, asking("look"))
    assert {event.type for event in seen} <= set(TYPES)
    return seen


SAY = 'printf %s "$1"'


@pytest.mark.parametrize(
    ("script", "lines", "limits", "end"),
    [
        (SAY, excerpts.CLAUDE, None, "run_completed"),
        ("echo hm; exit 3", (), None, "run_failed"),
        (SAY, (*excerpts.CLAUDE[:2], STOPPED), None, "run_cancelled"),
        ("echo hm; exec sleep 600", (), Limits(silence=0.1, grace=5), "run_timeout"),
    ],
    ids=["success", "failure", "interruption", "silence"],
)
async def test_B7_B114_each_transition_of_a_run_is_told_once_and_its_end_comes_last(
    script: str, lines: tuple[Json, ...], limits: Limits | None, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LOOK", 0.05)
    seen = await run(script, *lines, limits=limits)
    assert [event.type for event in seen if event.type.startswith("run_")] == ["run_started", end]
    assert (seen[0].type, seen[-1].type) == ("run_started", end)
    assert [event.sequence_number for event in seen] == list(range(len(seen)))


async def test_B8_B9_B10_what_is_said_to_the_agent_and_by_it_in_pieces_and_whole() -> None:
    seen = await run(SAY, *excerpts.CLAUDE[:2], {"type": "user", "message": {"role": "user", "content": "go on"}})
    said = [about(event) for event in seen if event.type.startswith("message_")]
    assert said == [
        ("message_streamed", ""),  # its thinking
        ("message_streamed", "I'll look."),
        ("message_received", "I'll look."),
        ("message_sent", "go on"),
    ]


async def test_B11_B112_a_tool_call_is_started_by_name_and_completed_or_failed() -> None:
    failed = {"type": "tool_result", "tool_use_id": "t-1", "is_error": True, "content": "no such folder"}
    broken = {"type": "user", "message": {"id": "u-1", "role": "user", "content": [failed]}}
    for lines, end in (
        (excerpts.CLAUDE, ("tool_call_completed", "a.py")),
        ([*excerpts.CLAUDE[:3], broken, *excerpts.CLAUDE[4:]], ("tool_call_failed", "no such folder")),
    ):
        seen = [event for event in await run(SAY, *lines) if event.type.startswith("tool_call_")]
        assert [about(event) for event in seen] == [("tool_call_started", "ls"), end]
        assert {event.data["tool_call_id"] for event in seen} == {"t-1"}


async def test_B12_an_error_is_told_and_so_is_that_it_was_overcome() -> None:
    reconnecting = {"type": "error", "message": "Reconnecting... 1/5"}
    for lines, told in (
        ([*excerpts.CODEX[:2], reconnecting, *excerpts.CODEX[2:]], ("error_occurred", "Reconnecting... 1/5", False)),
        ([*excerpts.PI[:4], RETRIED, *excerpts.PI[4:]], ("error_recovered", None, None)),
    ):
        seen = await run(SAY, *lines)
        (error,) = (event for event in seen if event.type.startswith("error_"))
        assert (error.type, error.data.get("error_message"), error.data.get("fatal")) == told
        assert seen[-1].type == "run_completed"


async def test_B13_B14_B113_tokens_are_counted_and_a_turn_has_its_end() -> None:
    seen = await run(SAY, *excerpts.CODEX)
    (usage,) = (event.data for event in seen if event.type == "token_usage_updated")
    assert (usage["input_tokens"], usage["output_tokens"]) == (5, 6)
    assert [event.type for event in seen[-3:]] == ["token_usage_updated", "turn_completed", "run_completed"]


async def test_B1_B3_what_is_told_live_is_stored_and_reads_the_same(tmp_path: Path) -> None:
    """A session of a home: its making, the user's message, and a run with thought, tool, usage and a failing end."""
    seen: list[Event] = []
    text = "".join(json.dumps(line) + "\n" for line in excerpts.CLAUDE[:-1])
    runner = CommandRunner(Command(("/bin/sh", "-c", SAY + "; exit 3", "sh", text)), on_event=seen.append)
    async with running_home(tmp_path, runner) as home:
        await home.create(agent_id="helper")
        request = await home.send("look")
        await home.until("request_completed", request_id=request)
        stored = await home.told()
    read = [draft for event in stored for draft in readings.read(event) if draft.type in TYPES]
    # A failed run is an `error` there, and then it is completed, whatever came of it (row A45).
    ends = {"run_failed": "error_occurred"}
    live = [(ends.get(event.type, event.type), about(event)[1]) for event in seen]
    assert live[-1] == ("error_occurred", "sh exited with status 3")
    assert [about(draft) for draft in read] == [
        ("session_created", None),
        ("message_sent", "look"),
        *live,
        ("run_completed", None),
    ]


@pytest.mark.parametrize(
    ("raw", "type"),
    [
        ({"type": "session_created"}, "session_created"),
        ({"type": "session_started"}, "session_started"),
        ({"type": "session_paused"}, "session_paused"),
        ({"type": "WORKFLOW_PAUSED", "workflow_id": "r"}, "session_paused"),
        ({"type": "session_resumed"}, "session_resumed"),
        ({"type": "WORKFLOW_RESUMED", "workflow_id": "r"}, "session_resumed"),
        ({"type": "session_completed"}, "session_completed"),
        ({"type": "session_failed", "error_message": "no disk"}, "session_failed"),
        ({"type": "session_cancelled"}, "session_cancelled"),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else value,
)
async def test_B3_B4_B5_B6_a_transition_of_a_session_is_kept_as_its_producer_tells_it(raw: Json, type: str) -> None:
    store = MemoryStore()
    await store.publish({**raw, "session_id": "s", "reason": "its own"})
    (stored,) = await store.list(session_id="s")
    (draft,) = readings.read(json.loads(stored.data))
    assert (draft.type, draft.data["reason"]) == (type, "its own")
