"""Which of a session's events somebody wants, and who waits for the first of them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

from bridge_client.event_json import repair_text
from bridge_client.session_log import Sequenced, check_sequence, microseconds
from bridge_client.store.admission import Admitted
from protocol.event_id import MAX_EVENT_ID


class Wanted(NamedTuple):
    """The filters of `get_events`, checked."""

    session_id: str
    run_id: str | None
    type: str | None
    since: int | None
    """Microseconds since 1970."""
    after: int
    before: int
    limit: int
    wait: float
    """Seconds."""

    def matches(self, event: Admitted, sequence: int, at: int) -> bool:
        """Whether an event at this place of the session is one of them; `at` is its time."""
        return (
            self.after < sequence < self.before
            and self.run_id in (None, event.run_id)
            and self.type in (None, event.type)
            and (self.since is None or at >= self.since)
        )


class Filtered(ABC):
    """`get_events` of a SessionLog, its arguments checked, for a store that has `find`."""

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
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        if wait_timeout_ms < 0:
            raise ValueError(f"wait_timeout_ms must not be negative, not {wait_timeout_ms}")
        return await self.find(
            Wanted(
                repair_text(session_id),
                None if run_id is None else repair_text(run_id),
                None if type is None else repair_text(type),
                None if since is None else microseconds(since),
                check_sequence("after", after),
                MAX_EVENT_ID + 1 if before is None else check_sequence("before", before),
                MAX_EVENT_ID if limit is None else limit,
                wait_timeout_ms / 1000,
            )
        )

    @abstractmethod
    async def find(self, wanted: Wanted) -> list[Sequenced]:
        """A page of what is wanted, waited for. Raises StoreError."""


class Waiters:
    """Who waits, by session: an event that nobody waits for costs one look into a dictionary."""

    def __init__(self) -> None:
        self._by_session: dict[str, set[tuple[Wanted, asyncio.Event]]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_session)

    @contextmanager
    def waiting(self, wanted: Wanted) -> Iterator[asyncio.Event]:
        """What is set once there may be an event that is wanted; to be entered before the first look for one."""
        mine = (wanted, asyncio.Event())
        others = self._by_session.setdefault(wanted.session_id, set())
        others.add(mine)
        try:
            yield mine[1]
        finally:
            others.discard(mine)
            if not others and self._by_session.get(wanted.session_id) is others:
                del self._by_session[wanted.session_id]

    def tell(self, event: Admitted, sequence: int, at: int) -> None:
        """Wake whoever waits for this event, which can be read now."""
        if event.session_id is not None:
            for wanted, woken in self._by_session.get(event.session_id, ()):
                if wanted.matches(event, sequence, at):
                    woken.set()

    def tell_all(self) -> None:
        """Wake everybody: what there is now is not known."""
        for waiting in self._by_session.values():
            for _, woken in waiting:
                woken.set()
