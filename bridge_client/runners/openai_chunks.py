"""Streaming chunks of chat completions, as OpenAI and those who are compatible send them; legacy completions too."""

from typing import Any

from bridge_client.runners.redaction import Redaction
from bridge_client.runners.translation import LineTranslator, inner, items, reason_of
from bridge_client.runners.turn import Json
from protocol.events.agent_app import text_of


class OpenAIChunksTranslator(LineTranslator):
    """The first choice is the reply. Other choices (`n` above 1) are ignored."""

    provider = "openai"

    def __init__(self, redaction: Redaction | None = None) -> None:
        """`redaction` is done to what comes in: what is cut later shows no part of a secret."""
        super().__init__()
        self.heard = False
        """Whether anything was a chunk, or an error."""
        self.unread = False
        """Whether there was a line that is no JSON object."""
        self._redaction = self.turn.redaction = redaction or Redaction("")
        self._usage: Json = {}
        self._ended = False
        self._calls: dict[str, tuple[Any, int]] = {}  # index -> the call's id, and which of that index it is

    @property
    def ended(self) -> bool:
        """Whether the provider has said why it ends. A stream that is over before was cut."""
        return self._ended

    def unreadable(self, text: bytes) -> None:
        self.unread = True
        super().unreadable(self._redaction.error(text.decode("utf-8", "replace")).encode())

    def translate(self, event: Json) -> None:
        self.heard = True
        if event.get("error") is not None:
            self.turn.break_off()
            event = self._redaction.error(event)
            self.turn.error(reason_of(event["error"]), details=inner(event, "error"))
            return
        event = self._redaction.said(event)
        if isinstance(event.get("model"), str):
            self.turn.metadata["model"] = event["model"]
        usage = event.get("usage") or inner(event, "x_groq").get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = items(event.get("choices"))
        for choice in choices:
            if choice.get("index", 0) == 0:
                self._choice(choice)
            else:
                self.ignore("choice")
        if self._ended and self._usage:
            self._tell_usage()
        if not choices and not usage:
            self.ignore(event.get("object"))

    def _choice(self, choice: Json) -> None:
        # A whole `message` stands where an endpoint answers without streaming.
        delta = inner(choice, "delta") or inner(choice, "message")
        for name in ("reasoning_content", "reasoning"):
            if isinstance(delta.get(name), str):
                self.turn.think(delta[name])
                break
        content = delta.get("content")
        if isinstance(content, list):
            for part in items(content):
                if part.get("type") == "thinking":
                    self.turn.think(text_of(part.get("thinking")))
                else:
                    self.turn.say(text_of(part))
        else:
            self.turn.say(content)
        self.turn.say(choice.get("text"))
        if isinstance(delta.get("refusal"), str) and delta["refusal"]:
            self.turn.say(delta["refusal"])
            self.turn.note(refusal=True)
        for place, call in enumerate(items(delta.get("tool_calls"))):
            self._call(repr(call.get("index", place)), call.get("id"), inner(call, "function"))
        if legacy := inner(delta, "function_call"):
            self._call("function_call", None, legacy)
        reason = choice.get("finish_reason")
        if reason:
            self._end(reason)

    def _call(self, index: str, call_id: Any, function: Json) -> None:
        known, count = self._calls.get(index, (None, 0))
        if call_id and known and call_id != known:  # the next call under the index of the one before
            self.turn.called((index, count))
            count += 1
        self._calls[index] = (call_id or known, count)
        self.turn.call((index, count), call_id, function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            self.turn.called((index, count), arguments)
        else:
            self.turn.arguments((index, count), arguments)

    def _end(self, reason: Any) -> None:
        if reason in ("length", "content_filter"):
            self.turn.break_off()
        self.turn.end()
        for index, (_, count) in self._calls.items():
            self.turn.called((index, count))
        self._calls = {}
        self._ended = True
        if reason not in ("tool_calls", "function_call"):
            self.turn.tell("turn_completed", {"stop_reason": reason})

    def done(self) -> None:
        if self._usage:
            self.turn.break_off()
            self._tell_usage()

    def _tell_usage(self) -> None:
        usage, self._usage = self._usage, {}
        counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        self.turn.usage(*counts, total_tokens=usage.get("total_tokens"))
