"""The five slots of a Phoenix message and the names the protocol reserves."""

from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

PHOENIX = "phoenix"
"""The topic of heartbeats."""

HEARTBEAT = "heartbeat"
JOIN = "phx_join"
LEAVE = "phx_leave"
REPLY = "phx_reply"
CLOSE = "phx_close"
ERROR = "phx_error"

EMPTY = Raw(b"{}")
"""The empty payload."""


class Binary(NamedTuple):
    """The payload of a binary frame: bytes that mean nothing to the protocol."""

    data: bytes


Payload = Raw | Binary


class Frame(NamedTuple):
    """One message, in the slot order of the V2 array.

    A ref is any JSON value: Phoenix echoes it untyped, integers and null included.
    `topic` and `event` are whatever JSON the peer sent there: only strings can match anything, the rest is echoed.
    `payload` is the JSON text as it came (checked by the codec, not decoded), or what a binary frame carried.
    """

    join_ref: Any
    ref: Any
    topic: Any
    event: Any
    payload: Payload


def same_ref(one: Any, other: Any) -> bool:
    """Refs are equal when type and value are (in Python `1 == True`, on the wire they differ)."""
    return type(one) is type(other) and one == other


def raw(value: Any) -> Raw:
    """A value of ours as the JSON text of a payload."""
    return value if isinstance(value, Raw) else Raw(msgspec.json.encode(value))
