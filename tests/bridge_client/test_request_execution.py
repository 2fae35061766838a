"""Requests under way: what is told of them, in which order, however they end (rows A40 to A47, A80 to A94)."""

import asyncio
import gc
import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import request_execution
from bridge_client.request_execution import STOPPED
from bridge_client.runners import Checkpoint, Context, Message, RunnerError
from bridge_client.running_request import AlreadyDecided, NoSuchApproval, NotRunning
from bridge_client.session_rules import RequestRunning
from tests.support.running_home import Home, running_home
from tests.support.scripted_runner import ScriptedRunner, final, gate, partial, reply, said

USER = Message(role="user", content="hello")


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with running_home(tmp_path) as home, asyncio.timeout(60):
        await home.sessions.create(session_id="s")
        yield home


async def run(home: Home, *script: Any, **options: Any) -> list[dict[str, Any]]:
    """All events of one request, which has ended."""
    request_id = await home.requests.start("s", USER, runner=ScriptedRunner(*script), **options)
    await home.until("request_completed", request_id=request_id)
    await ended(home)
    return await home.told(request_id)


async def ended(home: Home) -> None:
    """The execution has let go of the request."""
    while home.requests.running("s") is not None:
        await asyncio.sleep(0.005)


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


async def contents(home: Home) -> list[Any]:
    return [message.content for message in (await home.sessions.history("s"))[1]]


async def test_A41_A42_A43_A46_a_request_begins_and_ends_once_with_all_it_yields_between(home: Home) -> None:
    events = await run(home, *reply("Hel", "lo"))
    assert types(events) == [
        "request_started", "assistant_message", "partial", "partial", "assistant_message", "final", "checkpoint",
        "request_completed",
    ]  # fmt: skip
    assert events[0]["stream"] is True
    assert {event["session_id"] for event in events} == {"s"}
    assert await contents(home) == ["hello", "Hello"]


async def test_A40_start_returns_before_the_request_ends_and_the_message_is_durable(home: Home) -> None:
    opened, wait = gate()
    runner = ScriptedRunner(wait, *reply("x"))
    request_id = await home.requests.start("s", USER, runner=runner)
    assert await contents(home) == ["hello"]
    record = await home.sessions.get("s")
    assert record.request_id == request_id
    await runner.started.wait()
    assert [message.content for message in runner.requests[0].messages] == ["hello"]
    opened.set()
    await home.until("request_completed")


async def test_A42_A46_what_a_runner_yields_of_our_own_events_is_not_told_twice(home: Home) -> None:
    ours = [{"type": type} for type in ("request_started", "request_completed", "request_cancelled", "checkpoint")]
    assert types(await run(home, *ours, *reply("x"), *ours)) == [
        "request_started", "assistant_message", "partial", "assistant_message", "final", "checkpoint",
        "request_completed",
    ]  # fmt: skip


async def test_A56_A80_A81_A82_live_objects_reach_no_store(home: Home) -> None:
    events = await run(home, {"type": "session_checkpoint", "session": object()}, {**final("x"), "session": object()})
    assert types(events) == ["request_started", "final", "checkpoint", "request_completed"]
    assert "session" not in events[1]


async def test_A64_tool_partials_only_if_tools_are_streamed_and_partials_only_if_the_reply_is(home: Home) -> None:
    tool = {"type": "tool_partial", "tool_call_id": "c", "phase": "stream", "payload": {"part": "x"}}
    assert types(await run(home, tool)) == ["request_started", "tool_partial", "request_completed"]
    assert types(await run(home, tool, stream_tools=False)) == ["request_started", "request_completed"]
    events = await run(home, *reply("x"), stream=False)
    assert types(events) == ["request_started", "final", "checkpoint", "request_completed"]
    assert events[0]["stream"] is False


async def test_A84_A85_A89_A92_A93_a_checkpoint_comes_behind_the_events_it_captures_and_is_the_cursor(
    home: Home,
) -> None:
    opened, wait = gate()
    results = {"type": "tool_results", "messages": [{"role": "tool", "content": "3", "metadata": {}}]}
    script = (*reply("a"), results, Checkpoint([Message(role="tool", content="3")]), wait, *reply("b"))
    request_id = await home.requests.start("s", USER, runner=ScriptedRunner(*script))
    await home.until("tool_results")
    while len(await contents(home)) < 3:
        await asyncio.sleep(0.005)
    middle = await home.sessions.get("s")
    events = await home.told(request_id)
    assert types(events)[-2:] == ["tool_results", "checkpoint"]
    assert middle.cursor_event_id == int(events[-1]["event_id"])
    assert set(events[-1]) == {"event_id", "type", "session_id", "request_id", "timestamp"}  # light (A89)
    assert events[-1]["timestamp"].endswith("Z")
    opened.set()
    await home.until("request_completed")
    last = [event for event in await home.told(request_id) if event["type"] == "checkpoint"][-1]
    assert (await home.sessions.get("s")).cursor_event_id == int(last["event_id"])
    assert await contents(home) == ["hello", "a", "3", "b"]


