"""What a forwarder reads: an ordered log of events with ids, whoever keeps it.

Promises of every source: `page` gives ids strictly rising; an event read once is read again with the same bytes in the
same epoch; a new `epoch` means that ids may name other events than before. Ids start above 0, so 0 is "from the start".
"""

from typing import NamedTuple, Protocol


class SourceEvent(NamedTuple):
    """One event and its place."""

    event_id: int
    prev_id: int | None
    """The id before it in the source; None only for the first event the source ever held."""
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
        """At most `limit` events with ids above `after`, ascending. Only an empty page is the end."""

    async def wait(self, after: int) -> None:
        """Return once an event with an id above `after` can be read."""

    async def renew_epoch(self) -> str:
        """Begin a new epoch over the same events: what a forwarder does with a source that went back. Returns it."""
