"""What a person is to see of a home's events: replies that grow, tools folded to a line, notices. No I/O, no clock.

Events of any vocabulary are read as canonical ones; what is finished is the same whether it came in pieces, in merged
pieces, or only as a whole (rows A220 to A226): a block is finished by the event that ends it, and says what that says.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from bridge_client.app_client import CaughtUp, Event, Gap, Item, ServerStatus
from protocol.events import agent_app, session_manager
from protocol.events.agent_app import shown_text, text_of
from protocol.events.normalize import read_time
from protocol.events.readings import read
from protocol.events.session_manager import Draft
from protocol.events.truncation import boundary

_GAPS: Final = {
    "expired": "the hub no longer has all of what followed {place}",
    "epoch_changed": "the event store at home was replaced, so what followed {place} may be lost",
    "ahead": "the event store at home went back to a time before {place}: it was restored from a copy",
    "hub_reset": "the hub was restarted and the home is not back yet; what followed {place} comes when it is",
}

MAX_OPEN: Final = 100
"""Replies and tool calls that grow at the same time; the oldest is given up."""

MAX_TEXT_CHARS: Final = 64 * 1024
"""Of one block; of a longer one the start is kept."""

Kind = Literal["reply", "user", "tool", "question", "notice", "line", "warning", "error"]

_QUIET: Final = frozenset({"assistant_message", "checkpoint", "session_checkpoint", "turn_completed"})
_ANSWERED: Final = {True: "it waits: allow or deny it in an app", False: "it waits for an answer where the agent runs"}
_NOTICE: Final = ("application_notification_", "session_notification_")


@dataclass(slots=True)
class Block:
    """One thing to see. All texts are as strangers wrote them."""

    kind: Kind
    title: str
    text: str = ""
    session_id: str | None = None
    failed: bool = False
    broken_off: bool = False
    """Ended, but not by what should have ended it."""
    pieces: list[str] = field(default_factory=list, repr=False, compare=False)
    size: int = field(default=0, repr=False, compare=False)

    def grow(self, piece: str) -> None:
        """Add to its text, within the limit."""
        room = MAX_TEXT_CHARS - self.size
        if room > 0 and piece:
            self.pieces.append(piece[:room])
            self.size += len(self.pieces[-1])

    @property
    def grown(self) -> str:
        """What came in pieces."""
        return "".join(self.pieces)


@dataclass(slots=True)
class Standing:
    """How things stand, for a status line."""

    home: bool | None = None
    """Whether the home is there; None: not known yet."""
    live: bool = False
    last_id: int | None = None
    last_time: float | None = None
    """When the newest event that says so was made, in seconds since 1970."""


class Transcript:
    """Takes items in their order; gives finished blocks, and shows those that grow."""

    def __init__(self) -> None:
        self.standing = Standing()
        self._open: OrderedDict[tuple[str, str, str], Block] = OrderedDict()

    @property
    def growing(self) -> list[Block]:
        """The blocks that are not finished, oldest first."""
        return list(self._open.values())

    def take(self, item: Item) -> list[Block]:
        """What this item finishes, in the order to be shown. Never raises."""
        match item:
            case Event():
                self.standing.last_id = item.event_id
                return list(self._event(item))
            case Gap():
                return [*self._give_up(), Block("warning", gap_words(item))]
            case ServerStatus(online, since, _):
                self.standing.home = online
                return [Block("line", f"home {'online' if online else 'offline'}{f' since {since}' if since else ''}")]
            case CaughtUp():
                self.standing.live = True
        return []

    def _event(self, event: Event) -> Iterator[Block]:
        value = _value(event)
        at = read_time(value.get("timestamp"))
        self.standing.last_time = at.timestamp() if at is not None else self.standing.last_time
        if event.type.startswith(_NOTICE):
            yield _notice(event, value)
            return
        request = next((value[name] for name in _REQUESTS if isinstance(value.get(name), str)), "")
        whose = (event.session_id or "", request)
        for draft in read(value) if value else [Draft(event.type)]:
            for block in self._draft(draft, whose, event.type, value):
                block.session_id = event.session_id
                yield block

    def _draft(self, draft: Draft, whose: tuple[str, str], type: str, value: Mapping[str, Any]) -> Iterator[Block]:
        data = draft.data
        match draft.type:
            case "message_streamed" if data.get("role") == "tool":
                self._tool(whose, data).grow(text_of(data.get("delta")))
            case "message_streamed":
                yield from self._begin((*whose, ""), "reply", "assistant")
                self._open[*whose, ""].grow(text_of(data.get("delta")))
            case "message_received":
                self._open.pop((*whose, ""), None)
                text = shown_text({"content": data.get("content"), "metadata": draft.metadata})
                if text:
                    role = data.get("role")
                    title = role if isinstance(role, str) else "assistant"
                    yield Block("reply", title, _cut(text), broken_off=data.get("incomplete") is True)
                elif not data.get("thinking"):
                    yield _line(type, value)
            case "message_sent":
                yield Block("user", str(data.get("role", "user")), _cut(text_of(data.get("content"))))
            case "tool_call_started":
                self._tool(whose, data)
            case "tool_approval_requested":
                yield Block(
                    "question", f"asks to use {_called(data)}", _ANSWERED[isinstance(data.get("approval_id"), str)]
                )
            case "tool_approval_granted":
                yield Block("line", f"allowed: {_called(data)}")
            case "tool_approval_denied":
                yield Block("warning", f"not allowed: {_called(data)}")
            case "tool_call_completed" | "tool_call_failed":
                yield self._result(draft, whose)
            case "tool_partial":  # its beginning; the end says what the results say
                if data.get("phase") == "start":
                    self._tool(whose, data)
            case "run_started":
                yield Block("line", "request started" + (f" {whose[1]}" if whose[1] else ""))
            case "run_completed":
                yield from self._give_up(whose)
                yield Block("line", "request completed")
            case "run_cancelled":
                yield from self._give_up(whose)
                yield Block("warning", "request cancelled")
            case "error_occurred" if "provider_type" in data:  # a name nobody knows, which says nothing that is known
                yield _line(type, value)
            case "error_occurred" | "run_failed" | "run_timeout" | "session_failed":
                minor = data.get("fatal") is False
                if not minor:
                    yield from self._give_up(whose)
                said = _cut(text_of(data.get("error_message"))) or draft.type
                yield Block("warning" if minor else "error", said, _stderr(data))
            case "token_usage_updated":
                counts = [f"{data[name]} {word}" for name, word in _COUNTS if name in data]
                yield Block("line", f"tokens: {', '.join(counts)}")
            case quiet if quiet in _QUIET:
                pass
            case _:
                yield _line(type, value)

    def _begin(self, key: tuple[str, str, str], kind: Kind, title: str) -> Iterator[Block]:
        if key not in self._open:
            while len(self._open) >= MAX_OPEN:
                yield _broken_off(self._open.popitem(last=False)[1])
            self._open[key] = Block(kind, title, session_id=key[0] or None)

    def _tool(self, whose: tuple[str, str], data: Mapping[str, Any]) -> Block:
        key = (*whose, f"tool {data.get('tool_call_id', '')}")
        if key not in self._open and len(self._open) >= MAX_OPEN:
            self._open.popitem(last=False)
        block = self._open.setdefault(key, Block("tool", "tool", session_id=whose[0] or None))
        if name := data.get("tool_name"):
            block.title = str(name)
        if "tool_input" in data:
            block.title = _called(data)
        return block

    def _result(self, draft: Draft, whose: tuple[str, str]) -> Block:
        data = draft.data
        known = self._open.pop((*whose, f"tool {data.get('tool_call_id', '')}"), None)
        title = known.title if known is not None else str(data.get("tool_name") or "tool")
        text = shown_text({"content": data.get("tool_output"), "metadata": draft.metadata})
        return Block("tool", title, _cut(text), failed=draft.type == "tool_call_failed")

    def _give_up(self, whose: tuple[str, str] | None = None) -> Iterator[Block]:
        """What still grew, of one request or of all, has come to its end without one."""
        for key in [key for key in self._open if whose is None or key[:2] == whose]:
            yield _broken_off(self._open.pop(key))


_REQUESTS: Final = ("request_id", "run_id", "workflow_id")
_COUNTS: Final = (("input_tokens", "in"), ("output_tokens", "out"))
_SAID: Final = (
    *("text", "delta", "content", "part", "message", "body", "title", "summary", "error", "reason"),
    *("tool", "tool_name", "name"),
)
_INSIDE: Final = (
    *("display", "data", "payload", "message", "messages", "result", "tool_calls", "function", "delta", "content"),
    *("notification", "error"),
)
_DEEPEST: Final = 6


def said(value: Any, depth: int = 0) -> Iterator[str]:
    """The first texts found where events keep what they say."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < _DEEPEST:
        for part in value[:8]:
            yield from said(part, depth + 1)
    elif isinstance(value, Mapping) and depth < _DEEPEST:
        texts = [value[key] for key in _SAID if isinstance(value.get(key), str) and value[key]]
        if texts:
            yield from texts[:2]
        else:
            for key in _INSIDE:
                found = list(said(value.get(key), depth + 1))
                if found:
                    yield from found
                    return


