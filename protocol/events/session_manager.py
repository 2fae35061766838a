"""The canonical vocabulary (source document 002): sessions, runs, messages, tool calls, errors, usage, workspace.

An `Event` is an envelope around `data`, whose members depend on the type alone. `Data` models are a reading of it;
`data` itself keeps whatever its producer put there. Beyond the document's members, by convention of this product:

- `message_streamed` and `message_received` have `thinking` beside `delta` and `content`: what a model thought aloud.
  The deltas of one reply add up to the `content` that ends it, its thinking likewise.
- `message_streamed` with `role` "tool" and a `tool_call_id` is a chunk of a tool's output while it runs.
- `incomplete` is true on a reply that broke off.
- `fatal` is false on an `error_occurred` after which the run goes on.
"""

import builtins
import copy
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, Struct, UnsetType

from protocol.errors import InvalidEvent
from protocol.events.vocabulary import Model, Unknown, Vocabulary

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "session": (
        *("session_created", "session_started", "session_paused", "session_resumed"),
        *("session_completed", "session_failed", "session_cancelled"),
    ),
    "run": ("run_started", "run_completed", "run_failed", "run_cancelled", "run_timeout"),
    "messages": ("message_sent", "message_received", "message_streamed"),
    "tool calls": ("tool_call_started", "tool_call_completed", "tool_call_failed"),
    "errors and usage": ("error_occurred", "error_recovered", "token_usage_updated", "turn_completed"),
    "workspace": ("workspace_snapshot_taken", "workspace_diff_computed"),
    "policy": ("policy_violation", "tool_approval_requested", "tool_approval_granted", "tool_approval_denied"),
}
"""Row B24. The first six are the document's; the last four types are not in it, but its originals have them."""

TYPES: Final = tuple(type for types in GROUPS.values() for type in types)
_GROUP_OF: Final = {type: group for group, types in GROUPS.items() for type in types}


class EventError(InvalidEvent):
    """An event, or what was to become one, that is refused; `code` says why, as the document's error codes do."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def group_of(type: str) -> str | None:
    """The group of a type (row B24), None for one that is not canonical."""
    return _GROUP_OF.get(type)


# The envelope.


class Event(Struct, frozen=True, kw_only=True):
    """One canonical event (row B30). It does not change once made (row B34): its values are its own copies."""

    id: str
    """`evt_` or, from the normaliser, `nevt_`, and 32 hexadecimal digits (row B31)."""
    type: str
    timestamp: datetime
    """Always with a time zone."""
    session_id: str
    run_id: str | None = None
    sequence_number: int | None = None
    """Its place: in its session from 1 once stored; in a batch or stream from 0."""
    data: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    schema_version: int = 1
    provider: str | None = None
    correlation_id: str | None = None


MEMBERS: Final = Event.__struct_encode_fields__
"""The eleven members of an event's JSON object: always all of them, null where there is nothing."""


class Draft(Struct, frozen=True):
    """What is to become an event: all that its producer knows. `stamp` adds whose it is, when, and its place."""

    type: str
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    provider_event_id: str | None = None
    timestamp: datetime | None = None
    """When it happened, where the provider says so (row B130)."""


class Context(Struct, frozen=True, kw_only=True):
    """Whose events these are, and what this package has no means to make: ids and the time."""

    session_id: str
    run_id: str
    new_id: Callable[[], str]
    """32 hexadecimal digits, from a source of chance, each time others."""
    now: Callable[[], datetime]
    """The time, with a time zone."""
    provider: str = "generic"
    sequence_number: int = 0
    """That of the first event of a batch."""


def new_event(
    type: str | None,
    session_id: str | None,
    *,
    new_id: Callable[[], str],
    now: Callable[[], datetime],
    id: str | None = None,
    timestamp: datetime | None = None,
    run_id: str | None = None,
    data: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    provider: str | None = None,
    correlation_id: str | None = None,
) -> Event:
    """Make an event (rows B30 to B34): its id from `new_id` and its time from `now` where they are not given.

    Raises EventError: `validation_error` for what is missing or empty, `invalid_event_type` for a type that is not
    canonical.
    """
    if not isinstance(type, str):
        raise EventError("validation_error", "type is required")
    if type not in _GROUP_OF:
        raise EventError("invalid_event_type", f"Invalid event type: {type[:80]}")
    return Event(
        id=f"evt_{new_id()}" if id is None else id,
        type=type,
        timestamp=_aware(timestamp or now()),
        session_id=require_id("session_id", session_id),
        run_id=run_id,
        data=copy.deepcopy(dict(data or {})),
        metadata=copy.deepcopy(dict(metadata or {})),
        provider=provider,
        correlation_id=correlation_id,
    )


def stamp(draft: Draft, context: Context, sequence_number: int) -> Event:
    """Make the event of a draft (rows B130 to B134). Its type may be one that is not canonical: it passes through."""
    metadata = {**draft.metadata, "provider": context.provider}
    if draft.provider_event_id is not None:
        metadata["provider_event_id"] = draft.provider_event_id
    return Event(
        id=f"nevt_{context.new_id()}",
        type=draft.type,
        timestamp=_aware(draft.timestamp or context.now()),
        session_id=context.session_id,
        run_id=context.run_id,
        sequence_number=sequence_number,
        data=copy.deepcopy(draft.data),
        metadata=copy.deepcopy(metadata),
        provider=context.provider,
    )


