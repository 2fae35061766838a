"""Sessions below HTTP: changes and their events, two processes, old files, kill -9 (rows A90 to A96)."""

import asyncio
import json
import random
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge_client.clock import SystemClock
from bridge_client.runners import Message
from bridge_client.session_records import RecordMoved
from bridge_client.sessions import Sessions
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_file import SCHEMA_VERSION
from bridge_client.store.sqlite_sessions import SqliteSessions
from protocol.errors import InvalidEvent
from tests.support.home_commands import ROOT
from tests.support.old_stores import make_old
from tests.support.running_home import running_home
from tests.support.scripted_runner import ScriptedRunner, apply, reply
from tests.support.stored import all_events

USER = Message(role="user", content="hello")


def sessions_of(store: SqliteStore) -> Sessions:
    return Sessions(SqliteSessions(store), SystemClock())


async def told(store: SqliteStore) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in await all_events(store)]


async def test_A90_A94_a_change_whose_events_cannot_be_stored_is_not_made(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "home.db")
    sessions = sessions_of(store)
    await sessions.create(session_id="s")

    def change(metadata: dict[str, Any]) -> list[Any]:
        metadata["made"] = True
        return [{"type": "x", "n": float("nan")}]

    with pytest.raises(InvalidEvent):
        await sessions.update_metadata("s", change)

    def give_up(metadata: dict[str, Any]) -> list[Any]:
        metadata["made"] = True
        raise LookupError("no")

    with pytest.raises(LookupError):
        await sessions.update_metadata("s", give_up)
    assert (await sessions.get("s")).metadata == {}
    assert len(await told(store)) == 2
    await store.close()


async def test_events_of_a_change_that_fails_are_not_stored_and_neighbours_are(tmp_path: Path) -> None:
    """In one transaction of the writer: what fails is undone by itself, and its ids go to the next."""
    store = await SqliteStore.open(tmp_path / "home.db")

    def fail(file: sqlite3.Connection, stored: Any) -> None:
        file.execute("INSERT INTO about VALUES ('half', 'done')")
        raise RecordMoved("s")

    def wrong(file: sqlite3.Connection, stored: Any) -> None:
        file.execute("INSERT INTO no_such_table VALUES (1)")

    note = {"type": "note"}
    results = await asyncio.gather(
        store.publish(note),
        store.transact([note, note], fail),
        store.publish(note),
        store.transact([note], wrong),
        store.transact([note, note], lambda file, stored: [event.event_id for event in stored]),
        return_exceptions=True,
    )
    assert isinstance(results[1], RecordMoved)
    assert "no_such_table" in str(results[3])
    assert results[4].value == [3, 4]
    assert [event["event_id"] for event in await told(store)] == ["1", "2", "3", "4"]
    assert await store.query(lambda file: file.execute("SELECT 1 FROM about WHERE key = 'half'").fetchone()) is None
    assert [event.event_id for event in store.recent(0) or []] == [1, 2, 3, 4]
    await store.close()


async def test_A108_two_processes_that_change_one_session_lose_nothing(tmp_path: Path) -> None:
    stores = [await SqliteStore.open(tmp_path / "home.db") for _ in range(2)]
    both = [sessions_of(store) for store in stores]
    await both[0].create(session_id="s")

    async def append(sessions: Sessions, name: str) -> None:
        for number in range(6):
            await sessions.append("s", Message(role="user", content=f"{name}{number}"))

    await asyncio.gather(append(both[0], "a"), append(both[1], "b"), append(both[0], "c"))
    _, history = await both[1].history("s")
    assert sorted(message.content for message in history) == sorted(f"{n}{i}" for n in "abc" for i in range(6))
    events = [event for event in await told(stores[0]) if event["type"] == "message_appended"]
    assert [event["content"] for event in events] == [message.content for message in history]
    for number, event in enumerate(events, 1):
        assert [message["content"] for message in event["session"]["messages"]] == [
            message.content for message in history[:number]
        ]
    for store in stores:
        await store.close()


