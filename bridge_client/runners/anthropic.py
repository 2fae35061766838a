"""Anthropic Messages events (as SSE or as lines): content blocks that begin, grow and end."""

from typing import Any, Final

from bridge_client.runners.translation import LineTranslator, inner, reason_of
from bridge_client.runners.turn import Json
from protocol.events.agent_app import text_of

_MAX_CITATIONS: Final = 100
_CALLS: Final = ("tool_use", "server_tool_use", "mcp_tool_use")


class AnthropicTranslator(LineTranslator):
    """Messages one after the other; one that breaks off where the next begins is ended as incomplete."""

    provider = "claude"

    def __init__(self) -> None:
        super().__init__()
        self._usage: Json = {}
        self._stop_reason: Any = None
        self._citations: list[Any] = []

    def translate(self, event: Json) -> None:
        block, delta = inner(event, "content_block"), inner(event, "delta")
        match event.get("type"):
            case "message_start":
                self.turn.break_off()
                message = inner(event, "message")
                self._usage, self._stop_reason = dict(inner(message, "usage")), None
                if isinstance(message.get("model"), str):
                    self.turn.metadata["model"] = message["model"]
            case "content_block_start":
                self._begin(event.get("index"), block)
            case "content_block_delta":
                self._grow(event.get("index"), delta)
            case "content_block_stop":
                self.turn.called(event.get("index"))
            case "message_delta":
                self._usage |= inner(event, "usage")
                self._stop_reason = delta.get("stop_reason") or self._stop_reason
            case "message_stop":
                self._end()
            case "error":
                self.turn.break_off()
                self.turn.error(reason_of(event.get("error")), details=inner(event, "error"))
            case type:
                self.ignore(type)

    def _begin(self, index: Any, block: Json) -> None:
        type = block.get("type")
        if type == "text":
            self.turn.say(block.get("text"))
        elif type == "thinking":
            self.turn.think(block.get("thinking"))
        elif type in _CALLS:
            self.turn.end()
            self.turn.call(index, block.get("id"), block.get("name"), block.get("input"))
        elif isinstance(type, str) and type.endswith("tool_result"):
            content = block.get("content")
            failed = block.get("is_error") is True or str(inner(block, "content").get("type")).endswith("_error")
            self.turn.result(block.get("tool_use_id"), content, failed=failed)
        elif type == "compaction":
            self._summarise(block.get("content"))
        else:
            self.ignore(type)

    def _grow(self, index: Any, delta: Json) -> None:
        match delta.get("type"):
            case "text_delta":
                self.turn.say(delta.get("text"))
            case "thinking_delta":
                self.turn.think(delta.get("thinking"))
            case "input_json_delta":
                self.turn.arguments(index, delta.get("partial_json"))
            case "citations_delta":
                self._citations = [*self._citations, delta.get("citation")][:_MAX_CITATIONS]
                self.turn.note(citations=list(self._citations))
            case "compaction_delta":
                self._summarise(delta.get("content"))
            case type:
                self.ignore(type)

    def _summarise(self, content: Any) -> None:
        if summary := text_of(content):
            self.turn.note(context_summary=summary)

    def _end(self) -> None:
        complete = self._stop_reason not in ("max_tokens", "model_context_window_exceeded")
        if complete:
            self.turn.end()
        self.turn.break_off()
        self._citations = []
        self.turn.usage(self._usage.get("input_tokens"), self._usage.get("output_tokens"))
        if self._stop_reason not in ("tool_use", "pause_turn", None):
            self.turn.tell("turn_completed", {"stop_reason": self._stop_reason})
