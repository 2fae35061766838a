"""A hub without a network: real peers, channels and outboxes on a transport in memory.

`Bench` holds what one hub process holds; `Wire` is one connection to it, from the other side: it speaks V2 (or V1)
frames, may stop taking bytes, and shows what came, write by write.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from bridge_server.auth import Device, Identity, Server
from bridge_server.backlog import Marks
from bridge_server.channels import Router
from bridge_server.channels.app import AppChannel, show_home
from bridge_server.channels.presence import Presence
from bridge_server.channels.server import ServerChannel
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.device_cursors import DeviceCursors
from bridge_server.history.memory import MemoryHistory
from bridge_server.home import Home, Homes
from bridge_server.hub import Hub
from bridge_server.outbox import Budget
from bridge_server.peer import Peer
from bridge_server.pubsub.memory import MemoryPubSub
from protocol.codec import V2, Codec, Encoded
from protocol.topics import events_topic

SERVER_ID = "a" * 26
OTHER_ID = "b" * 26


class Got(NamedTuple):
    """One message from the hub. `join_ref` is absent in V1."""

    topic: str
    event: str
    payload: Any
    ref: Any = None
    join_ref: Any = None


def wrap(message: Encoded) -> bytes:
    """Frames on the transport in memory: kind, length, data."""
    return struct.pack(">BI", message.binary, len(message.data)) + message.data


def unwrap(data: bytes) -> list[Encoded]:
    """The frames of what was written; fails when it is not a whole number of them."""
    frames, start = [], 0
    while start < len(data):
        binary, length = struct.unpack_from(">BI", data, start)
        start += 5 + length
        assert start <= len(data), "half a frame was written"
        frames.append(Encoded(data[start - length : start], bool(binary)))
    return frames


class MemoryTransport:
    """Takes everything, until it is told to hold `room` bytes at most; a takes-nothing peer has no room."""

    wrap = staticmethod(wrap)

    def __init__(self, now: Callable[[], float]) -> None:
        self.peer: Peer | None = None
        self.writes: list[bytes] = []
        self.closed: tuple[int, str] | None = None
        self.frozen = False
        self._held: list[bytes] = []
        self._now = now

    def write(self, data: bytes) -> None:
        assert self.closed is None, f"written after the end: {data[:80]!r}"
        if not self.frozen:
            self.writes.append(data)
            return
        self._held.append(data)
        assert self.peer is not None
        self.peer.outbox.pause(self._now())

    def unsent(self) -> int:
        return sum(map(len, self._held))

    def thaw(self) -> None:
        """Take everything again."""
        self.frozen = False
        self.take()

    def take(self) -> None:
        """Take what was written so far; the hub may then write more, which is held again if still frozen."""
        taken, self._held = self._held, []
        self.writes += taken
        if taken and self.peer is not None and self.closed is None:
            self.peer.outbox.resume(self._now())

    def pause_reading(self) -> None:
        """Nobody reads here: messages are handed in one by one."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def close(self, code: int, reason: str) -> None:
        if self.closed is None:
            self.closed = (code, reason)
            assert self.peer is not None
            self.peer.gone()

    def abort(self) -> None:
        self.close(1006, "aborted")


class Wire:
    """One connection, seen from outside."""

    def __init__(self, bench: "Bench", identity: Identity | None, codec: Codec) -> None:
        self.codec = codec
        self.transport = MemoryTransport(bench.clock.now)
        self.peer = self.transport.peer = Peer(
            self.transport,
            codec,
            identity,
            {},
            hub=bench.hub,
            router=bench.router,
            budget=bench.budget,
            clock=bench.clock,
            channel_limit=100,
        )
        self.topic = ""
        if isinstance(identity, Server):
            self.topic = f"server:{identity.server_id}"
        elif isinstance(identity, Device):
            self.topic = f"app:{identity.server_id}"
        self.join_ref: str | None = None
        self._ref = 0
        self._read = 0
        self._messages: list[Got] = []
        self._writes_seen = 0

    # What this side sends.

    def send(self, event: str, payload: Any, topic: str | None = None) -> str:
        """Send one message; its ref."""
        self._ref += 1
        ref = str(self._ref)
        if event == "phx_join":
            self.join_ref = ref
        content = payload if isinstance(payload, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(payload))
        name = self.topic if topic is None else topic
        if self.codec is V2:
            data = msgspec.json.encode([self.join_ref, ref, name, event, content])
        else:
            data = msgspec.json.encode({"topic": name, "event": event, "payload": content, "ref": ref})
        self.peer.outbox.cork()
        self.peer.receive(data, binary=False)
        self.peer.outbox.uncork()
        return ref

    def call(self, event: str, payload: Any, topic: str | None = None) -> dict[str, Any]:
        """Send, and return the reply's payload: `{status, response}`. What else came stays to be read."""
        ref = self.send(event, payload, topic)
        return self.answer(ref)

    def answer(self, ref: str) -> dict[str, Any]:
        """The reply to `ref`, which must be there."""
        found = [got for got in self.all() if got.event == "phx_reply" and got.ref == ref]
        assert len(found) == 1, f"{len(found)} replies to {ref}"
        payload: dict[str, Any] = found[0].payload
        return payload

    def join(self, payload: Any = None, topic: str | None = None) -> dict[str, Any]:
        """Join; the ok response."""
        reply = self.call("phx_join", {} if payload is None else payload, topic)
        assert reply["status"] == "ok", reply
        response: dict[str, Any] = reply["response"]
        return response

    def refused(self, payload: Any) -> dict[str, Any]:
        """Join; the error response."""
        reply = self.call("phx_join", payload)
        assert reply["status"] == "error", reply
        response: dict[str, Any] = reply["response"]
        return response

    def drop(self) -> None:
        """The connection is lost."""
        if self.transport.closed is None:
            self.transport.closed = (1006, "lost")
            self.peer.gone()

    # What it got.

    def all(self) -> list[Got]:
        """Every message so far, in order."""
        writes = self.transport.writes
        for write in writes[self._writes_seen :]:
            self._messages += [self._decode(frame) for frame in unwrap(write)]
        self._writes_seen = len(writes)
        return self._messages

    def new(self) -> list[Got]:
        """The messages since the last call that are no replies."""
        messages = self.all()
        fresh, self._read = messages[self._read :], len(messages)
        return [got for got in fresh if got.event != "phx_reply"]

    def ids(self) -> list[int]:
        """The ids of all events this connection got."""
        return [int(got.payload["event"]["event_id"]) for got in self.all() if got.event == "session_event"]

    def _decode(self, frame: Encoded) -> Got:
        if frame.binary:
            return Got("", "binary", frame.data)
        message = msgspec.json.decode(frame.data)
        if self.codec is V2:
            join_ref, ref, topic, event, payload = message
            return Got(topic, event, payload, ref, join_ref)
        return Got(message["topic"], message["event"], message["payload"], message["ref"])


