"""PubSub inside one process: a publish calls the receivers."""

from typing import Any

from bridge_server.pubsub import Receiver


class MemoryPubSub:
    """Topics as a dictionary of receivers."""

    def __init__(self) -> None:
        self._receivers: dict[str, list[Receiver]] = {}

    def subscribe(self, topic: str, receiver: Receiver) -> None:
        """See the contract."""
        self._receivers.setdefault(topic, []).append(receiver)

    def unsubscribe(self, topic: str, receiver: Receiver) -> None:
        """See the contract."""
        receivers = self._receivers.get(topic, [])
        if receiver in receivers:
            receivers.remove(receiver)
        if not receivers:
            self._receivers.pop(topic, None)

    def publish(self, topic: str, message: Any) -> None:
        """See the contract."""
        for receiver in tuple(self._receivers.get(topic, ())):
            receiver(message)
