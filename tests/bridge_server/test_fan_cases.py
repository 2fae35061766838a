"""Reports of users about fan-out, each as a test over real sockets: one home, several apps, one of them slow."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bridge_server.app import Hub
from bridge_server.auth import Server
from tests.support.longpoll_client import longpoll_client
from tests.support.processes import until
from tests.support.raw_socket import RawSocket
from tests.support.running_hub import running_hub

PATH = "/socket/websocket?vsn=2.0.0"


class Scene:
    """A hub in this process, and sockets to it."""

    def __init__(self, hub: Hub, stack: AsyncExitStack) -> None:
        self.hub = hub
        self.server, self.token = hub.credentials.add_server("home")
        self.stack = stack
        self.last = 0
        self._home: RawSocket

    async def connect(self, topic: str, token: str, wishes: dict[str, Any]) -> RawSocket:
        socket = await self.stack.enter_async_context(RawSocket(self.hub.port))
        host = f"127.0.0.1:{self.hub.port}"
        assert (await socket.upgrade(PATH, f"Authorization: Bearer {token}", host=host)).status == 101
        socket.send_text(json.dumps(["1", "1", topic, "phx_join", wishes]))
        answer = json.loads(await socket.text())
        assert answer[4]["status"] == "ok", answer
        return socket

    async def home(self) -> None:
        self._home = await self.connect(self.topic("server"), self.token, {"epoch": "E", "head_id": None})

    def topic(self, kind: str) -> str:
        assert isinstance(self.server, Server)
        return f"{kind}:{self.server.server_id}"

    def device(self) -> str:
        return self.hub.credentials.add_device(self.server.server_id, "phone")[1]

    async def app(self, **wishes: Any) -> RawSocket:
        return await self.connect(self.topic("app"), self.device(), wishes)

    async def says(self, event: str) -> dict[str, Any]:
        """The home sends one event as this text; the reply."""
        prev = json.dumps(str(self.last)) if self.last else "null"
        payload = f'{{"event":{event},"prev_id":{prev}}}'
        self._home.send_text(f'["1","7",{json.dumps(self.topic("server"))},"session_event",{payload}]')
        while True:
            frame = await self._home.receive()
            assert frame is not None
            message = json.loads(frame.data)
            if message[3] == "phx_reply":
                reply: dict[str, Any] = message[4]
                return reply

    async def publish(self, text: str = "x") -> None:
        """The home's next event; acknowledged when this returns."""
        number = self.last + 1
        event = {"event_id": str(number), "type": "note", "session_id": "s", "text": text}
        reply = await self.says(json.dumps(event))
        assert reply["status"] == "ok", reply
        self.last = number


async def heard(app: RawSocket, last: int) -> list[int]:
    """The ids an app gets, in order, up to `last`."""
    ids: list[int] = []
    while not ids or ids[-1] < last:
        message = json.loads(await app.text())
        if message[3] == "session_event":
            ids.append(int(message[4]["event"]["event_id"]))
    return ids


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with running_hub(tmp_path) as hub, AsyncExitStack() as stack:
        scene = Scene(hub, stack)
        await scene.home()
        yield scene


async def test_each_socket_gets_each_event_exactly_once(scene: Scene) -> None:
    """# case 40"""
    apps = [await scene.app() for _ in range(5)]
    for _ in range(100):
        await scene.publish()
    for app in apps:
        assert await heard(app, 100) == list(range(1, 101))
        app.send_text('[null,"9","phoenix","heartbeat",{}]')
        assert json.loads(await app.text())[3] == "phx_reply", "nothing came twice behind it"


async def test_a_large_event_is_not_overtaken_by_small_ones(scene: Scene) -> None:
    """# case 56: at apps that read, at one that did not for a while, and by long polling."""
    fast, slow = await scene.app(), await scene.app()
    poller = await scene.stack.enter_async_context(
        longpoll_client(scene.hub.url, scene.device(), vsn="2.0.0"),
    )
    await poller.post(["1", "1", scene.topic("app"), "phx_join", {}])
    slow.stop_reading()
    for _ in range(3):  # more than the kernels take
        await scene.publish("L" * 1_000_000)
    for _ in range(100):
        await scene.publish()
    assert await heard(fast, 103) == list(range(1, 104))
    slow._writer.transport.resume_reading()  # type: ignore[attr-defined]
    assert await heard(slow, 103) == list(range(1, 104))
    polled: list[int] = []
    while not polled or polled[-1] < 103:
        messages = await poller.poll()
        polled += [int(message[4]["event"]["event_id"]) for message in messages if message[3] == "session_event"]
    assert polled == list(range(1, 104))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", 'b"bytes"', "01"])
async def test_a_value_that_is_no_json_ends_no_app(scene: Scene, value: str) -> None:
    """# case 58: who sends it is told, or ended; the apps live, and get what comes next."""
    app = await scene.app()
    await scene.publish()
    scene._home.send_text(
        f'["1","8",{json.dumps(scene.topic("server"))},"session_event",{{"event":{{"event_id":"2","type":"note","x":{value}}}}}]'
    )
    await scene._home.ended()
    await scene.home()
    await scene.publish()
    assert await heard(app, 2) == [1, 2]


