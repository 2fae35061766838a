"""Binary frames over real sockets (Phoenix rules 22 and 46 to 48): every kind, every length, both versions at once."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bridge_server.channels.presence import Presence
from bridge_server.message import Message
from tests.support.echo_channel import add_echo_channel
from tests.support.raw_socket import BINARY, TEXT, RawSocket
from tests.support.recorded_server import PREFIX, RecordedServer, recorded_server

OK: dict[str, Any] = {"status": "ok", "response": {}}
CRASH = {"reason": "channel_crash"}
DATA = b"\x00\xff\xfe"

FITS = ("x" * 255, "é" * 127 + "x", "\N{SNOWMAN}" * 85)
"""Texts of 255 bytes of UTF-8."""

LONGER = ("x" * 256, "é" * 128, "\N{SNOWMAN}" * 85 + "x")
"""Texts of 256 bytes."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RecordedServer]:
    async with recorded_server(tmp_path) as server:
        add_echo_channel(server.router, server.hub.topics, Presence(server.hub.topics, time.monotonic, grace=0))
        yield server


class Client:
    """One socket, in either version; reads frames as they are."""

    def __init__(self, socket: RawSocket, vsn: str) -> None:
        self.raw = socket
        self.vsn = vsn
        self._beats = 0

    def send(self, join_ref: Any, ref: Any, topic: str, event: str, payload: Any) -> None:
        if isinstance(payload, bytes):
            fields = [field.encode() for field in (join_ref or "", ref or "", topic, event)]
            self.raw.send_frame(bytes((0, *map(len, fields))) + b"".join(fields) + payload, BINARY)
        elif self.vsn == "2.0.0":
            self.raw.send_text(json.dumps([join_ref, ref, topic, event, payload]))
        else:
            self.raw.send_text(json.dumps({"topic": topic, "event": event, "payload": payload, "ref": ref}))

    async def next(self) -> Any:
        """The next message: text as JSON, binary as the bytes it is."""
        frame = await self.raw.receive()
        assert frame is not None, "the connection ended"
        assert frame.opcode in (TEXT, BINARY), frame
        return json.loads(frame.data) if frame.opcode == TEXT else frame.data

    async def joined(self, topic: str, join_ref: str = "1", payload: Any = None) -> None:
        self.send(join_ref, join_ref, topic, "phx_join", {} if payload is None else payload)
        got = await self.next()
        assert (got[4] if self.vsn == "2.0.0" else got["payload"])["status"] == "ok", got

    async def rest(self) -> list[Any]:
        """Everything that comes before the answer to a heartbeat; the socket is alive."""
        self._beats += 1
        ref = f"beat {self._beats}"
        self.send(None, ref, "phoenix", "heartbeat", {})
        found = []
        while True:
            got = await self.next()
            if not isinstance(got, bytes) and (got[1] if self.vsn == "2.0.0" else got["ref"]) == ref:
                return found
            found.append(got)


@pytest.fixture
async def connect(server: RecordedServer) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def connect(vsn: str = "2.0.0") -> Client:
            socket = await stack.enter_async_context(RawSocket(server.port))
            assert (await socket.upgrade(f"{PREFIX}/socket/websocket?vsn={vsn}")).status == 101
            return Client(socket, vsn)

        yield connect


def push(join_ref: str, topic: str, event: str, data: bytes) -> bytes:
    fields = [join_ref.encode(), topic.encode(), event.encode()]
    return bytes((0, *map(len, fields))) + b"".join(fields) + data


def reply(join_ref: str, ref: str, topic: str, status: str, data: bytes) -> bytes:
    fields = [join_ref.encode(), ref.encode(), topic.encode(), status.encode()]
    return bytes((1, *map(len, fields))) + b"".join(fields) + data


def broadcast(topic: str, event: str, data: bytes) -> bytes:
    fields = [topic.encode(), event.encode()]
    return bytes((2, *map(len, fields))) + b"".join(fields) + data


