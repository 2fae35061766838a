"""The recorded wire transcripts of a Phoenix server, and a conversation as the replay and the deviations see it."""

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PATH = Path(__file__).resolve().parents[2].parent / "shared" / "vectors" / "phoenix-1.8.json"

LEFT_OUT = {
    "deflate_negotiation": "compression is not offered",
    "deflate_use": "compression is not offered",
    "longpoll_ndjson_v1": "the recorded server fails on NDJSON of version 1.0.0; ours takes it: see test_longpoll.py",
    "server_shutdown": "its subject is a process: see the tests of the running program",
}
"""Scenarios that are not replayed, and why."""

Step = dict[str, Any]


class Scenario(NamedTuple):
    name: str
    steps: list[Step]


@cache
def scenarios() -> dict[str, Scenario]:
    """Every recorded scenario; none where the recording is not at hand."""
    if not PATH.exists():
        return {}
    recorded = json.loads(PATH.read_text("utf-8"))["scenarios"]
    return {entry["name"]: Scenario(entry["name"], entry["steps"]) for entry in recorded}


class Message(NamedTuple):
    """A message of either serializer. Version 1.0.0 has no join_ref going out."""

    join_ref: Any
    ref: Any
    topic: Any
    event: Any
    payload: Any


def parse(text: str, vsn: str) -> Message | None:
    """A message as it stands on the wire; None if it is none."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    if vsn == "2.0.0":
        return Message(*value[:5]) if isinstance(value, list) and len(value) >= 5 else None
    if not isinstance(value, dict) or not {"topic", "event", "payload", "ref"} <= value.keys():
        return None
    return Message(*(value.get(name) for name in Message._fields))


def parse_binary(data: bytes) -> Message | None:
    """A client's binary push."""
    if len(data) < 5 or data[0] != 0:
        return None
    slots, start = [], 5
    for length in data[1:5]:
        slots.append(data[start : start + length].decode())
        start += length
    return Message(*slots, data[start:])


class Conversation:
    """What has been said on one connection so far, as far as a deviation depends on it."""

    def __init__(self, scenario: str, name: str, path: str, vsn: str) -> None:
        self.scenario = scenario
        self.name = name
        self.mount = path.split("/")[1]
        self.path = path
        self.vsn = vsn
        self.sent_text = ""
        self.last: Message | None = None
        self.size = 0
        self.requests: dict[str, Message] = {}
        self.joins: dict[str, Message] = {}
        """The last join of each topic, whatever became of it."""
        self.left: set[str] = set()
        self.replaced: set[tuple[str, Any]] = set()
        self.still_joined: set[str] = set()
        self.gone: set[str] = set()
        self.content_type = ""
        """Of the last POST."""
        self.refused: list[Message] = []
        """Messages whose POST a deviation refused."""
        self.over = False
        """Whether a deviation ended this connection, or refused it: what was recorded of it afterwards is void."""
        self.told_of_itself = False
        """Whether the recorded diff with its own presence, which is the first with its name, has come."""
        self.alive = False
        """Whether a deviation spared this connection: the end that was recorded does not come."""

    @property
    def origin(self) -> str | None:
        """The Origin header, which the recording keeps in the connection's name."""
        _, found, origin = self.name.partition(":")
        return None if not found or origin == "None" else origin

    def say(self, message: Message | None, text: str = "") -> None:
        """Remember what the client sends."""
        self.sent_text = text
        self.last = message
        if message is None:
            return
        self.requests[json.dumps(message.ref)] = message
        topic = message.topic
        if not isinstance(topic, str):
            return
        if message.event == "phx_join":
            if topic in self.joins and topic not in self.left:
                self.replaced.add((topic, self.joins[topic].join_ref))
            self.joins[topic] = message
            for names in (self.left, self.gone, self.still_joined):
                names.discard(topic)
        elif message.event == "phx_leave":
            self.left.add(topic)

    def request(self, reply: Message) -> Message | None:
        """What `reply` answers."""
        return self.requests.get(json.dumps(reply.ref))


class Expected(NamedTuple):
    """One thing to come. `kind`: message (Message), bytes, length (of a text frame), close (code), status (of the
    upgrade), alive (nothing comes, and the connection lives), or http (HTTP status and `status` of a long-poll answer).
    """

    kind: str
    value: Any = None
    reason: str | None = None
    """Of a close or refusal: empty (as recorded), `*` (any but empty), or the exact one; None is not compared."""
