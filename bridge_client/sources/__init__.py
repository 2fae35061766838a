"""What a forwarder reads: an ordered log of events with ids, whoever keeps it.

Promises of every source (proved for each by tests/contracts/test_sources.py): `page` gives ids strictly rising; an
event read once is read again with the same bytes in the same epoch; a new `epoch` means that ids may name other events
than before. Ids start above 0, so 0 is "from the start".

A source that is somebody else's may be away for a while, or go back in time. Away: `page` is empty meanwhile, `head`
waits, and `wait` returns once it can be read again. Back in time: it takes a new epoch by itself when it notices, and
`wait` returns at once until `head` has been asked.
"""

from typing import NamedTuple, Protocol

from msgspec import Struct


class SourceRefused(Exception):
    """The source can't be used as it was named, and trying again won't help; the text says what to do."""


class Mark(Struct, frozen=True):
    """An event by which a source is known again: its id, and a digest of what it held."""

    event_id: int
    digest: str
    """SHA-256 of the event's bytes as they travel, in hexadecimal."""


class SourceEvent(NamedTuple):
    """One event and its place."""

    event_id: int
    prev_id: int | None
    """The id before it in the source, or one between the two; None only for the first event the source ever held."""
    data: bytes
    """The event's JSON object, `event_id` included."""


class Source(Protocol):
    """See the module for the promises. Errors of the backend pass through (`StoreError` for a store)."""

    @property
    def epoch(self) -> str:
        """Names this life of the source."""

    async def head(self) -> int | None:
        """The last id, None while the source is empty."""

    async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
        """At most `limit` events with ids above `after`, ascending.

        Only an empty page is the end, or what there is can't be read yet: then `wait` says when.
        """

    async def wait(self, after: int) -> None:
        """Return once an event with an id above `after` can be read, or the epoch has changed."""

    async def knows(self, event_id: int, digest: str) -> bool | None:
        """Whether the event `event_id`, not above the head, is here and its bytes have this digest (see Mark).

        False means that this is another history than the one in which it was read, though ids and epoch are the same.
        None where that can't be told: the event may have been removed since, or the source is one whose owner may
        change what it holds.
        """

    async def renew_epoch(self) -> str:
        """Begin a new epoch over the same events: what a forwarder does with a source that went back. Returns it."""
