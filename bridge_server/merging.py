"""Parts of texts that become one event on their way to an app that is slow, or asked for it.

Only parts that follow each other, with nothing between them, become one. It stands under the id of its last, so each
event that an app gets means that it has had everything up to that id: it can resume from any of them. Parts that are
apart stay apart, for the same reason. What a part and its whole are, and how parts are joined, `protocol` says.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.json import Decoder, Encoder

from bridge_server.history import Kept
from bridge_server.message import Message
from protocol.events.compaction import PARTS, WHOLES, merge, plan

_decode: Final = Decoder(dict[str, Any]).decode
_encode: Final = Encoder().encode

_UNREAD: Final[dict[str, Any]] = {}
"""Stands for whatever is neither a part nor a whole: it only keeps apart what stands on its sides."""


class Left(NamedTuple):
    """One event of the result: where its last part stands, and its text, None where it is that event as it was."""

    at: int
    data: bytes | None


def condense(events: Sequence[tuple[str, bytes]], *, repeated: bool) -> list[Left]:
    """What stays of events (type and JSON text each), in their order, when adjacent parts become one.

    With `repeated`, parts are dropped as well if a whole that follows says the same (settled decision 2.15). Only what
    may be a part is decoded. Text that can't be is left as it is, whatever it is.
    """
    types = PARTS | WHOLES if repeated else PARTS
    read = [_read(data) if type in types else _UNREAD for type, data in events]
    groups = plan(read, adjacent=True, repeated=repeated)
    return [
        Left(group[-1], _encode(merge([read[index] for index in group])) if len(group) > 1 else None)
        for group in groups
    ]


def _read(data: bytes) -> dict[str, Any]:
    try:
        return _decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return _UNREAD


def merged(messages: Sequence[Message]) -> list[Message]:
    """Messages with their adjacent parts joined. Those that carry no event keep their place."""
    if sum(message.type in PARTS for message in messages) < 2:
        return list(messages)
    left = condense([_event_of(message) for message in messages], repeated=False)
    return [messages[index] if data is None else replaced(messages[index], data) for index, data in left]


def replaced(last: Message, data: bytes) -> Message:
    """The message of a merged event, in the place of the last that went into it."""
    assert last.event_id is not None
    return Message.of_event(last.event_id, data, last.type, last.session_id)


def _event_of(message: Message) -> tuple[str, bytes]:
    return ("", b"") if message.event_id is None else (message.type, message.data)


def merged_page(page: Sequence[Kept]) -> list[Kept]:
    """A page of a replay for an app that wants merged parts: those the rest of the page repeats are left out."""
    left = condense([(event.type, event.data) for event in page], repeated=True)
    return [page[index] if data is None else page[index]._replace(data=data) for index, data in left]