def require_id(name: str, value: object) -> str:
    """Return `value` if it is a string that is not empty. Raises EventError `validation_error`."""
    if not isinstance(value, str):
        raise EventError("validation_error", f"{name} is required")
    if not value:
        raise EventError("validation_error", f"{name} cannot be empty")
    return value


def _aware(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at


def to_map(event: Event) -> dict[str, Any]:
    """The event as a JSON object: MEMBERS, the time in ISO 8601 with `Z`."""
    found: dict[str, Any] = msgspec.to_builtins(event)
    return found


def from_map(members: Mapping[str, Any]) -> Event:
    """Read such an object. `schema_version` must be there. Raises EventError `validation_error`, which says where."""
    version = members.get("schema_version")
    if version is None:
        raise EventError("validation_error", "schema_version is required")
    if type(version) is not int or version < 1:
        raise EventError("validation_error", f"schema_version must be 1 or more, not {version!r:.40}")
    try:
        event = msgspec.convert(dict(members), Event)
    except msgspec.ValidationError as error:
        raise EventError("validation_error", str(error)) from None
    require_id("session_id", event.session_id)
    return msgspec.structs.replace(event, timestamp=_aware(event.timestamp))


def sort_events(events: Iterable[Event]) -> list[Event]:
    """By sequence number, then time, then id (row B82); those without a number come first."""
    return sorted(events, key=sort_key)


def sort_key(event: Event) -> tuple[int, datetime, str]:
    """What `sort_events` goes by."""
    return (-1 if event.sequence_number is None else event.sequence_number, event.timestamp, event.id)


def filter_by_type(events: Iterable[Event], types: str | Iterable[str]) -> list[Event]:
    """The events of one type or of several (row B83), in their order."""
    wanted = {types} if isinstance(types, str) else set(types)
    return [event for event in events if event.type in wanted]


def filter_by_run(events: Iterable[Event], run_id: str) -> list[Event]:
    """The events of one run (row B83), in their order."""
    return [event for event in events if event.run_id == run_id]


# What `data` holds, by type.


class _Data(Model, frozen=True, kw_only=True, tag_field="type"): ...


class _Plain(_Data, frozen=True, kw_only=True):
    """Nothing is required of it."""


class _Failure(_Data, frozen=True, kw_only=True):
    """Rows B16, B17, B23."""

    error_message: str | UnsetType = UNSET
    provider_error: dict[str, Any] | UnsetType = UNSET
    details: dict[str, Any] | UnsetType = UNSET


class _Tool(_Data, frozen=True, kw_only=True):
    tool_name: str | None | UnsetType = UNSET
    tool_call_id: str | None | UnsetType = UNSET
    tool_input: Any | UnsetType = UNSET


class MessageSent(_Data, frozen=True, kw_only=True, tag="message_sent"):
    """Row B8."""

    content: Any | UnsetType = UNSET
    role: str | UnsetType = UNSET


class MessageReceived(_Data, frozen=True, kw_only=True, tag="message_received"):
    """Row B9."""

    content: Any | UnsetType = UNSET
    role: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    incomplete: bool | UnsetType = UNSET


class MessageStreamed(_Data, frozen=True, kw_only=True, tag="message_streamed"):
    """Rows B10, B111."""

    delta: str
    role: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET


class ToolCallStarted(_Tool, frozen=True, kw_only=True, tag="tool_call_started"):
    """Rows B11, B112."""


class ToolCallCompleted(_Tool, frozen=True, kw_only=True, tag="tool_call_completed"):
    """Row B11."""

    tool_output: Any | UnsetType = UNSET


class ToolCallFailed(_Tool, frozen=True, kw_only=True, tag="tool_call_failed"):
    """Row B11."""

    tool_output: Any | UnsetType = UNSET
    error_message: str | UnsetType = UNSET


class ErrorOccurred(_Failure, frozen=True, kw_only=True, tag="error_occurred"):
    """Rows B12, B115."""

    fatal: bool | UnsetType = UNSET


class RunFailed(_Failure, frozen=True, kw_only=True, tag="run_failed"):
    """Row B16."""


class SessionFailed(_Failure, frozen=True, kw_only=True, tag="session_failed"):
    """Row B16."""


class TokenUsageUpdated(_Data, frozen=True, kw_only=True, tag="token_usage_updated"):
    """Rows B13, B113."""

    input_tokens: int | None | UnsetType = UNSET
    output_tokens: int | None | UnsetType = UNSET


def _plain(type: str) -> builtins.type[_Data]:
    name = "".join(word.capitalize() for word in type.split("_"))
    made = msgspec.defstruct(name, [], bases=(_Plain,), tag=type, frozen=True, kw_only=True, module=__name__)
    return cast("builtins.type[_Data]", made)


_TYPED: Final[dict[str, type[_Data]]] = {
    str(model.__struct_config__.tag): model
    for model in (
        *(MessageSent, MessageReceived, MessageStreamed, ToolCallStarted, ToolCallCompleted, ToolCallFailed),
        *(ErrorOccurred, RunFailed, SessionFailed, TokenUsageUpdated),
    )
}

Data: TypeAlias = _Data | Unknown

DATA: Final[Vocabulary[_Data]] = Vocabulary(*(_TYPED.get(type) or _plain(type) for type in TYPES))


def read_data(event: Event) -> Data:
    """The event's data as a model, Unknown for a type that is not canonical. Raises InvalidEvent."""
    return DATA.read_as(event.type, event.data)
