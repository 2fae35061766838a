"""npm `phoenix` over long polling, run for real: alone, behind a real nginx, and when WebSockets are refused."""

import asyncio
import json
import os
import secrets
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_server.app import Hub
from tests.conformance.nginx import nginx
from tests.support import proxies
from tests.support.cable import Cable
from tests.support.processes import PATIENCE
from tests.support.programs import missing, require
from tests.support.running_hub import running_hub
from tests.support.scripted_home import ScriptedHome, scripted_home

JS = Path(__file__).resolve().parent / "js"

Sight = dict[str, Any]


class Client:
    """The running program, and what it has seen so far."""

    def __init__(self, process: Process) -> None:
        self.seen: list[Sight] = []
        self._process = process

    def of(self, saw: str) -> list[Sight]:
        return [sight for sight in self.seen if sight["saw"] == saw]

    @property
    def ids(self) -> list[str]:
        """The events delivered, as delivered."""
        return [sight["id"] for sight in self.of("event")]

    async def until(self, done: Callable[[], object], what: str) -> None:
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                while not done() and (line := await self._process.stdout.readline()):
                    self.seen.append(json.loads(line))
        except TimeoutError:
            pass
        assert done(), f"the client never saw {what}; it saw {self.seen}"

    async def command(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()


@asynccontextmanager
async def phoenix_js(log: Path, **order: Any) -> AsyncIterator[Client]:
    node = require("node")
    if not (JS / "node_modules" / "phoenix").is_dir():
        missing("tests/conformance/js/node_modules is not built: `make test` builds it, with npm")
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            node, JS / "longpoll.mjs", stdin=PIPE, stdout=PIPE, stderr=errors, env=environment, limit=1 << 24
        )
    client = Client(process)
    try:
        await client.command(json.dumps(order))
        yield client
        await client.command("quit")
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0, log.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Scene:
    """A hub with a home on it, and a device of that home."""

    def __init__(self, hub: Hub, home: ScriptedHome, server_id: str) -> None:
        self.hub = hub
        self.home = home
        self.device, self.token = hub.credentials.add_device(server_id, "phone")
        self.topic = f"app:{server_id}"


@asynccontextmanager
async def scene(folder: Path, **settings: Any) -> AsyncIterator[Scene]:
    async with running_hub(folder, **settings) as hub:
        server, token = hub.credentials.add_server("home")
        epoch = f"epoch-{secrets.token_hex(4)}"
        async with scripted_home(hub.url, server.server_id, token, epoch) as home:
            yield Scene(hub, home, server.server_id)


@pytest.mark.parametrize("way", ["direct", pytest.param("nginx", marks=pytest.mark.requires("nginx"))])
async def test_phoenix_js_joins_is_dropped_resumes_and_leaves(tmp_path: Path, way: str) -> None:
    async with scene(tmp_path) as it, AsyncExitStack() as stack:
        port = it.hub.port
        if way == "nginx":
            port = await stack.enter_async_context(nginx(tmp_path / "nginx", port))
        cable = await stack.enter_async_context(Cable(port))
        url = f"ws://127.0.0.1:{cable.port}/socket"
        client = await stack.enter_async_context(
            phoenix_js(tmp_path / "client.log", url=url, token=it.token, topic=it.topic)
        )
        await client.until(lambda: client.of("replayed"), "its first join")
        sent = await it.home.publish(20)
        await client.until(lambda: client.ids == sent, "the live events")

        cable.cut()
        await client.until(lambda: client.of("closed"), "the drop")
        sent += await it.home.publish(50, text="while nobody polled: é, \u2028, 🙂")
        cable.mend()
        await client.until(lambda: len(client.of("replayed")) == 2, "the end of the replay")
        assert client.ids == sent, "the replay comes whole, in order, before replay_complete"
        verdict = {"epoch": it.home.epoch, "to_id": sent[-1], "recovered": True, "gap": None}
        assert client.of("replayed")[1]["verdict"] == verdict
        sent += await it.home.publish(20)
        await client.until(lambda: client.ids == sent, "the live events after the rejoin")

        await client.command("ask")
        await client.until(lambda: len(client.of("answered")) == 150, "150 answers")  # T73
        assert [sight["number"] for sight in client.of("answered")] == list(range(150))

        await client.command("leave")
        await client.until(lambda: client.of("left"), "the answer to its leave")
        await it.home.publish(5)
        assert client.ids == sent
        texts = [sight["data"] for sight in client.of("event")]
        assert texts == ["some text"] * 20 + ["while nobody polled: é, \u2028, 🙂"] * 50 + ["some text"] * 20
        assert [sight["by"] for sight in client.of("opened")] == ["LongPoll", "LongPoll"]
        assert client.of("refused") == []


async def test_phoenix_js_comes_back_to_a_session_that_is_gone_and_to_a_hub_that_drained(tmp_path: Path) -> None:
    """410 with a token makes it begin again (T72); so does what a poll is told when the hub ends it."""
    async with scene(tmp_path) as it:
        url = it.hub.url.replace("http", "ws") + "/socket"
        async with phoenix_js(tmp_path / "client.log", url=url, token=it.token, topic=it.topic) as client:
            await client.until(lambda: client.of("replayed"), "its first join")
            sent = await it.home.publish(3)
            await client.until(lambda: client.ids == sent, "the live events")
            longpoll, listener = it.hub.longpoll, it.hub._listener
            assert longpoll is not None
            assert listener is not None
            (session,) = longpoll.sessions.values()
            session.close(1001, "the test says so")
            await client.until(lambda: len(client.of("replayed")) == 2, "its rejoin")
            sent += await it.home.publish(3)
            await client.until(lambda: client.ids == sent, "the events after it")
            listener.draining = True
            for session in tuple(longpoll.sessions.values()):
                session.close(1012, "restart")
            await client.until(lambda: len(client.of("closed")) >= 4, "refusals with 503")
            sent += await it.home.publish(3)
            listener.draining = False
            await client.until(lambda: len(client.of("replayed")) == 3, "its second rejoin")
            assert client.ids == sent
            assert {sight["code"] for sight in client.of("closed")} == {3410, 1011}


@pytest.mark.requires("nginx")
async def test_case_95_phoenix_js_falls_back_when_a_proxy_refuses_websockets(tmp_path: Path) -> None:
    async with (
        scene(tmp_path) as it,
        proxies.nginx(tmp_path / "nginx", it.hub.port, without="Upgrade $http_upgrade", tls=False) as proxy,
    ):
        url = proxy.url.replace("http", "ws") + "/socket"
        order = {"url": url, "token": it.token, "topic": it.topic, "fallback": True}
        async with phoenix_js(tmp_path / "client.log", **order) as client:
            await client.until(lambda: client.of("replayed"), "its join")
            sent = await it.home.publish(20)
            await client.until(lambda: client.ids == sent, "the events")
            assert [sight["by"] for sight in client.of("opened")] == ["LongPoll"]
        assert str(it.token) not in proxy.logged


async def test_phoenix_js_with_a_bad_credential_backs_off(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        url = it.hub.url.replace("http", "ws") + "/socket"
        async with phoenix_js(tmp_path / "client.log", url=url, token="wrong" * 8, topic=it.topic) as client:
            await client.until(lambda: len(client.of("closed")) >= 4, "four refusals")
            assert {sight["code"] for sight in client.of("closed")} == {1008}
            assert client.of("opened") == []
