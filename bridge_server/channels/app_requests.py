"""What an app may ask on its topic: its join and its cursor, read from what came over the wire."""

from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder

from bridge_server.channels import Refuse, Reply, bad_join
from bridge_server.message import EVERYTHING, Filter
from protocol import event_id
from protocol.errors import BadEventId
from protocol.frames import Binary, Payload

MAX_BYTES: Final = 8 * 1024

BAD_CURSOR: Final = Refuse({"reason": "bad_cursor"})
NO_CURSOR: Final = Reply("error", {"reason": "bad_cursor"})
BAD_PUSH: Final = Reply("error", {"reason": "bad_push"})

_Epoch = Annotated[str, Meta(min_length=1, max_length=128)]


class _Join(Struct):
    since_id: Any = None
    epoch: _Epoch | None = None
    cursor: Literal["server"] | None = None
    session_id: str | None = None
    types: Annotated[list[str], Meta(max_length=64)] | None = None
    partials: Literal["all", "merged", "none"] = "all"
    presence: bool = False


class _Said(Struct):
    event_id: Any
    epoch: _Epoch | None = None


_JOIN = Decoder(_Join)
_SAID = Decoder(_Said)


class JoinRequest(NamedTuple):
    """A join. `stored`: resume behind the place kept for this device, behind `since` only if there is none."""

    since: int | None
    epoch: str | None
    stored: bool
    filter: Filter
    presence: bool


class Place(NamedTuple):
    """How far an app has read; `epoch` None: the one that its events have."""

    event_id: int
    epoch: str | None


def read_join(payload: Payload) -> JoinRequest | Refuse:
    """`{since_id?, epoch?, cursor?, session_id?, types?, partials?, presence?}`; an old client sends `null`."""
    if isinstance(payload, Binary) or len(bytes(payload)) > MAX_BYTES:
        return Refuse({"reason": "bad_join", "field": "payload"})
    try:
        request = _Join() if bytes(payload) == b"null" else _JOIN.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        refusal = bad_join(error)  # a number beyond every id does not even decode
        return BAD_CURSOR if refusal.response["field"] == "since_id" else refusal
    try:
        since = None if request.since_id is None else event_id.parse_since(request.since_id)
    except BadEventId:
        return BAD_CURSOR
    return JoinRequest(since, request.epoch, request.cursor == "server", _filter(request), request.presence)


def read_cursor(payload: Payload) -> Place | Reply:
    """`{event_id, epoch?}`."""
    if isinstance(payload, Binary) or len(bytes(payload)) > MAX_BYTES:
        return BAD_PUSH
    try:
        said = _SAID.decode(payload)
        return Place(event_id.parse_since(said.event_id), said.epoch)
    except BadEventId:
        return NO_CURSOR
    except (msgspec.MsgspecError, RecursionError):
        return BAD_PUSH


def _filter(request: _Join) -> Filter:
    if request.session_id is None and request.types is None and request.partials == "all":
        return EVERYTHING
    types = None if request.types is None else frozenset(request.types)
    return Filter(request.session_id, types, request.partials != "none", request.partials == "merged")
