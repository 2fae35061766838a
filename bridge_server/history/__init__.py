"""The live tier: the latest events of each home, in id order, which a resuming app is served from.

One `Log` is one life (epoch) of one home's store. Promises of every backend: `append` is visible to the next `page`;
pages are in id order and lose nothing between `floor` and `head`; what is evicted goes from the old end, and `floor`
says so. Nothing survives a restart unless the backend says otherwise.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Kept(NamedTuple):
    """One event as the live tier holds it: its id, its own bytes, and what filters and metrics ask about it."""

    event_id: int
    data: bytes
    type: str
    session_id: str | None
    at: float


class Log(Protocol):
    """The events of one epoch of one home."""

    floor: int
    """The lowest cursor that can still be served: everything after it is held."""

    head: int
    """The last id appended; equal to `floor` when nothing was."""

    def append(self, event: Kept) -> None:
        """Add an event whose id is above `head`; that of a log's first event may be its `floor`."""

    def page(self, after: int, to: int, max_bytes: int) -> Sequence[Kept] | None:
        """Events with `after < id <= to`, oldest first, at least one if there is one, then up to `max_bytes`.

        None if `after` is below `floor`.
        """

    def expire(self, now: float) -> None:
        """Evict what is too old at `now` (the clock of `Kept.at`)."""


class History(Protocol):
    """The live tiers of all homes."""

    def open(self, server_id: str, floor: int) -> Log:
        """A new, empty log for `server_id` whose first event follows `floor`; the one it had is dropped."""
