"""Topics of other products, whose clients know no others: written against the public Channel contract."""

import json
from typing import Any

from msgspec import Raw

from bridge_server.channels import Channel, Handled, Joined, Ok, Reply, Socket
from bridge_server.hub import Hub, Message
from protocol.frames import Binary, Payload


class Room:
    """What `realtime:*` topics tell: events numbered from 1, kept for those who were away."""

    def __init__(self, topics: Hub, topic: str) -> None:
        self.topic = topic
        self.epoch = "room-1"
        self.told: list[bytes] = []
        self._topics = topics

    async def publish(self, count: int = 1, text: str = "some text") -> list[str]:
        """Tell so many events; their ids."""
        ids = []
        for _ in range(count):
            ids.append(str(len(self.told) + 1))
            self.told.append(broadcast("session_event", {"event": {"event_id": ids[-1], "data": text}}))
            self._topics.publish(self.topic, Message("broadcast", self.told[-1]))
        return ids


def broadcast(event: str, payload: dict[str, Any]) -> bytes:
    """A message inside a message: clients of such topics hand out nothing but these."""
    return json.dumps({"type": "broadcast", "event": event, "payload": payload}).encode()


class RealtimeChannel(Channel):
    """`realtime:*`: joins by a `config`, and with `since_id` beside it tells what came after that id."""

    __slots__ = ("_listener", "_room", "_since")

    def __init__(self, socket: Socket, room: Room) -> None:
        super().__init__(socket)
        self._room = room
        self._since: str | None = None
        self._listener = socket.listen(socket.topic)

    def join(self, payload: Payload) -> Joined:
        assert isinstance(payload, Raw)
        asked = json.loads(bytes(payload))
        assert {"broadcast", "presence", "private"} <= set(asked["config"])
        self._since = asked.get("since_id")
        return Ok({"postgres_changes": []})

    def joined(self) -> None:
        room = self._room
        place = len(room.told)
        for message in room.told[place if self._since is None else int(self._since) :]:
            self.socket.push("broadcast", Raw(message))
        end = {"epoch": room.epoch, "to_id": str(place), "recovered": True, "gap": None}
        self.socket.push("broadcast", Raw(broadcast("replay_complete", end)))
        self._listener.go_live()

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        return Reply() if event == "access_token" else super().handle_in(event, payload, ref)


class DocumentChannel(Channel):
    """`yjs:*`: hands the binary messages of an editor to the others.

    With `yjs_sync` an editor says what it has, to hear what it lacks. It is kept for those who join later: each of two
    that come back, one after the other, has something for the other.
    """

    __slots__ = ("_listener", "_members", "_topics")

    def __init__(self, socket: Socket, topics: Hub, members: dict[Channel, Binary | None]) -> None:
        super().__init__(socket)
        self._topics = topics
        self._members = members
        self._listener = socket.listen(socket.topic)

    def joined(self) -> None:
        self._members[self] = None
        self._listener.go_live()

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        assert isinstance(payload, Binary), "an editor sends nothing but binary messages"
        if event == "yjs":  # to all: an update that comes back changes nothing
            self._topics.publish(self.socket.topic, Message("yjs", payload.data, binary=True))
        elif event == "yjs_sync":
            for member, asked in self._members.items():
                if member is not self:
                    member.socket.push("yjs", payload)
                    if asked is not None:
                        self.socket.push("yjs", asked)
            self._members[self] = payload
        return None

    def terminate(self, reason: str) -> None:
        self._members.pop(self, None)
