"""From the home's events to the hub: source -> window -> link -> acknowledgement -> cursor.

What it promises: every event of the source reaches the hub, in id order, its bytes as the source has them. The cursor
never passes an event that the hub has not acknowledged. An event that the hub can't take is tried three times (one
above its stated limit not at all), then kept with the dead letters, and a tombstone takes its place and its id. While
the hub is away nothing is read: the source is the queue, memory stays flat.

The hub is the judge of what it holds: each join, each `gap` and each refusal says where to go on, and what was sent
before such an answer and is still unanswered is forgotten (its refs are) and read from the source again.

Ids name events only within one history of the source. A source that was restored, truncated or copied may name others
by them, which the hub would take for repeats. It is known by its head, by the digest of an event that was acknowledged
(kept with the cursor), and by that of the hub's last one: where they don't fit, the source begins a new epoch.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn

from bridge_client.backfill import Backfill
from bridge_client.clock import Clock, SystemClock
from bridge_client.cursor import CursorStore, DamagedCursor, SavedCursor
from bridge_client.dead_letters import DeadLetters
from bridge_client.dial import Disconnected
from bridge_client.home_topic import ANSWER, JOINED, NOTICE, Answer, EventRefused, Joined, Replaced, push_of, too_large
from bridge_client.link import Link, Session, read_id, read_json
from bridge_client.poison import FRAME_FAULTS, Condemned, Suspicion
from bridge_client.refill import gone_behind, refill_from
from bridge_client.requests import Attendance, Requests
from bridge_client.sources import Mark, Source, SourceEvent
from bridge_client.store import StoreError
from bridge_client.tombstones import Tombstoned
from bridge_client.window import Batch, Window
from protocol.client import ChannelClosed, ChannelErrored, ClientEvent, NotJoined, Received, Replied
from protocol.topics import server_topic

log = logging.getLogger(__name__)

ACK_TIMEOUT: Final = 60.0
"""Seconds without any answer while something is unanswered, after which the socket is given up."""

_MOST_GAPS: Final = 3


class Limits(NamedTuple):
    """How much may be unanswered at once, and how much of its past a hub that lost its memory is sent again."""

    window_events: int = 2_000
    window_bytes: int = 1 << 20
    refill_events: int = 2_000
    refill_bytes: int = 4 << 20


class Status(NamedTuple):
    """What an owner wants to know. Times are wall clock seconds; the age of `last_ack_at` says more than a socket."""

    connected_since: float | None
    last_ack_at: float | None
    acked_id: int | None
    head_id: int | None
    last_error: str | None

    @property
    def lag(self) -> int:
        """Ids between the last event acknowledged and the last one known."""
        return max(0, (self.head_id or 0) - (self.acked_id or 0))


class Forwarder:
    """Forwards one source to one hub under one server id. `run` once."""

    def __init__(
        self,
        source: Source,
        cursor: CursorStore,
        link: Link,
        *,
        server_id: str,
        hub_url: str,
        name: str,
        instance: str,
        limits: Limits | None = None,
        letters: DeadLetters | None = None,
        clock: Clock | None = None,
        requests: Requests | None = None,
    ) -> None:
        """Without `letters`, the events that the hub can't take are forgotten at the end; without `requests`, what apps
        ask is answered by nobody.
        """
        self._letters = letters or DeadLetters.in_memory(clock)
        self._source: Source = Tombstoned(source, self._letters)
        self._requests = requests
        self._cursor_file = cursor
        self._link = link
        self._server_id = server_id
        self._topic = server_topic(server_id)
        self._hub_url = hub_url
        self._name = name
        self._instance = instance
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._epoch = ""  # that of the source, to which the next five belong
        self._acked: int | None = None
        self._mark: Mark | None = None
        self._unsure = False  # whether the epoch may be one that was left for another
        self._suspicion = Suspicion()
        self._condemned: Condemned | None = None  # to be buried before anything more is sent
        self._head: int | None = None
        self._last_ack_at: float | None = None
        self._hub_epoch: str | None = None
        self._gaps = 0  # in a row, without an acknowledgement between them
        self._pause = 0.0  # seconds the hub asked to wait

    @property
    def status(self) -> Status:
        """How things stand now."""
        error = self._link.last_error
        return Status(self._link.connected_since, self._last_ack_at, self._acked, self._head, error)

    async def run(self) -> NoReturn:
        """Forward until cancelled. Errors of the source pass through.

        Raises Stopped: Replaced, EventRefused, CredentialRefused or JoinRejected.
        """
        self._load_cursor()
        try:
            await self._link.run(self._talk)
            raise AssertionError("a forwarder never finishes by itself")
        finally:
            await self._cursor_file.flush()

    def _load_cursor(self) -> None:
        self._epoch = self._source.epoch
        try:
            saved = self._cursor_file.load()
        except DamagedCursor as error:
            log.warning("%s; the hub will say where to go on", error)
            return
        if saved is None:
            return
        if (other := saved.foreign_to(self._hub_url, self._server_id, self._epoch)) is None:
            self._acked, self._mark = saved.event_id, saved.mark
        else:
            log.warning("the saved cursor belongs to another %s: not used, the hub will say where to go on", other)
            self._unsure = saved.foreign_to(self._hub_url, self._server_id, saved.epoch) is None

    async def _talk(self, session: Session) -> None:
        window = await self._join(session)
        backfill = Backfill(self._source, session, self._topic, window.max_event_bytes, self._clock)
        attendance = Attendance(self._requests, session, self._topic, window.max_event_bytes)
        news: asyncio.Future[None] | None = None
        last_answer = self._clock.monotonic()
        try:
            while True:
                for event in session.take():
                    self._heed(window, backfill, attendance, event)
                    last_answer = self._clock.monotonic()
                if self._source.epoch != self._epoch:
                    raise Disconnected("the event store has begun another epoch: joining again")
                if self._pause:
                    pause, self._pause = self._pause, 0.0
                    await self._clock.sleep(pause)
                if not window.in_flight:
                    last_answer = self._clock.monotonic()
                elif self._clock.monotonic() - last_answer > ACK_TIMEOUT:
                    raise Disconnected(f"no acknowledgement for {ACK_TIMEOUT:.0f} s")
                with suppress(NotJoined):  # the topic has just ended: why, is the next thing to take
                    await self._bury_condemned(window)
                    all_sent = await self._send(session, window)
                    backfill.answer_next(quiet=all_sent)
                    if all_sent and (news is None or news.done()):
                        if news is not None:
                            news.result()
                        news = asyncio.ensure_future(self._source.wait(window.read_after))
                        news.add_done_callback(lambda _: session.wake.set())
                await session.wake.wait()
        except Disconnected as lost:
            self._suspect(window, lost)
            raise
        finally:
            await backfill.stop()
            await attendance.stop()
            if news is not None:
                news.cancel()
                await asyncio.gather(news, return_exceptions=True)

    async def _join(self, session: Session) -> Window:
        renewed = False
        while True:
            self._head = await self._source.head()
            head = self._head or 0
            if self._source.epoch != self._epoch:
                self._begin(self._source.epoch)
            if (why := await self._another_history(head)) is not None:
                await self._renew(f"went back in time ({why})")
                renewed = True
            joined = await self._state_ourselves(session)
            await self._letters.note_limit(joined.max_event_bytes)
            held = read_id(joined.resume_from)
            if held is None:
                limits = self._limits
                refill = await refill_from(self._source, head, events=limits.refill_events, size=limits.refill_bytes)
                start = min(self._acked or 0, refill)
                first = (await gone_behind(self._source, start) or start) + 1
                log.info("the hub holds nothing of this store: sending from event %d", first)
                return self._window(joined, start, None)
            self._head = await self._source.head()
            if held > (self._head or 0):
                why = f"went back in time (its last event is {self._head or 0}, but the hub holds up to {held})"
            elif joined.resume_digest is not None and not await self._fits(held, joined.resume_digest):
                why = f"went back in time (event {held} is another one here than at the hub)"
            elif (gone := await gone_behind(self._source, held)) is not None:
                why = f"no longer has events {held + 1} to {gone}, which the hub lacks"
            else:
                log.info("the hub holds everything up to event %d", held)
                window = self._window(joined, held, held)
                self._save(held)
                return window
            if renewed:
                raise Disconnected("the hub claims to hold events of an epoch that has just begun")
            await self._renew(why)
            renewed = True

    async def _another_history(self, head: int) -> str | None:
        """Why the events are not those that were forwarded, None while nothing speaks against it."""
        if self._unsure:
            # A store of an earlier epoch may have come back, and apps may have read beyond its head in that epoch.
            return "it is not in the epoch that was forwarded last"
        if (self._acked or 0) > head:
            return f"its last event is {head}, but {self._acked} was forwarded"
        mark = self._mark
        if mark is not None and await self._source.knows(mark.event_id, mark.digest) is False:
            return f"event {mark.event_id} is another one than was forwarded"
        return None

    async def _fits(self, held: int, digest: str) -> bool:
        knows = await self._source.knows(held, digest)
        if knows:
            self._mark = Mark(held, digest)
        return knows is not False

    async def _state_ourselves(self, session: Session) -> Joined:
        payload = {
            "protocol": 1,
            "epoch": self._source.epoch,
            "head_id": None if self._head is None else str(self._head),
            "name": self._name,
            "instance": self._instance,
            "backfill": True,
            "requests": self._requests is not None,
        }
        return read_json(JOINED, await session.join(self._topic, payload))

    async def _renew(self, why: str) -> None:
        # Under the old epoch the hub would take new events with reused ids for repeats of old ones.
        self._begin(await self._source.renew_epoch())
        log.warning("the event store %s: it begins epoch %s, all is sent again", why, self._epoch)

    def _begin(self, epoch: str) -> None:
        self._epoch = epoch
        self._acked = self._mark = self._condemned = None
        self._unsure = False
        self._suspicion = Suspicion()

    def _window(self, joined: Joined, start: int, held: int | None) -> Window:
        self._hub_epoch = joined.hub_epoch
        self._gaps = 0
        self._pause = 0.0
        return Window(
            start=start,
            held=held,
            events=min(joined.window.events, self._limits.window_events),
            size=min(joined.window.bytes, self._limits.window_bytes),
            max_event_bytes=joined.max_event_bytes,
        )

    async def _send(self, session: Session, window: Window) -> bool:
        """Send what the window has room for; whether all that the source holds was sent."""
        while True:
            if window.next is None:
                window.add(await self._source.page(window.read_after))
                self._head = max(self._head or 0, window.read_after)
            if window.next is None:
                return True
            batch = window.cut(alone=self._suspicion.alone)
            if batch:
                self._push(session, window, batch)
            elif window.in_flight:
                return False
            else:
                await self._bury(window.next, too_large(len(window.next.data), window.max_event_bytes))
                window.restart(window.sent)

    def _push(self, session: Session, window: Window, batch: list[SourceEvent]) -> None:
        name, payload = push_of(batch, window.previous(batch[0]))
        window.flies(session.push(self._topic, name, payload), batch)

    def _heed(self, window: Window, backfill: Backfill, attendance: Attendance, event: ClientEvent) -> None:
        match event:
            case Replied(ref=ref, ok=ok) if ref not in window.in_flight:
                attendance.replied(ref, ok)
                return  # or an event sent before the hub said where to go on
            case Received(topic=self._topic, event="request", payload=payload):
                attendance.asked(payload)
            case Replied(ref=ref, ok=True, response=response):
                self._taken(window, window.in_flight[ref].last_id, read_id(read_json(ANSWER, response).acked_id))
            case Replied(ref=ref, response=response):
                self._not_taken(window, window.in_flight[ref], read_json(ANSWER, response))
            case Received(topic=self._topic, event="backfill", payload=payload):
                backfill.asked(payload)
            case Received(topic=self._topic, event="replaced", payload=payload):
                raise Replaced(read_json(NOTICE, payload).instance)
            case ChannelErrored(payload=payload):
                raise Disconnected(f"the hub ended the topic: {read_json(ANSWER, payload).reason[:100]!r}")
            case ChannelClosed():
                raise Disconnected("the hub closed the topic")

    def _taken(self, window: Window, last_id: int, acked: int | None) -> None:
        if acked is None or acked < last_id:
            raise Disconnected(f"the hub took events up to {last_id}, but acknowledged {acked}")
        self._gaps = 0
        self._progress(window, acked)

    def _not_taken(self, window: Window, batch: Batch, answer: Answer) -> None:
        acked = read_id(answer.acked_id)
        if acked is not None:
            self._progress(window, acked)
        match answer.reason:
            case "gap" if answer.resume_from is not None and self._gaps < _MOST_GAPS:
                self._gaps += 1
                log.info("the hub holds up to %s only: going on from there", answer.resume_from)
                held = read_id(answer.resume_from)
                if held is not None and held > (self._head or 0):
                    raise Disconnected("the hub holds more than the source: joining again")
                window.restart(held)
            case "rate_limited":
                self._pause = min(max(answer.retry_after_ms / 1000, 0.05), 60.0)
                log.info("the hub asks to wait %.1f s", self._pause)
                window.restart(acked)
            case "too_large" | "invalid_event" if (bad := read_id(answer.id)) is not None:
                if not (acked or 0) < bad <= batch.last_id:
                    raise Disconnected(f"the hub refuses event {bad}, which was not in that push")
                self._condemned = self._suspicion.refused(bad, answer.words)
                window.restart(acked)
            case "invalid_event" | "bad_push":  # one of the batch, and the hub does not say which
                self._condemned = self._suspicion.broke([batch], answer.words)
                window.restart(acked)
            case "stale_link":
                raise Replaced(None)
            case reason:
                raise Disconnected(f"the hub did not take events: {reason[:100]!r}")

    def _progress(self, window: Window, acked: int) -> None:
        window.acknowledged(acked)
        self._mark = window.mark or self._mark
        self._last_ack_at = self._clock.wall()
        self._save(acked if window.sent is None else min(acked, window.sent))

    def _save(self, acked: int) -> None:
        self._acked = acked
        self._suspicion.acknowledged(acked)
        # Of the epoch in which the events were sent: the source may have begun another one since.
        self._cursor_file.save(
            SavedCursor(self._epoch, acked, self._hub_epoch, self._hub_url, self._server_id, self._mark)
        )

    # Events that the hub will not take.

    def _suspect(self, window: Window, lost: Disconnected) -> None:
        if lost.code in FRAME_FAULTS and window.in_flight:
            reason = f"the hub closed the socket with {lost.code}"
            self._condemned = self._suspicion.broke(window.in_flight.values(), reason)

    async def _bury_condemned(self, window: Window) -> None:
        condemned, self._condemned = self._condemned, None
        if condemned is None or condemned.event_id <= (self._acked or 0):
            return
        page = await self._source.page(condemned.event_id - 1, 1)
        if page and page[0].event_id == condemned.event_id:
            await self._bury(page[0], condemned.reason)
            window.restart(window.sent)

    async def _bury(self, event: SourceEvent, reason: str) -> None:
        event_id, epoch = event.event_id, self._source.epoch
        if self._letters.tombstone(epoch, event_id) is not None:
            raise EventRefused(event_id, reason)
        try:
            await self._letters.bury(epoch, event_id, event.data, reason)
        except StoreError as error:
            raise Disconnected(f"event {event_id}, which the hub refuses, can't be set aside: {error}") from error
        told = "the hub will not take event %d (%s): a tombstone goes out in its place; see bridge-client dead-letters"
        log.error(told, event_id, reason)
