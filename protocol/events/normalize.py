"""Raw provider events to canonical ones (rows B70 to B84): a table of names, a status, and a look at the members.

The type is found in this order (settled decision 2.10): a canonical name is itself; one of the 29 aliases means a
canonical one; a `status` refines some of these; a name that nobody knows is judged by the members the event has; and
what says nothing at all is an `error_occurred`. The name is read from `type`, else from `event`.

Nothing is lost: each member of the raw event is in the envelope, in `metadata` or in `data` afterwards.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from protocol.events.agent_app import text_of
from protocol.events.provider_error import provider_error
from protocol.events.session_manager import (
    MEMBERS,
    TYPES,
    Context,
    Draft,
    Event,
    EventError,
    from_map,
    require_id,
    stamp,
)

ALIASES: Final[dict[str, str]] = {
    **dict.fromkeys(("user_message", "human_message", "user"), "message_sent"),
    **dict.fromkeys(("assistant_message", "ai_message", "assistant", "message"), "message_received"),
    **dict.fromkeys(("delta", "content_block_delta", "text_delta", "stream", "chunk"), "message_streamed"),
    **dict.fromkeys(("tool_use", "tool_call", "function_call"), "tool_call_started"),
    **dict.fromkeys(("tool_result", "function_result"), "tool_call_completed"),
    **dict.fromkeys(("run_start", "run_started", "start"), "run_started"),
    **dict.fromkeys(("run_end", "run_completed", "end", "done", "complete"), "run_completed"),
    **dict.fromkeys(("error", "exception"), "error_occurred"),
    **dict.fromkeys(("usage", "token_usage"), "token_usage_updated"),
}
"""Rows B71, B73 to B77, B79. Exact and case-sensitive."""

REFINEMENTS: Final[dict[tuple[str, str], str]] = {
    ("run_completed", "error"): "run_failed",
    ("run_completed", "failed"): "run_failed",
    ("run_completed", "cancelled"): "run_cancelled",
    ("run_completed", "canceled"): "run_cancelled",
    ("run_completed", "timeout"): "run_timeout",
    ("tool_call_started", "completed"): "tool_call_completed",
    ("tool_call_started", "done"): "tool_call_completed",
    ("tool_call_started", "failed"): "tool_call_failed",
    ("tool_call_started", "error"): "tool_call_failed",
}
"""(type, status) -> type. Any other status changes nothing."""

INFERENCES: Final = (
    ("delta", "message_streamed"),
    ("tool_use", "tool_call_started"),
    ("content", "message_received"),
    ("error", "error_occurred"),
)
"""Member -> type, in this order, for a name that is neither canonical nor an alias."""

FALLBACK: Final = "error_occurred"

METADATA: Final = ("model",)
"""Members that describe a provider event and go to its metadata (row B72)."""

_CANONICAL: Final = frozenset(TYPES)
_FAILURES: Final = frozenset({"error_occurred", "run_failed", "session_failed"})
_TOOLS: Final = frozenset({"tool_call_started", "tool_call_completed", "tool_call_failed"})


def type_of(raw: Mapping[str, Any]) -> str:
    """The canonical type of a raw event."""
    found = named_type(raw)
    if found is None:
        found = next((type for member, type in INFERENCES if member in raw), FALLBACK)
    status = raw.get("status")
    return REFINEMENTS.get((found, status), found) if isinstance(status, str) else found


def named_type(raw: Mapping[str, Any]) -> str | None:
    """The canonical type that the event's own name means, without status; None if its name means nothing here."""
    name = raw.get("type", raw.get("event"))
    if not isinstance(name, str):
        return None
    return name if name in _CANONICAL else ALIASES.get(name)


def normalize(raw: Mapping[str, Any], context: Context) -> Event:
    """The canonical event of one raw one, which is any JSON object (rows B70 to B79).

    An event that is canonical already (the object of `session_manager.to_map`, of the context's session and run) comes
    back as it is. Otherwise its place is `context.sequence_number`, its time its own `timestamp` (ISO 8601, or seconds
    or milliseconds since 1970) if it has one, and its `id` becomes `metadata.provider_event_id` (rows B130 to B133).

    Raises EventError `validation_error` for a context without session or run, or for something that is no object.
    """
    require_id("session_id", context.session_id)
    require_id("run_id", context.run_id)
    if not isinstance(raw, Mapping):
        raise EventError("validation_error", f"a raw event is an object, not {type(raw).__name__}")
    return _already(raw, context) or stamp(draft(raw, context), context, context.sequence_number)


def normalize_batch(raws: Iterable[Mapping[str, Any]], context: Context) -> list[Event]:
    """Several, numbered in their order from `context.sequence_number` (rows B80, B81). All of them or, raising
    EventError that names the place of what is no object, none."""
    events = []
    for place, raw in enumerate(raws):
        try:
            numbered = msgspec.structs.replace(context, sequence_number=context.sequence_number + place)
            events.append(normalize(raw, numbered))
        except EventError as error:
            raise EventError(error.code, f"event {place}: {error}") from None
    return events


