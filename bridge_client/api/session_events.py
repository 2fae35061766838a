"""`GET /sessions/{session_id}/events`: a session's events by their places in it (rows B50 to B59, B125).

An answer is `{"events": [{"sequence_number", "event"}...], "latest_sequence", "epoch"}`, with `"reset": true` when
`after` lies beyond the session, whose store was replaced or restored: the events are then those from its start. It has
`"expired": true` and `"floor"` when retention has removed events behind `after`: those up to the place `floor` are
gone, and the answer comes at once. Each `event` is the very bytes that the store holds. Nothing is compacted: places
would be missing.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from bridge_client.api import parameters
from bridge_client.api.events import DEFAULT_LIMIT, LONGEST_WAIT_MS, MAX_LIMIT
from bridge_client.session_log import Sequenced, SessionLog
from protocol.event_id import MAX_EVENT_ID

NAMES: Final = ("after", "before", "run_id", "type", "since", "limit", "wait_timeout_ms")

_DIGITS: Final = len(str(MAX_EVENT_ID))
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_encode: Final = msgspec.json.encode


class Query(NamedTuple):
    """What a request asks for."""

    after: int
    before: int | None
    run_id: str | None
    type: str | None
    since: datetime | None
    limit: int
    wait_timeout_ms: int


def read_query(pairs: Sequence[tuple[str, str]]) -> Query:
    """The query's parameters; names that are not ours are passed over. Raises ApiError (400) naming the parameter."""
    found = parameters.read(pairs, NAMES)
    limit = parameters.whole(found, "limit", DEFAULT_LIMIT)
    if not 1 <= limit <= MAX_LIMIT:
        raise parameters.bad("limit", f"is {limit}; it may be 1 to {MAX_LIMIT}")
    return Query(
        parameters.whole(found, "after", 0, digits=_DIGITS),
        parameters.whole(found, "before", 0, digits=_DIGITS) if "before" in found else None,
        parameters.name_of(found, "run_id"),
        parameters.name_of(found, "type"),
        _time(found),
        limit,
        min(parameters.whole(found, "wait_timeout_ms", 0), LONGEST_WAIT_MS),
    )


class SessionEvents:
    """Answers for one log. `epoch` names the life of its store."""

    def __init__(self, log: SessionLog, epoch: Callable[[], str]) -> None:
        self._log = log
        self._epoch = epoch

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/sessions/{session_id}/events", self.get)]

    async def get(self, request: web.Request) -> web.Response:
        """The handler. Raises ApiError, StoreError."""
        query = read_query(list(request.query.items()))
        body = await self.answer(request.match_info["session_id"], query)
        return web.Response(body=body, content_type="application/json")

    async def answer(self, session_id: str, query: Query) -> bytes:
        """The answer's JSON text; waits up to `query.wait_timeout_ms` for a first event that matches."""
        known = await self._log.get_latest_sequence(session_id)
        reset = query.after > known
        if reset:
            query = query._replace(after=0, wait_timeout_ms=0)
        events = await self._log.get_events(session_id, **query._replace(wait_timeout_ms=0)._asdict())
        # After the page: what was removed before it was read shows now, at the latest.
        floor = await self._floor(session_id, query.after, known, events)
        if not events and floor is None and query.wait_timeout_ms:
            events = await self._log.get_events(session_id, **query._asdict())
        latest = await self._log.get_latest_sequence(session_id)  # read last: never below an event in the answer
        return b'{"events":[%b],"latest_sequence":%d,"epoch":%b%b%b}' % (
            b",".join(map(_text, events)),
            latest,
            _encode(self._epoch()),
            b',"reset":true' if reset else b"",
            b"" if floor is None else b',"expired":true,"floor":%d' % floor,
        )

    async def _floor(self, session_id: str, after: int, known: int, found: Sequence[Sequenced]) -> int | None:
        """The last place removed, None if none behind `after` is. Places have no gaps but those removal has left."""
        if known <= after or (found and found[0].sequence_number == after + 1):
            return None
        left = await self._log.get_events(session_id, after=after, limit=1)
        floor = left[0].sequence_number - 1 if left else known
        return floor if floor > after else None


def _text(event: Sequenced) -> bytes:
    return b'{"sequence_number":%d,"event":%b}' % (event.sequence_number, event.stored.data)


def _time(found: dict[str, str]) -> datetime | None:
    text = found.get("since")
    if text is None:
        return None
    # In a query a plus sign that was not escaped reads as a space.
    text = re.sub(r" (?=\d\d:\d\d$)", "+", text) if "T" in text else text
    try:
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text)
    except ValueError:
        pass
    raise parameters.bad("since", f"is {text[:40]!r}; it is a time such as 2026-05-04T12:00:00Z")
