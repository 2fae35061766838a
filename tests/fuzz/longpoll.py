"""Target: the bodies of long polling's POSTs, and the tokens of its sessions. On the event loop of `wire`."""

import asyncio
import base64
import json

from bridge_server.transports.handshake import Accepted, Mount
from bridge_server.transports.longpoll_session import Session
from bridge_server.transports.longpoll_wire import Tokens, TooManyLines, batch, is_token
from bridge_server.transports.port import Port
from protocol.codec import V1, V2, Codec
from protocol.errors import CLOSE_CODES
from tests.fuzz.machines import SEPARATOR
from tests.fuzz.wire import LOOP, make_port, no_errors, says_no_binary

MAX_POSTS = 50
WINDOW_ENDS = 12.0

_JOIN = b'["1","1","room:1","phx_join",{}]'
SEEDS = (
    b"\x03" + _JOIN + b"\n" + b'["1","2","room:1","ping",{"a":1}]\r\n\n[null,"3","phoenix","heartbeat",{}]',
    b"\x03" + SEPARATOR.join((_JOIN, base64.b64encode(b"\x00\x01\x01\x06\x0412room:1ping\xff"), b"half a line")),
    b"\x02" + SEPARATOR.join((_JOIN, b'["1","2","room:1","phx_leave",{}]', b"")),
    b'\x01{"topic":"room:1","event":"phx_join","payload":{},"ref":"1"}\n{"topic":"room:1"}',
    b"\x03" + b'[null,"1","phoenix","heartbeat",{}]\n' * 101,
    b"\x03lp1.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
)
TOKENS = (
    b"\n",
    b"\r\n",
    b"[",
    b"AAECAw==",
    b"====",
    b"lp1.",
    b" ",
    b"\t",
    SEPARATOR,
    _JOIN + b"\n",
    b"\xff",
    b"A" * 64,
)


def longpoll(data: bytes) -> None:
    """Bodies in order, a poll after each: messages as JSON texts, an end by the table of codes, or too many lines."""
    how = data[0] if data else 0
    codec: Codec = V2 if how & 2 else V1
    port = make_port()
    LOOP.run_until_complete(_talk(port, port.mounts[0], codec, data[1:].split(SEPARATOR)[:MAX_POSTS], bool(how & 1)))
    assert not port.drivers
    tokens = Tokens(b"k" * 32)
    text = data[1:].decode("utf-8", "replace")
    assert tokens.read(text, 0.0) is None, "a token of ours that we did not sign"
    assert is_token(text) is text.startswith("lp1.")


async def _talk(port: Port, mount: Mount, codec: Codec, bodies: list[bytes], ndjson: bool) -> None:
    session = Session(port, mount, port.drivers.discard)
    session.started(port.connected(session, Accepted(mount, codec, None, {}, None)))
    with no_errors(says_no_binary):
        for body in bodies:
            poll = asyncio.ensure_future(session.poll())
            await asyncio.sleep(0)
            try:
                await session.receive(body, ndjson=ndjson)
            except TooManyLines:
                assert ndjson
                assert body.count(b"\n") >= 100
            for _ in range(3):
                await asyncio.sleep(0)
            if not poll.done():
                session.tick(WINDOW_ENDS)
            if await poll:
                answer = json.loads(batch(session.take(), "token"))
                assert answer["messages"], "a poll was woken for nothing"
                for message in answer["messages"]:
                    _is_message(message, codec)
            if session.ended is not None:
                assert session.ended[0] in CLOSE_CODES
                break
        session.abort()
        await asyncio.sleep(0)


def _is_message(text: str, codec: Codec) -> None:
    if text[:1] not in "[{":
        assert codec is V2
        assert base64.b64decode(text, validate=True)[0] in (0, 1, 2)
        return
    value = json.loads(text)
    assert len(value) == (5 if codec is V2 else 4)
