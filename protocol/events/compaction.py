"""What a reader who catches up need not see: the parts of what is there as a whole (rows A29 to A33).

- A part of a reply (`partial`, `message_streamed`, `LLM_PARTIAL`) is dropped if a whole (`final`, `message_received`,
  `LLM_OUTPUT`) of the same session, request and phase follows and repeats its text (settled decision 2.15). A phase
  begins with `assistant_message` "start", or behind the whole that ended the one before.
- A `tool_partial` is dropped if the result of the same call follows: `tool_results`, or its own `end`.
- Parts that stay are merged while they follow each other within their request: events of other requests may stand
  between them, another event of their own may not (rows A31, A32). The merged part stands in the place and under the id
  of the last (settled decision 2.14).

Nothing is changed in place (row A33): what comes out are other objects, or the same ones untouched.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from types import MappingProxyType, NoneType
from typing import Any, Final, NamedTuple, TypeVar

from protocol.events.agent_app import text_of

MAX_MERGED_CHARS: Final = 128 * 1024
"""A merged part grows to about this; then the next begins. Keeps it well below the largest event."""

_Event = Mapping[str, Any]
T = TypeVar("T")


class Text(NamedTuple):
    """What a part or a whole says: its text, and what was thought beside it."""

    said: str
    thought: str = ""


def compact(events: Sequence[_Event]) -> list[dict[str, Any]]:
    """The events of one page, in id order, without what the rest of the page repeats. Never raises on JSON objects."""
    return [merge([events[index] for index in group]) for group in plan(events)]


def plan(events: Sequence[_Event], *, adjacent: bool = False, repeated: bool = True) -> list[list[int]]:
    """What `compact` would do: the groups of indices that become one event each, in the order of their last.

    A group of one index is that event as it is: who holds its bytes can pass them on. With `adjacent` nothing at all
    stands between the parts of a group: so whoever has had an event of the result has had everything up to its id, and
    can resume from it. Without `repeated` nothing is dropped.
    """
    requests = [_request(event) for event in events]
    rules = [_rule(event) for event in events]
    texts = [None if rule is None else rule.text(event) for rule, event in zip(rules, events, strict=True)]
    dropped = _redundant(events, requests, texts) if repeated else frozenset()
    groups: list[list[int]] = []
    # Request (adjacent: the only one) -> its group, of what, how long.
    open_groups: dict[Hashable, tuple[list[int], Hashable, int]] = {}
    for index, event in enumerate(events):
        if index in dropped:
            continue
        request = None if adjacent else requests[index]
        key, size = None, 0
        if (text := texts[index]) is not None and (key := _key(rules[index], event, requests[index])) is not None:
            size = len(text.said) + len(text.thought)
        before = open_groups.get(request)
        if key is not None and before is not None and before[1] == key and before[2] + size <= MAX_MERGED_CHARS:
            before[0].append(index)
            open_groups[request] = (before[0], key, before[2] + size)
            continue
        groups.append([index])
        if key is None:
            open_groups.pop(request, None)
        else:
            open_groups[request] = (groups[-1], key, size)
    return sorted(groups, key=lambda group: group[-1])


def part_key(event: _Event) -> Hashable | None:
    """Parts with the same key may become one if nothing else of their request is between them; None: not a part.

    A part whose text is not where its type keeps it has no key: it is left alone.
    """
    return _key(_rule(event), event, _request(event))


def _key(rule: "_Part | None", event: _Event, request: Hashable) -> Hashable | None:
    if rule is None or (facets := rule.facets(event)) is None:
        return None
    return (event["type"], request, *facets)


def merge(parts: Sequence[_Event]) -> dict[str, Any]:
    """One event for parts of the same key, in order: the last one with the texts of all. One part: itself.

    Its other members are those of the last part, whose metadata is laid over that of those before it.
    """
    merged = dict(parts[-1])
    if len(parts) > 1:
        rule = _PARTS[merged["type"]]
        texts = [rule.text(part) for part in parts]
        text = Text("".join(text.said for text in texts), "".join(text.thought for text in texts))
        merged.update(rule.put(parts, text))
    return merged


# Where each type keeps what it says.


class _Part(NamedTuple):
    facets: Callable[[_Event], tuple[Hashable, ...] | None]
    """What must be equal for two parts to become one; None if it is no mergeable part."""
    text: Callable[[_Event], Text]
    put: Callable[[Sequence[_Event], Text], dict[str, Any]]
    """The members to replace in the last part so that it says this text."""


_EMPTY: Final[_Event] = MappingProxyType({})
_PLAIN: Final = (str, int, float, NoneType)


def _inner(event: _Event, name: str) -> _Event:
    value = event.get(name)
    if isinstance(value, dict):  # nearly always; whether it is any other mapping takes five times as long to find out
        return value
    return value if value is not None and isinstance(value, Mapping) else _EMPTY


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _hashable(*values: Any) -> tuple[Hashable, ...]:
    for value in values:
        if not isinstance(value, _PLAIN):
            return tuple([value if isinstance(value, _PLAIN) else repr(value) for value in values])
    return values


def _metadata(parts: Sequence[_Event], name: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for part in parts:
        where = _inner(part, name) if name else part
        if where.get("metadata"):
            merged |= _inner(where, "metadata")
    return merged


def _with_thought(metadata: dict[str, Any], thought: str) -> dict[str, Any]:
    return {**metadata, "thinking": thought} if thought else metadata


def _partial_facets(event: _Event) -> tuple[Hashable, ...] | None:
    message = _inner(event, "message")
    if not isinstance(message.get("content"), str):
        return None
    return _hashable(event.get("phase"), message.get("role"))


def _partial_text(event: _Event) -> Text:
    message = _inner(event, "message")
    thought = _string(_inner(message, "metadata").get("thinking")) if message.get("metadata") else ""
    return Text(text_of(message.get("content")), thought)


def _partial_put(parts: Sequence[_Event], text: Text) -> dict[str, Any]:
    message = {**_inner(parts[-1], "message"), "content": text.said}
    metadata = _with_thought(_metadata(parts, "message"), text.thought)
    return {"message": {**message, "metadata": metadata} if metadata else message}


def _tool_facets(event: _Event) -> tuple[Hashable, ...] | None:
    if event.get("phase") != "stream" or not isinstance(_inner(event, "payload").get("part"), str):
        return None
    return _hashable(event.get("tool_call_id"))


def _tool_text(event: _Event) -> Text:
    return Text(_string(_inner(event, "payload").get("part")))


def _tool_put(parts: Sequence[_Event], text: Text) -> dict[str, Any]:
    return {"payload": {**_inner(parts[-1], "payload"), "part": text.said}}


def _streamed_facets(event: _Event) -> tuple[Hashable, ...] | None:
    data = _inner(event, "data")
    if not isinstance(data.get("delta"), str):
        return None
    return _hashable(data.get("role"), data.get("tool_call_id"), data.get("message_id"))


def _streamed_text(event: _Event) -> Text:
    data = _inner(event, "data")
    return Text(_string(data.get("delta")), _string(data.get("thinking")))


def _streamed_put(parts: Sequence[_Event], text: Text) -> dict[str, Any]:
    data = {**_inner(parts[-1], "data"), "delta": text.said}
    if text.thought:
        data["thinking"] = text.thought
    metadata = _metadata(parts, "")
    return {"data": data, "metadata": metadata} if metadata else {"data": data}


def _llm_facets(event: _Event) -> tuple[Hashable, ...] | None:
    return _hashable(event.get("agent_id")) if isinstance(event.get("message"), str) else None


def _llm_text(event: _Event) -> Text:
    return Text(_string(event.get("message")))


def _llm_put(_parts: Sequence[_Event], text: Text) -> dict[str, Any]:
    return {"message": text.said}


_PARTS: Final[dict[str, _Part]] = {
    "partial": _Part(_partial_facets, _partial_text, _partial_put),
    "tool_partial": _Part(_tool_facets, _tool_text, _tool_put),
    "message_streamed": _Part(_streamed_facets, _streamed_text, _streamed_put),
    "LLM_PARTIAL": _Part(_llm_facets, _llm_text, _llm_put),
}

PARTS: Final = frozenset(_PARTS)
"""The types of events that carry a piece of a text whose whole comes later."""


def _rule(event: _Event) -> _Part | None:
    type = event.get("type")
    return _PARTS.get(type) if isinstance(type, str) else None


def _request(event: _Event) -> Hashable:
    request = event.get("request_id")
    if request is None:
        request = event.get("run_id")
    if request is None:
        request = event.get("workflow_id")
    session = event.get("session_id")
    return (session, request) if isinstance(session, str) and isinstance(request, str) else _hashable(session, request)


# What repeats what.


def _whole(event: _Event) -> tuple[str, Text] | None:
    """If this event is a whole: the type of its parts, and all that it says."""
    match event.get("type"):
        case "final":
            messages = event.get("messages")
            texts = [
                _partial_text({"message": message})
                for message in (messages if isinstance(messages, list) else [])
                if isinstance(message, Mapping)
            ]
            return "partial", Text("".join(text.said for text in texts), "".join(text.thought for text in texts))
        case "message_received":
            data = _inner(event, "data")
            return "message_streamed", Text(text_of(data.get("content")), _string(data.get("thinking")))
        case "LLM_OUTPUT":
            return "LLM_PARTIAL", _llm_text(event)
    return None


WHOLES: Final = frozenset({"final", "message_received", "LLM_OUTPUT", "assistant_message", "tool_results"})
"""Types that decide, beside those of the parts themselves, which parts are repeated."""


def _redundant(events: Sequence[_Event], requests: Sequence[Hashable], texts: Sequence[Text | None]) -> Set[int]:
    """The indices of parts whose whole follows and says the same."""
    found: set[int] = set()
    replies: dict[Hashable, list[int]] = {}  # (type of part, request) -> the parts of the phase under way
    tools: dict[Hashable, list[int]] = {}  # (request, call) -> its parts
    for index, event in enumerate(events):
        type, request = event.get("type"), requests[index]
        if type in ("partial", "message_streamed", "LLM_PARTIAL"):
            if not (type == "message_streamed" and _inner(event, "data").get("role") == "tool"):
                replies.setdefault((type, request), []).append(index)
        elif (whole := _whole(event)) is not None:
            parts = replies.pop((whole[0], request), [])
            if parts and _repeats(whole[1], [text for part in parts if (text := texts[part]) is not None]):
                found.update(parts)
        elif type == "assistant_message":
            if event.get("phase") == "start":
                replies.pop(("partial", request), None)
        elif type == "tool_partial":
            call = (request, *_hashable(event.get("tool_call_id")))
            if event.get("phase") == "end" and "result" in _inner(event, "payload"):
                found.update(tools.pop(call, []))
            tools.setdefault(call, []).append(index)
        elif type == "tool_results":
            messages = event.get("messages")
            for message in messages if isinstance(messages, list) else []:
                if isinstance(message, Mapping):
                    found.update(tools.pop((request, *_hashable(_inner(message, "metadata").get("tool_call_id"))), []))
    return found


def _repeats(whole: Text, parts: Sequence[Text]) -> bool:
    """Whether the whole has the text of the parts; a page may begin in the middle of them. Space at the ends aside."""
    said, thought = "".join(part.said for part in parts), "".join(part.thought for part in parts)
    return said.strip() in whole.said and thought.strip() in whole.thought
