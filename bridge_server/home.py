"""What the hub knows of one home: who speaks for it, which life of its store is held, and whether it is there.

A `Home` outlives its connections. Its rules, with the messages they come from:

- *link*: a number raised at each join of the home; an append under a lower one is refused, so that a connection that
  was taken over, or froze and woke up, can't write.
- *epoch*: one life of the home's store. Ids mean something only within it; the hub holds one epoch at a time.
- *floor*: the lowest cursor that can be served from the live tier: what came before the oldest event held. A cursor
  below it is served from the home's store, if the home answers `backfill` (see `backfill.py`).
- *stated*: the epoch and head the home gave on the link it has now. The home has *refilled* once the hub holds that
  head.
- *shown*: whether apps are told that the home is there. It lags behind a drop by the grace period, so that a home which
  reconnects at once was never away.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Final, Protocol

from msgspec import UNSET, Struct, UnsetType

from bridge_server.backfill import Backfill
from bridge_server.history import History, Kept, Log
from bridge_server.pages import Shared
from bridge_server.requests import Requests
from protocol import envelope
from protocol.errors import InvalidEvent

TAKEOVERS_A_MINUTE: Final = 3
EPOCHS_AN_HOUR: Final = 6


class Holder(Protocol):
    """The connection that speaks for a home."""

    def replaced_by(self, instance: str | None) -> None:
        """Another connection took over."""


class Watcher(Protocol):
    """An app that is joined to a home's events."""

    def home_joined(self, epoch_changed: bool) -> None:
        """The home came (back), perhaps with another store."""

    def home_advanced(self) -> None:
        """The hub holds one more event. Called for those in `Home.waiting` only, before the next event is taken."""

    def history_cut(self) -> None:
        """The first event held of this epoch is not the first there was: what came before it will never come."""

    def home_left(self) -> None:
        """The home's connection ended."""

    def nobody_came(self) -> None:
        """The home stayed away for as long as an open verdict may wait."""

    def status_changed(self) -> None:
        """The home's online state, as apps are told, changed."""


