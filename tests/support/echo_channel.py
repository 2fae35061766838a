"""A channel that says whatever it is sent in every way a channel can: as its reply, a push, and a broadcast to all."""

from typing import Any

import msgspec

from bridge_server.channels import Channel, Handled, Joined, Ok, Refuse, Reply, Router, Socket
from bridge_server.channels.presence import Presence
from bridge_server.hub import Hub
from bridge_server.message import Message
from protocol.frames import Binary, Payload


class _Order(msgspec.Struct):
    """A JSON payload that asks for something: `name` is an event, a status or a key."""

    name: str = ""
    hex: str = ""
    presence: bool = False


_ORDER = msgspec.json.Decoder(_Order)


class EchoChannel(Channel):
    """Who joins with a binary payload gets it back in the join's reply; one that starts with `no` is refused with it.

    A binary message comes back under its own name: pushed, then broadcast, then as the reply. In JSON, `push`, `reply`
    and `broadcast {name, hex}` ask for one binary message of that kind, `text` for one in each way; `present {name}`
    shows the channel as present under that key, and who joined with `{"presence":true}` watches.
    """

    __slots__ = ("_listener", "_presence", "_topics", "_watches")

    def __init__(self, socket: Socket, topics: Hub, presence: Presence) -> None:
        super().__init__(socket)
        self._topics = topics
        self._presence = presence
        self._listener = socket.listen(socket.topic)
        self._watches = False

    def join(self, payload: Payload) -> Joined:
        if isinstance(payload, Binary):
            return Refuse(payload) if payload.data.startswith(b"no") else Ok(payload)
        self._watches = _ORDER.decode(payload).presence
        return Ok()

    def joined(self) -> None:
        self._listener.go_live()
        if self._watches:
            self._presence.watch(self.socket)

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        if isinstance(payload, Binary):
            self.socket.push(event, payload)
            self._broadcast(event, payload)
            return Reply("ok", payload)
        order = _ORDER.decode(payload)
        data = Binary(bytes.fromhex(order.hex))
        match event:
            case "push":
                self.socket.push(order.name, data)
            case "reply":
                return Reply(order.name, data)
            case "broadcast":
                self._broadcast(order.name, data)
            case "text":
                self.socket.push("text", payload)
                self._topics.publish(self.socket.topic, Message("text", bytes(payload)))
                return Reply("ok", payload)
            case "present":
                return Reply("ok" if self._presence.track(self.socket, order.name, {"from": "echo"}) else "error")
        return None

    def _broadcast(self, event: str, payload: Binary) -> None:
        self._topics.publish(self.socket.topic, Message(event, payload.data, binary=True))


def add_echo_channel(router: Router, topics: Hub, presence: Presence) -> None:
    """Serve `echo:*`."""
    router.add("echo:*", lambda socket: EchoChannel(socket, topics, presence))
