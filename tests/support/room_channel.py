"""The channels of the server whose wire transcripts are replayed here, on the public Channel contract.

`room:*` answers one event per thing the protocol can say; what each does is read off the transcripts.
`add_test_channels` registers them all, so that a mount of a test offers what the recorded server offered.
"""

import asyncio
import json
import time
from typing import Any

from msgspec import Raw

from bridge_server.auth import Operator
from bridge_server.channels import UNKNOWN_EVENT, Channel, Handled, Joined, Ok, Refuse, Reply, Router, Socket, Stop
from bridge_server.channels.presence import Presence
from bridge_server.hub import Hub
from bridge_server.message import Message
from protocol.frames import Binary, Payload

BYTES = Binary(b"\x00\x01\x02\xff")


def read(payload: Payload) -> Any:
    """A JSON payload as Python values. Raises TypeError for a binary one."""
    if isinstance(payload, Binary):
        raise TypeError("a binary payload is no JSON")
    return json.loads(bytes(payload))


class _Broadcasting(Channel):
    """A channel whose members hear what is published under its own topic."""

    __slots__ = ("_listener", "_topics")

    def __init__(self, socket: Socket, topics: Hub) -> None:
        super().__init__(socket)
        self._topics = topics
        self._listener = socket.listen(socket.topic)

    def joined(self) -> None:
        self._listener.go_live()

    def broadcast(self, topic: str, event: str, payload: Payload) -> None:
        if isinstance(payload, Binary):
            self._topics.publish(topic, Message(event, payload.data, binary=True))
            return
        if not bytes(payload).startswith(b"{"):
            raise ValueError("a broadcast's payload is an object")
        self._topics.publish(topic, Message(event, bytes(payload)))


class RoomChannel(_Broadcasting):
    """`room:*`: one event per thing a channel can do."""

    __slots__ = ()

    def join(self, payload: Payload) -> Joined:
        name = self.socket.topic.partition(":")[2]
        asked = {} if isinstance(payload, Binary) else read(payload)
        asked = asked if isinstance(asked, dict) else {}
        if name == "forbidden":
            return Refuse({"reason": "unauthorized"})
        if name == "crash" or asked.get("crash"):
            raise RuntimeError("a join that crashes on purpose")
        if asked.get("deny"):
            return Refuse({"reason": "denied"})
        if name == "badreturn":
            return "nonsense"  # type: ignore[return-value]
        if name == "reply":
            return Ok({"got": payload, "uid": self.socket.query.get("uid")})
        if name == "binjoin":
            return Ok(BYTES)
        if name == "binrefuse":
            return Refuse(BYTES)
        if name == "pushinjoin":
            self.broadcast(self.socket.topic, "early", Raw(b"{}"))
        if name == "auth":
            identity = self.socket.identity
            return Ok({"auth": identity.name if isinstance(identity, Operator) else None})
        return Ok()

    def joined(self) -> None:
        super().joined()
        if self.socket.topic == "room:after":
            self.socket.push("welcome", {"n": 1})
            self.broadcast(self.socket.topic, "user_entered", Raw(b'{"n":2}'))

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        match event:
            case "ping":
                return Reply("ok", payload)
            case "ok":
                return Reply()
            case "err":
                return Reply("error")
            case "custom":
                return Reply("teapot", payload)
            case "fail":
                return Reply("error", {"reason": "bad"})
            case "nonmap_reply":
                return Reply("ok", [1, "two", None])
            case "wrap":
                return Reply("ok", {"payload": read(payload)})
            case "big_reply":
                return Reply("ok", {"x": "x" * read(payload)["n"]})
            case "binary":
                return Reply("ok", payload if isinstance(payload, Binary) else BYTES)
            case "binary_err":
                return Reply("error", Binary(b"no"))
            case "binary_to_json":
                assert isinstance(payload, Binary)
                return Reply("ok", {"hex": payload.data.hex()})
            case "whoami":
                uid = self.socket.query.get("uid")
                shown = {"id": uid and f"user:{uid}", "uid": uid, "params": self.socket.query, "ref": f'"{ref}"'}
                return Reply("ok", shown)
            case "crash" | "kill" | "exit_normal" | "stop_error":
                raise RuntimeError("a channel that crashes on purpose")
            case "badreturn":
                return "nonsense"  # type: ignore[return-value]
            case "stop" | "stop_shutdown" | "stop_shutdown_t":
                return Stop()
            case "stop_reply":
                return Stop(Reply("ok", payload))
            case "stop_later":
                self.socket.spawn(self._later(self.socket.close))
                return Reply()
        return self._say(event, payload, ref)

    def _say(self, event: str, payload: Payload, ref: Any) -> Handled:
        match event:
            case "noreply":
                pass
            case "push":
                self.socket.push("pushed", payload)
            case "push_nonmap":
                self.socket.push("pushed", [1, 2])
            case "push_binary":
                self.socket.push("bin", BYTES)
            case "push3":
                for number in (1, 2, 3):
                    self.socket.push("pushed", {"i": number})
                return Reply("ok", {"done": True})
            case "shout":
                self.broadcast(self.socket.topic, "shout", payload)
            case "shout_binary":
                self.broadcast(self.socket.topic, "bin", BYTES)
            case "late":
                self.socket.spawn(self._later(lambda: self.socket.reply(ref, Reply("ok", {"late": True}))))
            case "twice":
                for number in (1, 2):
                    self.socket.reply(ref, Reply("ok", {"n": number}))
            case _:
                return UNKNOWN_EVENT
        return None

    async def _later(self, act: Any) -> None:
        await asyncio.sleep(0)
        act()


