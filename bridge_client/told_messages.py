"""The messages that a request's events tell whole: what a checkpoint is to hold (row A93)."""

from collections.abc import Mapping
from typing import Any, Final

from bridge_client.runners import Message

CAPTURED: Final = frozenset({"final", "tool_calls", "tool_results"})
"""The events that messages come of."""


class ToldMessages:
    """Takes a request's events in their order; keeps the messages that came of them until they are taken away."""

    def __init__(self, metadata: Mapping[str, Any] | None = None) -> None:
        self.metadata = dict(metadata or {})
        """What every message is to carry besides its own."""
        self._messages: list[Message] = []

    def add(self, event: Mapping[str, Any]) -> None:
        """Take one event; what no message comes of changes nothing."""
        match event:
            case {"type": "final" | "tool_results", "messages": list(messages)}:
                for message in messages:
                    self._add(message)
            case {"type": "tool_calls", "tool_calls": list(calls)}:
                if not self._messages or self._messages[-1].role != "assistant":
                    self._add({"role": "assistant", "content": ""})
                last = self._messages[-1]
                last.metadata["tool_calls"] = [*last.metadata.get("tool_calls", []), *calls]

    def take(self) -> list[Message]:
        """The messages since the last time."""
        messages, self._messages = self._messages, []
        return messages

    def take_answered(self) -> list[Message]:
        """As `take`, of a request that was broken off.

        Calls of tools that got no result are left out: no provider takes a history in which one stands.
        """
        messages = self.take()
        answered = {message.metadata.get("tool_call_id") for message in messages if message.role == "tool"}
        for message in messages:
            calls = message.metadata.get("tool_calls")
            if message.role == "assistant" and isinstance(calls, list):
                kept = [call for call in calls if isinstance(call, Mapping) and call.get("id") in answered]
                message.metadata = {**message.metadata, "tool_calls": kept}
                if not kept:
                    del message.metadata["tool_calls"]
        return [message for message in messages if message.content or message.metadata or message.role != "assistant"]

    def _add(self, message: Any) -> None:
        match message:
            case {"role": str(role), "content": content}:
                own = message.get("metadata")
                metadata = {**own, **self.metadata} if isinstance(own, Mapping) else dict(self.metadata)
                self._messages.append(Message(role=role, content=content, metadata=metadata))
