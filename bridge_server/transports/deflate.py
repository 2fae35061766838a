"""permessage-deflate (RFC 7692) without context takeover, in both directions.

Each message is deflated by itself, so the frame that is made for one listener serves every other that reads in the same
form, and a socket holds no window while nothing happens. What comes in is inflated once a message is whole and within
the frame limit; what it inflates to is bounded by the same limit.
"""

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from websockets.exceptions import InvalidHeader, NegotiationError
from websockets.extensions import Extension
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import DATA_OPCODES, Frame, Opcode
from websockets.headers import build_extension, parse_extension

from protocol.codec import Encoded
from protocol.errors import BadDeflate, MessageTooBig

MIN_BYTES: Final = 128
"""Shorter messages are sent as they are (RFC 7692 section 6 lets a sender choose for each message)."""

MAX_STREAMS: Final = 16
"""A message may hold several deflate streams one after the other (section 7.2.3.4); more than this is no message."""

LEVEL: Final = 6

_TAIL: Final = b"\0\0\xff\xff"  # section 7.2.1: cut off by the sender, put back by the receiver
_RSV1: Final = 0x40


class Negotiated:
    """What was agreed: the value of the response header, and the window in which the hub deflates."""

    __slots__ = ("response", "window_bits")

    def __init__(self, response: str, window_bits: int) -> None:
        self.response = response
        self.window_bits = window_bits


def negotiate(offers: Sequence[str]) -> Negotiated | None:
    """The first offer of the `Sec-WebSocket-Extensions` headers that can be met; None when there is none.

    Raises ValueError for a header that breaks the grammar. An offer with a parameter that is unknown, repeated or out
    of range is declined (section 7.1), and so is a window of 256 bytes, which zlib can't make.
    """
    try:
        listed = [offer for header in offers for offer in parse_extension(header)]
    except InvalidHeader as error:
        raise ValueError(str(error)) from None
    # The client must not keep a context either: its 32 KiB for each socket would be ours to hold.
    factory = ServerPerMessageDeflateFactory(server_no_context_takeover=True, client_no_context_takeover=True)
    for name, parameters in listed:
        if name == factory.name:
            try:
                agreed, extension = factory.process_request_params(parameters, [])
            except NegotiationError:
                continue
            return Negotiated(build_extension([(name, agreed)]), extension.local_max_window_bits)
    return None


class DeflatedFrame(Frame):
    """The first frame of a compressed message."""


class Marking(Extension):
    """Accepts the bit that says that a message is compressed, and leaves inflating to `inflate`."""

    name = ServerPerMessageDeflateFactory.name

    def decode(self, frame: Frame, *, max_size: int | None = None) -> Frame:
        """Called by the parser for each frame; a bit that stands where it must not is refused behind us."""
        if frame.rsv1 and (frame.opcode is Opcode.TEXT or frame.opcode is Opcode.BINARY):
            return DeflatedFrame(frame.opcode, frame.data, frame.fin, False, frame.rsv2, frame.rsv3)
        return frame

    def encode(self, frame: Frame) -> Frame:
        """Control frames are never compressed, and the driver writes all others itself."""
        assert frame.opcode not in DATA_OPCODES
        return frame


MARKING: Final = Marking()  # it knows nothing of a connection


def inflate(data: bytes, limit: int) -> bytes:
    """One whole message. Raises MessageTooBig when it would be longer than `limit`, BadDeflate when it is none."""
    parts = []
    room = limit + 1  # zlib takes 0 for no limit
    rest = data + _TAIL
    for _ in range(MAX_STREAMS):
        stream = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            part = stream.decompress(rest, room)
        except zlib.error:
            raise BadDeflate("a compressed message can't be inflated") from None
        parts.append(part)
        room -= len(part)
        if room <= 0 or stream.unconsumed_tail:
            raise MessageTooBig(f"over size limit (inflates to more than {limit} bytes)")
        rest = stream.unused_data
        if not rest or not stream.eof:
            return b"".join(parts)
    raise BadDeflate("a compressed message holds too many deflate streams")


@lru_cache(maxsize=8)
def wrapper(window_bits: int, plain: Callable[[Encoded], bytes]) -> Callable[[Encoded], bytes]:
    """What makes a frame for sockets with this window (9 to 15 bits). One function for all: forms compare by it."""

    def wrap(message: Encoded) -> bytes:
        if len(message.data) < MIN_BYTES:
            return plain(message)
        deflating = zlib.compressobj(LEVEL, zlib.DEFLATED, -window_bits)
        deflated = deflating.compress(message.data) + deflating.flush(zlib.Z_SYNC_FLUSH)
        if len(deflated) - len(_TAIL) >= len(message.data):
            return plain(message)
        framed = plain(Encoded(deflated[: -len(_TAIL)], message.binary))
        return bytes((framed[0] | _RSV1,)) + framed[1:]

    return wrap
