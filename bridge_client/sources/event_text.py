"""The JSON text of an event that somebody else wrote, brought into the form that travels.

Whatever a hub would refuse must not get that far, or one bad row would stop all that follow: it is found here, and a
tombstone takes its place. Everything else keeps its bytes: an `event_id` that is missing or is a number is spliced into
the text, nothing is encoded anew.
"""

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from protocol import event_id as ids
from protocol.codec import MAX_EVENT_DEPTH, open_json, repair_surrogates
from protocol.errors import BadEventId, InvalidEvent, ProtocolError

_WHITE: Final = b" \t\r\n"
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{},:]', re.DOTALL)


class _Head(Struct):
    type: str | UnsetType = UNSET
    event_id: Raw | UnsetType = UNSET


_HEAD: Final = Decoder(_Head)
_TEXT: Final = Decoder(str)
_NUMBER: Final = re.compile(rb"0|[1-9][0-9]{0,15}")


def place(text: bytes, event_id: int | None = None, default_type: str | None = None) -> tuple[int, bytes]:
    """The event's id and its text, whose `event_id` is that id in its canonical form.

    `event_id` says where its source keeps it, None that the text itself does (as a decimal string or whole number).
    `default_type` is given to an event without `type`. Raises BadEventId for a text that does not say its place, and
    InvalidEvent for one that no hub would take.
    """
    text = text.strip(_WHITE)
    try:
        head = open_json(_HEAD, text, MAX_EVENT_DEPTH)
    except ProtocolError as error:
        raise InvalidEvent(error.reason) from None
    if _SURROGATE.search(text):
        text = repair_surrogates(text)
    own = b"" if head.event_id is UNSET else bytes(head.event_id).strip(_WHITE)
    if event_id is None:
        event_id = _read(own)
    if head.type is UNSET and default_type is not None:
        text = _with_member(text, b'"type":' + msgspec.json.encode(default_type))
    elif not head.type:
        raise InvalidEvent("an event needs a `type`")
    canonical = b'"%d"' % event_id
    if head.event_id is UNSET:
        text = _with_member(text, b'"event_id":' + canonical)
    elif own != canonical or text.count(b'"event_id"') > 1:
        text = _replace(text, b"event_id", canonical)
    return event_id, text


def find_id(text: bytes) -> int | None:
    """The place of a text that may hold an event, None when it does not say."""
    try:
        head = open_json(_ID, text, MAX_EVENT_DEPTH)
        return _read(b"" if head.event_id is UNSET else bytes(head.event_id).strip(_WHITE))
    except (ProtocolError, BadEventId):
        return None


class _Id(Struct):
    event_id: Raw | UnsetType = UNSET


_ID: Final = Decoder(_Id)


def _read(own: bytes) -> int:
    if own.startswith(b'"'):
        return ids.parse(_TEXT.decode(own))
    if _NUMBER.fullmatch(own):
        return ids.parse(own.decode())
    raise BadEventId(f"not an event id: {own[:40]!r}")


def _with_member(text: bytes, member: bytes) -> bytes:
    rest = text[1:].lstrip(_WHITE)
    return b"{" + member + (rest if rest == b"}" else b"," + rest)


def _replace(text: bytes, name: bytes, value: bytes) -> bytes:
    """Put `value` in place of every top-level member `name` of a JSON object, which `text` is known to be."""
    depth, key, string, start = 0, b"", b"", 0
    parts, kept = [], 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in (b",", b"}", b"]") and depth == 1:
            if key == name:
                parts += [text[kept:start], value]
                kept = token.start()
            key = b""
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and mark == b":" and not key:
            key, start = _TEXT.decode(string).encode(), token.end()
        elif depth == 1:
            string = mark
    return b"".join([*parts, text[kept:]])
