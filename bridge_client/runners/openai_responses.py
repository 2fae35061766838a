"""OpenAI Responses events: a response is a list of items, each of which begins, grows and ends."""

from typing import Any

from bridge_client.runners.translation import LineTranslator, inner, items
from bridge_client.runners.turn import Json
from protocol.events.agent_app import text_of


class OpenAIResponsesTranslator(LineTranslator):
    """Calls of functions and of the provider's own tools are tool calls; what asks for leave, a request."""

    provider = "openai"

    def translate(self, event: Json) -> None:
        type = event.get("type")
        key = repr((event.get("item_id"), event.get("output_index")) if "item_id" not in event else event["item_id"])
        match type:
            case "response.created":
                self.turn.break_off()
                if isinstance(model := inner(event, "response").get("model"), str):
                    self.turn.metadata["model"] = model
            case "response.output_text.delta" | "response.refusal.delta":
                self.turn.say(event.get("delta"))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.turn.think(event.get("delta"))
            case "response.function_call_arguments.delta" | "response.mcp_call_arguments.delta":
                self.turn.arguments(key, event.get("delta"))
            case "response.custom_tool_call_input.delta":
                self.turn.arguments(key, event.get("delta"))
            case "response.output_item.added":
                self._begin(inner(event, "item"))
            case "response.output_item.done":
                self._end(inner(event, "item"))
            case "response.completed" | "response.incomplete":
                self._stop(inner(event, "response"))
            case "response.failed":
                response = inner(event, "response")
                error = inner(response, "error")
                self._usage(response)
                self.turn.failed(error.get("message"), details=error)
            case "error":
                self.turn.break_off()
                error = inner(event, "error") or event
                self.turn.error(error.get("message"), details=error)
            case _:
                self.ignore(type)

    def _begin(self, item: Json) -> None:
        if _is_call(item):
            self.turn.end()
            self.turn.call(repr(item.get("id")), _call_id(item), _name(item))

    def _end(self, item: Json) -> None:
        type = item.get("type")
        if type == "message":
            self.turn.whole("".join(_said(part) for part in items(item.get("content"))))
            self.turn.end(**({"phase": item["phase"]} if isinstance(item.get("phase"), str) else {}))
        elif type == "reasoning":
            summary = "".join(text_of(part) for part in items(item.get("summary")))
            if summary and not self.turn.thought:
                self.turn.think(summary)
        elif type == "mcp_approval_request":
            self.turn.end()
            asked = {"tool_name": item.get("name"), "tool_input": item.get("arguments")}
            self.turn.tell("tool_approval_requested", {"provider_approval_id": item.get("id"), **asked})
        elif _is_call(item):
            self._called(item)
        elif isinstance(type, str) and type.endswith("_call_output"):
            self.turn.result(_call_id(item), item.get("output"))
        else:
            self.ignore(type)

    def _called(self, item: Json) -> None:
        key = repr(item.get("id"))
        self.turn.call(key, _call_id(item), _name(item))
        arguments = item.get("arguments", item.get("input"))
        if isinstance(arguments, str):
            self.turn.reset_arguments(key, arguments)
            self.turn.called(key)
        else:
            own = ("id", "type", "status", "call_id", "name", "output", "outputs", "results", "error")
            self.turn.called(key, arguments or {name: value for name, value in item.items() if name not in own})
        output = next((item[name] for name in ("output", "outputs", "results") if item.get(name) is not None), None)
        if item.get("error") is not None:
            self.turn.result(_call_id(item), item["error"], failed=True)
        elif output is not None:
            self.turn.result(_call_id(item), output)

    def _stop(self, response: Json) -> None:
        # Items whose end did not come are in the response, if anywhere.
        if self.turn.replying:
            for item in items(response.get("output")):
                if item.get("type") == "message":
                    text = "".join(_said(part) for part in items(item.get("content")))
                    if text.startswith(self.turn.said):
                        self.turn.whole(text)
        incomplete = response.get("status") == "incomplete"
        self.turn.end(**({"incomplete": True} if incomplete else {}))
        self.turn.break_off()
        self._usage(response)
        reason = inner(response, "incomplete_details").get("reason")
        self.turn.tell("turn_completed", {"stop_reason": reason or response.get("status")})

    def _usage(self, response: Json) -> None:
        usage = inner(response, "usage")
        self.turn.usage(usage.get("input_tokens"), usage.get("output_tokens"), total_tokens=usage.get("total_tokens"))


def _is_call(item: Json) -> bool:
    type = item.get("type")
    return isinstance(type, str) and type.endswith("_call")


def _call_id(item: Json) -> Any:
    return item.get("call_id") or item.get("id")


def _name(item: Json) -> str:
    name = item.get("name")
    return name if isinstance(name, str) else str(item.get("type")).removesuffix("_call")


def _said(part: Json) -> str:
    return text_of(part.get("refusal")) if part.get("type") == "refusal" else text_of(part)