def _line(type: str, value: Mapping[str, Any]) -> Block:
    """An event without a form of its own; a type that is known is said in words."""
    text = " ".join(said(value))
    words = type.replace("_", " ") if type in agent_app.VOCABULARY or type in session_manager.TYPES else type
    return Block("line", f"{words}{f': {text}' if text else ''}"[:2_000])


def _value(event: Event) -> Mapping[str, Any]:
    try:
        return event.value
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return {}


def _notice(event: Event, value: Mapping[str, Any]) -> Block:
    places: list[Mapping[str, Any]] = []
    for name in ("display", "notification"):
        found = value.get(name)
        if isinstance(found, Mapping):
            places.append(found)

    def first(*names: str) -> str:
        return next((text for place in places for name in names if (text := text_of(place.get(name)))), "")

    record = value.get("notification")
    status = record.get("status") if isinstance(record, Mapping) else None
    # By the status too: an application's has no event of its own for being resolved.
    action = status if status in ("dismissed", "resolved", "expired") else event.type.rpartition("_")[2]
    title = first("title", "summary", "label") or "notification"
    shown = title if action == "created" else f"{title} ({action})"
    return Block("notice", shown, _cut(first("body", "message", "text", "content")), event.session_id)


def _broken_off(block: Block) -> Block:
    block.text, block.broken_off = block.grown, True
    return block


def _called(data: Mapping[str, Any]) -> str:
    given = data.get("tool_input")
    shown = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    name = str(data.get("tool_name") or "tool")
    return name if shown in ("{}", "null") else f"{name} {_cut(shown, 500)}"


def _stderr(data: Mapping[str, Any]) -> str:
    error = data.get("provider_error")
    stderr = error.get("stderr") if isinstance(error, Mapping) else None
    return _cut(stderr) if isinstance(stderr, str) else ""


def _cut(text: str, limit: int = MAX_TEXT_CHARS) -> str:
    return text if len(text) <= limit else text[: boundary(text, limit)] + "…"


def gap_words(gap: Gap) -> str:
    """What is missing and why, for a person: `gap: REASON: …`, so that a program can find it too."""
    place = "an unknown place" if gap.from_id is None else str(gap.from_id)
    words = _GAPS.get(gap.reason, "events are missing behind {place}").format(place=place)
    held = "" if gap.resume_after is None else f"; what it holds begins behind {gap.resume_after}"
    return f"gap: {gap.reason}: {words}{held}"
