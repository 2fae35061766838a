"""Notifications: what a home has to say to a person, of the application as a whole or of one session.

Both kinds have one lifecycle (`notification_rules.py`) and are used in the same way (`Notifications`); they differ in
where they are kept, and in whose they are when they are shown. A change and the event that tells it are durable as one
when the call returns. Changes take turns; what another process changed meanwhile is seen, and the change thought out
anew.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

from bridge_client import notification_rules as rules
from bridge_client.clock import Clock, rfc3339
from bridge_client.notification_rules import Draft, Ending, NoSuchNotification, Outcome, Record
from bridge_client.notification_store import ApplicationNotificationStore
from bridge_client.session_records import RecordMoved, pause_before
from bridge_client.session_rules import MAX_METADATA_BYTES
from bridge_client.sessions import Sessions
from bridge_client.store import StoreError

_TRIES: Final = 24

MAX_SAID: Final = 1_000
"""Sessions of which it is remembered that the log says what is wrong with them."""

log = logging.getLogger(__name__)

_Listed = list[Record]  # inside the classes, `list` is a method


class Notifications(Protocol):
    """The notifications of one owner. Every method raises StoreError, those of a session NoSuchSession."""

    async def list(self, *, include_terminal: bool = False) -> _Listed:
        """The active ones, or all (row A164), the last changed first."""

    async def create(self, said: Draft) -> Outcome:
        """A new one, or an active one of the same key updated (rows A144, A145).

        Raises BadNotification, NotificationsFull.
        """

    async def end(self, notification_id: str, status: str, said: Ending) -> Record:
        """Dismiss, resolve or expire it (row A146). Raises NoSuchNotification, StaleRevision, InvalidTransition."""

    async def active(self, key: str) -> Record | None:
        """The active one of this key."""


def _new_id() -> str:
    return str(uuid4())


class ApplicationNotifications:
    """`Notifications` of the application (rows A125 to A133)."""

    def __init__(self, store: ApplicationNotificationStore, clock: Clock, new_id: Callable[[], str] = _new_id) -> None:
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._turn = asyncio.Lock()

    async def list(self, *, include_terminal: bool = False) -> _Listed:
        return await self._store.list(include_terminal=include_terminal)

    async def active(self, key: str) -> Record | None:
        return await self._store.active(key)

    async def create(self, said: Draft) -> Outcome:
        async def read() -> Record | None:
            return None if said.key is None else await self._store.active(said.key)

        def think(before: Record | None) -> Outcome:
            return rules.create(said, before, session_id=None, now=self._now(), new_id=self._new_id)

        return await self._change(read, think)

    async def end(self, notification_id: str, status: str, said: Ending) -> Record:
        def think(before: Record | None) -> Outcome:
            if before is None:
                raise _missing(notification_id)
            return rules.end(before, status, said, self._now())

        return (await self._change(lambda: self._store.get(notification_id), think)).record

    async def _change(
        self, read: Callable[[], Awaitable[Record | None]], think: Callable[[Record | None], Outcome]
    ) -> Outcome:
        async with self._turn:
            for tries in range(_TRIES):
                before = await read()
                outcome = think(before)
                if outcome.verb is None:
                    return outcome
                event = rules.event("application", outcome.verb, outcome.record)
                try:
                    await self._store.apply(outcome.record, before, event)
                except RecordMoved:
                    await self._clock.sleep(pause_before(tries))
                    continue
                return outcome
        raise StoreError("another process keeps changing this notification; try again")

    def _now(self) -> str:
        return rfc3339(self._clock.wall())


class SessionNotifications:
    """The notifications of all sessions, each kept in the metadata of its own (rows A134 to A136)."""

    def __init__(self, sessions: Sessions, clock: Clock, new_id: Callable[[], str] = _new_id) -> None:
        self._sessions = sessions
        self._clock = clock
        self._new_id = new_id
        self._said: set[str] = set()

    def of(self, session_id: str) -> "OfSession":
        """Those of one session."""
        return OfSession(self._sessions, session_id, self._clock, self._new_id, self._said)

    async def tell(self, session_id: str, said: Mapping[str, Any]) -> None:
        """What a runner says (rows A153, A154). Raises what `create` raises: whoever hands this on must not fail."""
        await self.of(session_id).create(rules.draft({"source": {"kind": "runner"}, **said}))


class OfSession:
    """`Notifications` of one session."""

    def __init__(
        self, sessions: Sessions, session_id: str, clock: Clock, new_id: Callable[[], str], said: set[str]
    ) -> None:
        """`said` holds the sessions of which the log says that their metadata is misshapen."""
        self._sessions = sessions
        self._session_id = session_id
        self._clock = clock
        self._new_id = new_id
        self._said = said

    async def list(self, *, include_terminal: bool = False) -> _Listed:
        return rules.listed(await self._items(), include_terminal=include_terminal)

    async def active(self, key: str) -> Record | None:
        return _active(await self._items(), key)

    async def create(self, said: Draft) -> Outcome:
        def think(items: Sequence[Record]) -> Outcome:
            before = None if said.key is None else _active(items, said.key)
            return rules.create(said, before, session_id=self._session_id, now=self._now(), new_id=self._new_id)

        return await self._change(think)

    async def end(self, notification_id: str, status: str, said: Ending) -> Record:
        def think(items: Sequence[Record]) -> Outcome:
            before = next((item for item in items if item["id"] == notification_id), None)
            if before is None:
                raise _missing(notification_id)
            return rules.end(before, status, said, self._now())

        return (await self._change(think)).record

    async def _change(self, think: Callable[[Sequence[Record]], Outcome]) -> Outcome:
        outcomes: list[Outcome] = []

        def change(metadata: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
            outcome = think(self._read(metadata))
            if outcome.verb is None:
                raise _Unchanged(outcome)
            rules.put(metadata, outcome.record, MAX_METADATA_BYTES)
            outcomes.append(outcome)
            return [rules.event("session", outcome.verb, outcome.record)]

        try:
            await self._sessions.update_metadata(self._session_id, change)
        except _Unchanged as same:
            return same.outcome
        return outcomes[-1]

    async def _items(self) -> Sequence[Record]:
        return self._read((await self._sessions.get(self._session_id)).metadata)

    def _read(self, metadata: Mapping[str, Any]) -> Sequence[Record]:
        if rules.misshapen(metadata) and self._session_id not in self._said and len(self._said) < MAX_SAID:
            self._said.add(self._session_id)
            log.warning(
                'the metadata of session %s has a "notifications" that is no {"items": [...]}: taken for none; the next'
                " notification moves it to notifications.replaced",
                self._session_id,
            )
        return rules.items(metadata)

    def _now(self) -> str:
        return rfc3339(self._clock.wall())


class _Unchanged(Exception):
    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome


def _active(items: Sequence[Record], key: str) -> Record | None:
    return next((item for item in items if item.get("key") == key and rules.is_active(item)), None)


def _missing(notification_id: str) -> NoSuchNotification:
    return NoSuchNotification(f"there is no notification {notification_id[:128]!r}")
