"""Claude Code: `-p --output-format stream-json`, with or without `--include-partial-messages`, and stored transcripts.

A message may come in several lines with one id, one content block each; with partial messages its events come first and
the lines repeat them. A transcript may hold the same line twice. Each block is told once.
"""

from collections import OrderedDict
from typing import Any, Final

from bridge_client.runners.anthropic import AnthropicTranslator
from bridge_client.runners.translation import LineTranslator, inner, items, reason_of
from bridge_client.runners.turn import MAX_TEXT_CHARS, Json, Turn
from protocol.events.agent_app import text_of
from protocol.events.normalize import read_time
from protocol.events.session_manager import Draft

INTERRUPTED: Final = "[Request interrupted by user"
"""How Claude Code writes down, as a user's message, that the user stopped it."""

_MAX_REMEMBERED: Final = 256
_INIT: Final = ("model", "cwd", "tools", "permissionMode", "claude_code_version", "mcp_servers")
_OUTCOME: Final = ("duration_ms", "duration_api_ms", "num_turns", "total_cost_usd", "stop_reason", "permission_denials")


_RETRY: Final = ("attempt", "max_retries", "retry_delay_ms", "error_status", "error")
_HOUSEKEEPING: Final = frozenset(
    (
        *("progress", "tool_progress", "keep_alive", "auth_status", "tool_use_summary", "prompt_suggestion"),
        *("control_request", "control_response", "control_cancel_request", "command_lifecycle"),
        *("file-history-snapshot", "queue-operation", "summary", "attachment", "last-prompt", "permission-mode"),
        *("custom-title", "ai-title", "agent-name", "stream_event"),
        *(f"system/{name}" for name in ("status", "compact_boundary", "turn_duration", "stop_hook_summary")),
        *(f"system/hook_{name}" for name in ("started", "progress", "response")),
        *(f"system/task_{name}" for name in ("started", "progress", "updated", "notification")),
        *(f"system/{name}" for name in ("files_persisted", "session_state_changed", "local_command")),
    )
)
"""What Claude Code prints, or keeps in transcripts, that says nothing of the conversation."""


