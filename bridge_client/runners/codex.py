"""Codex: `exec --json`. A thread of turns; in a turn items that begin, change and end."""

from collections import OrderedDict
from typing import Any, Final

from bridge_client.runners.translation import LineTranslator, inner, items, reason_of
from bridge_client.runners.turn import Json, Turn
from protocol.events.agent_app import text_of

_REPLIES: Final = {"agent_message": "say", "assistant_message": "say", "reasoning": "think"}
_OWN: Final = ("id", "type", "status")
_HOUSEKEEPING: Final = frozenset({"item.plan.delta", "token_count"})  # told otherwise as well
_MAX_ITEMS: Final = 1000


class CodexTranslator(LineTranslator):
    """Items that are work become tool calls under the item's type: `command_execution`, `file_change`, `web_search`,
    `todo_list`, `server.tool` for `mcp_tool_call`, and whatever comes later."""

    provider = "codex"

    def __init__(self) -> None:
        super().__init__()
        self._thread: Any = None
        self._texts: OrderedDict[str, Turn] = OrderedDict()  # item id -> its reply under way
        self._tools: OrderedDict[str, int] = OrderedDict()  # item id -> how much of its output was told

    def translate(self, event: Json) -> None:
        item = inner(event, "item")
        match event.get("type"):
            case "thread.started":
                self._thread = event.get("thread_id")
            case "turn.started":
                self.turn.tell("run_started", {"provider_session_id": self._thread} if self._thread else {})
            case "item.started" | "item.updated":
                self._item(item, done=False)
            case "item.completed":
                self._item(item, done=True)
            case "turn.completed":
                self._end_texts()
                usage = dict(inner(event, "usage"))
                more = {str(name): count for name, count in usage.items() if type(count) is int}
                for name in ("input_tokens", "output_tokens"):
                    more.pop(name, None)
                self.turn.usage(usage.get("input_tokens"), usage.get("output_tokens"), **more)
                self.turn.tell("turn_completed")
                self.turn.tell("run_completed", {"status": "completed"})
            case "turn.failed":
                self._end_texts()
                self.turn.failed(reason_of(event.get("error")), details=inner(event, "error"))
            case "error":
                message = reason_of(event.get("message") or event.get("error"))
                self.turn.error(message, fatal=not message.startswith("Reconnecting"))
            case _:
                self.unknown(event, _HOUSEKEEPING)

    def _item(self, item: Json, *, done: bool) -> None:
        type = item.get("type")
        if type == "error":
            if done:
                self.turn.error(reason_of(item.get("message")), fatal=False)
        elif isinstance(type, str) and type in _REPLIES:
            self._reply(item, _REPLIES[type], done)
        else:
            self._tool(item, done)

    def _reply(self, item: Json, verb: str, done: bool) -> None:
        key = repr(item.get("id"))
        turn = self._texts.get(key)
        if turn is None:
            if len(self._texts) >= _MAX_ITEMS:
                self._end_text(self._texts.popitem(last=False)[1])
            turn = self._texts[key] = Turn(self.provider)
        for other in self._texts.values():
            if other is not turn and other.replying:
                other.pause()
                self.turn.take_over(other)
        text = item.get("text")
        turn.whole(text, None) if verb == "say" else turn.whole(None, text)
        if done:
            turn.end()
            del self._texts[key]
        self.turn.take_over(turn)

    def _end_text(self, turn: Turn) -> None:
        turn.break_off()
        self.turn.take_over(turn)

    def _end_texts(self) -> None:
        while self._texts:
            self._end_text(self._texts.popitem(last=False)[1])

    def _tool(self, item: Json, done: bool) -> None:
        call_id, key = item.get("id"), repr(item.get("id"))
        output = item.get("aggregated_output")
        if key not in self._tools:
            while len(self._tools) >= _MAX_ITEMS:
                self._tools.popitem(last=False)
            self._tools[key] = 0
            self.turn.tool(call_id, _name(item), _input(item))
        if not done:
            if isinstance(output, str):
                self.turn.tool_output(call_id, output[self._tools[key] :])
                self._tools[key] = len(output)
            return
        del self._tools[key]
        status, code = item.get("status"), item.get("exit_code")
        failed = status in ("failed", "declined") or (type(code) is int and code != 0) or bool(item.get("error"))
        result = reason_of(item["error"]) if item.get("error") else _output(item)
        extra = {"exit_code": code} if type(code) is int else {}
        self.turn.result(call_id, result, failed=failed, **extra)

    def done(self) -> None:
        self._end_texts()


def _name(item: Json) -> str:
    if item.get("type") == "mcp_tool_call":
        return f"{item.get('server')}.{item.get('tool')}"
    return str(item.get("type"))


def _input(item: Json) -> Json:
    if "arguments" in item:
        given = item["arguments"]
        return given if isinstance(given, dict) else {} if given is None else {"arguments": given}
    results = (*_OWN, "aggregated_output", "exit_code", "result", "error")
    return {name: value for name, value in item.items() if name not in results}


def _output(item: Json) -> Any:
    for name in ("aggregated_output", "result", "changes", "items"):
        value = item.get(name)
        if value is not None:
            content = value.get("content") if isinstance(value, dict) else None
            return text_of(content) if items(content) else value
    return ""
