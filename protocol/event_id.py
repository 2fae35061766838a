"""Event ids and cursors.

An event id is a decimal string, `^(0|[1-9][0-9]{0,15})$` and at most 2^53 - 1 so that JavaScript can hold it
(spec decision 2.12). It is compared as a number. Inside our code an id is an `int`; on the wire and in files a string.
"""

import re
from typing import NamedTuple

from protocol.errors import BadEventId

MAX_EVENT_ID = 2**53 - 1

_GRAMMAR = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)


class Cursor(NamedTuple):
    """How far somebody has read: a place in one life (epoch) of one store."""

    epoch: str
    event_id: int


def parse(text: object) -> int:
    """Read an event id as it stands in an event. The grammar is checked before any conversion.

    Raises BadEventId for anything but a canonical decimal string up to MAX_EVENT_ID.
    """
    if type(text) is str and _GRAMMAR.fullmatch(text):
        value = int(text)
        if value <= MAX_EVENT_ID:
            return value
    raise BadEventId(f"not an event id: {_shown(text)}")


def parse_since(value: object) -> int:
    """Read a `since_id` that a client sent back. Whole JSON numbers are taken too: Kotlin's clients echo 7 as 7.0."""
    if type(value) is int or (type(value) is float and value.is_integer()):
        number = int(value)
        if 0 <= number <= MAX_EVENT_ID:
            return number
    return parse(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
