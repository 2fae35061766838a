"""Where the output lint listens: between every peer of a hub in this process and its transport.

`install` wraps what a peer is given to write with, and what it is handed to read, so that no test has to know. Broken
rules are collected in `faults`; tests/conftest.py fails the test that caused them.
"""

import json
import struct
import zlib
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final

from bridge_server.peer import Peer
from protocol.codec import Codec
from protocol.errors import ProtocolError
from tests.support import lint

faults: list[lint.Fault] = []
"""Broken rules since they were last taken."""

frames_seen = 0
"""How many messages were looked at: the lint's own test makes sure that there were some."""

_CACHED: Final = 512

_Checked = tuple[lint.Message | None, tuple[lint.Fault, ...]]
_cache: dict[tuple[str, bytes], list[_Checked]] = {}


def messages(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The messages in finished wire bytes, and whether each is binary.

    Knows WebSocket frames, the entries of a long poll's answer, and the frames of the transport in memory. Raises
    ValueError for anything else.
    """
    start = 0
    while start < len(data):
        first = data[start]
        if first in (0, 1):
            (length,) = struct.unpack_from(">I", data, start + 1)
            start += 5
            yield data[start : start + length], bool(first)
        elif first & 0x8F in (0x81, 0x82):
            length, head = data[start + 1], 2
            if length > 125:
                head = 4 if length == 126 else 10
                length = int.from_bytes(data[start + 2 : start + head])
            start += head
            body = data[start : start + length]
            if first & 0x40:
                body = zlib.decompressobj(-15).decompress(body + b"\0\0\xff\xff")
            yield body, first & 0x0F == 2
        elif first & 0x80:  # a pong or a close: the protocol library's own
            length = 2 + data[start + 1]
        elif first == ord('"'):
            rest = data[start:].decode()
            text, end = json.JSONDecoder().raw_decode(rest)
            length = len(rest[:end].encode()) + 1  # and a comma
            binary = not text.startswith(("[", "{"))
            yield b64decode(text) if binary else text.encode(), binary
        else:
            raise ValueError(f"not the bytes of any transport: {data[start : start + 20]!r}")
        start += length


def _checked(data: bytes, vsn: str) -> list[_Checked]:
    """The messages in a write and what is wrong with each by itself. Many peers get the same bytes: looked at once."""
    known = _cache.get((vsn, data))
    if known is None:
        try:
            known = [_look_at(text, vsn, binary=binary) for text, binary in messages(data)]
        except ValueError as error:
            known = [(None, (lint.Fault("json", str(error)),))]
        if len(_cache) >= _CACHED:
            _cache.clear()
        _cache[vsn, data] = known
    return known


def _look_at(data: bytes, vsn: str, *, binary: bool) -> _Checked:
    message = lint.read(data, binary=binary, vsn=vsn)
    return (None, (message,)) if isinstance(message, lint.Fault) else (message, tuple(lint.check(message)))


class _Linted:
    """A transport whose writes are looked at."""

    def __init__(self, transport: Any, codec: Codec) -> None:
        self.conversation = lint.Conversation()
        self._transport = transport
        self._vsn = codec.vsn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        global frames_seen
        for message, wrong in _checked(data, self._vsn):
            frames_seen += 1
            found = wrong if message is None else (*wrong, *self.conversation.check(message))
            faults.extend(lint.Fault(fault.rule, f"{fault.text} in {data[:300]!r}") for fault in found)
        self._transport.write(data)


def take_faults() -> list[lint.Fault]:
    """The broken rules since the last call."""
    taken = faults.copy()
    faults.clear()
    return taken


def install() -> None:
    """Look at everything that hubs of this process send from now on."""
    make, receive = Peer.__init__, Peer.receive

    def init(self: Peer, transport: Any, codec: Codec, *args: Any, **options: Any) -> None:
        make(self, _Linted(transport, codec), codec, *args, **options)  # type: ignore[arg-type]

    def heard(self: Peer, data: bytes, *, binary: bool) -> None:
        try:
            frame = self.codec.decode(data, binary=binary)
        except ProtocolError:
            pass
        else:
            self.outbox.transport.conversation.heard(*frame[:4])  # type: ignore[attr-defined]
        receive(self, data, binary=binary)

    Peer.__init__ = init  # type: ignore[method-assign]
    Peer.receive = heard  # type: ignore[method-assign]
