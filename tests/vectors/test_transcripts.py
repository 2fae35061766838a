"""Our own transcripts, made by hand from the rules: played to the pure protocol machine, and to a hub over a socket.

In `transcripts/*.txt` a line is: `>` what the client sends, `<` what the server answers, byte for byte; `>x` and `<x`
the same for a binary frame, in hex; `<close CODE` the end; `=` a note, the first of which names the version; `!` an act
of the server that the protocol machine knows nothing of. A silence is shown by what comes next.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from protocol.codec import negotiate
from protocol.errors import ProtocolError
from protocol.frames import Binary, raw
from protocol.server import Event, JoinRequested, LeaveRequested, PushReceived, ServerConnection
from tests.support.raw_socket import BINARY, TEXT, Frame, RawSocket
from tests.support.recorded_server import PREFIX, recorded_server

# Its channels echo what they are sent, numbers of any size included.
pytestmark = pytest.mark.lint_allows("status", "response", "number")

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


class Line(NamedTuple):
    number: int
    mark: str
    data: bytes


def read(path: Path) -> tuple[str, list[Line]]:
    """The version and the lines of a transcript."""
    first, *rest = path.read_text("utf-8").splitlines()
    lines = []
    for number, text in enumerate(rest, 2):
        mark, _, body = text.partition(" ")
        assert mark in (">", "<", ">x", "<x", "<close", "=", "!"), f"{path.name}:{number}: {text}"
        if mark != "=":
            lines.append(Line(number, mark, bytes.fromhex(body) if mark.endswith("x") else body.encode()))
    return first.removeprefix("= vsn "), lines


class Room:
    """The channels of `room_channel.py`, as commands to the protocol machine."""

    def __init__(self, machine: ServerConnection) -> None:
        self.machine = machine

    def handle(self, event: Event) -> None:
        match event:
            case JoinRequested():
                self._join(event)
            case LeaveRequested():
                self.machine.left(event)
            case PushReceived():
                try:
                    self._push(event)
                except ValueError:
                    self.machine.fail(event.channel, "channel_crash")

    def _join(self, event: JoinRequested) -> None:
        topic = event.channel.topic
        if not topic.startswith("room:"):
            self.machine.refuse(event, raw({"reason": "unmatched topic"}))
        elif topic == "room:forbidden":
            self.machine.refuse(event, raw({"reason": "unauthorized"}))
        elif topic == "room:crash":
            self.machine.refuse(event, raw({"reason": "join crashed"}))
        elif isinstance(event.payload, msgspec.Raw) and b"deny" in bytes(event.payload):
            self.machine.refuse(event, raw({"reason": "denied"}))
        else:
            self.machine.accept(event)

    def _push(self, event: PushReceived) -> None:
        machine, channel = self.machine, event.channel
        match event.event:
            case "ping":
                machine.reply(channel, event.ref, "ok", event.payload)
            case "binary":
                payload = event.payload if isinstance(event.payload, Binary) else Binary(b"\0\1\2\xff")
                machine.reply(channel, event.ref, "ok", payload)
            case "fail":
                machine.reply(channel, event.ref, "error", raw({"reason": "bad"}))
            case "push":
                machine.push(channel, "pushed", event.payload)
            case "push_binary":
                machine.push(channel, "bin", Binary(b"\0\1\2\xff"))
            case "crash":
                machine.fail(channel, "channel_crash")
            case "stop":
                machine.close(channel)
            case "stop_reply":
                machine.reply(channel, event.ref, "ok", event.payload)
                machine.close(channel)
            case _:
                machine.reply(channel, event.ref, "error", raw({"reason": "unknown event"}))


def answers(vsn: str, lines: list[Line]) -> Iterator[tuple[str, bytes]]:
    """What the protocol machine says to everything the client sends, in the marks of a transcript."""
    codec = negotiate(vsn)
    assert codec is not None
    machine = ServerConnection(codec)
    room = Room(machine)
    for line in lines:
        if not line.mark.startswith(">"):
            continue
        try:
            event = machine.receive(line.data, binary=line.mark == ">x")
        except ProtocolError as error:
            yield "<close", str(error.close_code).encode()
            return
        if event is not None:
            room.handle(event)
        assert machine.next_event() is None
        for _, message in machine.data_to_send():
            yield ("<x" if message.binary else "<"), message.data


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_protocol_machine_answers_by_the_transcript(path: Path) -> None:
    vsn, lines = read(path)
    act = next((at for at, line in enumerate(lines) if line.mark == "!"), len(lines))
    wanted = [(line.mark, line.data) for line in lines[:act] if line.mark.startswith("<")]
    assert list(answers(vsn, lines[:act])) == wanted


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
async def test_the_hub_answers_by_the_transcript(path: Path, tmp_path: Path) -> None:
    vsn, lines = read(path)
    async with recorded_server(tmp_path) as server, RawSocket(server.port) as socket:
        assert (await socket.upgrade(f"{PREFIX}/socket/websocket?vsn={vsn}&uid=one")).status == 101
        for line in lines:
            where = f"{path.name}:{line.number}"
            if line.mark.startswith(">"):
                socket.send_frame(line.data, BINARY if line.mark == ">x" else TEXT)
            elif line.mark == "!":
                assert line.data == b"disconnect", where
                server.disconnect("one")
            else:
                frame = await socket.receive()
                assert frame is not None, where
                if line.mark == "<close":
                    assert frame.close_code == int(line.data), where
                    return
                assert frame == Frame(BINARY if line.mark == "<x" else TEXT, line.data), where
        socket.send_text('[null,"end","phoenix","heartbeat",{}]' if vsn == "2.0.0" else V1_FENCE)
        assert '"end"' in await socket.text(), f"{path.name}: more came than is written there"


V1_FENCE = '{"topic":"phoenix","event":"heartbeat","payload":{},"ref":"end"}'


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) > 10
