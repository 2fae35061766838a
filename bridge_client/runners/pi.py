"""Pi: print mode. Messages that begin, are updated and end; tools that run; retries."""

from typing import Any

from bridge_client.runners.translation import LineTranslator, inner, items
from bridge_client.runners.turn import Json
from protocol.events.agent_app import text_of


class PiTranslator(LineTranslator):
    """Updates hold the message so far and what is new in it; ends hold it whole."""

    provider = "pi"

    def __init__(self) -> None:
        super().__init__()
        self._outputs: dict[str, str] = {}  # tool call -> its output so far
        self._error: Any = None

    def translate(self, event: Json) -> None:
        message = inner(event, "message")
        match event.get("type"):
            case "agent_start":
                self.turn.tell("run_started")
            case "message_start":
                self.turn.break_off()
                if isinstance(message.get("model"), str):
                    self.turn.metadata["model"] = message["model"]
            case "message_update":
                update = inner(event, "assistantMessageEvent")
                if update.get("type") == "text_delta":
                    self.turn.say(update.get("delta"))
                elif update.get("type") == "thinking_delta":
                    self.turn.think(update.get("delta"))
            case "message_end":
                self._end(message)
            case "tool_execution_update":
                self._progress(event.get("toolCallId"), text_of(inner(event, "partialResult").get("content")))
            case "tool_execution_start":
                self.turn.tool(event.get("toolCallId"), event.get("toolName"), event.get("args"))
            case "tool_execution_end":
                call_id, result = event.get("toolCallId"), inner(event, "result")
                self._outputs.pop(repr(call_id), None)
                plain = all(part.get("type") == "text" for part in items(result.get("content")))
                output = text_of(result.get("content")) if plain else result.get("content")
                extra = {"details": result["details"]} if result.get("details") else {}
                self.turn.result(call_id, output, failed=event.get("isError") is True, **extra)
            case "agent_end":
                if self._error is None:
                    self.turn.tell("run_completed", {"status": "completed"})
                else:
                    self.turn.failed(self._error)
                self._error = None
            case "auto_retry_end" if event.get("success") is True:
                self.turn.tell("error_recovered", {"attempt": event.get("attempt")})
            case "turn_end":
                self.turn.tell("turn_completed", {"stop_reason": message.get("stopReason")})
            case type:
                self.ignore(type)

    def _end(self, message: Json) -> None:
        role, content = message.get("role"), message.get("content")
        if role == "user":
            self.turn.tell("message_sent", {"role": "user", "content": text_of(content)})
        elif role == "assistant":
            # Calls are told when they run: some are never run.
            parts = items(content)
            texts = [text_of(part) for part in parts if part.get("type") == "text"]
            thoughts = [text_of(part.get("thinking")) for part in parts if part.get("type") == "thinking"]
            said, thought = "".join(texts), "".join(thoughts)
            self.turn.whole(said, thought)
            broken = message.get("stopReason") in ("error", "aborted", "length")
            self.turn.end(**({"incomplete": True} if broken else {}))
            usage = inner(message, "usage")
            cost = inner(usage, "cost").get("total")
            self.turn.usage(usage.get("input"), usage.get("output"), cost_usd=cost)
            self._error = None
            if message.get("stopReason") == "error":
                self._error = message.get("errorMessage") or "the model failed"
        elif role != "toolResult":  # told as tool_execution_end
            self.ignore(role)

    def _progress(self, call_id: Any, output: str) -> None:
        told = self._outputs.get(repr(call_id), "")
        self.turn.tool_output(call_id, output[len(told) :] if output.startswith(told) else output)
        if len(self._outputs) < 1000 or repr(call_id) in self._outputs:
            self._outputs[repr(call_id)] = output
