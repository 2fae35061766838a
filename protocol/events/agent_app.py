"""The vocabulary of an agent application (source document 000): requests, replies, tools, sessions, notifications.

These are the events of `GET /events` and of `session_event`. Parts that a provider may add to (messages, their
metadata, tool calls, sessions, notification records) stay plain JSON values, kept whole; the functions below say how
they are read (rows A62, A71).
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, UnsetType

from protocol.events.vocabulary import Model, Unknown, Vocabulary

Json: TypeAlias = dict[str, Any]


class _Event(Model, frozen=True, kw_only=True, tag_field="type"):
    event_id: str | UnsetType = UNSET
    """Given by the store (row A4)."""


class _Session(_Event, frozen=True, kw_only=True):
    session_id: str


class _Request(_Session, frozen=True, kw_only=True):
    request_id: str


class RequestStarted(_Request, frozen=True, kw_only=True, tag="request_started"):
    """Row A42: once per request, before all else of it."""

    stream: bool | UnsetType = UNSET


class RequestCancelled(_Request, frozen=True, kw_only=True, tag="request_cancelled"):
    """Row A44."""


class RequestCompleted(_Request, frozen=True, kw_only=True, tag="request_completed"):
    """Rows A45, A46: the last event of its request, however that ended."""


class Error(_Request, frozen=True, kw_only=True, tag="error"):
    """Row A47: the request failed. `detail` is for a person."""

    detail: str


class AssistantMessage(_Request, frozen=True, kw_only=True, tag="assistant_message"):
    """Row A50: a streamed reply begins or ends."""

    phase: Literal["start", "end"]


class Partial(_Request, frozen=True, kw_only=True, tag="partial"):
    """Rows A51 to A53: one chunk of a reply."""

    message: Json


class FinalMessages(_Request, frozen=True, kw_only=True, tag="final"):
    """Rows A54, A55: the messages of one phase, whole."""

    messages: list[Json]


class ToolCalls(_Request, frozen=True, kw_only=True, tag="tool_calls"):
    """Rows A60 to A63."""

    tool_calls: list[Json]


class ToolPartial(_Request, frozen=True, kw_only=True, tag="tool_partial"):
    """Rows A65 to A67. `payload` is a chunk with `part`, at the end `{"result": message}`."""

    tool_call_id: str
    phase: Literal["start", "stream", "end"]
    payload: Json


class ToolResults(_Request, frozen=True, kw_only=True, tag="tool_results"):
    """Rows A68, A69."""

    messages: list[Json]


class _Approval(_Request, frozen=True, kw_only=True):
    """A call of a tool, as in `tool_calls`, that waits for a person. Not of the document: its originals have the types.

    `approval_id` is what an answer names; without it the question is answered where the agent runs.
    """

    tool_call: Json
    approval_id: str | UnsetType = UNSET


class ToolApprovalRequested(_Approval, frozen=True, kw_only=True, tag="tool_approval_requested"):
    """May this call run?"""


class ToolApprovalGranted(_Approval, frozen=True, kw_only=True, tag="tool_approval_granted"):
    """It may."""


class ToolApprovalDenied(_Approval, frozen=True, kw_only=True, tag="tool_approval_denied"):
    """It may not, or nobody answered in time."""


class SessionCheckpoint(_Request, frozen=True, kw_only=True, tag="session_checkpoint"):
    """Rows A80, A81: internal. `session` is a live object; never stored, never sent."""

    session: Any | UnsetType = UNSET


class Checkpoint(_Session, frozen=True, kw_only=True, tag="checkpoint"):
    """Rows A84 to A89: a session was just persisted. `timestamp` is ISO 8601, UTC, with `Z`."""

    timestamp: str
    request_id: str | UnsetType = UNSET


class SessionCreated(_Session, frozen=True, kw_only=True, tag="session_created"):
    """Rows A100 to A103."""

    agent_id: str
    session: Json
    source_session_id: str | UnsetType = UNSET


class MessageAppended(_Session, frozen=True, kw_only=True, tag="message_appended"):
    """Row A105. `content` is text, or a provider's list of parts; `session` is the state after it (row A108)."""

    role: str
    content: Any
    message: Json
    metadata: Json | UnsetType = UNSET
    session: Json | UnsetType = UNSET


