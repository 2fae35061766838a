"""What a request has told whole is kept, whether or not its runner came to the checkpoint (row A96)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bridge_client import session_rules as rules
from bridge_client.runners import RunnerError
from bridge_client.told_messages import ToldMessages
from tests.support.running_home import Home, running_home
from tests.support.scripted_runner import ScriptedRunner, final, gate, partial, reply


async def free(home: Home) -> None:
    """The execution has let go of the request."""
    while home.requests.running("s") is not None:
        await asyncio.sleep(0.005)


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
RESULT = {"role": "tool", "content": "seen", "metadata": {"tool_call_id": "c1", "tool_name": "look"}}


@pytest.mark.parametrize("end", [RunnerError("broke"), gate()[1]], ids=["failed", "cancelled"])
async def test_A96_what_was_told_whole_stands_in_the_history_however_the_request_ends(tmp_path: Path, end: Any) -> None:
    """Its runner never came to the checkpoint; who loads the session later reads on behind its cursor."""
    unanswered = {**CALL, "id": "c2"}
    script = (
        *reply("first"),
        final("ab"),
        {"type": "tool_calls", "tool_calls": [CALL]},
        {"type": "tool_results", "messages": [RESULT]},
        final("c"),
        {"type": "tool_calls", "tool_calls": [unanswered]},
        partial("never whole"),
    )
    async with running_home(tmp_path, ScriptedRunner(*script, end)) as home:
        await home.create()
        request_id = await home.send("hi")
        await home.until("partial", message={"role": "assistant", "content": "never whole"})
        if not isinstance(end, RunnerError):
            await home.do("POST", f"/sessions/s/requests/{request_id}/cancel", {}, status=202)
        await home.until("request_completed")
        await free(home)
        loaded = await home.do("GET", "/sessions/s/messages")
        assert [(m["role"], m["content"]) for m in loaded["messages"]] == [
            ("user", "hi"),
            ("assistant", "first"),
            ("assistant", "ab"),
            ("tool", "seen"),
            ("assistant", "c"),
        ]
        assert [m["metadata"].get("tool_calls") for m in loaded["messages"]] == [None, None, [CALL], None, None]
        behind = (await home.events(session_id="s", since_id=loaded["cursor_event_id"]))["events"]
        last = "error" if isinstance(end, RunnerError) else "request_cancelled"
        assert [event["type"] for event in behind] == [last, "request_completed"]


async def test_A96_a_home_that_was_killed_before_a_checkpoint_makes_it_at_its_next_start(tmp_path: Path) -> None:
    gone, wait = gate()
    async with running_home(tmp_path, ScriptedRunner(final("ab"), partial("c"), wait)) as home:
        await home.create()
        await home.send("hi")
        await home.until("partial")
        assert not gone.is_set()
        for task in home.requests._tasks:  # as kill -9 does it: nothing more is written
            task.cancel()
        await asyncio.wait(home.requests._tasks)
        assert [m["content"] for m in (await home.do("GET", "/sessions/s/messages"))["messages"]] == ["hi"]
    for _ in range(2):
        async with running_home(tmp_path) as home:
            loaded = await home.do("GET", "/sessions/s/messages")
            assert [message["content"] for message in loaded["messages"]] == ["hi", "ab"]
            behind = (await home.events(session_id="s", since_id=loaded["cursor_event_id"]))["events"]
            assert [event["type"] for event in behind] == ["error", "request_completed"]


async def test_A96_what_is_too_much_for_the_history_is_left_out_and_the_request_still_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rules, "MAX_MESSAGES", 1)
    async with running_home(tmp_path, ScriptedRunner(final("ab"), RunnerError("broke"))) as home:
        await home.create()
        await home.send("hi")
        await home.until("request_completed")
        await free(home)
        assert len((await home.do("GET", "/sessions/s/messages"))["messages"]) == 1
    assert "stays out of its session" in caplog.text


@pytest.mark.parametrize(
    "event",
    [
        {"type": "final"},
        {"type": "final", "messages": ["text", {"role": 1}, {"role": "assistant"}]},
        {"type": "tool_calls", "tool_calls": "none"},
        {"type": "error", "detail": "no"},
    ],
)
def test_what_no_message_comes_of_changes_nothing(event: Any) -> None:
    told = ToldMessages()
    told.add(event)
    assert told.take() == []