class Refused(Exception):
    """A join or an append the hub does not take; `reason` and `details` go into the error reply."""

    def __init__(self, reason: str, **details: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.details = details


class Verdict(Struct, frozen=True):
    """What a joining app is told. `gap` None and `recovered` True: everything asked for is coming.

    `fetch`: nobody can promise that yet, for some of it has to come from the home's store.
    """

    recovered: bool | None
    gap: "Gap | None" = None
    fetch: bool = False


class Gap(Struct, frozen=True):
    """Why a cursor can't be served, and where one can start instead."""

    reason: str
    from_id: str
    resume_after: str | None


RECOVERED = Verdict(True)
OPEN = Verdict(None)
FETCH = Verdict(None, fetch=True)


class Home:
    """One home as this hub sees it. Synchronous: every method leaves it consistent, so no lock is needed."""

    def __init__(
        self,
        server_id: str,
        history: History,
        now: float,
        shown: Callable[["Home"], None] | None = None,
        backfill: Backfill | None = None,
    ) -> None:
        self.server_id = server_id
        self.backfill = backfill or Backfill(Shared(), lambda: now)
        self.name: str | None = None
        self.link = 0
        self.holder: Holder | None = None
        self.instance: str | None = None
        self.epoch: str | None = None
        self.log: Log | None = None
        self.stated_epoch: str | None = None
        self.stated_head: int | None = None
        self.absent_since: float | None = now
        self.shown_online = False
        self.shown_since = now
        self.watchers: dict[Watcher, None] = {}
        self.waiting: dict[Watcher, None] = {}  # those of them that wait for a verdict or a place
        self.alarm: asyncio.TimerHandle | None = None
        self.last_event_at: float | None = None
        self.requests = Requests()
        self._history = history
        self._on_shown = shown
        self._takeovers: deque[float] = deque()
        self._epoch_changes: deque[float] = deque()

    @property
    def online(self) -> bool:
        """Whether a home is connected now."""
        return self.holder is not None

    @property
    def head(self) -> int | None:
        """The last id held, None when nothing is."""
        return self.log.head if self.log is not None else None

    @property
    def digest(self) -> str | None:
        """SHA-256 of the last event held, in hexadecimal; None when it is not held any more.

        The home compares: under the same epoch and id its store may hold another event, if it was restored or copied.
        """
        page = None if self.log is None else self.log.page(max(self.log.floor, self.log.head - 1), self.log.head, 1)
        return sha256(page[-1].data).hexdigest() if page else None

    @property
    def place(self) -> int | None:
        """Where an app that has everything stands: the last id held, or 0 when the home's store is known to be empty.

        None while nobody can know. 0 is below every id a home's first event has.
        """
        if self.log is not None:
            return self.log.head
        return 0 if self.refilled else None

    @property
    def refilled(self) -> bool:
        """Whether the home is here, has stated its store, and the hub holds everything up to the head it stated."""
        if self.holder is None or self.epoch != self.stated_epoch:
            return False
        return self.stated_head is None or (self.head is not None and self.head >= self.stated_head)

    # The home comes and goes.

    def join(
        self,
        holder: Holder,
        epoch: str | None,
        head: int | None,
        name: str | None,
        instance: str | None,
        now: float,
        *,
        backfill: bool = False,
    ) -> bool:
        """A home joins; True when the epoch held was dropped for another. `backfill`: it answers for its past.

        Without an epoch the one held goes on, or a new random one starts. Raises Refused (`flapping`, `rate_limited`).
        """
        if self.holder is not None and self.holder is not holder:
            self._admit(self._takeovers, TAKEOVERS_A_MINUTE, 60, now, "flapping")
        if epoch is None:
            epoch = self.epoch or secrets.token_urlsafe(9)
        changed = self.epoch is not None and epoch != self.epoch
        if changed:
            self._admit(self._epoch_changes, EPOCHS_AN_HOUR, 3600, now, "rate_limited")
        previous, self.holder = self.holder, holder
        self.link += 1
        self.instance, self.absent_since = instance, None
        renamed, self.name = name not in (None, self.name), name or self.name
        if renamed and self.shown_online and self._on_shown is not None:
            self._on_shown(self)
        self.stated_epoch, self.stated_head = epoch, head
        if changed or self.epoch is None:
            self.epoch, self.log = epoch, None
        self.backfill.lost(epoch_changed=changed)
        self.backfill.able = backfill
        if previous is not None and previous is not holder:
            previous.replaced_by(instance)
        return changed

    @staticmethod
    def _admit(times: deque[float], most: int, period: float, now: float, reason: str) -> None:
        while times and now - times[0] >= period:
            times.popleft()
        if len(times) >= most:
            raise Refused(reason, retry_after_ms=max(1, round((times[0] + period - now) * 1000)))
        times.append(now)

    def leave(self, holder: Holder, now: float) -> bool:
        """A connection of the home ended; True if it was the one that spoke for it."""
        if self.holder is not holder:
            return False
        self.holder, self.absent_since = None, now
        self.backfill.lost()
        return True

    def away(self, now: float, patience: float) -> bool:
        """Whether the home has been away for `patience` seconds: then its absence is an answer."""
        return self.absent_since is not None and now - self.absent_since >= patience

    def show_online(self, now: float) -> None:
        """The home is there: tell its apps, unless that is what they were told last."""
        self._show(True, now)

    def show_absence(self, link: int) -> None:
        """The grace period after the end of `link` is over: tell the apps, unless the home came back meanwhile."""
        if self.link == link and self.absent_since is not None:
            self._show(False, self.absent_since)

    def _show(self, online: bool, since: float) -> None:
        if self.shown_online != online:
            self.shown_online, self.shown_since = online, since
            if self._on_shown is not None:
                self._on_shown(self)
            for watcher in tuple(self.watchers):
                watcher.status_changed()

    def nobody_came(self) -> None:
        """The alarm went off: give the open verdicts that waited for the home."""
        self.alarm = None
        for watcher in tuple(self.watchers):
            watcher.nobody_came()

    # Events.

    def append(self, raw: bytes, prev_id: int | None | UnsetType, limit: int, now: float) -> tuple[Kept | None, int]:
        """Take one event in; returns it (None for a repeat of one that is held already) and its id.

        `prev_id` is the id before it in the home's store: UNSET when the home does not say, None when it is the first
        event the store ever held. Raises Refused (`too_large`, `invalid_event`, `gap`).
        """
        try:
            number, kind, session_id = envelope.read(raw)
        except InvalidEvent as error:
            raise Refused("invalid_event", id=error.args[1], message=error.args[0]) from None
        if len(raw) > limit:
            raise Refused("too_large", id=str(number), limit=limit)
        if self.log is None:
            floor = number if prev_id is UNSET else prev_id or 0
            if floor > number or (floor == number and prev_id is not UNSET):
                raise Refused("invalid_event", id=str(number), message="prev_id is not below event_id")
            self.log = self._history.open(self.server_id, floor)
        elif number <= self.log.head:
            return None, number
        elif prev_id is not UNSET and (prev_id or 0) != self.log.head:
            raise Refused("gap", resume_from=str(self.log.head))
        kept = Kept(number, raw, kind, session_id, now)
        self.log.append(kept)
        self.last_event_at = now
        return kept, number

    def advanced(self) -> None:
        """An event was appended and published: let the apps that waited for it go on."""
        if self.waiting:
            for watcher in tuple(self.waiting):
                watcher.home_advanced()

    # Apps.

    def judge(self, epoch: str | None, since: int | None, now: float, patience: float) -> Verdict:
        """The verdict on a cursor, all or nothing; `OPEN` while only the home can settle it and may still come, `FETCH`
        when what it asks for has to come from the home's store, and may.

        `patience` is how long (seconds) a home may be away before its absence is an answer.
        """
        if since is None:
            return RECOVERED
        foreign = self.epoch is None or (epoch is not None and epoch != self.epoch)
        if self.log is None or foreign or since > self.log.head:
            if not self.refilled:
                return self._gap("hub_reset", since) if self.away(now, patience) else OPEN
            if foreign:
                return self._gap("epoch_changed", since)
            if since > max(self.head or 0, self.stated_head or 0):
                return self._gap("ahead", since)
            return RECOVERED
        if since >= self.log.floor:
            return RECOVERED
        if self.backfill.asks() and since >= self.backfill.floor and not self.away(now, patience):
            return FETCH
        return self._gap("expired", since)

    def _gap(self, reason: str, since: int) -> Verdict:
        floor = None if reason == "hub_reset" else self.log.floor if self.log is not None else self.place
        if reason == "expired" and floor is not None and since < self.backfill.floor:
            floor = min(floor, self.backfill.floor)  # what its store still has is more than what we have
        return Verdict(False, Gap(reason, str(since), None if floor is None else str(floor)))

    def expired(self, last_sent: int) -> Verdict:
        """The verdict on a replay that eviction overtook, and whose next page is not to be had from the home either."""
        return self._gap("expired", last_sent)


class Homes:
    """Every home this hub has met since it started. `hub_epoch` changes with each start: the live tier starts empty.

    `shown` is called with a home when what apps are told of it (that it is there, since when, its name) has changed.
    """

    def __init__(self, history: History, now: Callable[[], float], shown: Callable[[Home], None] | None = None) -> None:
        self.hub_epoch = secrets.token_urlsafe(9)
        self.events = 0
        self.backfills = Shared()
        self._history = history
        self._shown = shown
        self._now = now
        self._started = now()
        self._homes: dict[str, Home] = {}

    def get(self, server_id: str) -> Home:
        """The home with this id, which a credential vouches for."""
        home = self._homes.get(server_id)
        if home is None:
            backfill = Backfill(self.backfills, self._now)
            home = self._homes[server_id] = Home(server_id, self._history, self._started, self._shown, backfill)
        return home

    def __iter__(self) -> Iterator[Home]:
        return iter(tuple(self._homes.values()))
