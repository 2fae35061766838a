"""The home's event store: one log of events for all sessions, in one order.

What every backend promises (proved for each of them by tests/contracts/test_event_store.py):

- Order. `publish` gives each event the next id. Ids rise strictly over the whole store, in the order in which publishes
  are accepted (calls of one event loop: in call order), start at 1, are never reused, and become readable in id order:
  a reader that has seen id N will never find a smaller one later. They are not promised to be dense.
- Retention. A store may remove its oldest events, never one with a newer one left in front of it, and never the newest.
  `floor` is the last id removed: who reads from below it can't have everything.
- Durability. When `publish` returns, the event is as durable as the backend can make it (SQLite: on disk). One that
  raises StoreError is not stored, and the store goes on; one that is cancelled may or may not be stored.
- Exactness. `Stored.data` never changes and is the same for every reader: one JSON object whose first member is
  `event_id`, followed by the members as they were published. It is what the wire carries, so whatever the wire can't
  carry is refused by `publish` (see `admission.py` for the rules).
- One event loop. A store belongs to the event loop that opened it. No method blocks the loop on disk.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

MAX_EVENT_BYTES: Final = 1 << 20
"""Default limit of one event's JSON in bytes, its `event_id` included (counted at the longest id there can be)."""

MAX_PAGE_BYTES: Final = 8 << 20
"""A page ends early once it holds this much, so that a page of the largest events fits in memory."""


class StoreError(Exception):
    """The store could not do its work (disk full, file damaged or locked, newer version); the text says what to do."""


class StoreClosed(StoreError):
    """The store was closed before or during the call."""


class Stored(NamedTuple):
    """One event as every reader gets it."""

    event_id: int
    data: bytes
    """The event's JSON object, `event_id` included."""


_Events = list[Stored]  # inside the class, `list` is a method
_Given = Sequence[Mapping[str, Any] | bytes]


class PlainStore(Protocol):
    """All that a store has to offer (row A7): `adapted.Adapted` makes an EventStore of it.

    Both are those of EventStore, with the promises of the module about order and exactness; it is its own affair how
    durable a publish is. An id once listed stays where it is.
    """

    async def publish(self, event: Mapping[str, Any] | bytes) -> Stored:
        """Store one event. Raises InvalidEvent, StoreError."""

    async def list(
        self,
        *,
        since_id: int | None = None,
        limit: int = 500,
        session_id: str | None = None,
        request_id: str | None = None,
    ) -> list[Stored]:
        """Events with an id above `since_id` that match every filter given, ascending. Raises StoreError."""


class EventStore(Protocol):
    """Publish and list, and what a forwarder needs besides. See the module for the promises."""

    @property
    def epoch(self) -> str:
        """Names this life of the store: random, made with it, kept over restarts, replaced only by `renew_epoch`."""

    @property
    def restored(self) -> int:
        """How often a copy was found restored into the store while it was open: ids may name other events since."""

    async def publish(self, event: Mapping[str, Any] | bytes) -> Stored:
        """Store one event: a mapping of JSON values, or the bytes of one JSON object.

        Bytes are kept as they are (numbers as written, order, duplicates), white space around the object aside. Waits
        while too much is queued. Raises InvalidEvent for what may not be stored, StoreError when it can't be.
        """

    async def publish_many(self, events: _Given) -> _Events:
        """As `publish` for each of them in turn, up to the first that raises; what comes behind that is not stored.

        Made durable together where the backend can. They wait for room together: give some hundreds at most.
        """

    async def list(
        self,
        *,
        since_id: int | None = None,
        limit: int = 500,
        session_id: str | None = None,
        request_id: str | None = None,
    ) -> list[Stored]:
        """Events with an id above `since_id` (None: from the start) that match every filter given, ascending.

        At most `limit` of them, and fewer once MAX_PAGE_BYTES is reached; only an empty page means that nothing
        follows. Raises ValueError for a limit below 1 or a negative `since_id`, StoreError when it can't read.
        """

    def recent(self, after: int, limit: int = 500) -> _Events | None:
        """What `list` would give, from memory: at most `limit` events with ids above `after`, ascending.

        Empty means that this process knows of none; another process may have written some, of which `wait` tells. None
        means that only `list` can say. Never reads, so that who follows the store pays for no turn of a thread.
        """

    async def head(self) -> int | None:
        """The last id, None while nothing was ever published."""

    async def preceding(self, event_id: int) -> int | None:
        """The greatest id that is not above `event_id`, None if there is none.

        Of those that were removed to make room, the last one at or below `event_id` that is known: `floor` at most.
        """

    async def floor(self) -> int:
        """The last id that was removed to make room, 0 while none was. Rises, and survives what the events survive.

        Asked after a page was read, it says whether the page can lack something: when it is above the page's
        `since_id`.
        """

    async def wait(self, after: int) -> None:
        """Return once an event with an id above `after` can be read, whoever wrote it. Raises StoreError.

        Returns too when it is found during the wait that the store was restored from a copy, which takes events away.
        """

    async def renew_epoch(self) -> str:
        """Begin a new epoch over the same events, as a restored store must, which reuses ids. Returns it, durable."""

    async def close(self) -> None:
        """Store what was accepted and let go of the file. May be called again; all else raises StoreClosed."""
