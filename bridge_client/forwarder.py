"""From the home's events to the hub: source -> window -> link -> acknowledgement -> cursor.

What it promises: every event of the source reaches the hub, in id order, its bytes as the source has them. The cursor
never passes an event that the hub has not acknowledged. An event that the hub can't take stops the forwarder in front
of it. While the hub is away nothing is read: the source is the queue, memory stays flat.

The hub is the judge of what it holds: each join, each `gap` and each refusal says where to go on, and what was sent
before such an answer and is still unanswered is forgotten (its refs are) and read from the source again.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final, NamedTuple, NoReturn, Protocol

import msgspec
from msgspec import Struct

from bridge_client.backfill import Backfill
from bridge_client.clock import Clock, SystemClock
from bridge_client.cursor import DamagedCursor, SavedCursor
from bridge_client.dial import Disconnected, Stopped
from bridge_client.link import Link, Session, read_id, read_json
from bridge_client.refill import refill_from
from bridge_client.sources import Source, SourceEvent
from bridge_client.window import Window
from protocol.client import ChannelClosed, ChannelErrored, ClientEvent, NotJoined, Received, Replied
from protocol.topics import server_topic

log = logging.getLogger(__name__)

ACK_TIMEOUT: Final = 60.0
"""Seconds without any answer while something is unanswered, after which the socket is given up."""

_FRAME_FAULTS: Final = frozenset({1003, 1007, 1009})
_STRIKES: Final = 3
_MOST_GAPS: Final = 3


class Replaced(Stopped):
    """Another forwarder serves this home now."""

    def __init__(self, instance: str | None) -> None:
        super().__init__(f"replaced by another forwarder of this home (instance {instance!r}): only one may run")
        self.instance = instance


class EventRefused(Stopped):
    """The hub will not take one event. It and all after it are still in the source; the cursor stands before it."""

    def __init__(self, event_id: int, reason: str, limit: int | None = None) -> None:
        bound = f", the limit is {limit} bytes" if limit is not None else ""
        super().__init__(f"the hub refuses event {event_id}: {reason}{bound}; nothing after it is sent")
        self.event_id = event_id
        self.reason = reason
        self.limit = limit


class CursorStore(Protocol):
    """Where the cursor survives a crash (`bridge_client.cursor.CursorFile`)."""

    def load(self) -> SavedCursor | None: ...
    def save(self, cursor: SavedCursor) -> None: ...
    async def flush(self) -> None: ...


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


class _WindowLimits(Struct):
    events: int = 1_000
    bytes: int = 1 << 20


class _Joined(Struct):
    hub_epoch: str | None = None
    resume_from: str | None = None
    window: _WindowLimits = msgspec.field(default_factory=_WindowLimits)
    max_event_bytes: int = 1 << 20


class _Answer(Struct):
    acked_id: str | None = None
    reason: str = ""
    id: str | None = None
    limit: int | None = None
    resume_from: str | None = None
    retry_after_ms: float = 1_000.0


class _Notice(Struct):
    instance: str | None = None


_JOINED: Final = msgspec.json.Decoder(_Joined)
_ANSWER: Final = msgspec.json.Decoder(_Answer)
_NOTICE: Final = msgspec.json.Decoder(_Notice)


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
        clock: Clock | None = None,
    ) -> None:
        self._source = source
        self._cursor_file = cursor
        self._link = link
        self._server_id = server_id
        self._topic = server_topic(server_id)
        self._hub_url = hub_url
        self._name = name
        self._instance = instance
        self._limits = limits or Limits()
        self._clock = clock or SystemClock()
        self._acked: int | None = None
        self._epoch = ""  # that of the source, as far as `_acked` and what is said of single events go
        self._head: int | None = None
        self._last_ack_at: float | None = None
        self._hub_epoch: str | None = None
        self._gaps = 0  # in a row, without an acknowledgement between them
        self._pause = 0.0  # seconds the hub asked to wait
        self._refused: EventRefused | None = None
        self._suspects_to: int | None = None  # one event at a time up to this id: one of them broke the socket
        self._strikes: tuple[int, int] = (0, 0)  # an event, and how often it broke the socket when alone

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
        if (saved.epoch, saved.hub_url, saved.server_id) == (self._source.epoch, self._hub_url, self._server_id):
            self._acked = saved.event_id
        else:
            log.warning("the saved cursor belongs to another event store, hub or server id: not used")

    async def _talk(self, session: Session) -> None:
        window = await self._join(session)
        backfill = Backfill(self._source, session, self._topic, window.max_event_bytes, self._clock)
        epoch = self._source.epoch
        news: asyncio.Future[None] | None = None
        last_answer = self._clock.monotonic()
        try:
            while True:
                for event in session.take():
                    self._heed(window, backfill, event)
                    last_answer = self._clock.monotonic()
                if self._source.epoch != epoch:
                    self._acked = self._refused = self._suspects_to = None
                    raise Disconnected("the event store has begun another epoch: joining again")
                if self._pause:
                    pause, self._pause = self._pause, 0.0
                    await self._clock.sleep(pause)
                if not window.in_flight:
                    last_answer = self._clock.monotonic()
                elif self._clock.monotonic() - last_answer > ACK_TIMEOUT:
                    raise Disconnected(f"no acknowledgement for {ACK_TIMEOUT:.0f} s")
                with suppress(NotJoined):  # the topic has just ended: why, is the next thing to take
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
            if news is not None:
                news.cancel()
                await asyncio.gather(news, return_exceptions=True)

    async def _join(self, session: Session) -> Window:
        renewed = False
        while True:
            self._head = await self._source.head()
            head = self._head or 0
            if self._source.epoch != self._epoch:
                self._epoch = self._source.epoch
                self._acked = self._refused = self._suspects_to = None
            if (self._acked or 0) > head:
                await self._renew(f"its last event is {head}, but {self._acked} was forwarded")
                renewed = True
            joined = await self._state_ourselves(session)
            held = read_id(joined.resume_from)
            if held is None:
                limits = self._limits
                refill = await refill_from(self._source, head, events=limits.refill_events, size=limits.refill_bytes)
                start = min(self._acked or 0, refill)
                log.info("the hub holds nothing of this store: sending from event %d", start)
                return self._window(joined, start, None)
            self._head = await self._source.head()
            if held <= (self._head or 0):
                log.info("the hub holds everything up to event %d", held)
                window = self._window(joined, held, held)
                self._save(held)
                return window
            if renewed:
                raise Disconnected("the hub claims to hold events of an epoch that has just begun")
            await self._renew(f"its last event is {self._head or 0}, but the hub holds up to {held}")
            renewed = True

    async def _state_ourselves(self, session: Session) -> _Joined:
        payload = {
            "protocol": 1,
            "epoch": self._source.epoch,
            "head_id": None if self._head is None else str(self._head),
            "name": self._name,
            "instance": self._instance,
            "backfill": True,
        }
        return read_json(_JOINED, await session.join(self._topic, payload))

    async def _renew(self, why: str) -> None:
        # Under the old epoch the hub would take new events with reused ids for repeats of old ones.
        epoch = self._epoch = await self._source.renew_epoch()
        self._acked = self._refused = self._suspects_to = None
        log.warning("the event store went back in time (%s): it begins epoch %s, all is sent again", why, epoch)

    def _window(self, joined: _Joined, start: int, held: int | None) -> Window:
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
        refused = None if self._refused is None else self._refused.event_id
        while True:
            if window.next is None:
                window.add(await self._source.page(window.read_after))
                self._head = max(self._head or 0, window.read_after)
            if window.next is None:
                return True
            batch = window.cut(alone=self._suspects_to is not None, refused=refused)
            if batch:
                self._push(session, window, batch)
            elif window.in_flight:
                return False
            elif window.next.event_id == refused and self._refused is not None:
                raise self._refused
            else:
                raise EventRefused(window.next.event_id, "too_large", window.max_event_bytes)

    def _push(self, session: Session, window: Window, batch: list[SourceEvent]) -> None:
        previous = window.previous(batch[0])
        prev_id = b"null" if previous is None else b'"%d"' % previous
        if len(batch) == 1:
            name, events = "session_event", b'"event":' + batch[0].data
        else:
            name, events = "session_events", b'"events":[%b]' % b",".join([event.data for event in batch])
        ref = session.push(self._topic, name, b'{%b,"prev_id":%b}' % (events, prev_id))
        window.flies(ref, batch)

    def _heed(self, window: Window, backfill: Backfill, event: ClientEvent) -> None:
        match event:
            case Replied(ref=ref) if ref not in window.in_flight:
                return  # sent before the hub said where to go on
            case Replied(ref=ref, ok=True, response=response):
                self._taken(window, window.in_flight[ref].last_id, read_id(read_json(_ANSWER, response).acked_id))
            case Replied(ref=ref, response=response):
                self._not_taken(window, read_json(_ANSWER, response))
            case Received(topic=self._topic, event="backfill", payload=payload):
                backfill.asked(payload)
            case Received(topic=self._topic, event="replaced", payload=payload):
                raise Replaced(read_json(_NOTICE, payload).instance)
            case ChannelErrored(payload=payload):
                raise Disconnected(f"the hub ended the topic: {read_json(_ANSWER, payload).reason[:100]!r}")
            case ChannelClosed():
                raise Disconnected("the hub closed the topic")

    def _taken(self, window: Window, last_id: int, acked: int | None) -> None:
        if acked is None or acked < last_id:
            raise Disconnected(f"the hub took events up to {last_id}, but acknowledged {acked}")
        self._gaps = 0
        self._progress(window, acked)

    def _not_taken(self, window: Window, answer: _Answer) -> None:
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
                self._refused = EventRefused(bad, answer.reason, answer.limit)
                window.restart(acked)
            case "stale_link":
                raise Replaced(None)
            case reason:
                raise Disconnected(f"the hub did not take events: {reason[:100]!r}")

    def _progress(self, window: Window, acked: int) -> None:
        window.acknowledged(acked)
        self._last_ack_at = self._clock.wall()
        self._save(acked if window.sent is None else min(acked, window.sent))

    def _save(self, acked: int) -> None:
        self._acked = acked
        if self._suspects_to is not None and acked >= self._suspects_to:
            self._suspects_to = None
        epoch = self._source.epoch
        self._cursor_file.save(SavedCursor(epoch, acked, self._hub_epoch, self._hub_url, self._server_id))

    def _suspect(self, window: Window, lost: Disconnected) -> None:
        if lost.code not in _FRAME_FAULTS or not window.in_flight:
            return
        first, *others = window.in_flight.values()
        if not others and first.events == 1:
            strikes = self._strikes[1] + 1 if self._strikes[0] == first.last_id else 1
            self._strikes = (first.last_id, strikes)
            if strikes >= _STRIKES:
                raise EventRefused(first.last_id, f"the hub closed with {lost.code} each of {strikes} times") from lost
        self._suspects_to = max(self._suspects_to or 0, *(batch.last_id for batch in window.in_flight.values()))
