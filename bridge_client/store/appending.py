"""What `append_event_with_sequence` stores: an event of this session, without a number that somebody else gave it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.json import Decoder

from bridge_client.event_json import repair_text
from bridge_client.session_log import MAX_OWN_ID
from bridge_client.store.admission import Admitted, admit
from protocol.codec import MAX_EVENT_DEPTH, open_json, repair_surrogates
from protocol.errors import InvalidEvent, ProtocolError
from protocol.events.session_manager import Event, to_map

_MEMBERS: Final = Decoder(dict[str, Raw])
_STRING: Final = Decoder(str)


def admit_appended(session_id: str, event: Mapping[str, Any] | bytes | Event, max_event_bytes: int) -> Admitted:
    """Check one event of a session, and bring it into the form that is stored. Raises InvalidEvent."""
    session_id = repair_text(session_id)
    if isinstance(event, bytes):
        members = _members(event)
        own_id, its_session = _text(members.get("id")), _text(members.get("session_id"))
    elif isinstance(event, Event | Mapping):
        members = to_map(event) if isinstance(event, Event) else dict(event)
        own_id, its_session = members.get("id"), members.get("session_id")
    else:
        raise InvalidEvent(f"$: an event is a mapping or the bytes of a JSON object, not {type(event).__name__}")
    if "session_id" in members and (not isinstance(its_session, str) or repair_text(its_session) != session_id):
        raise InvalidEvent("$.session_id: is not that of the session it is appended to; leave it out")
    if "id" in members and not (isinstance(own_id, str) and 1 <= len(own_id) <= MAX_OWN_ID):
        raise InvalidEvent(f"$.id: must be a string of 1 to {MAX_OWN_ID} characters")
    members.pop("sequence_number", None)
    if isinstance(event, bytes):
        members.setdefault("session_id", Raw(msgspec.json.encode(session_id)))
        pairs = (msgspec.json.encode(name) + b":" + bytes(value) for name, value in members.items())
        admitted = admit(b"{%b}" % b",".join(pairs), max_event_bytes, numbered=True)
    else:
        members.setdefault("session_id", session_id)
        admitted = admit(members, max_event_bytes, numbered=True)
    return admitted._replace(own_id=repair_text(own_id) if isinstance(own_id, str) else None)


def _members(text: bytes) -> dict[str, Any]:
    try:
        # A copy of each: they are views of the text, and of its repair.
        members = open_json(_MEMBERS, repair_surrogates(text) if b"\\u" in text else text, MAX_EVENT_DEPTH)
    except ProtocolError as error:
        raise InvalidEvent(error.reason) from None
    return dict(members)


def _text(value: Raw | None) -> object:
    return _STRING.decode(value) if value is not None and bytes(value).startswith(b'"') else None