def draft(raw: Mapping[str, Any], context: Context | None = None) -> Draft:
    """What `normalize` finds in a raw event, without whose it is."""
    rest = dict(raw)
    type = type_of(raw)
    if named_type(raw) is not None:
        rest.pop("type" if "type" in raw else "event", None)
    elif isinstance(raw.get("type"), str):  # a name nobody knows stays readable
        rest["provider_type"] = rest.pop("type") if "provider_type" not in raw else rest["provider_type"]
    at = _time(raw.get("timestamp"))
    if at is not None:
        del rest["timestamp"]
    provider_event_id = next((rest.pop(name) for name in ("provider_event_id", "id") if _is_text(rest.get(name))), None)
    for name, value in (("session_id", context and context.session_id), ("run_id", context and context.run_id)):
        if value is not None and rest.get(name) == value:
            del rest[name]
    metadata = dict(rest.pop("metadata")) if isinstance(rest.get("metadata"), Mapping) else {}
    for name in METADATA:
        if name not in metadata and _is_text(rest.get(name)):
            metadata[name] = rest.pop(name)
    if "provider" in metadata:  # the context's word counts (row B132); what the event said stays readable
        metadata.setdefault("original_provider", metadata["provider"])
    if "provider_event_id" in metadata and provider_event_id is not None:
        metadata.setdefault("original_event_id", metadata["provider_event_id"])
    inner = rest.get("data")
    if isinstance(inner, Mapping) and not (set(inner) & (set(rest) - {"data"})):
        del rest["data"]
        rest = {**inner, **rest}
    provider = context.provider if context is not None else "unknown"
    return Draft(type, _fill(type, rest, provider), metadata, provider_event_id, at)


def _already(raw: Mapping[str, Any], context: Context) -> Event | None:
    if set(raw) != set(MEMBERS) or raw["type"] not in TYPES:
        return None
    if (raw["session_id"], raw["run_id"]) != (context.session_id, context.run_id):
        return None
    try:
        event = from_map(raw)
    except EventError:
        return None
    return event if event.id and isinstance(event.metadata.get("provider"), str) else None


# The members that consumers rely on (rows B111 to B115), made from what a provider has in their place.


def _fill(type: str, data: dict[str, Any], provider: str) -> dict[str, Any]:
    if type == "message_streamed":
        _put(data, "delta", _is_text, lambda: _text(data, "delta", "text", "content", "chunk"))
    elif type == "token_usage_updated":
        usage = data.get("usage")
        counts = {**(usage if isinstance(usage, Mapping) else {}), **data}
        for name, others in (("input_tokens", ("prompt_tokens",)), ("output_tokens", ("completion_tokens",))):
            count = next((counts[other] for other in (name, *others) if _is_count(counts.get(other))), None)
            if count is not None:
                _put(data, name, _is_count, lambda count=count: count)
    elif type in _TOOLS:
        _fill_tool(type, data)
    if type in _FAILURES:
        said = _text(data, "error_message", "message", "detail", "error", "content", "text")
        _put(data, "error_message", _is_text, lambda: said or "an error without a message")
        if "provider_error" not in data and any(name in data for name in ("stderr", "exit_code", "exit_status")):
            own = {name: data.pop(name) for name in ("stderr", "exit_code", "exit_status") if name in data}
            kind = {"kind": data["kind"]} if "kind" in data else {}
            data["provider_error"] = provider_error(provider, {"message": said or None, **kind, **own}).payload
    return data


def _fill_tool(type: str, data: dict[str, Any]) -> None:
    for nested in ("tool_use", "tool_call", "function"):
        value = data.get(nested)
        if isinstance(value, Mapping):
            for name in ("id", "name", "input", "arguments"):
                if name in value and name not in data:
                    data[name] = value[name]
            if isinstance(value.get("function"), Mapping):
                data.setdefault("function", value["function"])
    for name, others in (("tool_name", ("name", "tool")), ("tool_call_id", ("tool_use_id", "call_id", "id"))):
        found = next((data[other] for other in (name, *others) if _is_text(data.get(other))), None)
        if found is not None:
            _put(data, name, _is_text, lambda found=found: found)
    for name, others in (
        ("tool_input", ("input", "arguments", "args", "params")),
        ("tool_output", () if type == "tool_call_started" else ("output", "result", "content")),
    ):
        found_at = next((other for other in others if other in data), None)
        if name not in data and found_at is not None:
            data[name] = data.pop(found_at)


def _put(data: dict[str, Any], name: str, fits: Any, value: Any) -> None:
    """Set a member that is missing or of another type; what stood there is kept as `provider_<name>`."""
    if fits(data.get(name)):
        return
    made = value()
    if name in data:
        data.setdefault(f"provider_{name}", data[name])
    data[name] = made


def _text(data: Mapping[str, Any], *names: str) -> str:
    for name in names:
        value = data.get(name)
        if isinstance(value, Mapping) and "message" in value and not ("text" in value or "content" in value):
            value = value["message"]
        if text := text_of(value):
            return text
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: Any) -> bool:
    return type(value) is int


def _time(value: Any) -> datetime | None:
    """ISO 8601, or a number of seconds or, from the year 5138 on if it were seconds, milliseconds since 1970."""
    if isinstance(value, datetime):
        return value
    if isinstance(value, str):
        try:
            return msgspec.convert(value, datetime)
        except msgspec.ValidationError:
            return None
    if type(value) in (int, float) and 0 < value < 1e14:
        return datetime.fromtimestamp(value / 1000 if value >= 1e11 else value, UTC)
    return None
