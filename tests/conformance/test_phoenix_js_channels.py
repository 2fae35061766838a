"""npm `phoenix`, run for real: its binary payloads and its Presence against this hub."""

import asyncio
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from bridge_server.app import Hub
from bridge_server.channels import Router
from bridge_server.config import Config
from bridge_server.transports.handshake import Mount
from tests.support.echo_channel import add_echo_channel
from tests.support.processes import PATIENCE
from tests.support.programs import missing, require
from tests.support.scripted_home import scripted_home

JS = Path(__file__).resolve().parent / "js"


class Phoenix:
    """The program: one command at a time."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def do(self, name: str, **order: Any) -> Any:
        """Run a command; its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": name, **order}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line, "the program ended"
        return json.loads(line)

    async def until(self, channel: str, done: Callable[[Any], object]) -> Any:
        """Look at a channel until `done`; fails with what it saw last."""
        look = None
        try:
            async with asyncio.timeout(PATIENCE):
                while not done(look := await self.do("look", channel=channel)):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"{channel} never got there: {look}") from None
        return look


@pytest.fixture
async def phoenix() -> AsyncIterator[Phoenix]:
    node = require("node")
    if not (JS / "node_modules" / "phoenix").is_dir():
        missing("tests/conformance/js/node_modules is not built: `make test` builds it, with npm")
    process = await asyncio.create_subprocess_exec(node, JS / "channels.mjs", stdin=PIPE, stdout=PIPE, limit=1 << 24)
    try:
        yield Phoenix(process)
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    """A hub whose diffs come quickly, with a second mount of echo channels that asks for no credential."""
    router = Router()
    mount = Mount("/echo", router, lambda headers, subprotocols, query: None)
    config = Config(host="127.0.0.1", port=0, state_dir=tmp_path, drain_seconds=0.0)
    async with Hub(config, mounts=(mount,)) as hub:
        hub.presence.window = 0.05
        add_echo_channel(router, hub.topics, hub.presence)
        yield hub


def url(hub: Hub, path: str) -> str:
    return hub.url.replace("http", "ws", 1) + path


# Binary.


async def test_phoenix_js_sends_and_reads_binary_of_every_kind(phoenix: Phoenix, hub: Hub) -> None:
    await phoenix.do("connect", socket="s", url=url(hub, "/echo"))
    topic, event = "echo:" + "é" * 125, "\N{SNOWMAN}" * 85
    assert len(topic.encode()) == len(event.encode()) == 255
    # Its join's payload is binary, and so is the answer.
    joined = await phoenix.do("join", socket="s", channel="c", topic=topic, bytes="00ff")
    assert joined == {"status": "ok", "response": {"bytes": "00ff"}}
    sent = []
    for size in (0, 1, 125, 126, 65_535, 65_536):
        payload = {"bytes": bytes(number % 251 for number in range(size)).hex()}
        assert await phoenix.do("push", channel="c", event=event, payload=payload) == {
            "status": "ok",
            "response": payload,
        }
        sent += [[event, payload]] * 2  # pushed, then broadcast, both before the ack
    assert (await phoenix.do("look", channel="c"))["events"][-len(sent) :] == sent
    answer = await phoenix.do("push", channel="c", event="reply", payload={"name": "error", "hex": "00ff"})
    assert answer == {"status": "error", "response": {"bytes": "00ff"}}


async def test_phoenix_js_and_a_version_1_client_share_a_topic(phoenix: Phoenix, hub: Hub) -> None:
    await phoenix.do("connect", socket="s", url=url(hub, "/echo"))
    await phoenix.do("join", socket="s", channel="c", topic="echo:1", params={})
    async with connect(url(hub, "/echo/websocket?vsn=1.0.0"), proxy=None) as old:

        async def tell(event: str, payload: Any) -> Any:
            await old.send(json.dumps({"topic": "echo:1", "event": event, "payload": payload, "ref": "1"}))
            return json.loads(await old.recv())

        assert (await tell("phx_join", {}))["payload"]["status"] == "ok"
        # Each hears the other's JSON.
        assert await tell("text", {"n": 1}) == {"topic": "echo:1", "event": "text", "payload": {"n": 1}, "ref": None}
        assert [json.loads(await old.recv())["event"] for _ in range(2)] == ["text", "phx_reply"]
        await phoenix.until("c", lambda look: ["text", {"n": 1}] in look["events"])
        # A binary message reaches those that can carry it, and ends the channel of the one that can't.
        await phoenix.do("push", channel="c", event="bytes", payload={"bytes": "00ff"})
        error = {"topic": "echo:1", "event": "phx_error", "payload": {"reason": "channel_crash"}, "ref": None}
        assert json.loads(await old.recv()) == error
        assert (await tell("phx_join", {}))["payload"]["status"] == "ok"
        await phoenix.do("push", channel="c", event="text", payload={"n": 2})
        assert json.loads(await old.recv())["payload"] == {"n": 2}
    look = await phoenix.do("look", channel="c")
    assert (look["state"], look["errors"]) == ("joined", 0)


# Presence.


KEYS = ("__proto__", "constructor", "hasOwnProperty", "toString", 'a,b"\\', "é\N{SNOWMAN}", "")


