"""Targets that drive a state machine: a script of messages and commands, by their drivers' rules.

A script is records between SEPARATORs. The first byte of a record says what happens, the rest is what is sent.
"""

import json

import msgspec
from msgspec import Raw

from protocol import frames
from protocol.client import ClientConnection, ClientEvent, HubMute, NotJoined, State
from protocol.codec import V1, V2, Codec
from protocol.errors import ProtocolError
from protocol.frames import EMPTY, Binary
from protocol.server import JoinRequested, LeaveRequested, Outgoing, PushReceived, ServerConnection
from tests.fuzz.texts import JSON_TOKENS

SEPARATOR = b"\x1e"
MAX_RECORDS = 200
CHANNELS = 5

TOKENS = (*JSON_TOKENS, SEPARATOR, SEPARATOR + b"\x00", b'"phx_reply"', b'"phx_close"', b'"phx_error"', b'"status"')

_JOIN = b'["1","1","room:1","phx_join",{}]'
SERVER_SEEDS = (
    b"\x02"
    + SEPARATOR.join((b"\x00" + _JOIN, b'\x08["1","2","room:1","ping",{}]', b'\x00["1","3","room:1","phx_leave",{}]')),
    b"\x02" + SEPARATOR.join((b"\x40" + _JOIN, b"\x00" + _JOIN, b'\x10[null,"2","phoenix","heartbeat",{}]', b"\x80")),
    b"\x02" + SEPARATOR.join(b'\x00["%d","1","room:%d","phx_join",{}]' % (n, n) for n in range(7)),
    b"\x02" + SEPARATOR.join((b"\x20" + _JOIN, b'\x18["1","2","room:1","x",{}]', b'\x28["1","2","room:1","x",{}]')),
    b"\x02" + SEPARATOR.join((b"\x00" + _JOIN, b"\x01\x00\x01\x01\x06\x0412room:1ping\xff")),
    b'\x00\x00{"topic":"room:1","event":"phx_join","payload":{},"ref":"1"}' + SEPARATOR + b"\xc0",
)


def server(data: bytes) -> None:
    """The hub's half: nothing but ProtocolError, every answer is a message, and no more channels than it may have."""
    codec: Codec = V2 if data[:1] and data[0] & 2 else V1
    machine = ServerConnection(codec, channel_limit=CHANNELS)
    waiting: JoinRequested | None = None
    for record in data[1:].split(SEPARATOR)[:MAX_RECORDS]:
        how = record[0] if record else 0
        if waiting is not None and how & 0x80:
            _decide(machine, waiting, how)
            waiting = _handle_all(machine, machine.next_event(), how)
        else:
            try:
                event = machine.receive(record[1:], binary=bool(how & 1))
            except ProtocolError:
                event = None
                machine.data_to_send()
                return
            assert waiting is None or event is None, "an event came while a join is undecided"
            if waiting is None:
                waiting = _handle_all(machine, event, how)
        assert machine.joining is (waiting is not None)
        assert len(machine.channels) <= CHANNELS
        _are_messages(codec, machine.data_to_send())


Event = JoinRequested | LeaveRequested | PushReceived | None


def _handle_all(machine: ServerConnection, event: Event, how: int) -> JoinRequested | None:
    """Answer events until there are none; a join that is left undecided (bit 6) is returned."""
    while event is not None:
        match event:
            case JoinRequested():
                if how & 0x40:
                    return event
                _decide(machine, event, how)
            case LeaveRequested():
                machine.left(event)
            case PushReceived():
                _act(machine, event, how)
        event = machine.next_event()
    return None


def _decide(machine: ServerConnection, join: JoinRequested, how: int) -> None:
    if how & 0x20:
        machine.refuse(join, Raw(b'{"reason":"no"}'))
    else:
        machine.accept(join, join.payload if isinstance(join.payload, Raw) else EMPTY)


def _act(machine: ServerConnection, push: PushReceived, how: int) -> None:
    channel = push.channel
    match (how >> 3) & 7:
        case 0:
            try:
                machine.reply(channel, push.ref, "ok", push.payload)
            except ValueError:
                assert isinstance(push.payload, Binary)
                machine.fail(channel, "channel_crash")
        case 1:
            try:
                machine.push(channel, "pushed", push.payload)
            except ValueError:
                machine.push(channel, "pushed", EMPTY)
        case 2:
            machine.close(channel)
        case 3:
            machine.fail(channel, "channel_crash")
        case 4:
            machine.close(channel)
            machine.fail(channel, "twice")
        case _:
            pass


def _are_messages(codec: Codec, out: list[Outgoing]) -> None:
    for _, message in out:
        if message.binary:
            assert codec is V2
            assert message.data[0] in (0, 1)
            continue
        value = json.loads(message.data)
        if codec is V2:
            assert len(value) == 5
        else:
            assert value.keys() == {"topic", "event", "payload", "ref"}


TOPICS = ("room:1", "room:2", "phoenix")
CLIENT_SEEDS = tuple(
    first + SEPARATOR.join(records)
    for first, records in (
        (
            b"\x02",
            (
                *(b"\x00", b'\x04["1","1","room:1","phx_reply",{"status":"ok","response":{}}]', b"\x02"),
                *(b'\x04["1","2","room:1","phx_reply",{"status":"ok"}]',) * 2,
                *(b"\x01", b'\x04["1","3","room:1","phx_reply",{"status":"ok"}]'),
            ),
        ),
        (b"\x02", (b"\x00", b"\x03\xff", b"\x03\xff", b"\x00", b'\x04["3","3","room:1","phx_error",{}]')),
        (
            b"\x02",
            (
                *(b"\x00", b"\x00", b"\x08", b'\x04["1","1","room:1","phx_close",{}]'),
                *(b'\x04[null,null,"room:1","x",1]', b'\x04["3","3","room:1","phx_reply",[]]', b"\x84\x00"),
            ),
        ),
        (
            b"\x00",
            (b"\x00", b'\x04{"topic":"room:1","event":"phx_reply","payload":{"status":"error"},"ref":"1"}', b"\x02"),
        ),
    )
)


def client(data: bytes) -> None:
    """The client's half: nothing but ProtocolError and NotJoined, and each reply is told once."""
    codec: Codec = V2 if data[:1] and data[0] & 2 else V1
    now = 0.0
    machine = ClientConnection(now, codec=codec)
    unanswered: set[str] = set()
    for record in data[1:].split(SEPARATOR)[:MAX_RECORDS]:
        how = record[0] if record else 4
        topic = TOPICS[(how >> 3) % len(TOPICS)]
        events: list[ClientEvent] = []
        match how & 7:
            case 0:
                machine.join(topic, EMPTY, now)
            case 1:
                machine.leave(topic)
            case 2:
                try:
                    ref = machine.push(topic, "ping", EMPTY)
                except NotJoined:
                    assert machine.state(topic) is not State.JOINED
                else:
                    assert ref not in unanswered
                    unanswered.add(ref)
            case 3:
                now += sum(record[1:9]) / 16
                events = machine.tick(now)
                if not any(isinstance(event, HubMute) for event in events):
                    assert machine.next_deadline > now, "a driver that waits for the deadline would spin"
            case _:
                try:
                    events = machine.receive(record[1:], binary=bool(how & 0x80), now=now)
                except ProtocolError:
                    return
        for event in events:
            if type(event).__name__ == "Replied":
                unanswered.remove(event.ref)  # type: ignore[union-attr]
        for message in machine.data_to_send():
            frame = codec.decode(message.data, binary=message.binary)
            assert frame.topic in (*TOPICS, frames.PHOENIX)
            msgspec.json.decode(frame.payload)
