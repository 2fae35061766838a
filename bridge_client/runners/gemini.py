"""Gemini: chunks of `generateContent` streams, and the events of its Interactions."""

import re
from typing import Any, Final

from bridge_client.runners.translation import LineTranslator, inner, items, reason_of
from bridge_client.runners.turn import Json
from protocol.events.agent_app import text_of

_STEP: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_VALUES: Final = ("stringValue", "numberValue", "boolValue", "nullValue")
_MAX_STEPS: Final = 64
_MAX_INDEX: Final = 10_000


class GeminiTranslator(LineTranslator):
    """The first candidate is the reply. Arguments that come in parts, each under a JSON path, are put together."""

    provider = "gemini"

    def __init__(self) -> None:
        super().__init__()
        self._usage: Json = {}
        self._calls = 0
        self._partial: Json | None = None  # the arguments of the call that is still growing

    def translate(self, event: Json) -> None:
        for name in ("modelVersion", "model"):
            if isinstance(event.get(name), str):
                self.turn.metadata["model"] = event[name]
        if "event_type" in event:
            self._interaction(event)
            return
        if event.get("error") is not None:
            self.turn.break_off()
            self.turn.error(reason_of(event.get("error")), details=inner(event, "error"))
        self._usage = inner(event, "usageMetadata") or self._usage
        for candidate in items(event.get("candidates"))[:1]:
            for part in items(inner(candidate, "content").get("parts")):
                self._part(part)
            if reason := candidate.get("finishReason"):
                self._stop(reason)

    def _part(self, part: Json) -> None:
        if "functionCall" in part:
            self._function(inner(part, "functionCall"))
        elif "text" in part:
            self.turn.think(part["text"]) if part.get("thought") is True else self.turn.say(part["text"])
        elif "functionResponse" in part:
            response = inner(part, "functionResponse")
            self.turn.result(response.get("id"), response.get("response"), name=response.get("name"))
        else:
            self.ignore(next(iter(part), None))

    def _function(self, call: Json) -> None:
        if isinstance(call.get("name"), str):
            self._end_call()
            self._calls += 1
            self._partial = {}
            self.turn.end()
            self.turn.call(self._calls, call.get("id"), call["name"], call.get("args"))
        if self._partial is not None:
            for piece in items(call.get("partialArgs")):
                value = next((piece[name] for name in _VALUES if name in piece), None)
                _put(self._partial, piece.get("jsonPath"), None if "nullValue" in piece else value)
        if call.get("willContinue") is not True and (self._partial is not None):
            self._end_call()

    def _end_call(self) -> None:
        if self._partial is not None:
            self.turn.called(self._calls, self._partial or None)
            self._partial = None

    def _stop(self, reason: Any) -> None:
        self._end_call()
        self.turn.end(**({"incomplete": True} if reason != "STOP" else {}))
        usage, self._usage = self._usage, {}
        thoughts = usage.get("thoughtsTokenCount")
        self.turn.usage(usage.get("promptTokenCount"), usage.get("candidatesTokenCount"), thinking_tokens=thoughts)
        self.turn.tell("turn_completed", {"stop_reason": reason})

    def _interaction(self, event: Json) -> None:
        step, delta, key = inner(event, "step"), inner(event, "delta"), ("step", repr(event.get("index")))
        match event["event_type"]:
            case "interaction.created":
                if isinstance(model := inner(event, "interaction").get("model"), str):
                    self.turn.metadata["model"] = model
            case "step.start" if step.get("type") == "function_call":
                self.turn.end()
                self.turn.call(key, step.get("id"), step.get("name"), step.get("arguments"))
            case "step.delta":
                kind = delta.get("type")
                if kind == "arguments_delta":
                    self.turn.arguments(key, delta.get("arguments"))
                elif kind == "text":
                    self.turn.say(delta.get("text"))
                elif isinstance(kind, str) and kind.startswith("thought"):
                    self.turn.think(text_of(delta.get("content")) or delta.get("text"))
            case "step.stop":
                self.turn.called(key)
            case "interaction.completed":
                interaction = inner(event, "interaction")
                usage = inner(interaction, "usage")
                self.turn.end()
                self.turn.usage(usage.get("total_input_tokens"), usage.get("total_output_tokens"))
                self.turn.tell("turn_completed", {"stop_reason": interaction.get("status")})
            case "error":
                self.turn.break_off()
                self.turn.error(reason_of(event.get("error")), details=inner(event, "error"))
            case type:
                self.ignore(type)

    def done(self) -> None:
        if self._partial is not None:
            self.turn.called(self._calls, self._partial, incomplete=True)
            self._partial = None


def _put(root: Json, path: Any, value: Any) -> None:
    """Set the value at a JSON path (`$.a.b[0].c`), or add to the text that is there. A path that is none is passed."""
    steps = [name or int(index) for name, index in _STEP.findall(path)] if isinstance(path, str) else []
    if not 0 < len(steps) <= _MAX_STEPS:
        return
    place: Any = root
    for at, step in enumerate(steps):
        last = at == len(steps) - 1
        fresh: Any = value if last else [] if isinstance(steps[at + 1], int) else {}
        if isinstance(step, int):
            if not isinstance(place, list) or step > min(len(place), _MAX_INDEX):
                return
            if step == len(place):
                place.append(fresh)
                place = place[step]
                continue
        elif not isinstance(place, dict):
            return
        elif step not in place:
            place[step] = fresh
            place = fresh
            continue
        if last:
            old = place[step]
            place[step] = old + value if isinstance(old, str) and isinstance(value, str) else value
        else:
            place = place[step]
