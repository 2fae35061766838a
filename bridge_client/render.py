"""One event as one line of a terminal: time, type, session, and the start of what it says.

Events are written by others. Nothing in a line can drive the terminal: every control character, every character that
changes the direction of writing and every invisible one is shown as its code.
"""

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from bridge_client.app_client import CaughtUp, Event, Gap, Item, ServerStatus

WIDTH: Final = 120
"""Longest line by default, in characters."""

_SAID = (
    "text",
    "delta",
    "content",
    "part",
    "message",
    "body",
    "title",
    "summary",
    "error",
    "reason",
    "tool",
    "tool_name",
    "name",
)
_INSIDE = (
    "display",
    "data",
    "payload",
    "message",
    "messages",
    "result",
    "tool_calls",
    "function",
    "delta",
    "content",
    "notification",
    "error",
)
_DEEPEST = 4

# C0, DEL and C1; the marks, embeddings, overrides and isolates of the bidirectional algorithm; line and paragraph
# separators; invisible characters, tags and variation selectors of the supplement; half surrogates; what is no
# character. The joiners and variation selectors that build emoji stay.
_DANGEROUS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufdd0-\ufdef\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
# More marks than any script stacks on one letter paint over the lines above and below.
_MARKS = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED: Final = re.compile(f"({_MARKS}{{4}}){_MARKS}+")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}


def harmless(text: str) -> str:
    """`text` with every character that could drive a terminal or hide shown as `\\n` or `\\u{202e}`."""
    return _STACKED.sub(r"\1", _DANGEROUS.sub(_shown, text))


def render(item: Item, at: float, width: int = WIDTH) -> str:
    """One line without its newline, at most `width` characters. `at` (seconds since 1970) is shown as local time."""
    match item:
        case Event(_, kind, session_id, _):
            said = " ".join(_said(_value(item), 0))[: 4 * width]  # more can't be shown: don't clean it
            line = f"{kind[:width]:<22} {(session_id or '-')[:width]:<12} {said}"
        case Gap(reason, from_id, resume_after):
            line = f"-- gap: {reason}; missing behind {_or(from_id)}, held behind {_or(resume_after)}"
        case ServerStatus(online, since, _):
            line = f"-- home {'online' if online else 'offline'}{f' since {since}' if since else ''}"
        case CaughtUp(to_id):
            line = "-- live from here on" if to_id is None else f"-- caught up to {to_id}, live from here on"
    line = harmless(f"{time.strftime('%H:%M:%S', time.localtime(at))} {line}").rstrip()
    return line if len(line) <= width else line[: width - 1] + "…"


def _shown(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or f"\\u{{{ord(match[0]):x}}}"


def _or(event_id: int | None) -> str:
    return "an unknown place" if event_id is None else str(event_id)


def _value(event: Event) -> Any:
    try:
        return event.value
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _said(value: Any, depth: int) -> Iterator[str]:
    """The first texts found where events keep what they say."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < _DEEPEST:
        for part in value[:8]:
            yield from _said(part, depth + 1)
    elif isinstance(value, Mapping) and depth < _DEEPEST:
        texts = [value[key] for key in _SAID if isinstance(value.get(key), str) and value[key]]
        if texts:
            yield from texts[:2]
        else:
            for key in _INSIDE:
                found = list(_said(value.get(key), depth + 1))
                if found:
                    yield from found
                    return
