"""The vocabulary of the streaming APIs (source document 004): workflows, agents, model output, tools, teams, reviews.

An event is {workflow_id, type, agent_id?, message?, payload?, timestamp, seq, stream_id?} whatever its type (rows C20
to C22); what differs is what its `payload` holds. `seq` and `stream_id` are given where the event arrives.
"""

from typing import Any, Final, TypeAlias, cast

import msgspec
from msgspec import UNSET, UnsetType

from protocol.events.vocabulary import Model, Unknown, Vocabulary

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "workflow": (
        *("WORKFLOW_STARTED", "WORKFLOW_COMPLETED", "WORKFLOW_FAILED", "STREAM_END"),
        *("WORKFLOW_PAUSING", "WORKFLOW_PAUSED", "WORKFLOW_RESUMED", "WORKFLOW_CANCELLING", "WORKFLOW_CANCELLED"),
    ),
    "agent": ("AGENT_STARTED", "AGENT_COMPLETED", "AGENT_FAILED", "AGENT_THINKING"),
    "model": ("LLM_PROMPT", "LLM_PARTIAL", "LLM_OUTPUT"),
    "tool": ("TOOL_INVOKED", "TOOL_OBSERVATION", "TOOL_ERROR", "TOOL_STARTED", "TOOL_COMPLETED", "SCREENSHOT_SAVED"),
    "message": ("MESSAGE_SENT", "MESSAGE_RECEIVED", "WORKSPACE_UPDATED"),
    "trouble": ("ERROR_OCCURRED", "ERROR_RECOVERY", "WARNING"),
    "progress": (
        *("PROGRESS", "DATA_PROCESSING", "WAITING", "STATUS_UPDATE", "SYNTHESIS", "REFLECTION"),
        *("DEPENDENCY_SATISFIED", "HEARTBEAT", "PING"),
    ),
    "team": (
        *("TEAM_RECRUITED", "TEAM_RETIRED", "TEAM_STATUS", "ROLE_ASSIGNED", "DELEGATION", "BUDGET_THRESHOLD"),
        *("TASKLIST_UPDATED", "LEAD_DECISION", "LEAD_TOOL_CALL"),
    ),
    "human": (
        *("HITL_RESPONSE", "APPROVAL_REQUESTED", "APPROVAL_DECISION"),
        *("RESEARCH_PLAN_READY", "REVIEW_USER_FEEDBACK", "RESEARCH_PLAN_UPDATED", "RESEARCH_PLAN_APPROVED"),
    ),
}
"""The types of the document, and those that its original emits besides."""

TYPES: Final = tuple(type for types in GROUPS.values() for type in types)

EPHEMERAL: Final = frozenset(
    {"LLM_PARTIAL", "LLM_PROMPT", "HEARTBEAT", "PING", "partial", "tool_partial", "message_streamed"}
)
"""The types that the permanent tier leaves out, in every vocabulary (settled decision 2.9)."""


def is_permanent(type: str) -> bool:
    """Whether the permanent tier keeps events of this type (rows C7 to C14). A type nobody knows is kept."""
    return type not in EPHEMERAL


class _Event(Model, frozen=True, kw_only=True, tag_field="type"):
    event_id: str | UnsetType = UNSET
    workflow_id: str
    agent_id: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET
    """RFC 3339."""
    seq: int | UnsetType = UNSET
    stream_id: str | UnsetType = UNSET
    payload: dict[str, Any] | None | UnsetType = UNSET


class LlmPartial(_Event, frozen=True, kw_only=True, tag="LLM_PARTIAL"):
    """Row C40: `message` is a piece of text; an empty one is left out (row C21), here and below."""


class LlmOutput(_Event, frozen=True, kw_only=True, tag="LLM_OUTPUT"):
    """Row C43: `message` is the whole text, cut to 10,000 characters; `payload` is the usage (row C44), if known."""


class TaskListUpdated(_Event, frozen=True, kw_only=True, tag="TASKLIST_UPDATED"):
    """Rows C133 to C138: `payload.tasks` is always the whole list."""

    payload: dict[str, Any]


_TYPED: Final[dict[str, type[_Event]]] = {
    "LLM_PARTIAL": LlmPartial,
    "LLM_OUTPUT": LlmOutput,
    "TASKLIST_UPDATED": TaskListUpdated,
}


def _plain(name: str) -> type[_Event]:
    title = "".join(word.capitalize() for word in name.split("_"))
    made = msgspec.defstruct(title, [], bases=(_Event,), tag=name, frozen=True, kw_only=True, module=__name__)
    return cast(type[_Event], made)


Event: TypeAlias = _Event | Unknown

VOCABULARY: Final[Vocabulary[_Event]] = Vocabulary(*(_TYPED.get(name) or _plain(name) for name in TYPES))


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model call cost, as LLM_OUTPUT carries it (row C44): only what is known."""

    tokens_used: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    model_used: str | None = None
    provider: str | None = None


def read_usage(payload: dict[str, Any]) -> Usage:
    """The usage in a payload, in the form of row C44 or in that of row C215 (`{usage: {…}, model, provider}`).

    What is absent or of another type is None.
    """
    usage = payload.get("usage")
    counts: dict[str, Any] = usage if isinstance(usage, dict) else payload

    def whole(*names: str) -> int | None:
        return next((counts[name] for name in names if type(counts.get(name)) is int), None)

    def text(*names: str) -> str | None:
        return next((payload[name] for name in names if isinstance(payload.get(name), str)), None)

    cost = payload.get("cost_usd")
    return Usage(
        whole("tokens_used", "total_tokens"),
        whole("input_tokens"),
        whole("output_tokens"),
        cost if type(cost) in (int, float) else None,
        text("model_used", "model"),
        text("provider"),
    )
