"""A session's messages as chat completions take them."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from bridge_client.runners import Json, Message
from protocol.events.agent_app import call_id, text_of


def to_chat(messages: Sequence[Message], system: str = "") -> list[Json]:
    """The messages in their order, `system` before them.

    An endpoint refuses a tool call without its result right behind it, and a result without its call, as they are left
    when somebody deleted or cancelled the other one: such halves are left out.
    """
    asked: set[str] = set()
    chat: list[Json] = [{"role": "system", "content": system}] if system else []
    for place, message in enumerate(messages):
        if message.role == "tool":
            identity = _result_of(message)
            if identity in asked:
                asked.discard(identity)
                chat.append({"role": "tool", "tool_call_id": identity, "content": text_of(message.content)})
            continue
        asked = set()
        if message.role == "assistant":
            behind = takewhile(lambda message: message.role == "tool", messages[place + 1 :])
            answered = {_result_of(result) for result in behind}
            calls = [call for call in _calls_of(message) if call["id"] in answered]
            asked = {call["id"] for call in calls}
            text = text_of(message.content)
            if text or calls:
                chat.append({"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})})
        else:
            chat.append({"role": message.role, "content": message.content})
    return chat


def _result_of(message: Message) -> str:
    return str(message.metadata.get("tool_call_id", ""))


def _calls_of(message: Message) -> list[Json]:
    listed = message.metadata.get("tool_calls")
    found = []
    for call in listed if isinstance(listed, list) else ():
        function: Any = call.get("function") if isinstance(call, Mapping) else None
        identity = call_id(call) if isinstance(call, Mapping) else None
        if identity and isinstance(function, Mapping):
            named = {"name": str(function.get("name", "")), "arguments": str(function.get("arguments", ""))}
            found.append({"id": identity, "type": "function", "function": named})
    return found
