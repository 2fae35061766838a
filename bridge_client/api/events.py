"""`GET /events`: pages of the event store by cursor, session and request; and waiting for what comes next.

An answer is `{"events": [...], "epoch", "latest_event_id"}`. It has `"reset": true` when `since_id` lies beyond the
store; `"expired": true` and `"floor"` when it lies before what retention has left: then events up to the floor are
gone, and those in the answer are what there still is behind it (rows A20 to A36, decisions 2.5, 2.12, 2.14, 2.15):

- events in id order, at most `limit` of the store's and at most a store's page of bytes (one event is always let
  through): only an answer without events says that nothing follows;
- each the very bytes that the store holds, but parts of what the answer holds as a whole are left out, and parts that
  follow each other are merged under the id of the last (`protocol.events.compaction`), so that the last id in the
  answer is that of the page; `compact=false` answers what the store holds;
- `session_id` without `since_id` starts at the session's cursor, where the messages of a snapshot end;
- `latest_event_id` is the last id of the whole store, "0" while it is empty, and never below an event in the answer;
- without any filter there are no events: that call only says where to begin.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web

from bridge_client.api import parameters
from bridge_client.store import EventStore, Stored
from protocol import event_id as ids
from protocol.errors import BadEventId
from protocol.events.compaction import merge, plan

DEFAULT_LIMIT: Final = 500
MAX_LIMIT: Final = 1000
LONGEST_WAIT_MS: Final = 30_000
"""A longer `wait_timeout_ms` is cut to this: proxies and clients lose patience with an answer that doesn't come."""

CursorOf = Callable[[str], Awaitable[int | None]]
"""The cursor of a session (row A90), None for one that is known only by its events."""

_encode: Final = msgspec.json.encode
_decode: Final = msgspec.json.decode
_PART: Final = re.compile(rb"partial|message_streamed|LLM_PARTIAL")


class Query(NamedTuple):
    """What a request asks for. `wait` is in seconds."""

    since_id: int | None
    session_id: str | None
    request_id: str | None
    limit: int
    wait: float
    compact: bool = True

    @property
    def bootstrap(self) -> bool:
        """Whether nothing says which events are wanted (row A26; a limit is no filter)."""
        return self.since_id is None and self.session_id is None and self.request_id is None


def read_query(pairs: Sequence[tuple[str, str]]) -> Query:
    """The query's parameters; names that are not ours are passed over. Raises ApiError (400) naming the parameter."""
    found = parameters.read(pairs, _NAMES)
    since_id = None
    if "since_id" in found:
        try:
            since_id = ids.parse(found["since_id"])
        except BadEventId as error:
            raise parameters.bad("since_id", f"is {error}; it is a decimal number of at most 2^53 - 1") from None
    session_id, request_id = (parameters.name_of(found, name) for name in ("session_id", "request_id"))
    limit = parameters.whole(found, "limit", DEFAULT_LIMIT)
    if not 1 <= limit <= MAX_LIMIT:
        raise parameters.bad("limit", f"is {limit}; it may be 1 to {MAX_LIMIT}")
    wait = min(parameters.whole(found, "wait_timeout_ms", 0), LONGEST_WAIT_MS) / 1000
    compact = found.get("compact", "true")
    if compact not in ("true", "false"):
        raise parameters.bad("compact", f"is {compact[:40]!r}; it is true or false")
    return Query(since_id, session_id, request_id, limit, wait, compact == "true")


def compacted(events: Sequence[Stored]) -> list[bytes]:
    """The texts of one page without what the rest of it repeats (rows A29 to A33). What stays whole keeps its bytes."""
    texts = [event.data for event in events]
    if not any(map(_PART.search, texts)):
        return texts
    try:
        members = [_decode(text) for text in texts]
        return [
            texts[group[0]] if len(group) == 1 else _merged([members[at] for at in group]) for group in plan(members)
        ]
    except (msgspec.MsgspecError, ValueError):  # a number that no program can hold: the page stays as it is
        return texts


def _merged(parts: Sequence[dict[str, Any]]) -> bytes:
    # The standard library writes integers of any size.
    return json.dumps(merge(parts), ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


class Events:
    """Answers for one store."""

    def __init__(self, store: EventStore, cursor_of: CursorOf | None = None) -> None:
        self._store = store
        self._cursor_of = cursor_of

    async def get(self, request: web.Request) -> web.Response:
        """The handler. Raises ApiError, StoreError."""
        body = await self.answer(read_query(list(request.query.items())))
        return web.Response(body=body, content_type="application/json")

    async def answer(self, query: Query) -> bytes:
        """The answer's JSON text; waits up to `query.wait` seconds for a first event that matches."""
        if query.bootstrap:
            return self._text([], await self._head())
        since, reset = await self._start(query), False
        head = await self._head()
        if since > head:
            since, reset = 0, True
        events = await self._page(since, query)
        # After the page: what was removed before it was read shows now, at the latest.
        floor = await self._store.floor()
        if not events and not reset and floor <= since and query.wait:
            events, head = await self._awaited(max(since, head), query)
        texts = compacted(events) if query.compact else [event.data for event in events]
        latest = max(head, events[-1].event_id if events else 0)
        return self._text(texts, latest, reset=reset, floor=floor if floor > since else None)

    async def _start(self, query: Query) -> int:
        if query.since_id is None and query.session_id is not None and self._cursor_of is not None:
            return await self._cursor_of(query.session_id) or 0
        return query.since_id or 0

    async def _awaited(self, seen: int, query: Query) -> tuple[list[Stored], int]:
        """The first events above `seen` that match, or none in time; and a head that was read before them."""
        deadline = asyncio.get_running_loop().time() + query.wait
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._store.wait(seen)
            # The head is read before the page: what is stored between the two ends the next wait at once.
            head = await self._head()
            events = await self._page(seen, query)
            if events or asyncio.get_running_loop().time() >= deadline:
                return events, head
            seen = max(seen, head)

    async def _page(self, since: int, query: Query) -> list[Stored]:
        return await self._store.list(
            since_id=since, limit=query.limit, session_id=query.session_id, request_id=query.request_id
        )

    async def _head(self) -> int:
        return await self._store.head() or 0

    def _text(self, texts: Sequence[bytes], latest: int, *, reset: bool = False, floor: int | None = None) -> bytes:
        return b'{"events":[%b],"epoch":%b,"latest_event_id":"%d"%b%b}' % (
            b",".join(texts),
            _encode(self._store.epoch),
            latest,
            b',"reset":true' if reset else b"",
            b"" if floor is None else b',"expired":true,"floor":"%d"' % floor,
        )


_NAMES: Final = frozenset({"since_id", "session_id", "request_id", "limit", "wait_timeout_ms", "compact"})
