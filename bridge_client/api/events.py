"""`GET /events`: pages of the event store by cursor, session and request; and waiting for what comes next.

An answer is `{"events": [...], "epoch", "latest_event_id"}`, with `"reset": true` when `since_id` lies beyond the store
(spec rows A20 to A27 and A34, decision 2.12):

- events in id order, each the very bytes that the store holds, at most `limit` of them and at most a store's page of
  bytes (one event is always let through): only an answer without events says that nothing follows;
- `latest_event_id` is the last id of the whole store, "0" while it is empty, and never below an event in the answer;
- without any filter there are no events: that call only says where to begin.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from aiohttp import web

from bridge_client.api import ApiError
from bridge_client.store import EventStore, Stored
from protocol import event_id as ids
from protocol.errors import BadEventId

DEFAULT_LIMIT: Final = 500
MAX_LIMIT: Final = 1000
LONGEST_WAIT_MS: Final = 30_000
"""A longer `wait_timeout_ms` is cut to this: proxies and clients lose patience with an answer that doesn't come."""

_encode: Final = msgspec.json.encode


class Query(NamedTuple):
    """What a request asks for. `wait` is in seconds."""

    since_id: int | None
    session_id: str | None
    request_id: str | None
    limit: int
    wait: float

    @property
    def bootstrap(self) -> bool:
        """Whether nothing says which events are wanted (row A26; a limit is no filter)."""
        return self.since_id is None and self.session_id is None and self.request_id is None


def read_query(pairs: Sequence[tuple[str, str]]) -> Query:
    """The query's parameters; names that are not ours are passed over. Raises ApiError (400) naming the parameter."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found and name in _NAMES:
            raise _bad(name, "is given twice")
        found[name] = value
    since_id = None
    if "since_id" in found:
        try:
            since_id = ids.parse(found["since_id"])
        except BadEventId as error:
            raise _bad("since_id", f"is {error}; it is a decimal number of at most 2^53 - 1") from None
    for name in ("session_id", "request_id"):
        if found.get(name) == "":
            raise _bad(name, "is empty; leave it out, or name one")
    limit = _whole(found, "limit", DEFAULT_LIMIT)
    if not 1 <= limit <= MAX_LIMIT:
        raise _bad("limit", f"is {limit}; it may be 1 to {MAX_LIMIT}")
    wait = min(_whole(found, "wait_timeout_ms", 0), LONGEST_WAIT_MS) / 1000
    return Query(since_id, found.get("session_id"), found.get("request_id"), limit, wait)


class Events:
    """Answers for one store."""

    def __init__(self, store: EventStore) -> None:
        self._store = store

    async def get(self, request: web.Request) -> web.Response:
        """The handler. Raises ApiError, StoreError."""
        body = await self.answer(read_query(list(request.query.items())))
        return web.Response(body=body, content_type="application/json")

    async def answer(self, query: Query) -> bytes:
        """The answer's JSON text; waits up to `query.wait` seconds for a first event that matches."""
        if query.bootstrap:
            return self._text([], await self._head())
        since, reset = query.since_id or 0, False
        if since > await self._head():
            since, reset = 0, True
        events = await self._page(since, query) if reset else await self._first_page(since, query)
        return self._text(events, await self._head(), reset=reset)

    async def _first_page(self, since: int, query: Query) -> list[Stored]:
        deadline = asyncio.get_running_loop().time() + query.wait
        while True:
            # The head is read before the page: what is stored between the two ends the wait at once.
            seen = max(since, await self._head())
            events = await self._page(since, query)
            if events or asyncio.get_running_loop().time() >= deadline:
                return events
            since = seen
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._store.wait(seen)

    async def _page(self, since: int, query: Query) -> list[Stored]:
        return await self._store.list(
            since_id=since, limit=query.limit, session_id=query.session_id, request_id=query.request_id
        )

    async def _head(self) -> int:
        return await self._store.head() or 0

    def _text(self, events: Sequence[Stored], latest: int, *, reset: bool = False) -> bytes:
        return b'{"events":[%b],"epoch":%b,"latest_event_id":"%d"%b}' % (
            b",".join([event.data for event in events]),
            _encode(self._store.epoch),
            latest,
            b',"reset":true' if reset else b"",
        )


_NAMES: Final = frozenset({"since_id", "session_id", "request_id", "limit", "wait_timeout_ms"})


def _whole(found: dict[str, str], name: str, default: int) -> int:
    text = found.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise _bad(name, f"is {text[:40]!r}; it is a whole number")
    return int(text)


def _bad(name: str, why: str) -> ApiError:
    return ApiError(400, "bad_parameter", f"{name} {why}", parameter=name)
