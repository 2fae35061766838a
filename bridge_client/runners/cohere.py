"""Cohere v2 chat events: a message's text, its plan for tools, and tool calls by index."""

from bridge_client.runners.translation import LineTranslator, inner
from bridge_client.runners.turn import Json


class CohereTranslator(LineTranslator):
    """The plan that comes before tool calls is thinking."""

    provider = "cohere"

    def translate(self, event: Json) -> None:
        message = inner(event, "delta", "message")
        key = repr(event.get("index"))
        match event.get("type"):
            case "content-start" | "content-delta":
                content = inner(message, "content")
                self.turn.say(content.get("text"))
                self.turn.think(content.get("thinking"))
            case "tool-plan-delta":
                self.turn.think(message.get("tool_plan"))
            case "tool-call-start":
                call = inner(message, "tool_calls")
                function = inner(call, "function")
                self.turn.end()
                self.turn.call(key, call.get("id"), function.get("name"))
                self.turn.arguments(key, function.get("arguments"))
            case "tool-call-delta":
                self.turn.arguments(key, inner(message, "tool_calls", "function").get("arguments"))
            case "tool-call-end":
                self.turn.called(key)
            case "message-end":
                delta = inner(event, "delta")
                reason, tokens = delta.get("finish_reason"), inner(delta, "usage", "tokens")
                self.turn.end(**({"incomplete": True} if reason in ("MAX_TOKENS", "ERROR") else {}))
                self.turn.break_off()
                if delta.get("error"):
                    self.turn.error(delta["error"])
                self.turn.usage(tokens.get("input_tokens"), tokens.get("output_tokens"))
                if reason != "TOOL_CALL":
                    self.turn.tell("turn_completed", {"stop_reason": reason})
            case type:
                self.ignore(type)
