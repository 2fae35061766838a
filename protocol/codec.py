"""Frames to bytes and back: one codec per serializer version, and the door every message from outside passes.

The door (`open_json`) exists because msgspec alone is too trusting: `Raw` skips over strings without checking their
UTF-8, a lone surrogate escape is refused with a misleading error, and deep nesting ends in RecursionError, which
depends on the Python stack and is no msgspec error at all.
"""

import re
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder, Encoder

from protocol.errors import BadUtf8, MalformedMessage, TooDeep
from protocol.frames import REPLY, Binary, Frame, Payload

MAX_DEPTH: Final = 128
"""How deep arrays and objects may nest in one message."""

MAX_EVENT_DEPTH: Final = MAX_DEPTH - 8
"""How deep one event may nest, so that it fits any message that carries it."""

MAX_REF_BYTES: Final = 4_096
"""Most that a ref or join_ref may take as JSON text: a join_ref is kept, and stands before all that goes out."""

_T = TypeVar("_T")

# Takes an unterminated string too, and never gives back: else a text of quotes and backslashes costs minutes.
# No possessive quantifiers here: Python 3.11.2, which Debian 12 has, loses matches of some of them.
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_STRINGS = re.compile(rb'"[^"]*"?')
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
# A run of anything but lone surrogate escapes is one match: else a message of backslashes costs a call for each. Runs
# are bounded, for each of their pieces costs memory while they are matched.
_ESCAPES = re.compile(
    rb"(?:[^\\]+|\\[^u]|\\u(?![dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}){1,1000}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\",
    re.DOTALL,
)

_encode = Encoder().encode


def check_text(data: bytes, max_depth: int = MAX_DEPTH) -> None:
    """Check what JSON decoding does not: UTF-8 everywhere, and nesting no deeper than `max_depth`.

    Raises BadUtf8 or TooDeep. Linear in the length; a message with few brackets costs a scan in C.
    """
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise BadUtf8(f"invalid UTF-8 at byte {error.start}") from None
    if data.count(b"[") + data.count(b"{") > max_depth:
        brackets = _STRINGS.sub(b"", _ESCAPED.sub(b"", data)).translate(None, _NOT_BRACKETS)
        if brackets and max(accumulate(map(_STEP.__getitem__, brackets))) > max_depth:
            raise TooDeep(f"nested deeper than {max_depth}")


def repair_surrogates(data: bytes) -> bytes:
    r"""Replace each `\ud800`-`\udfff` escape that is not half of a pair by the replacement character's escape."""
    return _ESCAPES.sub(lambda escape: b"\\ufffd" if escape[1] else escape[0], data)


def open_json(decoder: Decoder[_T], data: bytes, max_depth: int = MAX_DEPTH) -> _T:
    """Decode a JSON text from outside.

    A text that fails only for lone surrogate escapes is repaired and decoded: the peer lives and reads U+FFFD.
    Raises BadUtf8, TooDeep or MalformedMessage, and nothing else.
    """
    check_text(data, max_depth)
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as first:
        failure: Exception = first
        repaired = repair_surrogates(data)
        if repaired != data:
            try:
                return decoder.decode(repaired)
            except (msgspec.MsgspecError, RecursionError) as second:
                failure = second
        raise MalformedMessage(_explain(failure)) from None


def _explain(error: Exception) -> str:
    text = str(error) if isinstance(error, msgspec.MsgspecError) else "nested too deep"
    return text[:100]


class Encoded(NamedTuple):
    """One message ready for a transport: its bytes, and whether they are a binary frame."""

    data: bytes
    binary: bool = False


class _V1Message(Struct):
    topic: Any
    event: Any
    payload: Raw
    ref: Any
    join_ref: Any = None


class _V2Message(Struct, array_like=True):
    join_ref: Any
    ref: Any
    topic: Any
    event: Any
    payload: Raw


# Decoders are made once: building one per message costs more than decoding it.
_V1_DECODER: Final = Decoder(_V1Message)
_V2_DECODER: Final = Decoder(_V2Message)


def _frame(message: _V1Message | _V2Message) -> Frame:
    for ref in (message.join_ref, message.ref):
        # A short text, the usual one, takes six bytes a character at the most.
        if ref is not None and not (type(ref) is str and len(ref) <= 255) and len(_encode(ref)) > MAX_REF_BYTES:
            raise MalformedMessage(f"a ref takes at most {MAX_REF_BYTES} bytes")
    return Frame(message.join_ref, message.ref, message.topic, message.event, message.payload)


