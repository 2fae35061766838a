"""An event store in memory: everything is kept, nothing survives the process."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any

from bridge_client.event_json import repair_text
from bridge_client.session_log import EventIdTaken, Sequenced
from bridge_client.store import MAX_EVENT_BYTES, StoreClosed, Stored
from bridge_client.store.admission import Admitted, Page, admit, check_page
from bridge_client.store.appending import admit_appended
from bridge_client.store.waiters import Filtered, Waiters, Wanted
from protocol.events.session_manager import Event

_Events = list[Stored]  # inside the class, `list` is a method
_Sequence = list[Sequenced]


class MemoryStore(Filtered):
    """`EventStore` and `SessionLog` in memory, which grows with every event: for tests and homes that need no past.

    `wall` tells the time (seconds since 1970) of events that say none.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES, wall: Callable[[], float] = time.time) -> None:
        self._epoch = token_hex(16)
        self._max_event_bytes = max_event_bytes
        self._ids: list[int] = []
        self._wall = wall
        self._events: list[tuple[Stored, str | None, str | None]] = []  # event, its session, its request
        self._sessions: dict[str, list[tuple[Stored, Admitted]]] = {}  # of each session its events, by their places
        self._own_ids: dict[str, tuple[str, Sequenced]] = {}  # an appended event's own id: its session, and itself
        self._waiters = Waiters()
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
        stored, _ = self._add(admit(event, self._max_event_bytes))
        return stored

    async def publish_many(self, events: Sequence[Mapping[str, Any] | bytes]) -> _Events:
        return [await self.publish(event) for event in events]

    def _add(self, event: Admitted) -> tuple[Stored, int]:
        """Store it: the event, and its place in its session, 0 if it names none."""
        event_id = self._ids[-1] + 1 if self._ids else 1
        in_session = None if event.session_id is None else self._sessions.setdefault(event.session_id, [])
        place = 0 if in_session is None else len(in_session) + 1
        stored = event.stored(event_id, place)
        self._ids.append(event_id)
        self._events.append((stored, event.session_id, event.request_id))
        if in_session is not None:
            at = int(self._wall() * 1_000_000) if event.at is None else event.at
            in_session.append((stored, event._replace(members=b"", at=at)))
            self._waiters.tell(event, place, at)
        self._wake()
        return stored, place

    async def append_event_with_sequence(self, session_id: str, event: Mapping[str, Any] | bytes | Event) -> Sequenced:
        self._check_open()
        admitted = admit_appended(session_id, event, self._max_event_bytes)
        own_id, session = admitted.own_id, admitted.session_id
        assert session is not None  # it was given one
        if own_id is not None and own_id in self._own_ids:
            its_session, known = self._own_ids[own_id]
            if its_session != session:
                raise EventIdTaken(f"$.id: {own_id!r:.80} is the id of an event of another session")
            return known
        sequenced = Sequenced(*self._add(admitted))
        if own_id is not None:
            self._own_ids[own_id] = (session, sequenced)
        return sequenced

    async def find(self, wanted: Wanted) -> _Sequence:
        self._check_open()
        with self._waiters.waiting(wanted) as woken:
            page = self._of_session(wanted)
            if not page and wanted.wait:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wanted.wait):
                        await woken.wait()
                self._check_open()
                page = self._of_session(wanted)
        return page

    def _of_session(self, wanted: Wanted) -> _Sequence:
        page, found = Page(wanted.limit), []
        for place, (stored, event) in enumerate(
            self._sessions.get(wanted.session_id, [])[wanted.after :], wanted.after + 1
        ):
            if wanted.matches(event, place, event.at or 0):
                found.append(Sequenced(stored, place))
                if not page.add(stored):
                    break
        return found

    async def get_latest_sequence(self, session_id: str) -> int:
        self._check_open()
        return len(self._sessions.get(repair_text(session_id), ()))

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

    async def floor(self) -> int:
        self._check_open()
        return 0

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
        self._waiters.tell_all()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the event store is closed")