def topic_of(size: int, text: str) -> str:
    """A topic of `size` bytes, made of the letters of a text."""
    letters = text[0] * ((size - 5) // len(text[0].encode()))
    topic = "echo:" + letters
    return topic + "x" * (size - len(topic.encode()))


@pytest.mark.lint_allows("status")
@pytest.mark.parametrize("text", FITS, ids=["ascii", "two", "three"])
async def test_rule47_every_field_of_every_kind_holds_255_bytes(connect: Any, text: str) -> None:
    client, topic = await connect(), topic_of(255, text)
    await client.joined(topic, text)
    client.send(text, text, topic, text, DATA)
    assert [await client.next() for _ in range(3)] == [
        push(text, topic, text, DATA),
        broadcast(topic, text, DATA),
        reply(text, text, topic, "ok", DATA),
    ]
    client.send(text, text, topic, "reply", {"name": text, "hex": DATA.hex()})
    assert await client.next() == reply(text, text, topic, text, DATA)
    assert await client.rest() == []


@pytest.mark.parametrize("text", LONGER, ids=["ascii", "two", "three"])
@pytest.mark.parametrize(
    ("kind", "field"),
    [
        *(("push", field) for field in ("join_ref", "topic", "name")),
        *(("reply", field) for field in ("join_ref", "ref", "topic", "name")),
        *(("broadcast", field) for field in ("topic", "name")),
    ],
)
async def test_rule47_one_byte_more_in_any_field_crashes_that_channel_only(
    connect: Any, kind: str, field: str, text: str
) -> None:
    client = await connect()
    topic = topic_of(256, text) if field == "topic" else "echo:1"
    join_ref, ref, name = (text if field == slot else "1" for slot in ("join_ref", "ref", "name"))
    await client.joined(topic, join_ref)
    await client.joined("echo:other", "2")
    client.send(join_ref, ref, topic, kind, {"name": name, "hex": DATA.hex()})
    assert await client.next() == [join_ref, join_ref, topic, "phx_error", CRASH]
    client.send("2", "3", "echo:other", "reply", {"name": "ok", "hex": DATA.hex()})
    assert await client.next() == reply("2", "3", "echo:other", "ok", DATA)
    await client.joined(topic, join_ref)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, 70_000, 2**20])
