"""An event store in memory: everything is kept, nothing survives the process."""

import asyncio
from bisect import bisect_right
from collections.abc import Mapping
from secrets import token_hex
from typing import Any

from bridge_client.store import MAX_EVENT_BYTES, StoreClosed, Stored
from bridge_client.store.admission import Page, admit, check_page, repair_text

_Events = list[Stored]  # inside the class, `list` is a method


class MemoryStore:
    """`EventStore` in memory. Its memory grows with every event: for tests and for homes that need no past."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._epoch = token_hex(16)
        self._max_event_bytes = max_event_bytes
        self._ids: list[int] = []
        self._events: list[tuple[Stored, str | None, str | None]] = []  # event, its session, its request
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def epoch(self) -> str:
        return self._epoch

    @property
    def restored(self) -> int:
        return 0

    async def publish(self, event: Mapping[str, Any] | bytes) -> Stored:
        self._check_open()
        admitted = admit(event, self._max_event_bytes)
        event_id = self._ids[-1] + 1 if self._ids else 1
        stored = admitted.stored(event_id)
        self._ids.append(event_id)
        self._events.append((stored, admitted.session_id, admitted.request_id))
        self._wake()
        return stored

    async def list(
        self,
        *,
        since_id: int | None = None,
        limit: int = 500,
        session_id: str | None = None,
        request_id: str | None = None,
    ) -> list[Stored]:
        self._check_open()
        session = None if session_id is None else repair_text(session_id)
        request = None if request_id is None else repair_text(request_id)
        return self._page(check_page(since_id, limit), limit, session, request)

    def _page(self, after: int, limit: int, session: str | None, request: str | None) -> _Events:
        start = bisect_right(self._ids, after)
        page = Page(limit)
        for place in range(start, len(self._ids)):
            event, its_session, its_request = self._events[place]
            if session not in (None, its_session) or request not in (None, its_request):
                continue
            if not page.add(event):
                break
        return page.events

    def recent(self, after: int, limit: int = 500) -> _Events | None:
        self._check_open()
        return self._page(after, limit, None, None)

    async def head(self) -> int | None:
        self._check_open()
        return self._ids[-1] if self._ids else None

    async def preceding(self, event_id: int) -> int | None:
        self._check_open()
        place = bisect_right(self._ids, event_id)
        return self._ids[place - 1] if place else None

    async def wait(self, after: int) -> None:
        self._check_open()
        while not self._ids or self._ids[-1] <= after:
            await self._changed.wait()
            self._check_open()

    async def renew_epoch(self) -> str:
        self._check_open()
        self._epoch = token_hex(16)
        return self._epoch

    async def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the event store is closed")