async def test_case68_any_key_is_harmless_in_phoenix_js(phoenix: Phoenix, hub: Hub) -> None:
    """# case 68"""
    for name in ("one", "two"):
        await phoenix.do("connect", socket=name, url=url(hub, "/echo"))
    for number, key in enumerate(KEYS):
        for name in ("one", "two"):
            order = {"socket": name, "channel": f"{name} {number}", "topic": f"echo:{number}"}
            await phoenix.do("join", **order, params={"presence": True})
            await phoenix.until(f"{name} {number}", lambda look: look["syncs"])
        for name in ("one", "two"):
            assert (await phoenix.do("push", channel=f"{name} {number}", event="present", payload={"name": key}))[
                "status"
            ] == "ok"
    for number, key in enumerate(KEYS):
        one = f"one {number}"
        look = await phoenix.until(one, lambda look: [len(metas) for _, metas in look["present"]] == [2])
        assert look["present"][0][0] == key
        assert look["seen"][0] == ["came", key]
        await phoenix.do("leave", channel=f"two {number}")
        look = await phoenix.until(one, lambda look: [len(metas) for _, metas in look["present"]] == [1])
        assert look["present"][0][0] == key
        assert look["seen"][-1] == ["less", key]


async def test_case71_case110_phoenix_js_follows_who_watches_a_home(phoenix: Phoenix, hub: Hub) -> None:
    """# case 71, 110: joins, a second connection, a tunnel, a leave, the home, and a revoked device."""
    server, home_token = hub.credentials.add_server("home")
    topic = f"app:{server.server_id}"
    tablet, tablet_token = hub.credentials.add_device(server.server_id, "tablet")
    phone, phone_token = hub.credentials.add_device(server.server_id, "phone")

    async def joins(name: str, token: str, **params: Any) -> None:
        await phoenix.do("connect", socket=name, url=url(hub, "/socket"), token=token)
        reply = await phoenix.do("join", socket=name, channel=name, topic=topic, params=params)
        assert reply["status"] == "ok"

    def present(**wanted: int) -> Callable[[Any], bool]:
        keys = {"tablet": tablet.device_id, "phone": phone.device_id, "home": "home"}
        counts = {keys[name]: count for name, count in wanted.items()}
        return lambda look: {key: len(metas) for key, metas in look["present"]} == counts

    await joins("tablet", tablet_token, presence=True)
    look = await phoenix.until("tablet", present(tablet=1))
    assert look["present"][0][1][0]["name"] == "tablet"
    async with scripted_home(hub.url, server.server_id, home_token, name="the den"):
        look = await phoenix.until("tablet", present(tablet=1, home=1))
        assert dict(look["present"])["home"][0]["name"] == "the den"
        await joins("phone", phone_token)
        await joins("phone again", phone_token)
        await phoenix.until("tablet", present(tablet=1, home=1, phone=2))
        await phoenix.do("leave", channel="phone again")
        look = await phoenix.until("tablet", present(tablet=1, home=1, phone=1))
        # A tunnel: phoenix.js comes back by itself, and to the tablet the phone was never away.
        (meta,) = dict(look["present"])[phone.device_id]
        seen = len(look["seen"])
        await phoenix.do("drop", socket="phone")

        def changed(look: Any) -> bool:
            return dict(look["present"])[phone.device_id][0].get("phx_ref_prev") == meta["phx_ref"]

        look = await phoenix.until("tablet", changed)
        assert look["seen"][seen:] == [["again", phone.device_id], ["less", phone.device_id]]
        assert present(tablet=1, home=1, phone=1)(look)
        assert not any(
            event.startswith("presence_") for event, _ in (await phoenix.do("look", channel="phone"))["events"]
        )
        # The tablet's own line breaks: its state is told anew, and nothing in it flaps but itself.
        syncs = look["syncs"]
        await phoenix.do("drop", socket="tablet")
        look = await phoenix.until("tablet", lambda look: look["syncs"] > syncs and look["state"] == "joined")
        await phoenix.until("tablet", present(tablet=1, home=1, phone=1))
        hub.credentials.revoke_device(phone.device_id)
        look = await phoenix.until("tablet", present(tablet=1, home=1))
        assert ["went", "home"] not in look["seen"]
    assert [entry for entry in look["seen"] if entry[0] == "went"] == [["went", phone.device_id]]


# Resume with the join payload that never changes.


async def until_caught_up(phoenix: Phoenix, joins: int) -> list[int]:
    """The ids that channel `c` got in all its joins, once it has had `joins` of them in whole."""
    look = await phoenix.until("c", lambda seen: [name for name, _ in seen["events"]].count("replay_complete") == joins)
    return [int(payload["event"]["event_id"]) for name, payload in look["events"] if name == "session_event"]


@pytest.mark.parametrize("stored", [True, False], ids=["cursor: server", "since_id"])
async def test_phoenix_js_resends_its_first_join_for_ever(phoenix: Phoenix, hub: Hub, stored: bool) -> None:
    """A fixed `since_id` is replayed from each time; with `cursor: "server"` it goes on where the app said."""
    server, home_token = hub.credentials.add_server("home")
    _, token = hub.credentials.add_device(server.server_id, "phone")
    params = {"cursor": "server", "since_id": "0"} if stored else {"since_id": "2"}
    async with scripted_home(hub.url, server.server_id, home_token) as home:
        await home.publish(4)
        await phoenix.do("connect", socket="s", url=url(hub, "/socket"), token=token)
        joined = await phoenix.do("join", socket="s", channel="c", topic=f"app:{server.server_id}", params=params)
        assert joined["response"].get("since_id", "absent") == ("0" if stored else "absent")
        expected = [1, 2, 3, 4] if stored else [3, 4]
        assert await until_caught_up(phoenix, 1) == expected
        for drop in (2, 3):
            if stored:
                assert (await phoenix.do("push", channel="c", event="cursor", payload={"event_id": str(2 * drop)})) == {
                    "status": "ok",
                    "response": {},
                }
            await phoenix.do("drop", socket="s")
            await home.publish(2)
            expected += range(2 * drop + 1, 2 * drop + 3) if stored else range(3, 2 * drop + 3)
            assert (await until_caught_up(phoenix, drop)) == expected
