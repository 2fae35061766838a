"""OpenCode: `run --format json`. Steps of whole parts: a text, a tool with its result."""

from bridge_client.runners.translation import LineTranslator, inner
from bridge_client.runners.turn import Json


class OpenCodeTranslator(LineTranslator):
    """Each text is a reply of its own."""

    provider = "opencode"

    def translate(self, event: Json) -> None:
        part = inner(event, "part")
        match event.get("type"):
            case "text":
                self.turn.say(part.get("text"))
                self.turn.end()
            case "reasoning":
                self.turn.think(part.get("text"))
                self.turn.end()
            case "tool_use":
                self._tool(part)
            case "step_finish":
                tokens = inner(part, "tokens")
                self.turn.usage(tokens.get("input"), tokens.get("output"), cost_usd=part.get("cost"))
                if part.get("reason") != "tool-calls":
                    self.turn.tell("turn_completed", {"stop_reason": part.get("reason")})
            case "error":
                error = inner(event, "error")
                message = inner(error, "data").get("message") or error.get("message") or error.get("name")
                self.turn.error(message, details=error)
            case type:
                self.ignore(type)

    def _tool(self, part: Json) -> None:
        call_id, state = part.get("callID"), inner(part, "state")
        self.turn.tool(call_id, part.get("tool"), state.get("input"))
        if state.get("status") == "error":
            self.turn.result(call_id, state.get("error"), failed=True)
        elif "output" in state:
            self.turn.result(call_id, state["output"])
