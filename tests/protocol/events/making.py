"""Events for these tests: ids that count, a clock that stands, JSON values of any kind."""

import itertools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import strategies as st

from protocol.events.session_manager import Context, Event, new_event

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def counting() -> Callable[[], str]:
    """32 digits, each time the next."""
    numbers = itertools.count()
    return lambda: f"{next(numbers):032x}"


def context(**members: Any) -> Context:
    given = {"session_id": "s-1", "run_id": "r-1", "provider": "claude", **members}
    return Context(**{"new_id": counting(), "now": lambda: NOW, **given})


_ids = counting()


def event(type: str = "message_streamed", number: int | None = None, **members: Any) -> Event:
    """An event of session s-1 and run r-1."""
    given = {"session_id": "s-1", "run_id": "r-1", **members}
    made = new_event(type, given.pop("session_id"), new_id=_ids, now=lambda: NOW, **given)
    return msgspec.structs.replace(made, sequence_number=number)


text = st.text(max_size=12)
names = st.sampled_from(
    [
        *("type", "event", "status", "id", "data", "metadata", "delta", "content", "message", "text", "error", "usage"),
        *("tool_use", "tool_calls", "tool_call_id", "name", "input", "payload", "part", "phase", "role", "messages"),
        *("timestamp", "session_id", "request_id", "run_id", "workflow_id", "stderr", "exit_code", "provider"),
    ]
) | st.text(max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5),
    max_leaves=6,
)


def objects(types: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects, most of them with one of these types."""
    typed = st.fixed_dictionaries({"type": st.sampled_from(types)}).flatmap(
        lambda base: st.dictionaries(names, values, max_size=4).map(lambda rest: {**rest, **base})
    )
    return typed | st.dictionaries(names, values, max_size=5)


def texts_in(value: Any) -> list[str]:
    """Every string among the values of a JSON value."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [found for inner in value.values() for found in texts_in(inner)]
    if isinstance(value, list | tuple):
        return [found for inner in value for found in texts_in(inner)]
    return []
