"""A hub with the mounts that the recorded Phoenix server had, each under `/recorded`.

Its credentials are real ones: `uid=X` in the query stands for a device of that name; revoking it ends its sockets.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bridge_server.app import Hub
from bridge_server.auth import BEARER_SUBPROTOCOL, Credentials, Device, Identity, Operator, Refused, credential
from bridge_server.channels import Router
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.message import Message
from bridge_server.transports.handshake import Authenticate, Mount, Pairs
from tests.support.raw_socket import RawSocket, frame
from tests.support.room_channel import add_test_channels

PREFIX = "/recorded"

RECORDED_ORIGINS = frozenset({"https://example.com", "//*.wild.test"})


class Hands:
    """A clock that moves when the test says so."""

    def __init__(self) -> None:
        self.time = 1_000.0

    def now(self) -> float:
        return self.time


class RecordedServer:
    """The running hub, its test channels' gates, its clock, and the devices that `uid` made."""

    def __init__(self, credentials: Credentials) -> None:
        self.hub: Hub
        self.router = Router()
        """Of every mount: a test may add channels of its own."""
        self.hands = Hands()
        self.gates: dict[str, asyncio.Event] = {}
        self._credentials = credentials
        self._server, _ = credentials.add_server("recorded")
        self._devices: dict[str, Device] = {}

    @property
    def port(self) -> int:
        return self.hub.port

    def disconnect(self, uid: str) -> None:
        """End every socket of one `uid`, by revoking its credential."""
        self._credentials.revoke_device(self._devices.pop(uid).device_id)

    def publish(self, topic: str, event: str, payload: bytes) -> None:
        """A broadcast from within the server."""
        self.hub.topics.publish(topic, Message(event, payload))

    def open_gate(self, name: str) -> None:
        """Let through whatever waits, or will wait, at this gate."""
        self.gates.setdefault(name, asyncio.Event()).set()

    def by_query(self, headers: Pairs, subprotocols: Sequence[str], query: Pairs) -> Identity | None:
        """`token` decides whether, `uid` decides who."""
        values = dict(query)
        if values.get("token") == "boom":
            raise RuntimeError("an authentication that crashes on purpose")
        if values.get("token"):
            raise Refused("credential_invalid")
        uid = values.get("uid")
        if uid is None:
            return None
        if uid not in self._devices:
            self._devices[uid], _ = self._credentials.add_device(self._server.server_id, uid)
        return self._devices[uid]

    @staticmethod
    def by_subprotocol(headers: Pairs, subprotocols: Sequence[str], query: Pairs) -> Identity | None:
        """The token of the bearer subprotocol names an operator; without one, nobody."""
        if any(entry.startswith(BEARER_SUBPROTOCOL) for entry in subprotocols):
            return Operator(0, credential((), subprotocols))
        return None


@asynccontextmanager
async def recorded_server(folder: Path, *more: tuple[str, dict[str, object]]) -> AsyncIterator[RecordedServer]:
    """Start it, with `more` mounts by name and options; it is stopped at the end."""
    credentials = Credentials(folder / "hub.db")
    server = RecordedServer(credentials)

    def mount(name: str, authenticate: Authenticate = server.by_query, **options: object) -> Mount:
        return Mount(f"{PREFIX}/{name}", server.router, authenticate, **options)  # type: ignore[arg-type]

    mounts = (
        mount("socket"),
        # The recorded server counted a frame's head: its 1000 bytes are 992 of message.
        mount("small", max_frame_bytes=992),
        mount("short", idle_timeout=1.5, poll_window=1.0),
        mount("sub", subprotocols=("chat.v1", "phoenix")),
        mount("max2", channel_limit=2),
        mount("origin", origins=RECORDED_ORIGINS),
        mount("noorigin", origins=None),
        mount("auth", server.by_subprotocol, subprotocols=("phoenix",)),
        *(mount(name, **options) for name, options in more),
    )
    config = Config(host="127.0.0.1", port=0, state_dir=folder / "hub-state", drain_seconds=0.0, auto_enrol=False)
    server.hub = Hub(config, credentials, clock=Clock(server.hands.now), mounts=mounts)
    add_test_channels(server.router, server.hub.topics, server.gates)
    try:
        async with server.hub:
            yield server
    finally:
        credentials.close()


@asynccontextmanager
async def connected(server: RecordedServer, vsn: str = "2.0.0") -> AsyncIterator[RawSocket]:
    """A WebSocket to the first of its mounts."""
    async with RawSocket(server.port) as socket:
        assert (await socket.upgrade(f"{PREFIX}/socket/websocket?vsn={vsn}")).status == 101
        yield socket


def text(*slots: Any) -> bytes:
    """A frame with one message, as a client sends it."""
    return frame(json.dumps(slots).encode())
