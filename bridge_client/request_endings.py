"""What is told last of a request: why it ended, and that it is completed (rows A44 to A47)."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from bridge_client.runners import Runner, RunnerError
from bridge_client.session_rules import SessionError
from bridge_client.store import StoreError
from protocol.errors import InvalidEvent
from protocol.events.truncation import cut_chars

MAX_DETAIL_CHARS: Final = 2_000

log = logging.getLogger(__name__)

Json = dict[str, Any]


def raised(work: "asyncio.Task[None]") -> BaseException | None:
    """What the work ended with, None if it came to its end or has not ended."""
    if not work.done():
        return None
    return asyncio.CancelledError() if work.cancelled() else work.exception()


def failure_event(error: BaseException, runner: Runner, request_id: str) -> Json:
    """The event that tells why the work ended."""
    match error:
        case asyncio.CancelledError():
            return error_event(f"the runner {runner.name} was stopped")
        case RunnerError() as error:
            event = error_event(str(error))
            if error.provider_error is not None:
                event["provider_error"] = dict(error.provider_error)
            return event if not error.details else {**event, "details": dict(error.details)}
        case InvalidEvent() as error:
            return error_event(f"the runner {runner.name} told something that can't be stored: {error}")
        case SessionError() | StoreError() as error:
            return error_event(str(error))
        case error:
            log.error("the runner %s failed in request %s", runner.name, request_id, exc_info=error)
            return error_event(f"the runner {runner.name} failed; the home's log says why")


def error_event(detail: str) -> Json:
    """Says `detail` to a person (row A47)."""
    return {"type": "error", "detail": cut_chars(detail, MAX_DETAIL_CHARS) or "the request failed"}


def last_events(about: Mapping[str, str], failure: Json | None) -> list[Json]:
    """The events that end a request; `about` names it."""
    ending = [] if failure is None else [failure]
    return [{**event, **about} for event in (*ending, {"type": "request_completed"})]
