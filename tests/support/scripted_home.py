"""A home reduced to its wire: it joins its own topic and pushes events, so that a test decides when each one comes."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.support.processes import PATIENCE


class ScriptedHome:
    """One joined home. Its events are numbered from 1, in one epoch; each is acked when `publish` returns."""

    def __init__(self, socket: ClientConnection, server_id: str, epoch: str, name: str = "a scripted home") -> None:
        self.epoch = epoch
        self.last_id = 0
        self.name = name
        self._socket = socket
        self._topic = f"server:{server_id}"
        self._refs = 0

    async def join(self) -> dict[str, Any]:
        """Join the home's topic; returns the hub's answer."""
        return await self._call(
            "phx_join",
            {
                "protocol": 1,
                "epoch": self.epoch,
                "head_id": str(self.last_id) if self.last_id else None,
                "name": self.name,
                "instance": "scripted",
            },
        )

    async def publish(self, count: int = 1, text: str = "some text") -> list[str]:
        """Push `count` events, one after the other; returns their ids once the hub has acked the last of them."""
        ids = []
        for _ in range(count):
            ids.append(await self.tell({"type": "partial", "session_id": "s-1", "request_id": "r-1", "data": text}))
        return ids

    async def publish_at_once(self, count: int, text: str) -> None:
        """Push `count` events in one message (at most 200); acked when it returns."""
        previous = str(self.last_id) if self.last_id else None
        numbers = range(self.last_id + 1, self.last_id + count + 1)
        events = [{"event_id": str(number), "type": "final", "session_id": "s-1", "data": text} for number in numbers]
        self.last_id += count
        answer = await self._call("session_events", {"events": events, "prev_id": previous})
        assert answer["acked_id"] == str(self.last_id), answer

    async def tell(self, event: dict[str, Any]) -> str:
        """Push one event; returns its id once the hub has acked it."""
        previous = str(self.last_id) if self.last_id else None
        event_id = str(self.last_id + 1)
        answer = await self._call("session_event", {"event": {"event_id": event_id, **event}, "prev_id": previous})
        assert answer["acked_id"] == event_id, answer
        self.last_id += 1
        return event_id

    async def _call(self, event: str, payload: dict[str, Any]) -> dict[str, Any]:
        self._refs += 1
        ref = str(self._refs)
        await self._socket.send(json.dumps(["1", ref, self._topic, event, payload]))
        async with asyncio.timeout(PATIENCE):
            while True:
                _, answered, _, kind, reply = json.loads(await self._socket.recv())
                if kind == "phx_reply" and answered == ref:
                    assert reply["status"] == "ok", reply
                    response: dict[str, Any] = reply["response"]
                    return response


@asynccontextmanager
async def scripted_home(
    hub_url: str, server_id: str, token: str, epoch: str = "epoch-1", name: str = "a scripted home", head: int = 0
) -> AsyncIterator[ScriptedHome]:
    """Connect to the hub with the home's credential, join, and leave the line at the end.

    With a `head` it says that its store holds events up to that id, and then tells them from 1.
    """
    url = hub_url.replace("http", "ws", 1) + "/socket/websocket?vsn=2.0.0"
    async with connect(url, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as socket:
        home = ScriptedHome(socket, server_id, epoch, name)
        home.last_id = head
        await home.join()
        home.last_id = 0
        yield home
