"""One request under way: what stops it, and the questions that it has asked the person."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from bridge_client.publishing import Publishing
from bridge_client.session_rules import SessionError

APPROVAL_SECONDS: Final = 3600.0
"""How long a question waits for its answer; then it counts as denied."""

MAX_APPROVALS: Final = 100
"""Questions of one request that are open at the same time; further ones are denied at once."""

MAX_DECIDED: Final = 1_000
"""Answers of one request that are remembered, so that they may be given twice."""

_OURS: Final = frozenset({"request_started", "request_cancelled", "request_completed", "checkpoint"})


class NotRunning(SessionError):
    """There is no such request under way in this session."""


class NoSuchApproval(SessionError):
    """The request has asked no such question."""


class AlreadyDecided(SessionError):
    """The question has got the other answer."""


class TooManyRequests(SessionError):
    """As many requests run as may."""


class RequestIdTaken(SessionError):
    """Another session has had a request of this id."""


class Approval(Struct):
    """A question to the person: may this tool call run?"""

    approval_id: str
    tool_call: dict[str, Any]


class Running:
    """One request under way."""

    def __init__(
        self, session_id: str, request_id: str, stream: bool, stream_tools: bool, publishing: Publishing
    ) -> None:
        self.session_id = session_id
        self.request_id = request_id
        self.stream = stream
        self.stream_tools = stream_tools
        self.publishing = publishing
        """What is told of it, up to its end."""
        self.stopped: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when it was cancelled, with "cancelled", or with the home, with "stopped"."""
        self.open: dict[str, tuple[Approval, asyncio.Future[bool]]] = {}
        self.decided: dict[str, bool] = {}
        self.uncaptured = False
        """Whether messages were told that no checkpoint holds."""
        self.capturing = asyncio.Lock()

    @property
    def approvals(self) -> list[Approval]:
        """The questions that nobody has answered yet, the oldest first."""
        return [approval for approval, _ in self.open.values()]

    def stop(self, why: str) -> None:
        """Once; a second time changes nothing."""
        if not self.stopped.done():
            self.stopped.set_result(why)

    def wants(self, event: Mapping[str, Any]) -> bool:
        """Whether this event of a runner is told to others (rows A42, A46, A64)."""
        type = event.get("type")
        if type == "partial" or type == "assistant_message":
            return self.stream
        return self.stream_tools if type == "tool_partial" else type not in _OURS

    def settle(self, approval_id: str, allow: bool) -> None:
        """The first answer to an open question counts; anything else changes nothing."""
        found = self.open.pop(approval_id, None)
        if found is None:
            return
        while len(self.decided) >= MAX_DECIDED:
            del self.decided[next(iter(self.decided))]
        self.decided[approval_id] = allow
        if not found[1].done():
            found[1].set_result(allow)

    def decide(self, approval_id: str, allow: bool) -> None:
        """Answer a question; the same answer may be given twice. Raises NoSuchApproval, AlreadyDecided."""
        if approval_id not in self.decided:
            if approval_id not in self.open:
                raise NoSuchApproval(f"request {self.request_id} has not asked {approval_id[:40]!r}")
            self.settle(approval_id, allow)
        elif self.decided[approval_id] != allow:
            raise AlreadyDecided(f"{approval_id} was {'denied' if allow else 'allowed'} already")
