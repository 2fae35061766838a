"""What one JSON value of an input becomes in the store: an event of the home's own vocabulary, or one that wraps it."""

from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from protocol.codec import MAX_EVENT_DEPTH, open_json
from protocol.errors import InvalidEvent, ProtocolError
from protocol.events.agent_app import VOCABULARY, public

_ELEMENTS: Final = Decoder(list[Raw])
_MEMBERS: Final = Decoder(dict[str, Raw])
_OBJECT: Final = Decoder(dict[str, Any])
_KNOWN: Final = {msgspec.json.encode(name): name for name in VOCABULARY.types}

_MAY_MISS: Final[dict[str, Any]] = {"session_id": "", "request_id": ""}
"""An event that says all the rest is taken for what its type says: people write the first ones by hand."""


def elements(text: bytes) -> list[bytes]:
    """The objects of a JSON array that holds nothing else, `text` alone if it is anything else. Raises nothing.

    `text` is JSON that was checked; each element is its own bytes.
    """
    if not text.startswith(b"["):
        return [text]
    try:
        found = [bytes(element) for element in open_json(_ELEMENTS, text, MAX_EVENT_DEPTH)]
    except ProtocolError:
        return [text]
    return found if found and all(element.startswith(b"{") for element in found) else [text]


def event_of(type: bytes, text: bytes, session_id: str | None) -> bytes:
    """The event to publish for an object or other value `text`, whose type is the JSON string `type`.

    An event of the agent application's vocabulary, with what its type demands, goes through as it is; `session_id`, if
    given, replaces its own, and the `event_id` that another store gave it goes. Everything else becomes
    `{type, session_id, data}`, with `data` byte for byte. Raises InvalidEvent for an event that is never stored (row
    A80).
    """
    known = _KNOWN.get(type)
    if known is not None and _complete(known, text):
        return _own(text, session_id)
    session = b"" if session_id is None else b'"session_id":%b,' % msgspec.json.encode(session_id)
    return b'{"type":%b,%b"data":%b}' % (type, session, text)


def _complete(type: str, text: bytes) -> bool:
    # Some providers have types of these names too (`error`), with other members.
    if public({"type": type}) is None:
        raise InvalidEvent(f"$.type: {type} is internal and never stored")
    missing = _MAY_MISS | ({"message": {}} if type == "message_appended" else {})
    try:
        event = open_json(_OBJECT, text, MAX_EVENT_DEPTH)
        VOCABULARY.read(missing | {name: value for name, value in event.items() if name != "event_id"})
    except (ProtocolError, InvalidEvent):
        return False
    return True


def _own(text: bytes, session_id: str | None) -> bytes:
    members = open_json(_MEMBERS, text, MAX_EVENT_DEPTH)
    dropped = {"event_id"} | ({"session_id"} if session_id is not None else set())
    if bytes(members["type"]) == b'"final"':
        dropped.add("session")  # row A56
    if dropped.isdisjoint(members) and session_id is None:
        return text
    kept = {name: bytes(value) for name, value in members.items() if name not in dropped}
    if session_id is not None:
        kept["session_id"] = msgspec.json.encode(session_id)
    return b"{%b}" % b",".join(msgspec.json.encode(name) + b":" + value for name, value in kept.items())
