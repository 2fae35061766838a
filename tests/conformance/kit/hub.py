"""Our own hub with everything that the vectors need, and a clock that runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bridge_server.app import Hub
from bridge_server.auth import Credentials
from bridge_server.channels import Handled, Joined, Reply, Router, Socket
from bridge_server.config import Config
from bridge_server.transports.handshake import Mount
from protocol.frames import Binary, Payload
from tests.support.recorded_server import RECORDED_ORIGINS, RecordedServer
from tests.support.room_channel import RoomChannel, add_test_channels, read

PREFIX = "/kit"
IDLE_SECONDS = 0.3


class KitChannel(RoomChannel):
    """`room:*`, with what a vector asks for beyond the recorded server: waiting, and ends of whole sockets."""

    __slots__ = ("_server",)

    def __init__(self, socket: Socket, server: RecordedServer) -> None:
        super().__init__(socket, server.hub.topics)
        self._server = server

    def join(self, payload: Payload) -> Any:
        asked = None if isinstance(payload, Binary) else read(payload)
        if isinstance(asked, dict) and (milliseconds := asked.get("wait_ms")):
            return self._join_later(milliseconds / 1000, payload)
        return super().join(payload)

    async def _join_later(self, seconds: float, payload: Payload) -> Joined:
        await asyncio.sleep(seconds)
        return super().join(payload)

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Any:
        match event:
            case "wait":
                return self._answer_later(read(payload)["ms"] / 1000, payload)
            case "shout_ack":
                self.broadcast(self.socket.topic, "shout", payload)
                return Reply()
            case "disconnect":
                self._server.disconnect(self.socket.query["uid"])
                return None
        return super().handle_in(event, payload, ref)

    async def _answer_later(self, seconds: float, payload: Payload) -> Handled:
        await asyncio.sleep(seconds)
        return Reply("ok", payload)


@asynccontextmanager
async def kit_hub(folder: Path) -> AsyncIterator[str]:
    """Start it, with its files in `folder`; the URL of its socket. It is stopped at the end."""
    credentials = Credentials(folder / "hub.db")
    server = RecordedServer(credentials)
    router = Router()

    def mount(name: str, **options: Any) -> Mount:
        authenticate = options.pop("authenticate", server.by_query)
        return Mount(f"{PREFIX}/{name}", router, authenticate, **options)

    mounts = (
        mount("socket"),
        mount("small", max_frame_bytes=1000),
        mount("short", idle_timeout=IDLE_SECONDS),
        mount("sub", subprotocols=("chat.v1", "phoenix")),
        mount("max2", channel_limit=2),
        mount("origin", origins=RECORDED_ORIGINS),
        mount("auth", authenticate=server.by_subprotocol, subprotocols=("phoenix",)),
    )
    config = Config(host="127.0.0.1", port=0, state_dir=folder / "hub-state", drain_seconds=0.0, auto_enrol=False)
    server.hub = Hub(config, credentials, mounts=mounts)
    router.add("room:*", lambda socket: KitChannel(socket, server))
    add_test_channels(router, server.hub.topics)
    try:
        async with server.hub:
            yield f"ws://127.0.0.1:{server.port}{PREFIX}/socket"
    finally:
        credentials.close()
