"""The events of the other vocabularies, and anything else, as canonical ones. The way out is in `views`.

`read` looks at a raw event and takes it for what it is: an agent application's (000), a streaming API's (004), or a
provider's, which is `normalize`'s affair. Names that two vocabularies share (`session_created`, `error`,
`assistant_message`) are told apart by the members that only one of them has.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from protocol.events import agent_app, streaming
from protocol.events.agent_app import call_id, text_of
from protocol.events.normalize import draft, read_time
from protocol.events.session_manager import TYPES, Draft

Json = dict[str, Any]

_APPROVALS: Final = frozenset({"tool_approval_requested", "tool_approval_granted", "tool_approval_denied"})
_ENVELOPE: Final = ("type", "event_id", "session_id", "request_id")


def read(raw: Mapping[str, Any]) -> list[Draft]:
    """The canonical events of one raw event of any vocabulary, in order; at least one. Never raises on JSON objects."""
    if _is_streaming(raw):
        return from_streaming(raw)
    if _is_agent_app(raw):
        return from_agent_app(raw)
    return [draft(raw)]


def _is_streaming(raw: Mapping[str, Any]) -> bool:
    return raw.get("type") in streaming.VOCABULARY


def _is_agent_app(raw: Mapping[str, Any]) -> bool:
    type = raw.get("type")
    if type not in agent_app.VOCABULARY:
        return False
    if type == "assistant_message":
        return raw.get("phase") in ("start", "end") and "content" not in raw
    if type == "error":
        return isinstance(raw.get("detail"), str)
    if type in _APPROVALS:
        return isinstance(raw.get("tool_call"), Mapping)
    return type not in TYPES or "agent_id" in raw


def from_agent_app(event: Mapping[str, Any]) -> list[Draft]:
    """One event of an agent application (source document 000). An event that has no canonical counterpart (the marks
    around a reply, checkpoints, changes of a history, notifications) keeps its type and its members, as `data`."""
    rest = {name: value for name, value in event.items() if name not in _ENVELOPE}
    match event.get("type"):
        case "request_started":
            return [Draft("run_started", rest)]
        case "request_completed":
            return [Draft("run_completed", rest)]
        case "request_cancelled":
            return [Draft("run_cancelled", rest)]
        case "error":
            return [Draft("error_occurred", {**_without(rest, "detail"), "error_message": text_of(rest.get("detail"))})]
        case "partial":
            return [_reply("message_streamed", "delta", rest.pop("message", None), rest)]
        case "final":
            rest.pop("session", None)
            messages = _list(rest.pop("messages", None))
            return [_said(message, rest) for message in messages] or [
                Draft("message_received", {"content": "", **rest})
            ]
        case "tool_calls":
            calls = _list(rest.pop("tool_calls", None))
            return [_started(call, rest) for call in calls] or [Draft("tool_call_started", rest)]
        case "tool_approval_requested" | "tool_approval_granted" | "tool_approval_denied" as type:
            call, metadata = rest.pop("tool_call", None), rest.pop("metadata", None)
            about = _started(call, rest).data
            return [Draft(type, about, dict(metadata) if isinstance(metadata, Mapping) else {})]
        case "tool_results":
            messages = _list(rest.pop("messages", None))
            return [_said(message, rest) for message in messages] or [Draft("tool_call_completed", rest)]
        case "tool_partial":
            payload = rest.get("payload")
            if event.get("phase") == "stream" and isinstance(payload, Mapping):
                role = {"role": "tool", "delta": text_of(payload.get("part"))}
                return [Draft("message_streamed", {**rest, **role})]
        case "message_appended":
            message = rest.pop("message", None)
            sent = "message_sent" if rest.get("role", "user") in ("user", "system") else "message_received"
            return [Draft(sent, {**rest, "content": rest.get("content", _content(message))})]
    return [Draft(str(event.get("type", "")), rest)]


def _said(message: Any, rest: Json) -> Draft:
    """A message of a final, or of the results of tools."""
    if not isinstance(message, Mapping) or message.get("role") != "tool":
        return _reply("message_received", "content", message, rest)
    metadata = dict(metadata) if isinstance(metadata := message.get("metadata"), Mapping) else {}
    failed = metadata.pop("is_error", False) is True
    data = {**rest, **_without(message, "metadata", "content"), "tool_output": message.get("content")}
    for name in ("tool_call_id", "tool_name"):
        if name in metadata:
            data[name] = metadata.pop(name)
    return Draft("tool_call_failed" if failed else "tool_call_completed", data, metadata)


def _reply(type: str, text: str, message: Any, rest: Json) -> Draft:
    if not isinstance(message, Mapping):
        return Draft(type, {**rest, text: text_of(message)})
    metadata = dict(metadata) if isinstance(metadata := message.get("metadata"), Mapping) else {}
    data = {**rest, **_without(message, "metadata", "content")}
    if isinstance(thinking := metadata.get("thinking"), str):
        data["thinking"] = thinking
        del metadata["thinking"]
    content = message.get("content")
    data[text] = text_of(content)
    if content is not None and not isinstance(content, str):
        data["parts"] = content
    return Draft(type, data, metadata)


def _started(call: Any, rest: Json) -> Draft:
    if not isinstance(call, Mapping):
        return Draft("tool_call_started", {**rest, "tool_call": call})
    function = call.get("function")
    data = {**rest, **_without(call, "function")}
    if (identity := call_id(call)) is not None:
        data = {**_without(data, "id"), "tool_call_id": identity}
    if isinstance(function, Mapping):
        data |= _without(function, "name", "arguments")
        data["tool_name"] = function.get("name")
        data["tool_input"] = parse_arguments(function.get("arguments"))
    return Draft("tool_call_started", data)


def parse_arguments(arguments: Any) -> Any:
    """A tool call's arguments as the JSON value that their text is; as they are if they are no JSON text (row A61)."""
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return arguments