async def test_a_heartbeat_is_answered_before_the_events_that_wait(scene: Scene) -> None:
    """# case 16, 104: 5,000 events in a burst; the answer is never the last, and whatever comes in counts as life."""
    app = await scene.app()
    app.stop_reading()
    outbox = next(
        driver.peer.outbox
        for driver in (scene.hub._listener.drivers if scene.hub._listener else ())
        if driver.peer is not None and f"app:{scene.server.server_id}" in driver.peer.connection.channels
    )
    text = "x" * 300
    for start in range(0, 5_000, 200):
        events = [
            {"event_id": str(number), "type": "note", "session_id": "s", "text": text}
            for number in range(start + 1, start + 201)
        ]
        batch = {"events": events, "prev_id": str(start) if start else None}
        scene._home.send_text(json.dumps(["1", "7", scene.topic("server"), "session_events", batch]))
        assert json.loads(await scene._home.text())[4]["status"] == "ok"
    assert outbox.queued > 0
    app.send_text('[null,"beat","phoenix","heartbeat",{}]')
    await until(lambda: bool(outbox._urgent), "the answer waits in its own lane")
    app._writer.transport.resume_reading()  # type: ignore[attr-defined]
    order = []
    while len(order) < 5_001:
        message = json.loads(await app.text())
        if message[3] in ("session_event", "phx_reply"):
            order.append(message[1] if message[3] == "phx_reply" else int(message[4]["event"]["event_id"]))
    place = order.index("beat")
    assert place < 5_000, "it did not wait behind everything"
    assert order[:place] + order[place + 1 :] == list(range(1, 5_001))


async def test_a_lone_surrogate_ends_nothing_live_or_on_replay(scene: Scene) -> None:
    r"""# case 59: `"\ud83d"` is delivered as U+FFFD, and the socket stays."""
    live = await scene.app()
    reply = await scene.says(r'{"event_id":"1","type":"note","text":"half \ud83d"}')
    assert reply["status"] == "ok"
    scene.last = 1
    replayed = await scene.app(since_id="0", epoch="E")
    for app in (live, replayed):
        message = json.loads(await app.text())
        while message[3] != "session_event":
            message = json.loads(await app.text())
        assert message[4]["event"]["text"] == "half \ufffd"
    await scene.publish()
    assert await heard(live, 2) == await heard(replayed, 2) == [2]


@pytest.mark.parametrize("partials", ["all", "merged"])
async def test_who_joins_while_events_flow_has_each_once_at_the_seam(scene: Scene, partials: str) -> None:
    """# case 76, 107: the app is dropped in the middle of a turn, again and again, and comes back with its last id."""
    place, ids = 0, []
    flowing = asyncio.ensure_future(_flow(scene, 400))
    while place < 400:
        app = await scene.app(since_id=str(place), epoch="E", partials=partials)
        for _ in range(40):
            if place == 400:
                break
            message = json.loads(await app.text())
            if message[3] == "session_event":
                place = int(message[4]["event"]["event_id"])
                ids.append(place)
        app.abort()
    await flowing
    assert ids == list(range(1, 401))


async def _flow(scene: Scene, count: int) -> None:
    for _ in range(count):
        await scene.publish()


async def test_the_end_that_went_to_a_dead_socket_comes_after_the_rejoin(scene: Scene) -> None:
    """# case 73, 74: nobody has to do anything but join again."""
    app = await scene.app(partials="merged")
    part = '{{"event_id":"{0}","type":"partial","session_id":"s","request_id":"r","message":{{"content":"{0}"}}}}'
    for number in (1, 2):
        assert (await scene.says(part.format(number)))["status"] == "ok"
        scene.last = number
    assert await heard(app, 2) == [2], "merged"
    app.abort()
    await scene.says('{"event_id":"3","type":"final","session_id":"s","request_id":"r","messages":[]}')
    back = await scene.app(since_id="2", epoch="E", partials="merged")
    assert await heard(back, 3) == [3]


async def test_a_phone_that_comes_and_goes_leaves_nothing_behind(scene: Scene) -> None:
    """# case 28: ten connections that end in the middle of their join, then one that stays, while events flow."""
    token = scene.device()
    flowing = asyncio.ensure_future(_flow(scene, 100))
    for number in range(10):
        socket = await scene.stack.enter_async_context(RawSocket(scene.hub.port))
        host = f"127.0.0.1:{scene.hub.port}"
        assert (await socket.upgrade(PATH, f"Authorization: Bearer {token}", host=host)).status == 101
        socket.send_text(json.dumps(["1", "1", scene.topic("app"), "phx_join", {"since_id": "0", "epoch": "E"}]))
        if number % 2:
            await socket.text()
        socket.abort()
    stable = await scene.connect(scene.topic("app"), token, {"since_id": "0", "epoch": "E"})
    await flowing
    assert await heard(stable, 100) == list(range(1, 101))
    listener = scene.hub._listener
    assert listener is not None
    await until(lambda: len(listener.drivers) == 2, "the home and one app are left")
    assert len(scene.hub.topics.listeners(f"events:server:{scene.server.server_id}")) == 1
    assert len(scene.hub.homes.get(scene.server.server_id).watchers) == 1