class HomeWire(Wire):
    """A home. Knows how events and their `prev_id` are made."""

    def joins(self, epoch: str | None = "E", head: int | None = None, **more: Any) -> dict[str, Any]:
        """Join as our own forwarder does."""
        return self.join({"protocol": 1, "epoch": epoch, "head_id": None if head is None else str(head), **more})

    def event(self, number: int, prev: int | None | str = "dense", **fields: Any) -> dict[str, Any]:
        """Push one event; the reply. `prev`: by default the id before it, None for the first."""
        payload: dict[str, Any] = {"event": event(number, **fields)}
        if prev == "dense":
            payload["prev_id"] = str(number - 1) if number > 1 else None
        elif prev != "bare":
            payload["prev_id"] = None if prev is None else str(prev)
        return self.call("session_event", payload)

    def events(self, first: int, last: int) -> dict[str, Any]:
        """Push a dense batch; the reply."""
        prev = str(first - 1) if first > 1 else None
        return self.call("session_events", {"events": [event(n) for n in range(first, last + 1)], "prev_id": prev})


def event(number: int, type: str = "partial", session_id: str | None = "s", **fields: Any) -> dict[str, Any]:
    """One event."""
    return {"event_id": str(number), "type": type, "session_id": session_id, **fields}


class Bench:
    """What one hub process holds. Must be made inside a running loop, whose time it measures with."""

    def __init__(self, **settings: Any) -> None:
        loop = asyncio.get_running_loop()
        self.clock = Clock(loop.time, lambda: 1_800_000_000.0 + loop.time())
        self.config = Config(**settings)
        self.hub = Hub(MemoryPubSub(), merge_window=self.config.merge_window)
        self.budget = Budget(self.config.queue_total_bytes, Marks.of(self.config), self.clock.now)
        self.router = Router()
        history = MemoryHistory(self.config.history_events, self.config.history_bytes, self.config.history_seconds)
        self.presence = Presence(self.hub, self.clock.now, grace=self.config.presence_grace)
        self.homes = Homes(history, self.clock.now, lambda home: show_home(home, self.presence, self.clock))
        self.router.add("server:*", lambda socket: ServerChannel(socket, self.hub, self.homes, self.config, self.clock))
        self.cursors = DeviceCursors()
        self.router.add(
            "app:*",
            lambda socket: AppChannel(socket, self.homes, self.presence, self.config, self.clock, self.cursors),
        )

    def home(self, server_id: str = SERVER_ID) -> HomeWire:
        """A new connection of a home."""
        return HomeWire(self, Server(1, server_id, "the den"), V2)

    def app(
        self,
        server_id: str = SERVER_ID,
        codec: Codec = V2,
        *,
        device_id: str = "d",
        name: str = "phone",
        scopes: Iterable[str] = ("view",),
    ) -> Wire:
        """A new connection of an app."""
        return Wire(self, Device(2, device_id, server_id, name, frozenset(scopes)), codec)

    def stranger(self, identity: Identity | None) -> Wire:
        """A connection of somebody else."""
        return Wire(self, identity, V2)

    def record(self, server_id: str = SERVER_ID) -> Home:
        """What the hub knows of a home."""
        return self.homes.get(server_id)

    def topic(self, server_id: str = SERVER_ID) -> str:
        """The PubSub topic of a home's events."""
        return events_topic(server_id)
