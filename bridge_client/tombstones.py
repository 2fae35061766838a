"""What goes out in the place of an event that can't travel, so that order and cursors stay whole."""

from typing import Any, Final

import msgspec

TOMBSTONE: Final = "unforwardable"
"""The `type` of a tombstone."""


def tombstone(event_id: int, reason: str, session_id: str | None = None) -> bytes:
    """The JSON of a tombstone: the event's id and session, and why it is not there, cut to 200 characters."""
    members: dict[str, Any] = {"event_id": str(event_id), "type": TOMBSTONE}
    if session_id is not None:
        members["session_id"] = session_id
    return msgspec.json.encode(members | {"reason": reason[:200]})
