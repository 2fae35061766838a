"""What a provider's stream becomes: canonical drafts, line by line.

A translator is a state machine without I/O, clock or chance: lines in, drafts out. What each of them promises:

- The deltas of a reply, and their `thinking`, add up to the `content` and `thinking` of the `message_received` that
  ends it, whether or not the provider streamed it, whatever it repeats, and wherever its stream breaks off (`finish`
  ends what is open, marked `incomplete`). Where a provider's whole is not what it streamed, the whole counts, and what
  was streamed stays beside it as `streamed`.
- A tool call is told once, when its input is complete, after the text before it. Input that is no JSON stays text.
- Any line is taken, none raises. A line that is not JSON where JSON is due becomes an `error_occurred` that is not
  `fatal`: the run goes on. Lines that say nothing about the conversation (pings, progress, housekeeping) become
  nothing, and are counted by type in `ignored`. What an agent's command line prints under a type that is new goes
  through whole, as `claude.NAME` or `codex.NAME`: the only drafts that are not canonical.
- A character that a provider splits over two pieces (halves of a surrogate pair) comes whole, with the second.
- No draft holds more than about MAX_TEXT_CHARS of a reply, or of a tool's input or output: a longer reply goes on in
  the next (`continued`), a longer input or output is cut (`truncated`).
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec

from bridge_client.runners.turn import Json, Turn, mend
from protocol.events.agent_app import text_of
from protocol.events.session_manager import Draft
from protocol.events.truncation import cut_chars

MAX_LINE_BYTES: Final = 16 << 20
"""A longer line is not read (whoever feeds lines may give up on one earlier)."""

MAX_IGNORED_TYPES: Final = 100
MAX_UNKNOWN_BYTES: Final = 64 << 10
"""Of an event of a type that is new to us; a larger one is counted, and no more."""

MAX_REASON_CHARS: Final = 500
"""Of an error that has no text and is shown as JSON."""

_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_./-]{0,63}", re.ASCII)

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


class Translator(Protocol):
    """One stream of one provider."""

    ignored: Counter[str]

    def feed(self, line: str | bytes) -> list[Draft]:
        """The drafts of one line, with or without its line end. Never raises."""

    def finish(self) -> list[Draft]:
        """The stream is over, regularly or not: end what is open. Call it once."""


class LineTranslator:
    """A translator of lines that each hold one JSON object, or, of server-sent events, one `data:` field."""

    provider = "unknown"

    def __init__(self) -> None:
        self.ignored: Counter[str] = Counter()
        self.turn = Turn(self.provider)
        self._size = 0  # bytes of the line that is translated

    def feed(self, line: str | bytes) -> list[Draft]:
        text = line_data(line)
        if text is not None:
            self._size = len(text)
            value = parse(text)
            if isinstance(value, dict):
                self.translate(value)
            elif text.strip() == b"[DONE]":
                self.done()
            else:
                self.unreadable(text)
        return self.turn.drain()

    def finish(self) -> list[Draft]:
        self.done()
        self.turn.break_off()
        return self.turn.drain()

    def translate(self, event: Json) -> None:
        """Take one object."""
        raise NotImplementedError

    def done(self) -> None:
        """The stream says that it is over, or is."""

    def unreadable(self, text: bytes) -> None:
        """Take a line that is no JSON object."""
        shown = cut_chars(text.decode("utf-8", "replace"), 500)
        self.turn.error(
            "a line of the stream is no JSON object", fatal=False, kind="parse_error", details={"line": shown}
        )

    def unknown(self, event: Json, housekeeping: frozenset[str]) -> None:
        """An event that nothing is made of. Housekeeping is counted; what is new goes through as it is, as `data` under
        the provider's name and its own: `claude.new_type`, `claude.system/new_subtype`."""
        type, subtype = event.get("type"), event.get("subtype")
        name = f"{type}/{subtype}" if isinstance(subtype, str) else type
        fits = self._size <= MAX_UNKNOWN_BYTES
        named = isinstance(type, str) and isinstance(name, str) and _TYPE.fullmatch(name)
        if named and fits and housekeeping.isdisjoint((type, name)):
            self.turn.tell(f"{self.provider}.{name}", event)
        else:
            self.ignore(name)

    def ignore(self, type: Any) -> None:
        """Count a line that becomes nothing."""
        name = type if isinstance(type, str) else "?"
        self.ignored[name if name in self.ignored or len(self.ignored) < MAX_IGNORED_TYPES else "?"] += 1


def line_data(line: str | bytes) -> bytes | None:
    """What a line holds: itself, or its data if it is a field of a server-sent event; None if it holds nothing."""
    text = (line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line).strip()
    if not text or text.startswith((b"event:", b"id:", b"retry:", b":")):
        return None
    return (text.removeprefix(b"data:").strip() or None) if text.startswith(b"data:") else text


def parse(text: bytes) -> Any:
    """The JSON value of a text; None for what is none, is too long or too deep. Strings may hold lone surrogates."""
    if len(text) > MAX_LINE_BYTES:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        pass
    if not _SURROGATE.search(text):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def reason_of(error: Any) -> str:
    """What a provider's error says: its `message`, or its text, else itself as JSON; empty if it says nothing."""
    said = text_of(error.get("message")) if isinstance(error, dict) else ""
    said = said or text_of(error)
    return said if said or not error else cut_chars(msgspec.json.encode(mend(error)).decode(), MAX_REASON_CHARS)


def inner(event: Mapping[str, Any], *names: str) -> Json:
    """The object at a path of members, empty if there is none."""
    value: Any = event
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[Json]:
    """The objects in a list; none if it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
