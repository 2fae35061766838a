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
_CALL_IDS: Final = ("tool_call_id", "tool_use_id", "call_id")
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
    name = raw.get(_named_by(raw))
    if not isinstance(name, str):
        return None
    return name if name in _CANONICAL else ALIASES.get(name)


def _named_by(raw: Mapping[str, Any]) -> str:
    return "type" if isinstance(raw.get("type"), str) else "event"


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
        del rest[_named_by(raw)]
    elif isinstance(raw.get("type"), str) and "provider_type" not in raw:
        rest["provider_type"] = rest.pop("type")  # a name nobody knows stays readable
    at = read_time(raw.get("timestamp"))
    if at is not None:
        del rest["timestamp"]
    provider_event_id = next((rest.pop(name) for name in ("provider_event_id", "id") if _is_text(rest.get(name))), None)
    if type in _TOOLS and _is_text(raw.get("id")) and not any(_is_text(rest.get(name)) for name in _CALL_IDS):
        rest["tool_call_id"] = raw["id"]
    for name, value in (("session_id", context and context.session_id), ("run_id", context and context.run_id)):
        if value is not None and rest.get(name) == value:
            del rest[name]
    metadata = dict(rest.pop("metadata")) if isinstance(rest.get("metadata"), Mapping) else {}
    for name in METADATA:
        if name not in metadata and _is_text(rest.get(name)):
            metadata[name] = rest.pop(name)
    provider = context.provider if context is not None else "unknown"
    # What `stamp` will overwrite (rows B132, B133) stays readable.
    for name, value in (("provider", provider), ("provider_event_id", provider_event_id)):
        if value is not None and metadata.get(name, value) != value:
            metadata.setdefault(f"original_{name}", metadata[name])
    inner = rest.get("data")
    if isinstance(inner, Mapping) and not (set(inner) & (set(rest) - {"data"})):
        del rest["data"]
        rest = {**inner, **rest}
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
        if not isinstance(data.get("delta"), str):
            _put(data, "delta", _text(data, "delta", "text", "content", "chunk"))
    elif type == "token_usage_updated":
        _fill_usage(data)
    elif type in _TOOLS:
        _fill_tool(type, data)
    elif type in _FAILURES:
        _fill_failure(data, provider)
    return data


def _fill_usage(data: dict[str, Any]) -> None:
    usage = data.get("usage")
    counts = {**(usage if isinstance(usage, Mapping) else {}), **data}
    for name, other in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
        found = next((counts[each] for each in (name, other) if type(counts.get(each)) is int), None)
        if found is not None and data.get(name) != found:
            _put(data, name, found)


def _fill_tool(type: str, data: dict[str, Any]) -> None:
    for nested in ("tool_use", "tool_call", "function"):
        value = data.get(nested)
        if isinstance(value, Mapping):
            for name in ("id", "name", "input", "arguments", "function"):
                if name in value:
                    data.setdefault(name, value[name])
    for name, others in (("tool_name", ("name", "tool")), ("tool_call_id", (*_CALL_IDS, "id"))):
        found = next((data[other] for other in others if _is_text(data.get(other))), None)
        if found is not None and not _is_text(data.get(name)):
            _put(data, name, found)
    _rename(data, "tool_input", "input", "arguments", "args", "params")
    if type != "tool_call_started":
        _rename(data, "tool_output", "output", "result", "content")


def _fill_failure(data: dict[str, Any], provider: str) -> None:
    said = _text(data, "error_message", "message", "detail", "error", "content", "text")
    if not _is_text(data.get("error_message")):
        unknown = data.get("provider_type")
        what = f"an event of the unknown type {unknown!r:.80}" if unknown else "an error without a message"
        _put(data, "error_message", said or what)
    stderr = data.get("stderr")
    if "provider_error" not in data and (isinstance(stderr, str) or "exit_code" in data):
        report: dict[str, Any] = {name: data[name] for name in ("kind", "exit_code") if name in data}
        if isinstance(stderr, str):
            report["stderr"] = data.pop("stderr")  # only the payload keeps it, within its limits (row B22)
        data["provider_error"] = provider_error(provider, {"message": said or None, **report}).payload


def _rename(data: dict[str, Any], name: str, *others: str) -> None:
    found = next((other for other in others if other in data), None)
    if found is not None and name not in data:
        data[name] = data.pop(found)


def _put(data: dict[str, Any], name: str, value: Any) -> None:
    """Set a member; what stood there is kept as `provider_<name>`."""
    if name in data:
        kept = f"provider_{name}"
        while kept in data:
            kept = f"provider_{kept}"
        data[kept] = data[name]
    data[name] = value


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


def read_time(value: Any) -> datetime | None:
    """The time a producer wrote, None for what is none: ISO 8601, or a number of seconds since
    1970, of milliseconds if it is 10^11 or more."""
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