class V1:
    """Serializer 1.0.0.

    A JSON object with exactly topic, event, payload and ref; no join_ref ever goes out (Phoenix rule 41).
    """

    vsn: Final = "1.0.0"

    @staticmethod
    def decode(data: bytes, *, binary: bool) -> Frame:
        """Read one message; the opcode does not matter (rule 43). Raises ProtocolError."""
        return _frame(open_json(_V1_DECODER, data))

    @staticmethod
    def head(join_ref: Any) -> bytes:
        """What differs between receivers of one push: nothing, in this version."""
        return b""

    @staticmethod
    def tail(topic: str, event: str, payload: bytes) -> bytes:
        """What all receivers of one push share: here, the whole message."""
        return b'{"event":%b,"payload":%b,"ref":null,"topic":%b}' % (_encode(event), payload, _encode(topic))

    @staticmethod
    def broadcast(topic: str, event: str, data: bytes) -> bytes:
        """The binary frame that all receivers of one push share. Raises ValueError: this version has none."""
        raise ValueError("serializer 1.0.0 has no binary frames")

    @staticmethod
    def encode(frame: Frame) -> Encoded:
        """One message to bytes. Raises ValueError for a binary payload, which this version can't carry."""
        if isinstance(frame.payload, Binary):
            raise ValueError("serializer 1.0.0 has no binary frames")
        return Encoded(
            b'{"event":%b,"payload":%b,"ref":%b,"topic":%b}'
            % (_encode(frame.event), bytes(frame.payload), _encode(frame.ref), _encode(frame.topic))
        )

    @classmethod
    def reply(cls, join_ref: Any, ref: Any, topic: Any, status: str, response: Payload) -> Encoded:
        """A `phx_reply`. Raises ValueError for a binary response."""
        if isinstance(response, Binary):
            raise ValueError("serializer 1.0.0 has no binary frames")
        return cls.encode(Frame(None, ref, topic, REPLY, _reply_payload(status, response)))


class V2:
    """Serializer 2.0.0: a JSON array of five slots, and binary frames (Phoenix rules 44 to 48)."""

    vsn: Final = "2.0.0"

    @staticmethod
    def decode(data: bytes, *, binary: bool) -> Frame:
        """Read one message: text as JSON, binary as a push (kind 0), whose refs are text. Raises ProtocolError."""
        if not binary:
            return _frame(open_json(_V2_DECODER, data))
        if len(data) < 5 or data[0] != 0:
            raise MalformedMessage("a binary frame starts with kind 0 and four lengths")
        slots, start = [], 5
        for length in data[1:5]:
            slots.append(data[start : start + length])
            start += length
        if start > len(data):
            raise MalformedMessage("a binary frame shorter than its lengths say")
        try:
            join_ref, ref, topic, event = (slot.decode() for slot in slots)
        except UnicodeDecodeError:
            raise BadUtf8("invalid UTF-8 in a binary frame's head") from None
        return Frame(join_ref, ref, topic, event, Binary(data[start:]))

    @staticmethod
    def head(join_ref: Any) -> bytes:
        """What differs between receivers of one push: their join_ref."""
        return b"[" + _encode(join_ref)

    @staticmethod
    def tail(topic: str, event: str, payload: bytes) -> bytes:
        """What all receivers of one push share, to be put behind a `head`."""
        return b",null,%b,%b,%b]" % (_encode(topic), _encode(event), payload)

    @staticmethod
    def broadcast(topic: str, event: str, data: bytes) -> bytes:
        """The binary frame that all receivers of one push share.

        Kind 2, without join_ref. Raises ValueError over 255 bytes a field.
        """
        return _pack(2, (topic, event), data)

    @staticmethod
    def encode(frame: Frame) -> Encoded:
        """One message to bytes.

        A binary payload makes a binary push, which has no ref. Raises ValueError over 255 bytes a field.
        """
        if isinstance(frame.payload, Binary):
            return Encoded(_pack(0, (frame.join_ref, frame.topic, frame.event), frame.payload.data), True)
        return Encoded(b"%b,%b]" % (_encode(frame[:4])[:-1], bytes(frame.payload)))

    @classmethod
    def reply(cls, join_ref: Any, ref: Any, topic: Any, status: str, response: Payload) -> Encoded:
        """A `phx_reply`; a binary response makes a binary one."""
        if isinstance(response, Binary):
            return Encoded(_pack(1, (join_ref, ref, topic, status), response.data), True)
        head = _encode((join_ref, ref, topic, REPLY))[:-1]
        said = b'"ok"' if status == "ok" else _encode(status)
        return Encoded(b'%b,{"status":%b,"response":%b}]' % (head, said, bytes(response)))


Codec = type[V1] | type[V2]


def _reply_payload(status: str, response: Raw) -> Raw:
    return Raw(b'{"status":%b,"response":%b}' % (_encode(status), bytes(response)))


def _pack(kind: int, fields: tuple[Any, ...], data: bytes) -> bytes:
    slots = ["" if field is None else field if isinstance(field, str) else _encode(field).decode() for field in fields]
    encoded = [slot.encode() for slot in slots]
    if any(len(slot) > 255 for slot in encoded):
        raise ValueError("a field of a binary frame is longer than 255 bytes")
    return bytes((kind, *map(len, encoded))) + b"".join(encoded) + data


def negotiate(vsn: str | None) -> Codec | None:
    """The serializer a client asked for.

    Absent means 1.0.0; `~> 1.0.0` and `~> 2.0.0` are served (rules 1 and 7), others are not.
    """
    if vsn is None:
        return V1
    version = _SEMVER.fullmatch(vsn)
    return _CODECS.get(version[1]) if version else None


_SEMVER = re.compile(r"([12])\.0\.(?:0|[1-9][0-9]{0,8})(?:\+[0-9A-Za-z.-]+)?", re.ASCII)
_CODECS: Final[dict[str, Codec]] = {"1": V1, "2": V2}
