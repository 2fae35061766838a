"""Sessions as they are kept: the contract between `sessions.py`, which knows what they mean, and a store.

What a backend promises:

- `apply` stores a change and the events that tell it as one: after a crash both are there, or neither (row A94).
- A change is made on the state it was thought out on: `record.revision` says which. If the stored one differs, nothing
  is stored and RecordMoved is raised.
- `snapshot` reads a session and its messages as they were at one moment (rows A91, A95, A96).
- Counts, sizes, the cursor and the revision in a record are the backend's: it reckons them.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct

from bridge_client.store import Stored

_LONGEST_PAUSE: Final = 0.1


class RecordMoved(Exception):
    """Somebody else changed, made or removed the session in the meantime."""


def pause_before(tries: int) -> float:
    """Seconds to wait before trying again after so many tries: another length for each, or two who meet meet again."""
    return random.uniform(0, min(_LONGEST_PAUSE, 0.001 * 2**tries))  # noqa: S311 - no secret


class SessionRecord(Struct, frozen=True, kw_only=True):
    """One session without its messages."""

    session_id: str
    agent_id: str
    created_at: str
    """RFC 3339, UTC, as `updated_at`."""
    updated_at: str
    metadata: dict[str, Any] = {}
    source_session_id: str | None = None
    """What it was forked from."""
    request_id: str | None = None
    """The request under way."""
    revision: int = 0
    """Rises with each change. 0: not stored yet."""
    cursor_event_id: int = 0
    """Row A90: every event of the session up to this one is reflected in the messages, and none behind it."""
    message_count: int = 0
    message_bytes: int = 0


class Change(NamedTuple):
    """What is to become of a session. Messages are JSON texts; they change in the order of the members here."""

    record: SessionRecord
    """As it is to be, with the revision of the state that it is based on."""
    events: Sequence[Mapping[str, Any]]
    cursor_at: int | None = None
    """Which of `events` the cursor moves to; None: it stays."""
    copy_from: str | None = None
    """A session whose messages are all copied into this one, which is new. Of the revision `copy_revision`."""
    copy_revision: int = 0
    replace: tuple[int, bytes] | None = None
    delete: Sequence[int] = ()
    """Indices, each once."""
    append: Sequence[bytes] = ()


class Snapshot(NamedTuple):
    """A session and a piece of its history at one moment."""

    record: SessionRecord
    offset: int
    """The index of the first of `messages`."""
    messages: list[bytes]


_Records = list[SessionRecord]  # inside the class, `list` is a method


class SessionRecords(Protocol):
    """Where sessions are kept. See the module for the promises. Every method raises StoreError."""

    async def apply(self, change: Change) -> tuple[SessionRecord, Sequence[Stored]]:
        """Store it; the record as it is now, and its events. Raises RecordMoved, InvalidEvent."""

    async def get(self, session_id: str) -> SessionRecord | None:
        """None if there is no such session."""

    async def snapshot(self, session_id: str, offset: int, limit: int, max_bytes: int) -> Snapshot | None:
        """Messages from index `offset` on (negative: from so many before the end), None if there is no such session.

        At most `limit`, and fewer once `max_bytes` is reached; at least one if there is one.
        """

    async def list(self, before: int | None, limit: int) -> _Records:
        """Sessions by their cursors, the highest first; only those below `before`."""

    async def with_request(self) -> _Records:
        """The sessions that have a request under way, or had when their home stopped."""

    async def count(self) -> int:
        """How many there are."""