class ClaudeTranslator(LineTranslator):
    """One stream of one program; a sub-agent's events carry `parent_tool_call_id` or `sidechain` as metadata."""

    provider = "claude"

    def __init__(self) -> None:
        super().__init__()
        self._streams: OrderedDict[str, AnthropicTranslator] = OrderedDict()  # by the tool call they belong to
        self._told: OrderedDict[str, set[str]] = OrderedDict()  # message id -> its blocks; "*": came as events
        self._last_said = ""

    def feed(self, line: str | bytes) -> list[Draft]:
        drafts = super().feed(line)
        for draft in drafts:
            own = "parent_tool_call_id" not in draft.metadata and "sidechain" not in draft.metadata
            if own and draft.type == "message_received" and draft.data.get("content"):
                self._last_said = draft.data["content"]
        return drafts

    def translate(self, event: Json) -> None:
        parent = event.get("parent_tool_use_id")
        metadata = {
            **({"parent_tool_call_id": parent} if isinstance(parent, str) else {}),
            **({"sidechain": True} if event.get("isSidechain") is True else {}),
        }
        turn = Turn(self.provider)
        turn.metadata = metadata
        message = inner(event, "message")
        match event.get("type"):
            case "system" if event.get("subtype") == "init":
                started: Json = {name: event[name] for name in _INIT if name in event}
                turn.tell("run_started", {**started, "provider_session_id": event.get("session_id")})
            case "stream_event":
                self._streamed(turn, inner(event, "event"), parent)
            case "assistant":
                self._assistant(turn, message)
            case "user":
                self._user(turn, message)
            case "result":
                self._result(turn, event)
            case "control_request" if inner(event, "request").get("subtype") == "can_use_tool":
                request = inner(event, "request")
                asked = {"tool_name": request.get("tool_name"), "tool_input": request.get("input")}
                turn.tell("tool_approval_requested", {"provider_approval_id": event.get("request_id"), **asked})
            case "system" if event.get("subtype") == "api_retry":
                tries = f"{event.get('attempt')} of {event.get('max_retries')}"
                details = {name: event[name] for name in _RETRY if name in event}
                turn.error(f"the model's API failed; trying again ({tries})", fatal=False, details=details)
            case "rate_limit_event":
                info = inner(event, "rate_limit_info")
                if info.get("status") not in (None, "allowed"):
                    turn.error(f"rate limit: {info['status']!s:.80}", fatal=False, details=info)
            case _:
                self.turn.metadata = metadata
                self.unknown(event, _HOUSEKEEPING)
                self.turn.metadata = {}
        self._pass_on(turn, event)

    def _pass_on(self, turn: Turn, event: Json) -> None:
        uuid, at = event.get("uuid"), read_time(event.get("timestamp"))
        for draft in turn.drain():
            identity = uuid if isinstance(uuid, str) else None
            self.turn.pass_on(Draft(draft.type, draft.data, draft.metadata, identity, at))

    def _streamed(self, turn: Turn, event: Json, parent: Any) -> None:
        key = parent if isinstance(parent, str) else ""
        stream = self._streams.get(key)
        if stream is None:
            if len(self._streams) >= _MAX_REMEMBERED:
                self._close(turn, self._streams.popitem(last=False)[1])
            stream = self._streams[key] = AnthropicTranslator()
        if event.get("type") == "message_start":
            self._blocks(inner(event, "message").get("id")).add("*")
        stream.translate(event)
        self._move(stream, turn)

    def _close(self, turn: Turn, stream: AnthropicTranslator) -> None:
        stream.turn.break_off()
        self._move(stream, turn)

    @staticmethod
    def _move(stream: AnthropicTranslator, turn: Turn) -> None:
        for draft in stream.turn.drain():
            turn.pass_on(Draft(draft.type, draft.data, {**draft.metadata, **turn.metadata}))

    def _blocks(self, message_id: Any) -> set[str]:
        """What was told of a message."""
        if not isinstance(message_id, str):
            return set()
        while len(self._told) >= _MAX_REMEMBERED and message_id not in self._told:
            self._told.popitem(last=False)
        return self._told.setdefault(message_id, set())

    def _assistant(self, turn: Turn, message: Json) -> None:
        told = self._blocks(message.get("id"))
        if "*" in told:
            return
        if isinstance(message.get("model"), str):
            turn.metadata["model"] = message["model"]
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else items(content)
        fresh = set()
        for block in blocks:
            mark = repr([block.get(name) for name in ("type", "text", "thinking", "id", "tool_use_id")])
            if mark in told:
                continue
            fresh.add(mark)  # the same text twice in one line is meant
            type = block.get("type")
            if type == "text":
                turn.say(block.get("text"))
            elif type == "thinking":
                turn.think(block.get("thinking"))
            elif type in ("tool_use", "server_tool_use", "mcp_tool_use"):
                turn.tool(block.get("id"), block.get("name"), block.get("input"))
                self.turn.remember(block.get("id"), block.get("name"))
            elif isinstance(type, str) and type.endswith("tool_result"):
                self._tool_result(turn, block)
            else:
                self.ignore(type)
            if turn.replying and (usage := inner(message, "usage")):
                turn.note(usage=usage)
        told |= fresh
        turn.end()

    def _user(self, turn: Turn, message: Json) -> None:
        content = message.get("content")
        said = [content] if isinstance(content, str) else []
        for block in items(content):
            if block.get("type") == "tool_result":
                self._tool_result(turn, block)
            elif text := text_of(block):
                said.append(text)
            else:
                self.ignore(block.get("type"))
        if said:
            turn.tell("message_sent", {"role": "user", "content": "\n".join(said)})
        if any(text.startswith(INTERRUPTED) for text in said):
            turn.tell("run_cancelled", {"reason": "interrupted by the user"})

    def _tool_result(self, turn: Turn, block: Json) -> None:
        call_id = block.get("tool_use_id")
        content = block.get("content")
        plain = all(part.get("type") == "text" for part in items(content))
        output = text_of(content) if isinstance(content, list) and plain else content
        failed = block.get("is_error") is True
        turn.result(call_id, output, failed=failed, name=self.turn.name_of(call_id))

    def _result(self, turn: Turn, event: Json) -> None:
        for stream in self._streams.values():
            self._close(turn, stream)
        self._streams.clear()
        result = event.get("result")
        failed = event.get("is_error") is True or str(event.get("subtype", "")).startswith("error")
        if not failed and isinstance(result, str) and not self._was_said(result):
            turn.say(result)
            turn.end()
        usage = inner(event, "usage")
        cost = event.get("total_cost_usd")
        turn.usage(usage.get("input_tokens"), usage.get("output_tokens"), cost_usd=cost)
        outcome: Json = {name: event[name] for name in _OUTCOME if name in event}
        if failed:
            errors = event.get("errors")
            said = "\n".join(map(reason_of, errors)) if isinstance(errors, list) else reason_of(errors)
            said = said or reason_of(result) or reason_of(event.get("subtype"))
            turn.failed(said, details={"subtype": event.get("subtype"), **outcome})
        else:
            turn.tell("run_completed", {"status": "completed", **outcome})

    def _was_said(self, result: str) -> bool:
        """Whether the run's result is what its last message said; of a long one that message is the last part."""
        result, last = result.strip(), self._last_said.strip()
        return last.endswith(result) or (len(result) > MAX_TEXT_CHARS and last != "" and result.endswith(last))

    def finish(self) -> list[Draft]:
        for stream in self._streams.values():
            self._close(self.turn, stream)
        self._streams.clear()
        return super().finish()