async def test_a_file_of_the_version_before_sessions_gets_them_and_keeps_its_events(tmp_path: Path) -> None:
    make_old(tmp_path / "home.db", 1, (None, b'{"event_id":"1","type":"old"}'), epoch="first")
    store = await SqliteStore.open(tmp_path / "home.db")
    assert (store.epoch, [event["type"] for event in await told(store)]) == ("first", ["old"])
    assert await store.query(lambda file: file.execute("PRAGMA user_version").fetchone()[0]) == SCHEMA_VERSION
    await sessions_of(store).create(session_id="s")
    await store.close()


CRASHING = """
import asyncio, sys
from pathlib import Path
from tests.support.running_home import running_home
from tests.support.scripted_runner import ScriptedRunner, gate, partial, reply

async def main():
    async with running_home(Path(sys.argv[1]), ScriptedRunner(*reply("first"), partial("sec"), gate()[1])) as home:
        await home.create()
        print(await home.send("hi"), flush=True)
        while len((await home.events(session_id="s"))["events"]) < 1:
            await asyncio.sleep(0.01)
        await home.until("partial", message={"role": "assistant", "content": "sec"})
        print("in the middle", flush=True)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


BUSY = """
import asyncio, sys
from pathlib import Path
from tests.support.running_home import running_home
from tests.support.scripted_runner import ScriptedRunner, apply, reply

async def main():
    async with running_home(Path(sys.argv[1]), ScriptedRunner(*reply("a", "b"), *reply("c"))) as home:
        while True:
            request_id = await home.send("hi")
            await home.until("request_completed", request_id=request_id)
            while home.requests.running("s") is not None:
                await asyncio.sleep(0.001)
            await home.append("note", role="system")
            await home.do("DELETE", "/sessions/s/messages", {"indices": [0]})

asyncio.run(main())
"""


async def test_A94_wherever_a_home_is_killed_events_up_to_the_cursor_make_the_messages(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "home.db")
    sessions = sessions_of(store)
    await sessions.create(session_id="s")
    dice = random.Random(94)
    for _ in range(3):
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", BUSY, str(tmp_path), cwd=ROOT)
        async with asyncio.timeout(60):
            await store.wait((await store.head() or 0) + dice.randrange(5, 40))
        process.send_signal(signal.SIGKILL)
        await process.wait()
        page = await sessions.page("s")
        history: list[Any] = []
        for event in await told(store):
            if int(event["event_id"]) <= page.record.cursor_event_id:
                apply(history, event)
        assert [json.loads(message) for message in page.messages] == history
    async with running_home(tmp_path) as home:
        events = await home.told()
    requests = {event["request_id"]: [] for event in events if event["type"] == "request_started"}
    for event in events:
        if "request_id" in event:
            requests[event["request_id"]].append(event["type"])
    assert len(requests) >= 3
    for types in requests.values():
        assert (types[0], types[-1]) == ("request_started", "request_completed")
        assert (types.count("request_started"), types.count("request_completed")) == (1, 1)
    await store.close()


async def test_A46_A94_a_crash_in_the_middle_of_a_request_leaves_a_session_that_loads(tmp_path: Path) -> None:
    """Killed with -9; at the next start the request ends with an error, once."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CRASHING, str(tmp_path), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    request_id = (await process.stdout.readline()).decode().strip()
    assert await process.stdout.readline() == b"in the middle\n"
    process.send_signal(signal.SIGKILL)
    await process.communicate()
    for _ in range(2):
        async with running_home(tmp_path, ScriptedRunner(*reply("again"))) as home:
            loaded = await home.do("GET", "/sessions/s/messages")
            assert [message["content"] for message in loaded["messages"]] == ["hi", "first"]
            assert loaded["request"] is None
            behind = (await home.events(session_id="s", since_id=loaded["cursor_event_id"]))["events"]
            assert [event["type"] for event in behind] == ["partial", "error", "request_completed"]
            assert behind[0]["message"]["content"] == "sec"
            assert {event["request_id"] for event in behind} == {request_id}
    async with running_home(tmp_path, ScriptedRunner(*reply("again"))) as home:
        await home.until("request_completed", request_id=await home.send("once more"))