async def test_A54_A69_messages_of_a_runner_may_have_any_role_and_content(home: Home) -> None:
    odd = [Message(role="developer", content=None), Message(role="tool", content={"a": [1.5]}, metadata={"k": "v"})]
    await run(home, Checkpoint(odd))
    assert (await home.sessions.history("s"))[1][1:] == odd
    events = await run(home, Checkpoint([said("x" * (1 << 20))]))
    assert types(events) == ["request_started", "error", "request_completed"]
    assert "1048576" in events[1]["detail"]


async def test_A83_a_follower_in_the_process_sees_checkpoints_and_its_failure_hurts_nobody(tmp_path: Path) -> None:
    seen: list[Any] = []

    def follow(session_id: str, request_id: str, messages: Any) -> None:
        seen.append((session_id, [message.content for message in messages]))
        raise RuntimeError("not ours")

    async with running_home(tmp_path, on_checkpoint=follow) as home:
        await home.sessions.create(session_id="s")
        assert types(await run(home, *reply("a"), *reply("b")))[-1] == "request_completed"
        assert await contents(home) == ["hello", "a", "b"]
    assert seen == [("s", ["a"]), ("s", ["b"])]


async def test_A16_A44_a_cancelled_request_says_so_and_ends_behind_its_runner(home: Home) -> None:
    _, wait = gate()
    runner = ScriptedRunner(partial("half"), wait, *reply("never"))
    request_id = await home.requests.start("s", USER, runner=runner)
    await home.until("partial")
    home.requests.cancel("s", request_id)
    await home.until("request_completed")
    assert runner.cleaned_up.is_set()
    assert types(await home.told(request_id)) == [
        "request_started",
        "partial",
        "request_cancelled",
        "request_completed",
    ]
    assert await contents(home) == ["hello"]
    await ended(home)
    with pytest.raises(NotRunning):
        home.requests.cancel("s", request_id)


async def test_A44_a_runner_that_will_not_end_is_left_behind_and_heard_no_more(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_execution, "CLEANUP_SECONDS", 0.01)
    opened, let_go = asyncio.Event(), asyncio.Event()

    async def stubborn(context: Context) -> Any:
        opened.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return partial("too late")

    runner = ScriptedRunner(stubborn, *reply("later still"))
    request_id = await home.requests.start("s", USER, runner=runner)
    await opened.wait()
    home.requests.cancel("s", request_id)
    await home.until("request_completed")
    let_go.set()
    await runner.cleaned_up.wait()
    assert types(await home.told(request_id)) == ["request_started", "request_cancelled", "request_completed"]


async def test_A45_A47_a_failed_request_tells_why_and_is_completed(home: Home, caplog: Any) -> None:
    report = {"provider": "codex", "kind": "timeout", "message": "slow", "exit_code": None, "stderr": None}
    error = RunnerError("the model said no", provider_error=report, details={"model": "m"})
    events = await run(home, *reply("a"), error)
    assert types(events)[-2:] == ["error", "request_completed"]
    assert (events[-2]["detail"], events[-2]["provider_error"]) == ("the model said no", report)
    events = await run(home, RuntimeError("secret of ours"))
    assert types(events) == ["request_started", "error", "request_completed"]
    assert "secret" not in events[1]["detail"]
    assert "secret of ours" in caplog.text
    events = await run(home, RunnerError("bad report", provider_error={"n": math.nan}))
    assert types(events) == ["request_started", "error", "request_completed"]
    assert await contents(home) == ["hello", "a", "hello", "hello"]


@pytest.mark.parametrize(
    "bad", [{"type": "x", "n": math.inf}, {"no": "type"}, {"type": "final", "text": "x" * (1 << 20)}]
)
async def test_A47_what_cannot_be_stored_ends_the_request_with_an_error(home: Home, bad: Any) -> None:
    events = await run(home, partial("a"), bad, partial("b"))
    assert types(events) == ["request_started", "partial", "error", "request_completed"]
    assert "can't be stored" in events[2]["detail"]