async def test_data_of_any_length_comes_back_whole(connect: Any, size: int) -> None:
    """Rule 17 too: a broadcast reaches its sender before the ack. Around the lengths where a frame's head changes."""
    client = await connect()
    await client.joined("echo:1")
    head = len(push("1", "echo:1", "b", b""))
    for length in {max(size - head, 0), size}:
        data = bytes(range(256)) * (length // 256) + bytes(length % 256)
        client.send("1", "9", "echo:1", "b", data)
        assert [await client.next() for _ in range(3)] == [
            push("1", "echo:1", "b", data),
            broadcast("echo:1", "b", data),
            reply("1", "9", "echo:1", "ok", data),
        ]


async def test_a_join_takes_a_binary_payload_and_answers_with_one(connect: Any) -> None:
    client = await connect()
    for data, status in ((b"yes\xff", "ok"), (b"no\xff", "error")):
        client.send("1", "1", f"echo:{status}", "phx_join", data)
        assert await client.next() == reply("1", "1", f"echo:{status}", status, data)
    client.send("1", "2", "echo:ok", "text", {})
    assert [(await client.next())[3] for _ in range(3)] == ["text", "text", "phx_reply"]
    client.send("1", "2", "echo:error", "text", {})
    assert (await client.next())[4]["response"] == {"reason": "unmatched topic"}


async def test_version_1_is_refused_a_join_whose_answer_is_binary(server: RecordedServer, connect: Any) -> None:
    """Not left without an answer, and not told of a channel that it never had."""
    old = await connect("1.0.0")
    for topic in ("room:binjoin", "room:binrefuse"):
        old.send(None, "1", topic, "phx_join", {})
        assert await old.next() == {
            "topic": topic,
            "event": "phx_reply",
            "ref": "1",
            "payload": {"status": "error", "response": {"reason": "join crashed"}},
        }
        old.send(None, "2", topic, "ping", {})
        assert (await old.next())["payload"]["response"] == {"reason": "unmatched topic"}


async def test_both_versions_on_one_topic_each_get_what_they_can_carry(server: RecordedServer, connect: Any) -> None:
    old, new = await connect("1.0.0"), await connect()
    await old.joined("echo:1")
    await new.joined("echo:1")
    await old.joined("echo:other", "2")
    text = {"n": 1, "s": "é\N{SNOWMAN}"}
    publish = server.hub.topics.publish
    publish("echo:1", Message("one", json.dumps(text).encode()))
    publish("echo:1", Message("bytes", DATA, binary=True))
    publish("echo:1", Message("two", json.dumps(text).encode()))
    assert await new.rest() == [
        ["1", None, "echo:1", "one", text],
        broadcast("echo:1", "bytes", DATA),
        ["1", None, "echo:1", "two", text],
    ]
    # What the old one can carry it got, up to what it could not; then its channel ends, and no other.
    assert await old.rest() == [
        {"topic": "echo:1", "event": "one", "payload": text, "ref": None},
        {"topic": "echo:1", "event": "phx_error", "payload": CRASH, "ref": None},
    ]
    await old.joined("echo:1", "3")
    publish("echo:1", Message("three", b"{}"))
    publish("echo:other", Message("four", b"{}"))
    assert [got["event"] for got in await old.rest()] == ["three", "four"]
    assert [got[3] for got in await new.rest()] == ["three"]


@pytest.mark.parametrize("kind", ["push", "reply"])
async def test_version_1_loses_one_channel_to_a_binary_message_of_its_own(connect: Any, kind: str) -> None:
    old = await connect("1.0.0")
    await old.joined("echo:1")
    await old.joined("echo:2", "2")
    old.send(None, "3", "echo:1", kind, {"name": "ok", "hex": "00"})
    assert await old.rest() == [{"topic": "echo:1", "event": "phx_error", "payload": CRASH, "ref": None}]
    old.send(None, "4", "echo:2", "text", {})
    assert len(await old.rest()) == 3


async def test_rule43_version_1_may_send_json_in_a_binary_frame(connect: Any) -> None:
    old = await connect("1.0.0")
    join = {"topic": "echo:1", "event": "phx_join", "payload": {}, "ref": "1"}
    old.raw.send_frame(json.dumps(join).encode(), BINARY)
    assert (await old.next())["payload"]["status"] == "ok"


async def test_rule22_join_leave_and_heartbeat_work_as_binary_frames_and_are_answered_in_text(connect: Any) -> None:
    client = await connect()
    client.send(None, "1", "phoenix", "heartbeat", b"\xff")
    assert await client.next() == [None, "1", "phoenix", "phx_reply", OK]
    client.send("2", "2", "room:1", "phx_join", b"\xff")
    assert await client.next() == ["2", "2", "room:1", "phx_reply", OK]
    client.send("2", "3", "room:1", "phx_leave", b"\xff")
    assert await client.next() == ["2", "3", "room:1", "phx_reply", OK]
    assert await client.next() == ["2", "2", "room:1", "phx_close", {}]
    client.send("2", "4", "room:1", "ping", b"\xff")
    assert (await client.next())[4]["response"] == {"reason": "unmatched topic"}
    assert await client.rest() == []


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 255])
async def test_rule46_a_binary_frame_of_another_kind_ends_its_connection_only(connect: Any, kind: int) -> None:
    client, other = await connect(), await connect()
    client.raw.send_frame(bytes((kind, 1, 1, 1, 1)) + b"11te", BINARY)
    assert (await client.raw.closed()).close_code == 1003
    assert await other.rest() == []
