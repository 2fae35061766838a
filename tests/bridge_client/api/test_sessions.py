"""The routes of sessions over a real socket (rows A86 to A108, A40, A44)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import session_rules
from bridge_client.runners import Checkpoint, Context, Message
from tests.support.running_home import Home, running_home
from tests.support.scripted_runner import ScriptedRunner, gate, partial, reply, said


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner(*reply("Hel", "lo"))


@pytest.fixture
async def home(tmp_path: Path, runner: ScriptedRunner) -> AsyncIterator[Home]:
    async with running_home(tmp_path, runner) as home, asyncio.timeout(60):
        yield home


async def test_A12_A86_A87_A88_A90_A100_A102_A103_create_tells_session_created(home: Home) -> None:
    answer = await home.create("garden", agent_id="gardener", metadata={"title": "Roses"})
    created, marker = await home.told()
    shown = answer["session"]
    assert (created["type"], created["session_id"], created["agent_id"]) == ("session_created", "garden", "gardener")
    assert created["session"] == shown
    assert (shown["metadata"], shown["messages"], shown["message_count"]) == ({"title": "Roses"}, [], 0)
    assert "source_session_id" not in created
    assert "request_id" not in created  # A12
    assert (marker["type"], marker["session_id"]) == ("checkpoint", "garden")  # A86
    assert "request_id" not in marker  # A87
    assert answer["cursor_event_id"] == marker["event_id"]  # A88, A90
    anonymous = await home.do("POST", "/sessions", status=201)
    assert anonymous["session"]["agent_id"] == "default"
    assert anonymous["session"]["session_id"] not in ("", "garden")
    assert await home.refused("POST", "/sessions", {"session_id": "garden"}) == (409, "session_exists")
    assert len(await home.told()) == 4


async def test_A101_A103_fork_copies_the_history_as_it_is_and_goes_its_own_way(home: Home) -> None:
    await home.create("s", agent_id="a", metadata={"k": 1})
    await home.append("one")
    answer = await home.do("POST", "/sessions/s/fork", {"session_id": "f"}, status=201)
    created = (await home.told())[-2]
    assert (created["type"], created["source_session_id"], created["agent_id"]) == ("session_created", "s", "a")
    assert created["session"] == answer["session"]
    assert [message["content"] for message in created["session"]["messages"]] == ["one"]
    assert created["session"]["metadata"] == {"k": 1}
    await home.append("two", session_id="f")
    assert await contents(home, "s") == ["one"]
    assert await contents(home, "f") == ["one", "two"]
    assert await home.refused("POST", "/sessions/s/fork", {"session_id": "f"}) == (409, "session_exists")
    assert await home.refused("POST", "/sessions/none/fork") == (404, "no_such_session")


async def test_A104_A105_A108_append(home: Home) -> None:
    await home.create()
    parts = [{"type": "text", "text": "é"}, {"type": "image", "url": "x"}]
    body = {"role": "tool", "content": parts, "metadata": {"tool_call_id": "c", "display": {"type": "text"}}}
    answer = await home.do("POST", "/sessions/s/messages", body, status=201)
    event, marker = (await home.told())[-2:]
    assert (answer["index"], answer["message"]) == (0, body)
    members = {name: event[name] for name in ("type", "role", "content", "metadata", "message")}
    assert members == {"type": "message_appended", **body, "message": body}
    assert event["session"]["messages"] == [body]
    assert event["session"]["message_count"] == 1
    assert marker["type"] == "checkpoint"
    assert answer["cursor_event_id"] == marker["event_id"]


async def test_A106_A108_modify_changes_the_content_and_nothing_else(home: Home) -> None:
    await home.create()
    for content in ("zero", "one", "two"):
        await home.append(content)
    answer = await home.do("PATCH", "/sessions/s/messages/1", {"content": "uno"})
    event = (await home.told())[-2]
    assert (event["type"], event["index"], event["content"]) == ("message_modified", 1, "uno")
    assert [message["content"] for message in event["session"]["messages"]] == ["zero", "uno", "two"]
    assert answer["message"] == {"role": "user", "content": "uno", "metadata": {}}
    assert await contents(home) == ["zero", "uno", "two"]
    for index in ("3", "-1", "x", "1.0", "9" * 30):
        assert await home.refused("PATCH", f"/sessions/s/messages/{index}", {"content": ""}) == (404, "no_such_message")


async def test_A107_A108_delete_one_or_more(home: Home) -> None:
    await home.create()
    for content in "abcdef":
        await home.append(content)
    answer = await home.do("DELETE", "/sessions/s/messages", {"indices": [4, 1, 1]})
    event = (await home.told())[-2]
    assert (event["type"], event["indices"]) == ("messages_deleted", [1, 4])
    assert [message["content"] for message in event["session"]["messages"]] == ["a", "c", "d", "f"]
    assert (answer["indices"], answer["message_count"]) == ([1, 4], 4)
    await home.append("g")
    await home.do("DELETE", "/sessions/s/messages", {"indices": [4]})
    assert await contents(home) == ["a", "c", "d", "f"]
    assert await home.refused("DELETE", "/sessions/s/messages", {"indices": [0, 4]}) == (404, "no_such_message")
    assert await home.refused("DELETE", "/sessions/s/messages", {"indices": []}) == (400, "bad_body")
    assert await contents(home) == ["a", "c", "d", "f"]


async def contents(home: Home, session_id: str = "s") -> list[Any]:
    answer = await home.do("GET", f"/sessions/{session_id}/messages")
    return [message["content"] for message in answer["messages"]]


async def test_A91_a_page_of_messages_and_the_cursor_that_belongs_to_it(home: Home) -> None:
    await home.create()
    for number in range(7):
        last = await home.append(str(number))
    answer = await home.do("GET", "/sessions/s/messages?offset=2&limit=3")
    assert [message["content"] for message in answer["messages"]] == ["2", "3", "4"]
    assert (answer["offset"], answer["next_offset"], answer["message_count"]) == (2, 5, 7)
    assert answer["cursor_event_id"] == last["cursor_event_id"]
    assert (answer["request"], answer["epoch"]) == (None, home.store.epoch)
    answer = await home.do("GET", "/sessions/s/messages?offset=-2")
    assert [message["content"] for message in answer["messages"]] == ["5", "6"]
    assert (answer["offset"], answer["next_offset"]) == (5, None)
    assert (await home.do("GET", "/sessions/s/messages?offset=9"))["messages"] == []
    assert len((await home.do("GET", "/sessions/s/messages?offset=-99"))["messages"]) == 7


async def test_a_second_page_or_a_change_of_another_history_is_refused(home: Home) -> None:
    await home.create()
    cursor = (await home.append("a"))["cursor_event_id"]
    expected, moved = {"expected_cursor_event_id": cursor}, (409, "session_changed")
    await home.do("GET", f"/sessions/s/messages?offset=1&expected_cursor_event_id={cursor}")
    await home.do("PATCH", "/sessions/s/messages/0", {"content": "b", **expected})
    path = f"/sessions/s/messages?offset=1&expected_cursor_event_id={cursor}"
    assert await home.refused("GET", path) == moved
    assert await home.refused("PATCH", "/sessions/s/messages/0", {"content": "c", **expected}) == (
        409,
        "session_changed",
    )
    assert await home.refused("DELETE", "/sessions/s/messages", {"indices": [0], **expected}) == (
        409,
        "session_changed",
    )
    assert await contents(home) == ["b"]


async def test_a_list_of_sessions_in_pages_the_last_changed_first(home: Home) -> None:
    for name in "abcde":
        await home.create(name)
    await home.append("x", session_id="b")
    seen, before = [], ""
    while True:
        answer = await home.do("GET", f"/sessions?limit=2{before}")
        seen += [session["session_id"] for session in answer["sessions"]]
        assert all("messages" not in session for session in answer["sessions"])
        assert answer["runner"] == "scripted"
        if answer["next_before"] is None:
            break
        before = f"&before={answer['next_before']}"
    assert seen == ["b", "e", "d", "c", "a"]
    one = (await home.do("GET", "/sessions/b"))["session"]
    assert (one["message_count"], one["agent_id"], one["request"]) == (1, "default", None)
    assert one == (await home.do("GET", "/sessions?limit=1"))["sessions"][0]


async def test_A24_A25_a_session_is_read_from_its_cursor_on_unless_a_place_is_given(home: Home) -> None:
    await home.create()
    await home.append("a")
    await home.store.publish({"type": "note", "session_id": "s"})
    assert [event["type"] for event in (await home.events(session_id="s"))["events"]] == ["note"]
    assert len((await home.events(session_id="s", since_id=0))["events"]) == 5
    await home.store.publish({"type": "note", "session_id": "only events"})
    assert len((await home.events(session_id="only events"))["events"]) == 1


async def test_A40_A41_send_answers_at_once_and_the_request_is_read_from_the_cursor_on(
    home: Home, runner: ScriptedRunner
) -> None:
    opened, wait = gate()
    runner.script = (partial("Hel"), wait, *reply("Hello"))
    await home.create(metadata={"k": "v"})
    request_id = await home.send("hi", metadata={"from": "phone"})
    await home.until("partial")
    loaded = await home.do("GET", "/sessions/s/messages")
    assert loaded["messages"] == [{"role": "user", "content": "hi", "metadata": {"from": "phone"}}]
    assert loaded["request"] == {"request_id": request_id, "approvals": []}
    events = (await home.events(session_id="s"))["events"]
    assert [event["type"] for event in events] == ["request_started", "partial"]
    assert await home.refused("POST", "/sessions/s/send", {"content": "too"}) == (409, "request_running")
    opened.set()
    await home.until("request_completed")
    assert runner.requests[0].metadata == {"k": "v"}
    assert await contents(home) == ["hi", "Hello"]
    assert [event["type"] for event in (await home.events(session_id="s"))["events"]] == ["request_completed"]


async def test_A223_an_app_over_http_begins_at_the_cursor_and_reads_what_has_grown_as_one(
    home: Home, runner: ScriptedRunner
) -> None:
    opened, wait = gate()
    runner.script = (partial("Hel"), partial("lo"), {"type": "note"}, wait, *reply("Hello")[-2:])
    await home.create()
    await home.append("long ago")
    request_id = await home.send("hi")
    await home.until("note")
    first = await home.events(session_id="s")
    assert [event["type"] for event in first["events"]] == ["request_started", "partial", "note"]
    assert first["events"][1]["message"]["content"] == "Hello"
    opened.set()
    await home.until("request_completed")
    rest = await home.events(session_id="s", since_id=first["latest_event_id"])
    assert [event["type"] for event in rest["events"]][-3:] == ["final", "checkpoint", "request_completed"]
    whole = await home.events(request_id=request_id)
    assert "partial" not in [event["type"] for event in whole["events"]]
    nothing = await home.events()
    assert (nothing["events"], nothing["latest_event_id"]) == ([], whole["latest_event_id"])


TOOL = {"role": "tool", "content": "4" * 50, "metadata": {"tool_call_id": "c", "tool_name": "sum", "ms": 1.5}}
SHOWN = {**TOOL, "metadata": {**TOOL["metadata"], "display": {"type": "text", "content": "4…"}}}
REPLY = {"role": "assistant", "content": "é", "metadata": {"model": "m", "logprobs": [0.25]}}
TOLD: list[dict[str, Any]] = [
    {"type": "assistant_message", "phase": "start"},
    {"type": "partial", "message": REPLY},
    {"type": "assistant_message", "phase": "end"},
    {"type": "final", "messages": [REPLY, {"role": "system", "content": "s", "metadata": {}}], "usage": {"n": 1}},
    {
        "type": "tool_calls",
        "tool_calls": [{"id": "c", "function": {"name": "sum", "arguments": '{"a":1}'}, "x": [None]}],
    },
    {"type": "tool_calls", "tool_calls": [{"tool_call_id": "d", "function": {"name": "sum", "arguments": "{}"}}]},
    {"type": "tool_partial", "tool_call_id": "c", "phase": "start", "payload": {"part": ""}},
    {"type": "tool_partial", "tool_call_id": "c", "phase": "stream", "payload": {"part": {"n": 4}}},
    {"type": "tool_partial", "tool_call_id": "c", "phase": "end", "payload": {"result": SHOWN}},
    {"type": "tool_results", "messages": [TOOL, SHOWN]},
    {"type": "a_type_of_tomorrow", "data": {"deep": [{"er": True}]}},
]


async def test_A10_to_A13_A50_to_A55_A60_to_A70_A72_what_a_runner_tells_is_read_as_it_was_told(
    home: Home, runner: ScriptedRunner
) -> None:
    runner.script = tuple(TOLD)
    await home.create()
    request_id = await home.send("hi")
    await home.until("request_completed")
    events = (await home.events(request_id=request_id, compact="false"))["events"]
    named = {"session_id": "s", "request_id": request_id}
    for event in events:
        del event["event_id"]
    assert events[1:-2] == [{**event, **named} for event in TOLD]
    assert events[-2]["type"] == "checkpoint"  # of what was told whole: this runner makes none itself
    folded = (await home.events(request_id=request_id))["events"]
    assert [event["type"] for event in folded[1:-2]] == [
        "assistant_message", "assistant_message", "final", "tool_calls", "tool_calls", "tool_results",
        "a_type_of_tomorrow",
    ]  # fmt: skip


async def test_A35_A36_notifications_come_to_those_who_ask_for_their_session_or_for_none(home: Home) -> None:
    await home.create()
    place = (await home.events())["latest_event_id"]
    note = {"type": "session_notification_created", "notification": {"id": "n", "title": "t"}}
    await home.store.publish({"type": "application_notification_created", "notification": {"id": "a"}})
    await home.sessions.update_metadata("s", lambda metadata: metadata.update(notifications=1) or [note])
    everything = (await home.events(since_id=place))["events"]
    assert [event["type"] for event in everything] == [
        "application_notification_created", "session_notification_created", "checkpoint",
    ]  # fmt: skip
    of_session = (await home.events(session_id="s"))["events"]
    assert of_session == everything[1:]
    assert of_session[0]["notification"] == note["notification"]


async def test_A44_cancel(home: Home, runner: ScriptedRunner) -> None:
    runner.script = gate()[1:]
    await home.create()
    request_id = await home.send("hi")
    assert await home.refused("POST", "/sessions/s/requests/other/cancel") == (404, "no_such_request")
    await home.do("POST", f"/sessions/s/requests/{request_id}/cancel", status=202)
    await home.until("request_completed", request_id=request_id)
    assert [event["type"] for event in await home.told(request_id)][-2:] == ["request_cancelled", "request_completed"]
    answer = await home.refused("POST", f"/sessions/s/requests/{request_id}/cancel")
    assert answer == (404, "no_such_request")


async def test_approvals_are_seen_and_answered(home: Home, runner: ScriptedRunner) -> None:
    async def ask(context: Context) -> Any:
        allowed = await context.approve({"id": "c", "function": {"name": "rm"}})
        return Checkpoint([said("allowed" if allowed else "denied")])

    runner.script = (ask,)
    await home.create()
    path = f"/sessions/s/requests/{await home.send('hi')}/approvals/"
    asked = await home.until("tool_approval_requested")
    one = (await home.do("GET", "/sessions/s"))["session"]["request"]["approvals"]
    assert one == [{"approval_id": asked["approval_id"], "tool_call": {"id": "c", "function": {"name": "rm"}}}]
    assert await home.refused("POST", path + "none", {"decision": "allow"}) == (404, "no_such_approval")
    assert await home.refused("POST", path + asked["approval_id"], {"decision": "maybe"}) == (400, "bad_body")
    await home.do("POST", path + asked["approval_id"], {"decision": "allow"})
    await home.until("request_completed")
    assert await contents(home) == ["hi", "allowed"]


BAD = [
    ("POST", "/sessions", {"session_id": "no spaces"}, 400, "bad_body"),
    ("POST", "/sessions", {"session_id": "x" * 129}, 400, "bad_body"),
    ("POST", "/sessions", {"agent": "typo"}, 400, "bad_body"),
    ("POST", "/sessions", [], 400, "bad_body"),
    ("POST", "/sessions", {"metadata": {"big": "x" * (256 << 10)}}, 413, "content_too_large"),
    ("POST", "/sessions/s/messages", {"role": "user"}, 400, "bad_body"),
    ("POST", "/sessions/s/messages", {"role": "king", "content": "x"}, 400, "bad_body"),
    ("POST", "/sessions/s/messages", {"role": "user", "content": 7}, 400, "bad_body"),
    ("POST", "/sessions/s/messages", {"role": "user", "content": "x" * (256 << 10)}, 413, "content_too_large"),
    ("POST", "/sessions/s/send", {}, 400, "bad_body"),
    ("POST", "/sessions/s/send", {"content": "x", "request_id": "a b"}, 400, "bad_body"),
    ("POST", "/sessions/none/send", {"content": "x"}, 404, "no_such_session"),
    ("GET", "/sessions/none", None, 404, "no_such_session"),
    ("GET", "/sessions/%00/messages", None, 404, "no_such_session"),
    ("GET", "/sessions/s/messages?limit=0", None, 400, "bad_parameter"),
    ("GET", "/sessions/s/messages?limit=1001", None, 400, "bad_parameter"),
    ("GET", "/sessions/s/messages?offset=x", None, 400, "bad_parameter"),
    ("GET", "/sessions?limit=0", None, 400, "bad_parameter"),
    ("GET", "/sessions?before=x", None, 400, "bad_parameter"),
    ("PATCH", "/sessions/s/messages/0", {"content": "x", "expected_cursor_event_id": "01"}, 400, "bad_parameter"),
    ("PUT", "/sessions/s", {}, 405, "method_not_allowed"),
]


async def test_what_no_session_takes_is_refused_and_changes_nothing(home: Home) -> None:
    await home.create()
    for method, path, body, status, code in BAD:
        assert await home.refused(method, path, body) == (status, code), (method, path)
    deep = '{"role":"user","content":' + "[" * 200 + "]" * 200 + "}"
    answer = await home.ask(
        "/sessions/s/messages", method="POST", data=deep, headers={"Content-Type": "application/json"}
    )
    assert answer.status == 400
    assert len(await home.told()) == 2
    assert await contents(home) == []


async def test_a_home_without_a_runner_says_so(tmp_path: Path) -> None:
    async with running_home(tmp_path) as home:
        await home.create()
        assert await home.refused("POST", "/sessions/s/send", {"content": "x"}) == (503, "no_runner")
        assert (await home.do("GET", "/sessions"))["runner"] is None


async def test_a_history_has_its_limits_and_its_events_stay_small(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    await home.create()
    for _ in range(2):
        await home.append("x" * (200 << 10))
    appended = [event for event in await home.told() if event["type"] == "message_appended"]
    assert ["messages" in event["session"] for event in appended] == [True, False]
    assert (appended[1]["session"]["messages_omitted"], appended[1]["session"]["message_count"]) == (True, 2)
    await home.do("DELETE", "/sessions/s/messages", {"indices": [0]})
    await home.append("small")
    assert (await home.told())[-2]["session"]["message_count"] == 2
    assert len((await home.told())[-2]["session"]["messages"]) == 2
    monkeypatch.setattr(session_rules, "MAX_MESSAGES", 2)
    body = {"role": "user", "content": "x"}
    assert await home.refused("POST", "/sessions/s/messages", body) == (409, "session_full")
    monkeypatch.setattr(session_rules, "MAX_MESSAGES", 10)
    monkeypatch.setattr(session_rules, "MAX_SESSION_BYTES", 201 << 10)
    assert await home.refused("POST", "/sessions/s/send", {"content": "x" * 2000}) == (409, "session_full")
    await home.do("PATCH", "/sessions/s/messages/0", {"content": "short"})
    monkeypatch.setattr(session_rules, "MAX_SESSIONS", 1)
    assert await home.refused("POST", "/sessions", {}) == (409, "session_full")


async def test_the_largest_message_in_the_largest_session_fits_into_an_event(home: Home) -> None:
    await home.create(metadata={"m": "x" * ((256 << 10) - 10)})
    await home.append("x" * ((256 << 10) - 60))
    await home.do("PATCH", "/sessions/s/messages/0", {"content": "y" * ((256 << 10) - 60)})
    assert [event["session"]["message_count"] for event in (await home.told())[2::2]] == [1, 1]


async def test_everything_is_there_after_a_restart(tmp_path: Path, runner: ScriptedRunner) -> None:
    async with running_home(tmp_path, runner) as home:
        await home.create()
        await home.send("hi")
        await home.until("request_completed")
        before = await home.do("GET", "/sessions/s/messages")
    async with running_home(tmp_path, runner) as home:
        assert await home.do("GET", "/sessions/s/messages") == before
        assert [message["content"] for message in before["messages"]] == ["hi", "Hello"]
        assert (await home.sessions.history("s"))[1][0] == Message(role="user", content="hi")


@pytest.mark.parametrize(
    "query",
    [
        *("?limit=1&limit=2", "?before=1&before=2", "/s/messages?offset=0&offset=0", "/s/messages?limit=1&limit=2"),
        "/s/messages?expected_cursor_event_id=1&expected_cursor_event_id=1",
    ],
)
async def test_a_parameter_given_twice_is_refused(home: Home, query: str) -> None:
    await home.create()
    assert await home.refused("GET", f"/sessions{query}") == (400, "bad_parameter")


async def test_an_index_has_one_spelling_and_a_body_that_is_missing_is_said_to_be(home: Home) -> None:
    await home.create()
    await home.append("one")
    for index in ("00", "+0", "0x0", "\u0660"):
        found = await home.refused("PATCH", f"/sessions/s/messages/{index}", {"content": "x"})
        assert found == (404, "no_such_message")
    answer = await home.ask("/sessions/s/messages", method="POST", headers={"Content-Type": "application/json"})
    assert answer.status == 400
    assert answer.json()["error"]["message"].startswith("a JSON body is needed")
