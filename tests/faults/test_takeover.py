"""Two forwarders of one home: the newest wins, the other one says so and stops, and no event is lost or doubled."""

import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack

from websockets.asyncio.client import ClientConnection, connect

from bridge_server.app import Hub
from tests.faults.apps import phoenix_app, python_app
from tests.faults.scene import Scene, publish_steadily
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import HomeProgram, until
from tests.support.stored import all_events

FROZEN_SECONDS = 3.0
"""A home of these tests takes a hub for dead that is silent for two seconds."""

SLEEPS_SHORTER = "import bridge_client.link; bridge_client.link.LONGEST_JUMP = 2.0\n"
"""Makes of the freeze what a night with the lid closed is: the home gives up its socket without a look at it."""

REPLACED = 3
"""The exit code of a home that another one replaced."""


async def test_the_newest_home_wins_and_no_event_is_lost_or_doubled(scene: Scene, effort: int) -> None:
    """Over one store, while it is written: taken over at work, and frozen, taken over, and woken up again."""
    records = [Record("python", 0), Record("phoenix", 0)]
    store = await scene.store()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(scene.hub())
        await stack.enter_async_context(python_app(scene.url, scene.device(), scene.server_id, records[0]))
        await stack.enter_async_context(phoenix_app(scene.url, scene.device(), scene.server_id, records[1]))
        enough = asyncio.Event()
        writing = asyncio.create_task(publish_steadily(store, 200, enough))

        async def events_flow() -> None:
            seen = records[0].last_id or 0
            await until(lambda: (records[0].last_id or 0) > seen + 20, "events get through")

        async def next_home(name: str, code: str = "") -> HomeProgram:
            home = await stack.enter_async_context(scene.home(name, code=code))
            await until(lambda: "the hub holds" in home.text, f"{name} has joined")
            await events_flow()
            return home

        async def freeze(home: HomeProgram, successor: str, code: str = "") -> HomeProgram:
            """Freeze a home for longer than it lets the hub be silent, and wake it up when another has taken over."""
            home.send(signal.SIGSTOP)
            since = time.monotonic()
            newer = await next_home(successor, code)
            await until(lambda: time.monotonic() - since > FROZEN_SECONDS, "it was frozen for long enough")
            home.send(signal.SIGCONT)
            assert await home.ended() == REPLACED, home.text
            assert f"(instance '{successor}')" in home.text
            await events_flow()
            assert newer.running, "the one that woke up did not take it back"
            return newer

        first = await next_home("first")
        second = await next_home("second")
        assert await first.ended() == REPLACED, first.text
        assert "replaced by another forwarder of this home (instance 'second')" in first.text
        third = await freeze(second, "third", SLEEPS_SHORTER)
        await freeze(third, "fourth")

        enough.set()
        await writing
        last = await store.head()
        await until(lambda: all(record.last_id == last for record in records), "every app has the last event")
    nothing_lost(await all_events(store), *records)
    await store.close()
    assert [gap for record in records for gap in record.gaps] == []


class Line:
    """One connection of a home, word by word."""

    def __init__(self, socket: ClientConnection, server_id: str) -> None:
        self._socket = socket
        self._topic = f"server:{server_id}"
        self._refs = 0

    async def say(self, event: str, payload: object) -> dict[str, object]:
        """Send a message and return the reply to it; what the hub pushes before it fails the test."""
        self._refs += 1
        ref = str(self._refs)
        await self._socket.send(json.dumps(["1", ref, self._topic, event, payload]))
        _, answered, _, kind, reply = await self.hears()
        assert (answered, kind) == (ref, "phx_reply"), kind
        return {"status": reply["status"], **reply["response"]}

    async def hears(self) -> list[object]:
        async with asyncio.timeout(20):
            message: list[object] = json.loads(await self._socket.recv())
        return message

    async def join(self, instance: str) -> dict[str, object]:
        return await self.say(
            "phx_join", {"protocol": 1, "epoch": "e", "head_id": None, "name": "Home", "instance": instance}
        )

    async def push(self, number: int) -> dict[str, object]:
        event = {"event_id": str(number), "type": "note"}
        return await self.say("session_event", {"event": event, "prev_id": str(number - 1) if number > 1 else None})


async def test_a_replaced_link_can_not_append_and_the_fourth_takeover_in_a_minute_is_refused(hub: Hub) -> None:
    server, token = hub.credentials.add_server("Home")
    url = hub.url.replace("http", "ws", 1) + "/socket/websocket?vsn=2.0.0"
    async with AsyncExitStack() as stack:

        async def line() -> Line:
            headers = {"Authorization": f"Bearer {token}"}
            socket = await stack.enter_async_context(connect(url, additional_headers=headers, proxy=None))
            return Line(socket, server.server_id)

        holder = await line()
        first = await holder.join("0")
        links = [first["link"]]
        assert (await holder.push(1))["acked_id"] == "1"
        for number in range(1, 4):
            newer = await line()
            joined = await newer.join(str(number))
            assert (joined["status"], joined["resume_from"]) == ("ok", str(number))
            links.append(joined["link"])
            assert await holder.hears() == [
                "1",
                None,
                f"server:{server.server_id}",
                "replaced",
                {"instance": str(number)},
            ]
            assert (await holder.hears())[3:] == ["phx_close", {}]
            late = await holder.push(number + 1)
            assert late["status"] == "error", "the event of a replaced link is not taken"
            assert hub.homes.get(server.server_id).head == number
            assert (await newer.push(number + 1))["acked_id"] == str(number + 1)
            holder = newer
        fourth = await (await line()).join("4")
        assert (fourth["status"], fourth["reason"]) == ("error", "flapping")
        wait = fourth["retry_after_ms"]
        assert isinstance(wait, int)
        assert 50_000 < wait <= 60_000
        assert links == sorted(set(links)), "each join raises the link"
        assert (await holder.push(5))["acked_id"] == "5", "the one there is goes on"