async def test_a_second_request_is_refused_while_one_runs_and_another_session_is_not(home: Home) -> None:
    opened, wait = gate()
    await home.sessions.create(session_id="other")
    request_id = await home.requests.start("s", USER, runner=ScriptedRunner(wait))
    with pytest.raises(RequestRunning) as refused:
        await home.requests.start("s", USER, runner=ScriptedRunner())
    assert refused.value.request_id == request_id
    await home.requests.start("other", USER, runner=ScriptedRunner())
    await home.until("request_completed", session_id="other")
    opened.set()
    await home.until("request_completed", session_id="s")
    await ended(home)
    await run(home, *reply("again"))


async def test_a_request_id_of_the_caller_runs_once_however_often_it_is_sent(home: Home) -> None:
    runner = ScriptedRunner(*reply("a"))
    sent = [home.requests.start("s", USER, runner=runner, request_id="mine") for _ in range(8)]
    assert set(await asyncio.gather(*sent)) == {"mine"}
    await home.until("request_completed")
    await ended(home)
    assert await home.requests.start("s", USER, runner=runner, request_id="mine") == "mine"
    assert len(runner.requests) == 1
    assert await contents(home) == ["hello", "a"]


async def test_an_approval_is_asked_told_and_answered_once(home: Home) -> None:
    call = {"id": "c1", "function": {"name": "rm", "arguments": "{}"}}
    answers: list[bool] = []

    async def ask(context: Context) -> None:
        answers.append(await context.approve(call))

    request_id = await home.requests.start("s", USER, runner=ScriptedRunner(ask, ask))
    asked = await home.until("tool_approval_requested")
    assert (asked["request_id"], asked["tool_call"]) == (request_id, call)
    approval_id = asked["approval_id"]
    with pytest.raises(NoSuchApproval):
        home.requests.decide("s", request_id, "another", True)
    home.requests.decide("s", request_id, approval_id, True)
    granted = await home.until("tool_approval_granted")
    assert granted["approval_id"] == approval_id
    running = home.requests.running("s")
    assert running is not None
    while not running.approvals:
        await asyncio.sleep(0.005)
    home.requests.decide("s", request_id, approval_id, True)
    with pytest.raises(AlreadyDecided):
        home.requests.decide("s", request_id, approval_id, False)
    home.requests.decide("s", request_id, running.approvals[0].approval_id, False)
    await home.until("request_completed")
    assert answers == [True, False]
    assert types(await home.told(request_id)) == [
        "request_started", "tool_approval_requested", "tool_approval_granted", "tool_approval_requested",
        "tool_approval_denied", "request_completed",
    ]  # fmt: skip


async def test_an_approval_that_nobody_answers_is_denied(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_execution, "APPROVAL_SECONDS", 0.01)
    answers: list[bool] = []

    async def ask(context: Context) -> None:
        answers.append(await context.approve({"id": "c"}))

    events = await run(home, ask)
    assert answers == [False]
    assert types(events)[1:3] == ["tool_approval_requested", "tool_approval_denied"]


