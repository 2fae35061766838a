"""One request's canonical drafts, as its runner tells them: events of an agent application, and messages to persist."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from bridge_client.clock import Clock, SystemClock
from bridge_client.runners import Checkpoint, EventCallback, Json, Request, RunnerError
from bridge_client.runners.redaction import Redaction
from bridge_client.runners.stamping import stamps
from bridge_client.told_messages import ToldMessages
from protocol.events.provider_error import provider_error
from protocol.events.session_manager import Draft, Event, group_of, stamp
from protocol.events.views import AgentAppView

# Told by whoever runs the request, about it.
_NOT_OURS: Final = frozenset({"request_started", "request_completed", "request_cancelled", "error"})
_STREAMED: Final = frozenset({"partial", "assistant_message"})
_FAILURES: Final = frozenset({"run_failed", "run_timeout", "run_cancelled"})
_ENDS: Final = _FAILURES | {"run_completed"}


class Telling:
    """Takes drafts, gives what a runner yields. A failure among them is kept until `outcome`, as a request fails once.

    `on_event` gets each canonical event; a run begins with `run_started` and ends with one event that says how, also
    where the provider says neither (rows B110 to B116).
    """

    def __init__(
        self,
        request: Request,
        provider: str,
        *,
        on_event: EventCallback | None = None,
        clock: Clock | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        """`redaction` is done to every draft before anybody gets it."""
        self.provider_session_id: str | None = None
        """What the provider calls this conversation, once it has said so."""
        self._request = request
        self._provider = provider
        self._context = stamps(request.session_id, request.request_id, clock or SystemClock(), provider)
        self._on_event = on_event
        self._redaction = redaction or Redaction("")
        self._view = AgentAppView()
        self._number = 0
        self._messages = ToldMessages()
        self._failure: Draft | None = None
        self._ended = False

    @property
    def failed(self) -> bool:
        """Whether the provider has reported a failure after which nothing has ended well."""
        return self._failure is not None

    def tell(self, drafts: Iterable[Draft]) -> Iterator[Json | Checkpoint]:
        """What these drafts are to those who watch, in order; a Checkpoint after each result of a tool."""
        for draft in drafts:
            yield from self._tell(draft)

    def checkpoint(self) -> Iterator[Checkpoint]:
        """The messages that no Checkpoint has held yet, if there are any."""
        messages = self._messages.take()
        if messages:
            yield Checkpoint(messages)

    def outcome(self) -> RunnerError | None:
        """The failure that the run ended with, None if it ended well. Call it once, at the end of the stream."""
        failure, self._failure = self._failure, None
        if not self._ended:
            self._canonical(
                Draft("run_completed" if failure is None else "run_failed", failure.data if failure else {})
            )
        if failure is None:
            return None
        said = failure.data.get("error_message")
        return RunnerError(
            said if isinstance(said, str) and said else _UNSAID.get(failure.type, "the agent failed"),
            provider_error=failure.data.get("provider_error"),
            details=failure.data.get("details"),
        )

    def fail(self, message: str, *, kind: str, **report: Any) -> Iterator[Json | Checkpoint]:
        """The run fails for a reason of ours; what the provider itself said of it last is told in `message`'s place."""
        own = self._failure
        said = own.data.get("error_message") if own is not None else None
        message, report = self._redaction.error(message), self._redaction.error(report)  # before anything is cut
        about = {"message": said or message, "kind": kind, **report}
        details: Json = dict(own.data.get("details") or {}) if own is not None else {}
        if said:
            details["reason"] = message
        data = provider_error(self._provider, {**about, "details": details}).data(said or message)
        yield from self._tell(Draft("run_timeout" if kind == "timeout" else "run_failed", data))

    def _tell(self, draft: Draft) -> Iterator[Json | Checkpoint]:
        draft = self._redaction.draft(draft)
        event = self._canonical(draft)
        if draft.type == "run_started" and isinstance(theirs := draft.data.get("provider_session_id"), str):
            self.provider_session_id = theirs
            self._messages.metadata = {"provider_session_id": theirs}
        if draft.type in _FAILURES or (draft.type == "error_occurred" and draft.data.get("fatal") is not False):
            self._failure = draft
        elif draft.type == "run_completed" and self._failure is not None:  # it went on all the same
            failure, self._failure = self._failure, None
            yield {"type": "error_occurred", "data": {**failure.data, "fatal": False}, "metadata": failure.metadata}
        if draft.type == "message_sent":  # by the agent to one of its own; nobody has appended it to the session
            yield {"type": "message_sent", "data": draft.data, "metadata": draft.metadata}
            return
        for told in self._view.tell(event):
            told = {name: value for name, value in told.items() if name not in ("session_id", "request_id")}
            yield from self._filtered(told)

    def _canonical(self, draft: Draft) -> Event:
        if self._number == 0 and draft.type != "run_started":
            self._number = 1
            self._report(stamp(Draft("run_started"), self._context, 0))
        event = stamp(draft, self._context, self._number)
        self._number += 1
        self._ended = draft.type in _ENDS
        self._report(event)
        return event

    def _report(self, event: Event) -> None:
        if self._on_event is not None and group_of(event.type) is not None:
            self._on_event(event)

    def _filtered(self, told: Json) -> Iterator[Json | Checkpoint]:
        type = told["type"]
        if type in _NOT_OURS or (type in _STREAMED and not self._request.stream):
            return
        if type == "tool_partial" and not self._request.stream_tools:
            return
        if type == "tool_results":
            yield from self._ends_of(told["messages"])
        yield told
        if type == "tool_calls":
            yield from self._starts_of(told["tool_calls"])
        self._messages.add(told)
        if type == "tool_results":
            yield from self.checkpoint()

    def _starts_of(self, calls: list[Json]) -> Iterator[Json]:
        """Rows A65, A66: a tool begins."""
        for call in calls if self._request.stream_tools else ():
            start = {"part": "", "tool_name": call["function"]["name"]}
            yield {"type": "tool_partial", "tool_call_id": call["id"], "phase": "start", "payload": start}

    def _ends_of(self, messages: list[Json]) -> Iterator[Json]:
        """Row A67: a tool's last chunk is its result."""
        for message in messages if self._request.stream_tools else ():
            call_id = str(message["metadata"].get("tool_call_id", ""))
            yield {"type": "tool_partial", "tool_call_id": call_id, "phase": "end", "payload": {"result": message}}


_UNSAID: Final = {"run_timeout": "the agent took too long", "run_cancelled": "the agent was interrupted"}
