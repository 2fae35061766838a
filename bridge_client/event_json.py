"""A mapping of Python values as the JSON of an event: nothing bent, and what is wrong with it said with its place."""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from protocol.codec import MAX_EVENT_DEPTH
from protocol.errors import InvalidEvent

_SCALARS: Final = frozenset({str, int, bool, type(None)})


def repair_text(text: str) -> str:
    """Replace lone surrogates by U+FFFD and join the halves of a pair; other text is returned as it is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode(event: Mapping[str, Any]) -> bytes:
    """The JSON of a mapping, as it is stored. Raises InvalidEvent for a value that JSON does not have."""
    if not isinstance(event, Mapping):
        raise InvalidEvent(f"$: an event is a mapping or the bytes of a JSON object, not {type(event).__name__}")
    members = dict(event)
    _check_values(members)
    try:
        text = json.dumps(members, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except ValueError as error:  # an integer with more digits than Python writes
        raise InvalidEvent(f"$: {error}") from None
    return repair_text(text).encode()


_Trail = tuple["_Trail", object] | None  # the keys from the root to a container, last one outermost


def _check_values(event: dict[Any, Any]) -> None:
    """Refuse what `json.dumps` would bend (keys), write against the standard (NaN) or fail on without saying where."""
    pending: list[tuple[Any, _Trail, int]] = [(event, None, 1)]
    while pending:
        container, trail, depth = pending.pop()
        if depth > MAX_EVENT_DEPTH:
            raise InvalidEvent(f"{_path(trail)}: nested deeper than {MAX_EVENT_DEPTH}")
        if isinstance(container, dict):
            for key in container:
                if not isinstance(key, str):
                    raise InvalidEvent(f"{_path(trail)}: the key {_shown(key)} is not a string")
            items: Any = container.items()
        else:
            items = enumerate(container)
        for key, value in items:
            if type(value) in _SCALARS:
                continue
            if isinstance(value, (dict, list, tuple)):
                pending.append((value, (trail, key), depth + 1))
            elif isinstance(value, float):
                if not isfinite(value):
                    raise InvalidEvent(f"{_path((trail, key))}: {value} is not a JSON number")
            elif not isinstance(value, (str, int)):
                raise InvalidEvent(f"{_path((trail, key))}: {type(value).__name__} is not a JSON value")


def _path(trail: _Trail) -> str:
    steps: list[str] = []
    while trail is not None:
        trail, key = trail
        steps.append(f"[{key}]" if isinstance(key, int) else f".{key}"[:40])
    path = "$" + "".join(reversed(steps))
    return path if len(path) <= 200 else f"{path[:90]}…{path[-90:]}"


def _shown(value: object) -> str:
    return repr(value)[:40]
