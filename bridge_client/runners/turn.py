"""One run's voice: puts together what a provider says in pieces, and makes the drafts of it."""

import re
from typing import Any, Final

import msgspec

from bridge_client.runners.redaction import Redaction
from protocol.events.agent_app import text_of
from protocol.events.provider_error import failure
from protocol.events.readings import parse_arguments
from protocol.events.session_manager import Draft
from protocol.events.truncation import boundary, cut_chars

Json = dict[str, Any]

MAX_TEXT_CHARS: Final = 128 * 1024
"""A character is at most six bytes of JSON: an event stays below the store's limit of 1 MiB."""

MAX_OPEN_CALLS: Final = 1000
"""Tool calls that are remembered by their id at the same time; the oldest is forgotten."""

_HALF: Final = re.compile("[\ud800-\udfff]")
_WHOLE: Final = {"delta": "whole", "thinking": "whole_thinking"}


class Turn:
    """Puts together what a provider says: one reply at a time, tool calls by a key of the provider's choice."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.metadata: Json = {}
        """Goes with every draft made while it stands, such as the model's name."""
        self.redaction: Redaction | None = None
        """What is taken out of the reply, also where it comes in pieces."""
        self._out: list[Draft] = []
        self._said: list[str] = []
        self._thought: list[str] = []
        self._halves: dict[str, str] = {}  # the first half of a character, by the member whose text it ends
        self._held: dict[str, str] = {}  # what may be the beginning of a secret, likewise
        self._before = {"delta": 0, "thinking": 0}  # characters of this reply that went out as `continued`
        self._length = 0
        self._extra: Json = {}
        self._calls: dict[Any, _Call] = {}
        self._names: dict[str, str] = {}

    def drain(self) -> list[Draft]:
        """The drafts made since the last call."""
        out, self._out = self._out, []
        return out

    def tell(self, type: str, data: Json | None = None) -> None:
        """Any other draft, at its place between those of the reply."""
        self._out.append(Draft(type, mend(data or {}), dict(self.metadata)))

    def pass_on(self, draft: Draft) -> None:
        """A draft that is made already."""
        self._out.append(draft)

    def take_over(self, other: "Turn") -> None:
        """All that another turn has made, as part of this one."""
        for draft in other.drain():
            self._out.append(Draft(draft.type, draft.data, {**self.metadata, **draft.metadata}))

    # The reply.

    @property
    def replying(self) -> bool:
        """Whether something was said that no message_received has ended."""
        return self._length > 0

    @property
    def said(self) -> str:
        """What the reply under way has said so far."""
        return "".join(self._said)

    @property
    def thought(self) -> str:
        """What the reply under way has thought aloud so far."""
        return "".join(self._thought)

    def say(self, text: Any) -> None:
        """A piece of the reply's text; anything but a string, or an empty one, is nothing."""
        self._stream(text, "delta")

    def think(self, text: Any) -> None:
        """A piece of what the model thinks aloud."""
        self._stream(text, "thinking")

    def _stream(self, text: Any, member: str) -> None:
        if not isinstance(text, str) or not text:
            return
        text = self._halves.pop(member, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._halves[member], text = text[-1], text[:-1]
        text = mend(text)
        if self.redaction is not None:
            text, self._held[member] = self.redaction.streamed(self._held.pop(member, "") + text)
        self._add(text, member)

    def _add(self, text: str, member: str) -> None:
        pieces = self._said if member == "delta" else self._thought
        while text:
            room = MAX_TEXT_CHARS - self._length
            piece = text if len(text) <= room else text[: boundary(text, room)]
            if not piece:
                self._end({"continued": True})
                continue
            text = text[len(piece) :]
            pieces.append(piece)
            self._length += len(piece)
            self.tell("message_streamed", {"delta": "", member: piece})

    def note(self, **extra: Any) -> None:
        """Members of the message_received that will end the reply."""
        self._extra |= extra

    def whole(self, content: str | None = None, thinking: str | None = None) -> None:
        """The provider repeats the reply so far in full: what was not streamed of it is, now."""
        for member, text, add in (("thinking", thinking, self.think), ("delta", content, self.say)):
            if not isinstance(text, str):
                continue
            text, streamed = mend(text)[self._before[member] :], self.thought if member == "thinking" else self.said
            if text.startswith(streamed):
                self._halves.pop(member, None)
                add(text[len(streamed) :])
            elif len(text) <= MAX_TEXT_CHARS:
                self.note(**{_WHOLE[member]: text})
            else:  # too long to stand beside what was streamed: a reply of its own
                self.end(incomplete=True)
                add(text)

    def pause(self) -> None:
        """End what was said so far as `continued`: somebody else speaks before the reply goes on."""
        self._end({"continued": True})

    def end(self, **extra: Any) -> None:
        """End the reply, if there is one."""
        halves, self._halves = self._halves, {}
        for member in halves:
            self._stream("\ufffd", member)
        held, self._held = self._held, {}
        for member, text in held.items():
            self._add(text, member)
        self._end(extra)
        self._before = {"delta": 0, "thinking": 0}

    def _end(self, extra: Json) -> None:
        if self._length:
            data: Json = {"role": "assistant", "content": self.said, **self._extra, **extra}
            if self._thought:
                data["thinking"] = self.thought
            for member, whole in (("content", _WHOLE["delta"]), ("thinking", _WHOLE["thinking"])):
                if whole in data:
                    data["streamed" if member == "content" else "streamed_thinking"] = data.get(member, "")
                    data[member] = data.pop(whole)
            self.tell("message_received", data)
        self._before["delta"] += len(self.said)
        self._before["thinking"] += len(self.thought)
        self._said.clear()
        self._thought.clear()
        self._extra, self._length = {}, 0

    # Tool calls.

    def call(self, key: Any, call_id: Any = None, name: Any = None, given: Any = None, **extra: Any) -> None:
        """A tool call begins, or more is known of one that has begun. `given` is its input if no pieces follow."""
        key = _hashable(key)
        call = self._calls.get(key)
        if call is None:
            while len(self._calls) >= MAX_OPEN_CALLS:
                self.called(next(iter(self._calls)), incomplete=True)
            call = self._calls[key] = _Call()
        call.call_id = _text(call_id) or call.call_id
        call.name = _text(name) or call.name
        call.given = given or call.given
        call.extra |= extra

    def arguments(self, key: Any, piece: Any) -> None:
        """A piece of the JSON text of a call's input."""
        if isinstance(piece, str) and piece:
            self.call(key)
            self._calls[_hashable(key)].pieces.append(piece)

    def reset_arguments(self, key: Any, text: str) -> None:
        """The whole JSON text of a call's input, whatever came of it in pieces."""
        self.call(key)
        self._calls[_hashable(key)].pieces[:] = [text]

    def called(self, key: Any, input: Any = None, **extra: Any) -> None:
        """The call's input is complete: `input`, else what its pieces say. Nothing for a call that is not open."""
        call = self._calls.pop(_hashable(key), None)
        if call is None:
            return
        self.end()
        pieces = mend("".join(call.pieces))
        tool_input = parse_arguments(pieces) if pieces else input if input is not None else call.given or {}
        if call.call_id and call.name:
            self.remember(call.call_id, call.name)
        tool_input, cut = _bounded(tool_input)
        if cut:
            extra["truncated"] = True
        named = {"tool_call_id": call.call_id, "tool_name": call.name, "tool_input": tool_input}
        self.tell("tool_call_started", {**call.extra, **extra, **named})

    def tool(self, call_id: Any, name: Any, input: Any, **extra: Any) -> None:
        """A call that is known as a whole."""
        self.call(("whole", call_id), call_id, name, **extra)
        self.called(("whole", call_id), {} if input is None else input)

    def result(self, call_id: Any, output: Any, *, failed: bool = False, name: Any = None, **extra: Any) -> None:
        """What a tool gave back."""
        self.end()
        call_id = _text(call_id)
        data: Json = {"tool_call_id": call_id, "tool_name": _text(name) or self.name_of(call_id), **extra}
        output = mend(output)
        data["tool_output"], cut = _bounded(output)
        if cut:
            data["truncated"] = True
        if failed:
            data.setdefault("error_message", cut_chars(text_of(output), 500) or "the tool failed")
        self.tell("tool_call_failed" if failed else "tool_call_completed", data)

    def tool_output(self, call_id: Any, piece: Any) -> None:
        """A piece of a tool's output while it runs."""
        if isinstance(piece, str) and piece:
            data = {"role": "tool", "tool_call_id": _text(call_id), "delta": cut_chars(piece, MAX_TEXT_CHARS)}
            self.tell("message_streamed", data)

    def remember(self, call_id: Any, name: Any) -> None:
        """The name of the tool that is called by this id, for its result."""
        while len(self._names) >= MAX_OPEN_CALLS:
            del self._names[next(iter(self._names))]
        self._names[_text(call_id)] = _text(name)

    def name_of(self, call_id: Any) -> str:
        """That name, once; empty if it is not known."""
        return self._names.pop(_text(call_id), "")

    # How it ends.

    def usage(self, input_tokens: Any, output_tokens: Any, **more: Any) -> None:
        """Token counts; nothing where the provider gave none."""
        counts = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        known = {name: count for name, count in counts.items() if type(count) is int}
        if known:
            self.tell("token_usage_updated", {**known, **{k: v for k, v in more.items() if v is not None}})

    def error(self, message: Any, *, fatal: bool = True, **report: Any) -> None:
        """The provider reports an error."""
        data = failure(self.provider, _text(message) or "an error without a message", **report)
        self.tell("error_occurred", data if fatal else {**data, "fatal": False})

    def failed(self, message: Any, **report: Any) -> None:
        """The run ends because of an error."""
        self.break_off()
        self.tell("run_failed", failure(self.provider, _text(message) or "the run failed", **report))

    def break_off(self) -> None:
        """End what is open although it is not complete."""
        self.end(incomplete=True)
        for key in list(self._calls):
            self.called(key, incomplete=True)


class _Call:
    def __init__(self) -> None:
        self.call_id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.given: Any = None
        self.extra: Json = {}


def mend(value: Any) -> Any:
    """The value with halves of characters joined, and U+FFFD for each that has lost its other half."""
    if isinstance(value, str):
        if value.isascii() or not _HALF.search(value):
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {mend(name): mend(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [mend(item) for item in value]
    return value


def _hashable(key: Any) -> Any:
    return tuple(_hashable(part) for part in key) if isinstance(key, tuple) else key if _is_key(key) else repr(key)


def _is_key(key: Any) -> bool:
    return isinstance(key, str | int | None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _bounded(output: Any) -> tuple[Any, bool]:
    """A tool's input or output within the limit: text is cut, another value becomes cut text."""
    if isinstance(output, str):
        text = output
    else:
        text = msgspec.json.encode(output).decode()
        if len(text) <= MAX_TEXT_CHARS:
            return output, False
        text = text_of(output) or text
    return cut_chars(text, MAX_TEXT_CHARS), len(text) > MAX_TEXT_CHARS