def _content(message: Any) -> Any:
    return message.get("content") if isinstance(message, Mapping) else message


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _without(members: Mapping[str, Any], *names: str) -> Json:
    return {name: value for name, value in members.items() if name not in names}


_CANONICAL: Final = {
    "WORKFLOW_STARTED": "run_started",
    "WORKFLOW_COMPLETED": "run_completed",
    "WORKFLOW_FAILED": "run_failed",
    "WORKFLOW_CANCELLED": "run_cancelled",
    "WORKFLOW_PAUSED": "session_paused",
    "WORKFLOW_RESUMED": "session_resumed",
    "LLM_PARTIAL": "message_streamed",
    "LLM_OUTPUT": "message_received",
    "MESSAGE_SENT": "message_sent",
    "TOOL_INVOKED": "tool_call_started",
    "TOOL_ERROR": "tool_call_failed",
    "ERROR_OCCURRED": "error_occurred",
    "ERROR_RECOVERY": "error_recovered",
    "APPROVAL_REQUESTED": "tool_approval_requested",
}
_STREAMED: Final = frozenset(
    ("type", "event_id", "workflow_id", "session_id", "agent_id", "message", "payload", "timestamp", "seq", "stream_id")
)
_TEXT_MEMBER: Final = {
    "message_streamed": "delta",
    "message_received": "content",
    "message_sent": "content",
    "tool_call_completed": "tool_output",
    "tool_call_failed": "tool_output",
    "error_occurred": "error_message",
    "run_failed": "error_message",
}


def from_streaming(event: Mapping[str, Any]) -> list[Draft]:
    """One event of the streaming APIs (source document 004): its message and payload as `data`, its agent and place as
    metadata. A type that has no canonical counterpart keeps its name, its message and its payload."""
    name = str(event.get("type", ""))
    payload = event.get("payload")
    data: Json = dict(payload) if isinstance(payload, Mapping) else {} if payload is None else {"payload": payload}
    data |= {name: value for name, value in event.items() if name not in data and name not in _STREAMED}
    metadata = {name: event[name] for name in ("agent_id", "seq", "stream_id") if event.get(name) is not None}
    type = _CANONICAL.get(name, name)
    if name == "TOOL_OBSERVATION":
        type = "tool_call_failed" if data.get("success") is False else "tool_call_completed"
    if name == "APPROVAL_DECISION" and isinstance(data.get("approved"), bool):
        type = "tool_approval_granted" if data["approved"] else "tool_approval_denied"
    if type in ("tool_call_started", "tool_call_completed", "tool_call_failed"):
        for theirs, ours in (("tool", "tool_name"), ("params", "tool_input")):
            if theirs in data and ours not in data:
                data[ours] = data.pop(theirs)
    if type == "message_received" and isinstance(data.get("model_used"), str):
        metadata["model"] = data["model_used"]
    if "message" in event:
        text = _TEXT_MEMBER.get(type, "message")
        data[text if text not in data else "message"] = event["message"]
    if type == "message_streamed":
        data.setdefault("delta", "")
    timestamp = read_time(event.get("timestamp"))
    if timestamp is None and event.get("timestamp") is not None:
        data["timestamp"] = event["timestamp"]
    return [Draft(type, data, metadata, None, timestamp)]
