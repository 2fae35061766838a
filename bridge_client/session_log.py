"""A session's events by their places in it: the second contract of a store, beside `EventStore`.

There is one log. Every event that names a session has a place in it, however it came into the store: the first is 1,
each next one the number behind, without a gap or a repeat, whoever writes at the same time (rows B40 to B45). A number
is given together with the `event_id`, so both rise together, and it is given for good: it survives restarts, and is not
given again when old events are removed. `get_events` then begins with what is left.

`append_event_with_sequence` is `publish` for who has an id for each event: the same id is stored once, also by several
processes and over restarts, for as long as the event is kept. `publish` itself looks at no id.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

from bridge_client.store import Stored
from protocol.errors import InvalidEvent
from protocol.event_id import MAX_EVENT_ID
from protocol.events.session_manager import Event

MAX_OWN_ID: Final = 256
"""Characters of an event's own `id`."""

STREAM_LIMIT: Final = 100
STREAM_POLL_MS: Final = 250
"""Row B122."""

_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)


class EventIdTaken(InvalidEvent):
    """An event of another session has this id."""


class Sequenced(NamedTuple):
    """An event and its place in its session."""

    stored: Stored
    sequence_number: int


class SessionLog(Protocol):
    """Append with a number, and read by numbers (rows B40 to B59, B125 to B127)."""

    async def append_event_with_sequence(self, session_id: str, event: Mapping[str, Any] | bytes | Event) -> Sequenced:
        """Store one event of the session, as durably as `publish` does, and say its place.

        Its `session_id` may be absent, else it is this one. What is stored has `sequence_number` behind `event_id`, in
        place of one it came with. An event with an `id` (1 to 256 characters) that the session has already is not
        stored again, whatever else it says: the answer is the one that was stored. Without an `id` each call stores.

        Raises InvalidEvent for what may not be stored, EventIdTaken (one of these) when another session has the id,
        StoreError when it can't be stored.
        """

    async def get_events(
        self,
        session_id: str,
        *,
        run_id: str | None = None,
        type: str | None = None,
        since: datetime | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        wait_timeout_ms: int = 0,
    ) -> list[Sequenced]:
        """The session's events that match every filter given, in their order, the oldest first.

        `run_id` is an event's `run_id`, its `request_id` where it has none. `since` is inclusive, and is compared with
        the event's own `timestamp`, with the time it was stored at where it has none; without a zone it is UTC.
        `after` and `before` are exclusive sequence numbers. At most `limit` events, and fewer once they hold
        `MAX_PAGE_BYTES`; only an empty answer means that nothing follows.

        While nothing matches, waits up to `wait_timeout_ms` for the first event that does, without reading meanwhile
        for events of this process that do not match. A store that can't wait answers at once.

        Raises ValueError for a limit below 1, a negative `after`, `before` or wait; StoreError when it can't read.
        """

    async def get_latest_sequence(self, session_id: str) -> int:
        """The number given last in this session, 0 before the first. Raises StoreError."""


async def stream_session_events(
    log: SessionLog,
    session_id: str,
    *,
    after: int = 0,
    limit: int = STREAM_LIMIT,
    poll_interval_ms: int = STREAM_POLL_MS,
    wait_timeout_ms: int = 0,
    run_id: str | None = None,
    type: str | None = None,
) -> AsyncIterator[Sequenced]:
    """The session's events behind `after`, and those to come, without end (rows B120 to B124).

    Reads `limit` at a time, no page before the one before it is consumed. When there is nothing, sleeps
    `poll_interval_ms` between two reads; with `wait_timeout_ms` the store waits instead, and this sleeps only if it
    came back early. Go on after a break with the last `sequence_number` as `after`. Events that were removed before
    they were read are passed over: without a filter that shows as a number that is not the next one. Raises what
    `get_events` raises, and ValueError for an interval below 1.
    """
    if poll_interval_ms < 1:
        raise ValueError(f"poll_interval_ms must be at least 1, not {poll_interval_ms}")
    loop = asyncio.get_running_loop()
    while True:
        begun = loop.time()
        page = await log.get_events(
            session_id, run_id=run_id, type=type, after=after, limit=limit, wait_timeout_ms=wait_timeout_ms
        )
        for event in page:
            after = event.sequence_number
            yield event
        if not page and (wait_timeout_ms == 0 or loop.time() - begun < wait_timeout_ms / 1000):
            await asyncio.sleep(poll_interval_ms / 1000)


def microseconds(at: datetime) -> int:
    """A time as stores keep it: microseconds since 1970; one without a zone is UTC."""
    return ((at.replace(tzinfo=UTC) if at.tzinfo is None else at) - _1970) // timedelta(microseconds=1)


def check_sequence(name: str, number: int) -> int:
    """Return a sequence number that a query may name, cut to the greatest there can be. Raises ValueError."""
    if number < 0:
        raise ValueError(f"{name} must not be negative, not {number}")
    return min(number, MAX_EVENT_ID)
