"""Nobody is shown who is not there: over real sockets that fall silent, and over a hub that is killed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from bridge_server.channels.presence import Presence
from tests.faults.scene import Scene
from tests.support import phoenix_presence
from tests.support.echo_channel import add_echo_channel
from tests.support.phoenix_presence import State
from tests.support.processes import PATIENCE
from tests.support.recorded_server import PREFIX, recorded_server

LONG = 3600.0


class Watcher:
    """A socket that has joined one topic, and what it knows of who is there."""

    def __init__(self, socket: ClientConnection, topic: str) -> None:
        self.socket = socket
        self.topic = topic
        self.diffs: list[Any] = []
        self.state: State = {}

    async def send(self, event: str, payload: Any) -> None:
        await self.socket.send(json.dumps(["1", "1", self.topic, event, payload]))

    async def until(self, wanted: dict[str, int]) -> None:
        """Read until each of these keys, and no other, has so many connections."""
        async with asyncio.timeout(PATIENCE):
            while {key: len(presence["metas"]) for key, presence in self.state.items()} != wanted:
                _, _, _, event, payload = json.loads(await self.socket.recv())
                self.state = phoenix_presence.of([SimpleNamespace(event=event, payload=payload)], self.state)
                if event == "presence_diff":
                    self.diffs.append(payload)


@asynccontextmanager
async def watching(url: str, topic: str, **headers: str) -> AsyncIterator[Watcher]:
    async with connect(url, additional_headers=headers, proxy=None) as socket:
        watcher = Watcher(socket, topic)
        await watcher.send("phx_join", {"presence": True})
        yield watcher


async def test_case103_a_half_open_link_is_gone_no_later_than_the_idle_timeout(tmp_path: Path) -> None:
    """# case 103: two devices of one user, one of them on a dead line; however long the grace period is."""
    async with recorded_server(tmp_path) as server:
        presence = Presence(server.hub.topics, server.hands.now, grace=LONG, window=0)
        add_echo_channel(server.router, server.hub.topics, presence)
        base = f"ws://127.0.0.1:{server.port}{PREFIX}"
        async with (
            watching(f"{base}/socket/websocket?vsn=2.0.0", "echo:1") as lasting,
            watching(f"{base}/short/websocket?vsn=2.0.0", "echo:1") as dying,
        ):
            for watcher in (lasting, dying):
                await watcher.send("present", {"name": "user"})
            await lasting.until({"user": 2})
            seen = len(lasting.diffs)
            server.hands.time += 1.6  # the timeout of the short mount
            await lasting.until({"user": 1})
            assert [diff["joins"] for diff in lasting.diffs[seen:]] == [{}], (
                "the user did not leave, one connection did"
            )


async def test_case70_a_hub_that_was_killed_shows_only_who_has_joined_since(scene: Scene) -> None:
    """# case 70: kill -9; nothing of presence outlives a hub, its refs neither."""
    topic = f"app:{scene.server_id}"
    phone, phone_token = scene.credentials.add_device(scene.server_id, "phone")
    tablet, tablet_token = scene.credentials.add_device(scene.server_id, "tablet")
    url = f"{scene.url.replace('http', 'ws')}/socket/websocket?vsn=2.0.0"
    async with scene.hub() as hub:
        async with (
            watching(url, topic, Authorization=f"Bearer {phone_token}") as one,
            watching(url, topic, Authorization=f"Bearer {tablet_token}"),
        ):
            await one.until({phone.device_id: 1, tablet.device_id: 1})
            await hub.kill()
        await hub.start()
        async with watching(url, topic, Authorization=f"Bearer {phone_token}") as again:
            await again.until({phone.device_id: 1})
            old, new = one.state[phone.device_id]["metas"], again.state[phone.device_id]["metas"]
            assert old[0]["phx_ref"] != new[0]["phx_ref"]
