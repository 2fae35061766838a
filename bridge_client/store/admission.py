"""What may be stored: the one gate in front of every backend.

Refused (InvalidEvent, the text says where and what): anything but a JSON object; NaN, Infinity, bytes and every other
value JSON does not have; keys that are not strings; nesting deeper than `codec.MAX_EVENT_DEPTH`; a `type` that is
absent, empty or not a string; a `session_id` that is not a string; an `event_id`, which only the store gives; more
bytes than the limit.
Repaired: a lone surrogate becomes U+FFFD, as it would on the wire.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from bridge_client.event_json import encode
from bridge_client.session_log import microseconds
from bridge_client.store import MAX_PAGE_BYTES, Stored
from protocol.codec import MAX_EVENT_DEPTH, open_json, repair_surrogates
from protocol.errors import InvalidEvent, ProtocolError
from protocol.event_id import MAX_EVENT_ID

_ID_BYTES: Final = len(b'{"event_id":"%d",' % MAX_EVENT_ID) - 1
_NUMBER_BYTES: Final = len(b'"sequence_number":%d,' % MAX_EVENT_ID)
_LONGEST_TIME: Final = 64
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_WHITE: Final = b" \t\r\n"


class _Head(Struct):
    type: str
    session_id: str | UnsetType = UNSET
    request_id: Raw | UnsetType = UNSET
    run_id: Raw | UnsetType = UNSET
    timestamp: Raw | UnsetType = UNSET
    event_id: Raw | UnsetType = UNSET


_HEAD: Final = Decoder(_Head)
_STRING: Final = Decoder(str)


class Admitted(NamedTuple):
    """An event that passed the gate, without its id."""

    members: bytes
    """The object's text behind its opening brace."""
    type: str
    session_id: str | None
    request_id: str | None
    run_id: str | None
    """Its `run_id`, its `request_id` where it has none."""
    at: int | None
    """Its own time in microseconds since 1970, where it says one."""
    own_id: str | None = None
    """What it is known by when it is appended again."""
    numbered: bool = False
    """Whether it says its place in the session."""

    def stored(self, event_id: int, sequence: int | None) -> Stored:
        """The event under the id and the place in its session that the store gave it."""
        if self.numbered and sequence is not None:
            return Stored(event_id, b'{"event_id":"%d","sequence_number":%d,%b' % (event_id, sequence, self.members))
        return Stored(event_id, b'{"event_id":"%d",%b' % (event_id, self.members))


def admit(event: Mapping[str, Any] | bytes, max_event_bytes: int, *, numbered: bool = False) -> Admitted:
    """Check one event and bring it into the form that is stored. Raises InvalidEvent."""
    text = (event if isinstance(event, bytes) else encode(event)).strip(_WHITE)
    size = len(text) + _ID_BYTES + (_NUMBER_BYTES if numbered else 0)
    if size > max_event_bytes:
        raise InvalidEvent(f"$: the event is {size} bytes long; at most {max_event_bytes} are stored")
    if _SURROGATE.search(text):
        text = repair_surrogates(text)
    try:
        head = open_json(_HEAD, text, MAX_EVENT_DEPTH)
    except ProtocolError as error:
        raise InvalidEvent(error.reason) from None
    if not head.type:
        raise InvalidEvent("$.type: empty")
    if head.event_id is not UNSET:
        raise InvalidEvent("$.event_id: the store gives it; publish the event without one")
    return _admitted(head, text[1:].lstrip(_WHITE), numbered)


def admit_many(
    events: Sequence[Mapping[str, Any] | bytes], max_event_bytes: int
) -> tuple[list[Admitted], InvalidEvent | None]:
    """The events in front of the first that may not be stored, and why that may not."""
    admitted: list[Admitted] = []
    for event in events:
        try:
            admitted.append(admit(event, max_event_bytes))
        except InvalidEvent as error:
            return admitted, error
    return admitted, None


def read_stored(data: bytes) -> Admitted:
    """What an event that is stored already would have been admitted as. Its bytes are not needed again."""
    return _admitted(_HEAD.decode(data), b"", False)


def _admitted(head: _Head, members: bytes, numbered: bool) -> Admitted:
    request_id = _string(head.request_id)
    run_id = _string(head.run_id)
    return Admitted(
        members,
        head.type,
        None if head.session_id is UNSET else head.session_id,
        request_id,
        request_id if run_id is None else run_id,
        _time(head.timestamp),
        numbered=numbered,
    )


def _string(value: Raw | UnsetType) -> str | None:
    if value is UNSET or not bytes(value).startswith(b'"'):
        return None
    return _STRING.decode(value)


def _time(value: Raw | UnsetType) -> int | None:
    """Microseconds since 1970, None for what is no time in ISO 8601."""
    if value is UNSET or len(bytes(value)) > _LONGEST_TIME or (text := _string(value)) is None:
        return None
    try:
        return microseconds(datetime.fromisoformat(text))
    except ValueError:
        return None


def check_page(since_id: int | None, limit: int) -> int:
    """The id to read after. Raises ValueError for a limit below 1 or a negative `since_id`."""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if since_id is not None and since_id < 0:
        raise ValueError(f"since_id must not be negative, not {since_id}")
    return min(since_id or 0, MAX_EVENT_ID)


class Page:
    """Collects one page up to its limits of events and bytes."""

    def __init__(self, limit: int) -> None:
        self.events: list[Stored] = []
        self._events_left = limit
        self._bytes_left = MAX_PAGE_BYTES

    def add(self, event: Stored) -> bool:
        """Take one event; whether there is room for another."""
        self.events.append(event)
        self._events_left -= 1
        self._bytes_left -= len(event.data)
        return self._events_left > 0 and self._bytes_left > 0