async def test_A153_A154_a_notification_that_fails_does_not_fail_the_request(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def notify(session_id: str, notification: Any) -> None:
        seen.append((session_id, notification))
        raise RuntimeError("no room")

    async def tell(context: Context) -> None:
        await context.notify({"title": "done"})

    async with running_home(tmp_path, notify=notify) as home:
        await home.sessions.create(session_id="s")
        assert types(await run(home, tell)) == ["request_started", "request_completed"]
    assert seen == [("s", {"title": "done"})]


async def test_a_home_that_stops_ends_its_requests_with_an_error(tmp_path: Path) -> None:
    _, wait = gate()
    runner = ScriptedRunner(partial("half"), wait)
    async with running_home(tmp_path) as home:
        await home.sessions.create(session_id="s")
        request_id = await home.requests.start("s", USER, runner=runner)
        await home.until("partial")
    assert runner.cleaned_up.is_set()
    async with running_home(tmp_path) as home:
        events = await home.told(request_id)
        assert types(events) == ["request_started", "partial", "error", "request_completed"]
        assert events[2]["detail"] == STOPPED
        await run(home, *reply("again"))


async def test_a_caller_who_goes_away_does_not_leave_the_session_busy(home: Home) -> None:
    starting = asyncio.create_task(home.requests.start("s", USER, runner=ScriptedRunner(*reply("a"))))
    while home.requests.running("s") is None:
        await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await home.until("request_completed")
    await ended(home)
    assert await contents(home) == ["hello", "a"]


async def test_the_history_is_the_requests_own_while_it_runs(home: Home) -> None:
    opened, wait = gate()
    await home.requests.start("s", USER, runner=ScriptedRunner(wait, *reply("a")))
    for change in (
        lambda: home.sessions.append("s", USER),
        lambda: home.sessions.modify("s", 0, "other"),
        lambda: home.sessions.delete("s", [0]),
    ):
        with pytest.raises(RequestRunning):
            await change()
    fork, _ = await home.sessions.fork("s", session_id="f")
    assert (fork.request_id, fork.message_count) == (None, 1)
    before = await home.sessions.get("s")
    marked = await home.sessions.update_metadata("s", lambda metadata: metadata.update(seen=True) or [])
    assert (marked.metadata, marked.cursor_event_id) == ({"seen": True}, before.cursor_event_id)
    opened.set()
    await home.until("request_completed")
    assert await contents(home) == ["hello", "a"]
    assert json.loads(json.dumps((await home.sessions.get("s")).metadata)) == {"seen": True}


async def test_A93_a_checkpoint_under_way_is_whole_when_the_request_is_cancelled(home: Home) -> None:
    runner = ScriptedRunner(final("a"), Checkpoint([said("a")]), *gate()[1:])
    request_id = await home.requests.start("s", USER, runner=runner)
    await home.until("final")
    home.requests.cancel("s", request_id)
    await home.until("request_completed")
    await ended(home)
    told = types(await home.told(request_id))
    assert told[-2:] == ["request_cancelled", "request_completed"]
    assert ("checkpoint" in told) == (await contents(home) == ["hello", "a"])


async def test_A41_A96_a_final_is_durable_before_its_runner_goes_on_and_so_is_all_before_it(home: Home) -> None:
    seen: list[list[str]] = []

    async def look(context: Context) -> None:
        seen.append(types(await home.told()))

    await run(home, *(partial(str(n)) for n in range(400)), final("a"), look, Checkpoint([said("a")]))
    assert seen[0][-402:] == ["request_started", *["partial"] * 400, "final"]
    told = [event["message"]["content"] for event in await home.told() if event["type"] == "partial"]
    assert told == [str(n) for n in range(400)]


async def test_A41_what_was_told_is_durable_before_a_question_and_a_notification(home: Home) -> None:
    async def notify(context: Context) -> None:
        await context.notify({"title": "done"})

    async def ask(context: Context) -> None:
        await context.approve({"id": "c", "function": {"name": "rm", "arguments": "{}"}})

    request_id = await home.requests.start("s", USER, runner=ScriptedRunner(partial("a"), notify, partial("b"), ask))
    asked = await home.until("tool_approval_requested")
    told = [event for event in await home.told() if event["type"] != "checkpoint"]
    assert types(told)[-4:] == ["partial", "session_notification_created", "partial", "tool_approval_requested"]
    home.requests.decide("s", request_id, asked["approval_id"], False)
    await home.until("request_completed")


async def test_A44_what_a_cancelled_runner_has_told_stands_before_the_cancellation(home: Home) -> None:
    runner = ScriptedRunner(*(partial(str(n)) for n in range(20_000)))
    request_id = await home.requests.start("s", USER, runner=runner)
    await home.until("partial")
    home.requests.cancel("s", request_id)
    await home.until("request_completed")
    told = [json.loads(event.data) for event in await home.store.list(request_id=request_id, limit=20_010)]
    pieces = [event["message"]["content"] for event in told if event["type"] == "partial"]
    assert types(told) == ["request_started", *["partial"] * len(pieces), "request_cancelled", "request_completed"]
    assert pieces == [str(n) for n in range(len(pieces))]
    assert len(pieces) < 20_000


async def test_A47_an_event_that_cannot_be_stored_ends_the_request_while_its_runner_waits(home: Home) -> None:
    runner = ScriptedRunner({"no": "type"}, gate()[1])
    request_id = await home.requests.start("s", USER, runner=runner)
    ending = await home.until("error")
    assert "can't be stored" in ending["detail"]
    await home.until("request_completed")
    assert runner.cleaned_up.is_set()
    assert types(await home.told(request_id)) == ["request_started", "error", "request_completed"]


async def test_A47_a_runner_whose_events_cannot_be_stored_leaves_nothing_for_asyncio_to_complain_of(home: Home) -> None:
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
    events = await run(home, partial("a"), {**final("b"), "pad": "y" * (1 << 20)})
    assert types(events) == ["request_started", "partial", "error", "request_completed"]
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
