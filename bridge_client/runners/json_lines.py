"""Any program's lines. What they look like is found out from the first lines that say so.

A line in a known format belongs to that format's translator. Another JSON object whose name or members say what it is
(see `protocol.events.normalize` and `readings`) becomes that. Every other line is text: a program's output is its
reply, line by line.
"""

from collections.abc import Callable
from typing import Any, Final

from bridge_client.runners.anthropic import AnthropicTranslator
from bridge_client.runners.bedrock import BedrockTranslator
from bridge_client.runners.claude import ClaudeTranslator
from bridge_client.runners.codex import CodexTranslator
from bridge_client.runners.cohere import CohereTranslator
from bridge_client.runners.gemini import GeminiTranslator
from bridge_client.runners.openai_chunks import OpenAIChunksTranslator
from bridge_client.runners.openai_responses import OpenAIResponsesTranslator
from bridge_client.runners.opencode import OpenCodeTranslator
from bridge_client.runners.pi import PiTranslator
from bridge_client.runners.translation import LineTranslator, line_data, parse
from bridge_client.runners.turn import Json
from protocol.events import agent_app, streaming
from protocol.events.agent_app import text_of
from protocol.events.normalize import INFERENCES, named_type
from protocol.events.readings import read
from protocol.events.session_manager import Draft

FORMATS: Final[dict[str, Callable[[], LineTranslator]]] = {
    "claude": ClaudeTranslator,
    "codex": CodexTranslator,
    "openai": OpenAIChunksTranslator,
    "openai-responses": OpenAIResponsesTranslator,
    "anthropic": AnthropicTranslator,
    "gemini": GeminiTranslator,
    "cohere": CohereTranslator,
    "bedrock": BedrockTranslator,
    "opencode": OpenCodeTranslator,
    "pi": PiTranslator,
}
"""The formats by name."""

_BY_TYPE: Final[dict[str, tuple[str, ...]]] = {
    "codex": ("thread.started", "turn.started", "turn.completed", "turn.failed", "item.started", "item.completed"),
    "anthropic": ("message_start", "content_block_start"),
    "cohere": ("message-start", "content-start", "tool-plan-delta"),
    "opencode": ("step_start", "step_finish"),
    "pi": ("agent_start", "tool_execution_start"),
    "claude": ("stream_event", "control_request", "file-history-snapshot", "queue-operation"),
}
_FORMAT_OF: Final = {type: format for format, types in _BY_TYPE.items() for type in types}
_MAX_FRAMING: Final = 8
_BEDROCK: Final = frozenset({"messageStart", "contentBlockStart", "contentBlockDelta", "messageStop"})


def format_of(event: Json) -> str | None:
    """The format that only an object like this has, None if it could be of several or of none."""
    type = event.get("type")
    if "parentUuid" in event or "leafUuid" in event:  # a stored transcript of Claude Code
        return "claude"
    if isinstance(type, str):
        if type in _FORMAT_OF:
            return _FORMAT_OF[type]
        if type.startswith("response."):
            return "openai-responses"
        if type in ("assistant", "user") and isinstance(event.get("message"), dict):
            return "claude"
        if (type, event.get("subtype")) == ("system", "init") or (type == "result" and "subtype" in event):
            return "claude"
        return None
    if event.get("object") in ("chat.completion.chunk", "chat.completion", "text_completion"):
        return "openai"
    if isinstance(event.get("candidates"), list) or isinstance(event.get("event_type"), str):
        return "gemini"
    return "bedrock" if len(event) == 1 and not _BEDROCK.isdisjoint(event) else None


class JsonLinesTranslator(LineTranslator):
    """Once a format is known, it is that of all that follows: lines that are not JSON are told as such a format's."""

    provider = "unknown"

    def __init__(self, format: str | None = None) -> None:
        super().__init__()
        self._known: LineTranslator | None = None
        self.format: str | None = None
        """Its name, None while it is not known."""
        self._framing: list[str | bytes] = []
        if format is not None:
            self._settle(format)

    def _settle(self, format: str) -> LineTranslator:
        """Raises KeyError for a format that is not in FORMATS."""
        self.format = format
        self._known = FORMATS[format]()
        self._known.ignored = self.ignored
        return self._known

    def feed(self, line: str | bytes) -> list[Draft]:
        if self._known is not None:
            return self._known.feed(line)
        data = line_data(line)
        if data is None and len(self._framing) < _MAX_FRAMING:
            self._framing.append(line)  # the head of a server-sent event, if its data follow
            return []
        event = parse(data) if data is not None else None
        if isinstance(event, dict):
            if (format := format_of(event)) is not None:
                self._end()
                return [*self.turn.drain(), *self._settle(format).feed(line)]
            if _says_what_it_is(event):
                self._framing.clear()
                for draft in read(event):
                    self._take(draft)
                return self.turn.drain()
        self._say(line)
        return self.turn.drain()

    def _say(self, line: str | bytes) -> None:
        held, self._framing = self._framing, []
        for each in (*held, line):
            text = each.decode("utf-8", "replace") if isinstance(each, bytes) else each
            self.turn.say(text.rstrip("\r\n") + "\n")

    def _end(self) -> None:
        """Before a known format: what was held back is that format's framing."""
        self._framing.clear()
        self.turn.end()

    def _take(self, draft: Draft) -> None:
        """A draft of a line that says what it is. What belongs to a reply goes through the turn, which sums it up."""
        data = dict(draft.data)
        self.turn.metadata = draft.metadata
        if draft.type == "message_streamed" and data.get("role") != "tool":
            self.turn.say(data.pop("delta", None))
            self.turn.think(data.pop("thinking", None))
            self.turn.note(**data)
        elif draft.type == "message_received":
            content, thinking = data.pop("content", ""), data.pop("thinking", None)
            if not isinstance(content, str):
                data["parts"], content = content, text_of(content)
            self.turn.whole(content, thinking if isinstance(thinking, str) else None)
            self.turn.end(**data)
        else:
            self.turn.end()
            self.turn.pass_on(draft)

    def finish(self) -> list[Draft]:
        if self._framing:
            self._say(self._framing.pop())
        self.turn.end()
        return [*self.turn.drain(), *(self._known.finish() if self._known is not None else ())]


def _says_what_it_is(event: Json) -> bool:
    if named_type(event) is not None or any(member in event for member, _ in INFERENCES):
        return True
    type: Any = event.get("type")
    return type in agent_app.VOCABULARY or type in streaming.VOCABULARY
