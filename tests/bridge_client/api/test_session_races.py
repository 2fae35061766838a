"""Load messages, then read events behind their cursor: nothing twice, nothing missed (rows A94 to A96)."""

import asyncio
from pathlib import Path
from typing import Any

from bridge_client.runners import Checkpoint, Message
from tests.support.running_home import Home, running_home
from tests.support.scripted_runner import ScriptedRunner, apply, partial, reply

TOOL = Message(role="tool", content="42", metadata={"tool_call_id": "c"})
RESULT = {"role": "tool", "content": "42", "metadata": {"tool_call_id": "c"}}
ANSWER = (*reply("look", "ing"), {"type": "tool_results", "messages": [RESULT]}, Checkpoint([TOOL]), *reply("do", "ne"))


async def snapshot(home: Home) -> tuple[list[Any], str]:
    """The whole history in small pages, begun again when it changes between two of them."""
    while True:
        messages: list[Any] = []
        path = "/sessions/s/messages?limit=5"
        while True:
            answer = await home.ask(path)
            page = answer.json()
            if answer.status == 409:
                break
            assert answer.status == 200
            messages += page["messages"]
            cursor: str = page["cursor_event_id"]
            if page["next_offset"] is None:
                return messages, cursor
            path = f"/sessions/s/messages?limit=5&offset={page['next_offset']}&expected_cursor_event_id={cursor}"


async def behind(home: Home, cursor: str) -> list[dict[str, Any]]:
    """The session's events behind a cursor, page by page."""
    found: list[dict[str, Any]] = []
    while events := (await home.events(session_id="s", since_id=cursor, limit=20))["events"]:
        found += events
        cursor = events[-1]["event_id"]
    return found


async def test_A94_A95_A96_whenever_it_is_loaded_messages_and_later_events_make_the_history(tmp_path: Path) -> None:
    async with running_home(tmp_path, ScriptedRunner(*ANSWER)) as home, asyncio.timeout(60):
        await home.create()
        seen: list[tuple[list[Any], str]] = []
        over = asyncio.Event()

        async def load() -> None:
            while not over.is_set():
                seen.append(await snapshot(home))
                await home.store.wait(int(seen[-1][1]))

        async def busy(method: str, path: str, body: Any) -> None:
            """Until it is let in between two requests; or what it is about is gone."""
            while True:
                head = await home.store.head() or 0
                answer = await home.ask(path, method=method, json=body)
                if answer.status in (200, 201, 202):
                    return
                assert answer.status in (404, 409), answer.body
                if answer.status == 404:
                    return
                await home.store.wait(head)

        async def send() -> None:
            for number in range(4):
                await busy("POST", "/sessions/s/send", {"content": f"question {number}"})

        async def change() -> None:
            for number in range(4):
                await busy("POST", "/sessions/s/messages", {"role": "system", "content": f"note {number}"})
                await busy("PATCH", f"/sessions/s/messages/{number}", {"content": f"changed {number}"})
                await busy("DELETE", "/sessions/s/messages", {"indices": [2 * number]})

        loading = [asyncio.create_task(load()) for _ in range(2)]
        await asyncio.gather(send(), send(), change())
        while (await home.sessions.get("s")).request_id is not None:
            await asyncio.sleep(0.01)
        over.set()
        await home.store.publish({"type": "wakes the loaders"})
        await asyncio.gather(*loading)
        whole, _ = await snapshot(home)

        assert sum(message["role"] == "user" for message in whole) > 2
        cursors = {cursor for _, cursor in seen}
        assert len(cursors) > 8, "the loads did not fall into the requests"
        checked = set()
        for messages, cursor in seen:
            if cursor in checked:
                continue
            checked.add(cursor)
            for event in await behind(home, cursor):
                apply(messages, event)
            assert messages == whole


async def test_A95_within_a_phase_all_of_its_text_comes_behind_the_cursor(tmp_path: Path) -> None:
    """Who loads in the middle of a reply gets the whole of it: text so far is no part of the messages."""
    waiting, go = asyncio.Event(), asyncio.Event()

    async def wait(context: Any) -> None:
        waiting.set()
        await go.wait()

    script = (*reply("first"), partial("sec"), wait, partial("ond"), *reply("second")[4:])
    async with running_home(tmp_path, ScriptedRunner(*script)) as home, asyncio.timeout(60):
        await home.create()
        await home.send("hi")
        await waiting.wait()
        await home.sessions.update_metadata("s", lambda metadata: metadata.update(title="x") or [])
        messages, cursor = await snapshot(home)
        assert [message["content"] for message in messages] == ["hi", "first"]
        (text, marker) = await behind(home, cursor)
        assert (text["message"]["content"], marker["type"]) == ("sec", "checkpoint")
        go.set()
        await home.until("request_completed")
        assert [event["message"]["content"] for event in await behind(home, cursor) if event["type"] == "partial"] == [
            "second"
        ]


async def test_of_many_phones_that_send_at_once_one_is_answered_and_the_others_are_told(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def wait(context: Any) -> None:
        await go.wait()

    async with running_home(tmp_path, ScriptedRunner(wait, *reply("yes"))) as home, asyncio.timeout(60):
        await home.create()
        asked = [
            home.ask("/sessions/s/send", method="POST", json={"content": f"phone {number}"}) for number in range(8)
        ]
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status for answer in answers) == [202] + [409] * 7
        (accepted,) = [answer.json()["request_id"] for answer in answers if answer.status == 202]
        assert {answer.json()["error"]["request_id"] for answer in answers if answer.status == 409} == {accepted}
        cancels = [
            home.ask(
                f"/sessions/s/requests/{accepted}/cancel", method="POST", headers={"Content-Type": "application/json"}
            )
            for _ in range(4)
        ]
        assert {answer.status for answer in await asyncio.gather(*cancels)} <= {202, 404}
        await home.until("request_completed")
        types = [event["type"] for event in await home.told(accepted)]
        assert types == ["request_started", "request_cancelled", "request_completed"]
        assert len((await snapshot(home))[0]) == 1
