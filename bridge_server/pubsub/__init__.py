"""How an event reaches the hubs that serve its listeners.

Promises of every backend: messages of one publisher on one topic arrive in the order of `publish`, at most once, at
every receiver subscribed before the publish; a receiver subscribed during a publish may or may not get it. Nothing is
kept.
"""

from collections.abc import Callable
from typing import Any, Protocol

Receiver = Callable[[Any], None]


class PubSub(Protocol):
    """Topics with receivers. A receiver must not raise and must not block."""

    def subscribe(self, topic: str, receiver: Receiver) -> None:
        """Call `receiver` with every message published on `topic` from now on."""

    def unsubscribe(self, topic: str, receiver: Receiver) -> None:
        """Stop that. Unknown receivers are ignored."""

    def publish(self, topic: str, message: Any) -> None:
        """Hand `message` to every receiver of `topic`."""