class MessageModified(_Session, frozen=True, kw_only=True, tag="message_modified"):
    """Row A106."""

    index: int
    content: Any
    session: Json | UnsetType = UNSET


class MessagesDeleted(_Session, frozen=True, kw_only=True, tag="messages_deleted"):
    """Row A107."""

    indices: list[int]
    session: Json | UnsetType = UNSET


class _Notification(_Event, frozen=True, kw_only=True):
    """Rows A120 to A124: the record, and how an action shows it."""

    notification: Json | UnsetType = UNSET
    display: Json | UnsetType = UNSET


class ApplicationNotificationCreated(
    _Notification, frozen=True, kw_only=True, tag="application_notification_created"
): ...


class ApplicationNotificationUpdated(
    _Notification, frozen=True, kw_only=True, tag="application_notification_updated"
): ...


class ApplicationNotificationDismissed(
    _Notification, frozen=True, kw_only=True, tag="application_notification_dismissed"
): ...


class ApplicationNotificationExpired(
    _Notification, frozen=True, kw_only=True, tag="application_notification_expired"
): ...


class _SessionNotification(_Notification, frozen=True, kw_only=True):
    session_id: str


class SessionNotificationCreated(
    _SessionNotification, frozen=True, kw_only=True, tag="session_notification_created"
): ...


class SessionNotificationUpdated(
    _SessionNotification, frozen=True, kw_only=True, tag="session_notification_updated"
): ...


class SessionNotificationResolved(
    _SessionNotification, frozen=True, kw_only=True, tag="session_notification_resolved"
): ...


class SessionNotificationDismissed(
    _SessionNotification, frozen=True, kw_only=True, tag="session_notification_dismissed"
): ...


class SessionNotificationExpired(
    _SessionNotification, frozen=True, kw_only=True, tag="session_notification_expired"
): ...


Event: TypeAlias = _Event | Unknown

VOCABULARY: Final[Vocabulary[_Event]] = Vocabulary(
    *(RequestStarted, RequestCancelled, RequestCompleted, Error),
    *(AssistantMessage, Partial, FinalMessages, ToolCalls, ToolPartial, ToolResults),
    *(ToolApprovalRequested, ToolApprovalGranted, ToolApprovalDenied),
    *(SessionCheckpoint, Checkpoint, SessionCreated, MessageAppended, MessageModified, MessagesDeleted),
    *(ApplicationNotificationCreated, ApplicationNotificationUpdated),
    *(ApplicationNotificationDismissed, ApplicationNotificationExpired),
    *(SessionNotificationCreated, SessionNotificationUpdated, SessionNotificationResolved),
    *(SessionNotificationDismissed, SessionNotificationExpired),
)


def public(event: Mapping[str, Any]) -> dict[str, Any] | None:
    """The event as others may see it: None for one that is internal (row A80), a `final` without its session (A56)."""
    type = event.get("type")
    if type == "session_checkpoint":
        return None
    return {name: value for name, value in event.items() if not (type == "final" and name == "session")}


def call_id(call: Mapping[str, Any]) -> str | None:
    """Which tool call this is: `id`, else `tool_call_id` (row A62)."""
    return next((call[name] for name in ("id", "tool_call_id") if isinstance(call.get(name), str)), None)


def text_of(content: Any) -> str:
    """The text of a message's `content`: a string, or the texts in a list of parts, in their order."""
    if isinstance(content, str):
        return content
    pieces: list[str] = []
    pending: list[Any] = [content]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            pieces.append(value)
        elif isinstance(value, list | tuple):
            pending.extend(reversed(value))
        elif isinstance(value, Mapping):
            pending.append(next((value[name] for name in ("text", "content") if name in value), None))
    return "".join(pieces)


def shown_text(message: Mapping[str, Any]) -> str:
    """What a renderer shows of a message: `metadata.display.content` for a text display, else the content (row A71)."""
    metadata = message.get("metadata")
    display = metadata.get("display") if isinstance(metadata, Mapping) else None
    if isinstance(display, Mapping) and display.get("type") == "text" and isinstance(display.get("content"), str):
        return str(display["content"])
    return text_of(message.get("content"))
