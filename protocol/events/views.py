"""Canonical events in the words of the other vocabularies. The way back is in `readings`.

No text is lost but what the streaming APIs cut by their own rules: a type without a counterpart keeps its name, in the
form of the vocabulary, and its data.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from protocol.events.agent_app import text_of
from protocol.events.session_manager import Event, to_map
from protocol.events.streaming import read_usage
from protocol.events.truncation import LLM_OUTPUT_CHARS, THINKING_CHARS, TOOL_OBSERVATION_CHARS, cut_chars

Json = dict[str, Any]


def to_session_manager(event: Event) -> Json:
    """The event's own JSON object: all eleven members (see `session_manager.MEMBERS`)."""
    return to_map(event)


class AgentAppView:
    """The events of one run as an agent application tells them (source document 000): a request, its replies and tools.

    A run's failure is told once, even if it was an `error_occurred` before; `request_completed` comes last, once, also
    after a failure or cancellation (rows A45, A46). What a model thought aloud is `metadata.thinking` of a message, so
    that the contents of partials add up to that of the final.
    """

    def __init__(self) -> None:
        self._replying = False
        self._failed_with: str | None = None
        self._completed = False

    def tell(self, event: Event) -> list[Json]:
        """What this event is there, in order; nothing for what was told already."""
        if event.type == "session_created":
            return [_created(event)]
        told = self._tell(event.type, event.data, event.metadata)
        whose: Json = {"session_id": event.session_id}
        if event.run_id is not None:
            whose["request_id"] = event.run_id
        return [{"type": type, **whose, **members} for type, members in told]

    def _tell(self, type: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[tuple[str, Json]]:
        match type:
            case "run_started":
                self._completed, self._failed_with = False, None
                return [("request_started", {"stream": True})]
            case "message_streamed" if data.get("role") == "tool":
                chunk = {"tool_call_id": str(data.get("tool_call_id", "")), "phase": "stream"}
                return [("tool_partial", {**chunk, "payload": {"part": text_of(data.get("delta"))}})]
            case "message_streamed":
                begin = [] if self._replying else [("assistant_message", {"phase": "start"})]
                self._replying = True
                return [*begin, ("partial", {"message": _message(data, metadata, "delta")})]
            case "message_received":
                end = [("assistant_message", {"phase": "end"})] if self._replying else []
                self._replying = False
                return [*end, ("final", {"messages": [_message(data, metadata, "content")]})]
            case "message_sent":
                message = _message(data, metadata, "content", "user")
                return [("message_appended", {**message, "message": message})]
            case "tool_call_started":
                return [("tool_calls", {"tool_calls": [_call(data)]})]
            case "tool_approval_requested" | "tool_approval_granted" | "tool_approval_denied":
                return [(type, _asked(data, metadata))]
            case "tool_call_completed" | "tool_call_failed":
                return [("tool_results", {"messages": [_result(type, data, metadata)]})]
            case "error_occurred" if data.get("fatal") is not False:
                self._failed_with = _detail(data)
                return [("error", {"detail": self._failed_with, **_keep(data, "provider_error", "details")})]
            case "run_failed" | "run_timeout":
                return self._fail(_detail(data) if data.get("error_message") else _NO_DETAIL[type], data)
            case "run_cancelled":
                return self._complete(("request_cancelled", {}))
            case "run_completed":
                return self._complete()
        return [(type, {"data": dict(data), "metadata": dict(metadata)})]

    def _fail(self, detail: str, data: Mapping[str, Any]) -> list[tuple[str, Json]]:
        if self._failed_with == detail:
            return self._complete()
        return self._complete(("error", {"detail": detail, **_keep(data, "provider_error", "details")}))

    def _complete(self, *before: tuple[str, Json]) -> list[tuple[str, Json]]:
        end = [("assistant_message", {"phase": "end"})] if self._replying else []
        self._replying = False
        last: list[tuple[str, Json]] = [] if self._completed else [("request_completed", {})]
        self._completed = True
        return [*end, *before, *last]


def _created(event: Event) -> Json:
    rest = {name: value for name, value in event.data.items() if name not in ("type", "session_id")}
    agent, session = rest.get("agent_id"), rest.get("session")
    return {
        **rest,
        "type": "session_created",
        "session_id": event.session_id,
        "agent_id": agent if isinstance(agent, str) else "default",
        "session": session if isinstance(session, Mapping) else {"id": event.session_id},
    }


_NO_DETAIL: Final = {"run_failed": "the run failed", "run_timeout": "the run took too long"}


def _detail(data: Mapping[str, Any]) -> str:
    return text_of(data.get("error_message")) or "something failed"


def _keep(data: Mapping[str, Any], *names: str) -> Json:
    return {name: data[name] for name in names if name in data}


def _message(data: Mapping[str, Any], metadata: Mapping[str, Any], text: str, role: str = "assistant") -> Json:
    """A message: its text as content, all else that is said of it as metadata."""
    beside = {name: value for name, value in data.items() if name not in (text, "role")}
    content = data.get(text, "")
    said = data.get("role")
    return {
        "role": said if isinstance(said, str) else role,
        "content": content if isinstance(content, str | list) else text_of(content),
        "metadata": {**beside, **metadata},
    }


def _call(data: Mapping[str, Any]) -> Json:
    arguments = data.get("tool_input", {})
    own = ("tool_call_id", "tool_name", "tool_input")
    return {
        **{name: value for name, value in data.items() if name not in own},
        "id": str(data.get("tool_call_id", "")),
        "function": {"name": str(data.get("tool_name", "")), "arguments": _as_text(arguments)},
    }


def _asked(data: Mapping[str, Any], metadata: Mapping[str, Any]) -> Json:
    call = _call({name: value for name, value in data.items() if name != "approval_id"})
    named = {"approval_id": data["approval_id"]} if isinstance(data.get("approval_id"), str) else {}
    return {**named, "tool_call": call, **({"metadata": dict(metadata)} if metadata else {})}


def _as_text(value: Any) -> str:
    """JSON text of a value; a string is taken for such a text already (row A61)."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _result(type: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> Json:
    own = ("tool_output", "role")
    beside = {name: value for name, value in data.items() if name not in own}
    if type == "tool_call_failed":
        beside["is_error"] = True
    return {"role": "tool", "content": _output(data), "metadata": {**beside, **metadata}}


def _output(data: Mapping[str, Any]) -> str:
    """What a tool gave back as text: its texts, else the JSON of what it is."""
    output = data.get("tool_output")
    if output is None or output == []:
        return text_of(data.get("error_message"))
    return text_of(output) or _as_text(output)


def to_streaming(event: Event) -> list[Json]:
    """The event as the streaming APIs tell it (source document 004), without `seq` and `stream_id`, which it gets where
    it arrives. Texts are cut to the document's caps (rows C43, C53); a run is a workflow. A chunk of thinking tells
    nothing there: the whole comes once, as AGENT_THINKING."""
    told = _streamed(event.type, event.data, event.metadata)
    workflow = event.run_id or event.session_id
    agent = event.metadata.get("agent_id")
    whose: Json = {"workflow_id": workflow, "session_id": event.session_id}
    if isinstance(agent, str) and agent:
        whose["agent_id"] = agent
    found = []
    for type, message, payload in told:
        told_event: Json = {"type": type, **whose, "timestamp": _rfc3339(event.timestamp)}
        if message:
            told_event["message"] = message
        if payload:
            told_event["payload"] = payload
        found.append(told_event)
    return found


_SAME: Final = {
    "run_started": "WORKFLOW_STARTED",
    "run_completed": "WORKFLOW_COMPLETED",
    "run_failed": "WORKFLOW_FAILED",
    "run_timeout": "WORKFLOW_FAILED",
    "run_cancelled": "WORKFLOW_CANCELLED",
    "session_paused": "WORKFLOW_PAUSED",
    "session_resumed": "WORKFLOW_RESUMED",
    "message_sent": "MESSAGE_SENT",
    "error_occurred": "ERROR_OCCURRED",
    "error_recovered": "ERROR_RECOVERY",
    "tool_approval_granted": "APPROVAL_DECISION",
    "tool_approval_denied": "APPROVAL_DECISION",
}


def _streamed(type: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[tuple[str, str, Json]]:
    payload = dict(data)
    match type:
        case "message_streamed":
            delta = text_of(data.get("delta"))
            return [("LLM_PARTIAL", delta, {})] if delta and data.get("role") != "tool" else []
        case "message_received":
            told: list[tuple[str, str, Json]] = []
            if thought := text_of(data.get("thinking")):
                told.append(("AGENT_THINKING", cut_chars(thought, THINKING_CHARS), {}))
            usage: Json = msgspec.to_builtins(read_usage({**metadata, **payload}))
            return [*told, ("LLM_OUTPUT", cut_chars(text_of(data.get("content")), LLM_OUTPUT_CHARS), usage)]
        case "tool_call_started":
            params = payload.pop("tool_input", {})
            said = f"Calling {_tool(data)['tool']}" + (f" with {_as_text(params)}" if params else "")
            invoked = {**payload, **_tool(data), "params": params}
            return [("TOOL_INVOKED", cut_chars(said, TOOL_OBSERVATION_CHARS), invoked)]
        case "tool_call_completed" | "tool_call_failed":
            payload.pop("tool_output", None)
            outcome = {**payload, **_tool(data), "success": type == "tool_call_completed"}
            return [("TOOL_OBSERVATION", cut_chars(_output(data), TOOL_OBSERVATION_CHARS), outcome)]
        case "error_occurred" if data.get("fatal") is False:
            return [("WARNING", cut_chars(text_of(data.get("error_message")), LLM_OUTPUT_CHARS), payload)]
        case "tool_approval_requested":
            params = data.get("tool_input")
            said = f"Asks to call {_tool(data)['tool']}" + (f" with {_as_text(params)}" if params else "")
            return [("APPROVAL_REQUESTED", cut_chars(said, TOOL_OBSERVATION_CHARS), {**payload, **_tool(data)})]
        case "tool_approval_granted" | "tool_approval_denied":
            payload["approved"] = type == "tool_approval_granted"
    said = text_of(data.get("error_message", data.get("content")))
    return [(_SAME.get(type, type.upper()), cut_chars(said, LLM_OUTPUT_CHARS), payload)]


def _tool(data: Mapping[str, Any]) -> Json:
    return {"tool": str(data.get("tool_name", "tool"))}


def _rfc3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
