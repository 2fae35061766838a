"""What carries the messages of one peer. The contract a driver fulfils for its peer.

- `write` takes finished wire bytes (one or several whole frames), never blocks and never raises; bytes written after
  the end are dropped. Order is kept.
- When the other side takes less than is written, the driver calls `Outbox.pause`, and `Outbox.resume` once it has
  caught up; at the end it calls `Peer.gone`, once.
- `close` says why and ends the connection in order; a peer that does not take the goodbye within the driver's deadline
  is aborted. `abort` ends it at once. Both may be called any number of times.
"""

from collections.abc import Callable
from typing import Protocol

from protocol.codec import Encoded


class Transport(Protocol):
    """One connection as its peer sees it."""

    def write(self, data: bytes) -> None:
        """Send finished wire bytes."""

    @property
    def wrap(self) -> Callable[[Encoded], bytes]:
        """What makes one message wire bytes: the same function for all connections that read alike."""

    def unsent(self) -> int:
        """Bytes written that the peer has not taken yet, as far as that can be known."""

    def pause_reading(self) -> None:
        """Take nothing more from the other side until `resume_reading`."""

    def resume_reading(self) -> None:
        """Read on."""

    def close(self, code: int, reason: str) -> None:
        """End in order, with a close code of `protocol.errors.CLOSE_CODES`."""

    def abort(self) -> None:
        """End at once, without a goodbye."""