class InterceptedChannel(Channel):
    """`icpt:*`: each member changes a broadcast before it goes to its client."""

    __slots__ = ("_members",)

    def __init__(self, socket: Socket, members: dict[Channel, None]) -> None:
        super().__init__(socket)
        self._members = members

    def joined(self) -> None:
        self._members[self] = None

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        if event != "shout":
            return UNKNOWN_EVENT
        for member in self._members:
            member.socket.push("shout", {**read(payload), "intercepted": True})
        return None

    def terminate(self, reason: str) -> None:
        self._members.pop(self, None)


class PresenceChannel(Channel):
    """`presence:*`: whoever joins is present under its `uid`, and watches."""

    __slots__ = ("_presence",)

    def __init__(self, socket: Socket, presence: Presence) -> None:
        super().__init__(socket)
        self._presence = presence

    def joined(self) -> None:
        self._presence.track(self.socket, self.socket.query["uid"], {"n": 0, "online_at": 1})
        self._presence.watch(self.socket)

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        if event != "update":
            return UNKNOWN_EVENT
        self._presence.update(self.socket, {"n": read(payload)["n"], "online_at": 1})
        return Reply()


class RelayChannel(_Broadcasting):
    """`server:*` and `pub:*` publish what they are sent; `app:*` and `fan:*` hear it."""

    __slots__ = ()

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        kind, _, name = self.socket.topic.partition(":")
        target = {"server": "app", "pub": "fan"}.get(kind)
        if target is None or event not in ("session_event", "session_event_ack"):
            return UNKNOWN_EVENT
        self.broadcast(f"{target}:{name}", "session_event", payload)
        return Reply() if event == "session_event_ack" else None


class SlowChannel(Channel):
    """`slow:*`: joins, and answers `wait`, only when the test says so. `{"gate": name}` says which gate it waits at."""

    __slots__ = ("_gates",)

    def __init__(self, socket: Socket, gates: dict[str, asyncio.Event]) -> None:
        super().__init__(socket)
        self._gates = gates

    async def _pass(self, payload: Payload) -> None:
        if gate := read(payload).get("gate"):
            await self._gates.setdefault(gate, asyncio.Event()).wait()

    async def join(self, payload: Payload) -> Joined:
        await self._pass(payload)
        asked = read(payload)
        if asked.get("crash"):
            raise RuntimeError("a join that crashes on purpose, late")
        return Refuse({"reason": "late"}) if asked.get("deny") else Ok()

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Any:
        return self._wait(payload) if event == "wait" else Reply("ok", payload)

    async def _wait(self, payload: Payload) -> Handled:
        await self._pass(payload)
        asked = read(payload)
        if asked.get("crash"):
            raise RuntimeError("a handler that crashes on purpose, late")
        return Stop(Reply("ok", payload)) if asked.get("stop") else Reply("ok", payload)


def add_test_channels(router: Router, topics: Hub, gates: dict[str, asyncio.Event] | None = None) -> None:
    """Serve every topic of the recorded server, and `slow:*`, whose gates the test opens."""
    members: dict[Channel, None] = {}
    presence = Presence(topics, time.monotonic, grace=0, window=0)
    doors = {} if gates is None else gates
    router.add("room:*", lambda socket: RoomChannel(socket, topics))
    router.add("exact", lambda socket: RoomChannel(socket, topics))
    router.add("icpt:*", lambda socket: InterceptedChannel(socket, members))
    for pattern in ("server:*", "app:*", "pub:*", "fan:*"):
        router.add(pattern, lambda socket: RelayChannel(socket, topics))
    router.add("presence:*", lambda socket: PresenceChannel(socket, presence))
    router.add("slow:*", lambda socket: SlowChannel(socket, doors))
