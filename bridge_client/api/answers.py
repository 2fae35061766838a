"""What the answers of the home's API hold, for its description; what each member means is in docs/home-api.md."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from bridge_client.runners import Message
from bridge_client.running_request import Approval

Id = Annotated[str, Meta(pattern="^(0|[1-9][0-9]{0,15})$", description="a decimal number of at most 2^53 - 1")]


class Health(TypedDict):
    status: Literal["ok"]
    program: str


class Page(TypedDict):
    """Events, byte for byte as the store holds them, merged partials aside."""

    events: list[dict[str, Any]]
    epoch: str
    latest_event_id: Id
    reset: NotRequired[bool]
    expired: NotRequired[bool]
    floor: NotRequired[Id]


class Placed(TypedDict):
    sequence_number: int
    event: dict[str, Any]


class PlacedPage(TypedDict):
    """A session's events by their places in it."""

    events: list[Placed]
    latest_sequence: int
    epoch: str
    reset: NotRequired[bool]
    expired: NotRequired[bool]
    floor: NotRequired[int]


class Place(TypedDict):
    """Where events go on behind this answer."""

    cursor_event_id: Id
    epoch: str


class Request(TypedDict):
    """The request under way, and what it has asked."""

    request_id: str
    approvals: list[Approval]


class Session(TypedDict):
    session_id: str
    agent_id: str
    source_session_id: NotRequired[str]
    created_at: str
    updated_at: str
    metadata: dict[str, Any]
    message_count: int


class ListedSession(Session):
    cursor_event_id: Id
    request: Request | None


class NewlyMadeSession(Session):
    messages: NotRequired[list[Message]]
    messages_omitted: NotRequired[Literal[True]]


class Made(Place):
    session: NewlyMadeSession


class Shown(Place):
    session: ListedSession


class Listed(TypedDict):
    sessions: list[ListedSession]
    next_before: Id | None
    epoch: str
    runner: str | None


class Messages(Place):
    session_id: str
    messages: list[Message]
    offset: int
    next_offset: int | None
    message_count: int
    request: Request | None


class Changed(Place):
    index: int
    message: Message


class Deleted(Place):
    indices: list[int]
    message_count: int


class Accepted(TypedDict):
    session_id: str
    request_id: str


class Decided(TypedDict):
    approval_id: str
    decision: Literal["allow", "deny"]


class Notification(TypedDict, total=False):
    id: str
    key: str
    revision: int
    status: Literal["pending", "dismissed", "resolved", "expired"]
    severity: Literal["info", "success", "warning", "error"]
    title: str
    body: str
    created_at: str
    updated_at: str
    ended_at: str
    reason: str
    source: dict[str, Any]
    display: dict[str, Any]
    model_visibility: Literal["hidden"]


class OneNotification(TypedDict):
    notification: Notification


class Notifications(TypedDict):
    notifications: list[Notification]


class Lag(TypedDict):
    events: int
    seconds: float


class Status(TypedDict):
    """Whether events get through."""

    name: str
    source: str
    server_id: str | None
    hub_url: str | None
    pid: int
    started_at: str
    epoch: str | None
    head_id: Id | None
    acked_id: Id | None
    connected: bool
    connected_since: str | None
    last_ack_at: str | None
    last_ack_age_seconds: float | None
    lag: Lag
    dead_letters: int
    stored: dict[str, str | int | float | None] | None
    runner: str | None
    runner_problem: str | None
    last_error: str | None
