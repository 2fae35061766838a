"""Bedrock Converse streams: each event is an object whose only member is its name."""

from typing import Final

from bridge_client.runners.translation import LineTranslator, inner
from bridge_client.runners.turn import Json

_INCOMPLETE: Final = ("max_tokens", "guardrail_intervened", "content_filtered")


class BedrockTranslator(LineTranslator):
    """One message after the other."""

    provider = "bedrock"

    def translate(self, event: Json) -> None:
        name = next(iter(event), None)
        body = inner(event, name) if isinstance(name, str) else {}
        key = repr(body.get("contentBlockIndex"))
        match name:
            case "messageStart":
                self.turn.break_off()
            case "contentBlockStart":
                if call := inner(body, "start", "toolUse"):
                    self.turn.end()
                    self.turn.call(key, call.get("toolUseId"), call.get("name"))
            case "contentBlockDelta":
                delta = inner(body, "delta")
                self.turn.say(delta.get("text"))
                self.turn.think(inner(delta, "reasoningContent").get("text"))
                self.turn.arguments(key, inner(delta, "toolUse").get("input"))
            case "contentBlockStop":
                self.turn.called(key)
            case "messageStop":
                reason = body.get("stopReason")
                self.turn.end(**({"incomplete": True} if reason in _INCOMPLETE else {}))
                self.turn.break_off()
                if reason != "tool_use":
                    self.turn.tell("turn_completed", {"stop_reason": reason})
            case "metadata":
                usage = inner(body, "usage")
                self.turn.usage(usage.get("inputTokens"), usage.get("outputTokens"))
            case _ if isinstance(name, str) and name.endswith("Exception"):
                self.turn.break_off()
                self.turn.error(body.get("message"), details={"exception": name})
            case _:
                self.ignore(name)
