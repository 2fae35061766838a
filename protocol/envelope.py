"""What is read of an event without touching the rest of it: its id, its type, its session."""

from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from protocol import event_id
from protocol.errors import BadEventId, InvalidEvent


class _Fields(Struct):
    type: str
    event_id: Any = None
    session_id: Any = None


_decode = Decoder(_Fields).decode


class Envelope(NamedTuple):
    """The part of an event that a relay acts on. `session_id` is None when the event belongs to no session."""

    event_id: int
    type: str
    session_id: str | None


def read(raw: bytes) -> Envelope:
    """Read the envelope of one event's JSON text, which came through the door as part of its message.

    Raises InvalidEvent (no object, no type, no usable event_id); its `args[1]` is the event_id as text, or None.
    """
    try:
        fields = _decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidEvent("an event is an object with a string `type`", None) from None
    try:
        number = event_id.parse(fields.event_id)
    except BadEventId as error:
        shown = fields.event_id if isinstance(fields.event_id, str) else None
        raise InvalidEvent(str(error), shown and shown[:40]) from None
    if not fields.type:
        raise InvalidEvent("`type` is empty", str(number))
    return Envelope(number, fields.type, fields.session_id if isinstance(fields.session_id, str) else None)
