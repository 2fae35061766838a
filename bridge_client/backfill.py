"""Answers the hub when apps ask for what it no longer holds: pages of the source's past, behind the live events.

One page at a time is read and sent, and only when every live event that can be sent has been; a page that has waited
for `PATIENCE` goes all the same, so that a home that is never quiet still serves its apps. A page is small, so what it
puts in front of a live event on the line is bounded.
"""

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from bridge_client.clock import Clock
from bridge_client.link import Session, read_id, read_json
from bridge_client.sources import Source, SourceEvent
from bridge_client.tombstones import tombstone
from protocol import envelope
from protocol.client import NotJoined

log = logging.getLogger(__name__)

PAGE_EVENTS: Final = 500
PAGE_BYTES: Final = 128 * 1024
"""Most that one page holds, unless it is one event. The hub takes 256 KiB."""

PATIENCE: Final = 1.0
"""Seconds after which a page goes out although live events wait."""

MOST_WAITING: Final = 8
"""Pages asked for and not yet sent; the hub keeps to two."""

_RETRIES: Final = (0.1, 0.4, 1.5, 3.0)
"""Seconds between looks at a source that can't be read for the moment: less, together, than the hub waits."""


class _Ask(Struct):
    id: str
    epoch: str
    after_id: str
    to_id: str
    limit: int = PAGE_EVENTS


class _Waiting(NamedTuple):
    ask: _Ask
    since: float


_ASK: Final = msgspec.json.Decoder(_Ask)


class Backfill:
    """What the hub asked for on one join, and the answering of it. `stop` it when the join is over."""

    def __init__(self, source: Source, session: Session, topic: str, max_event_bytes: int, clock: Clock) -> None:
        self._source = source
        self._session = session
        self._topic = topic
        self._max_event_bytes = max_event_bytes
        self._max_bytes = min(PAGE_BYTES, max_event_bytes)  # the hub's limit of a message follows that of an event
        self._clock = clock
        self._waiting: deque[_Waiting] = deque(maxlen=MOST_WAITING)  # the oldest is given up: the hub has timed it out
        self._task: asyncio.Task[None] | None = None
        self._limit = PAGE_EVENTS

    def asked(self, payload: Raw) -> None:
        """The hub wants a page. Raises Disconnected if it can't be read."""
        self._waiting.append(_Waiting(read_json(_ASK, payload), self._clock.monotonic()))

    def answer_next(self, *, quiet: bool) -> None:
        """Begin the next page, if it is its turn: `quiet` says that no live event waits to be sent."""
        if not self._waiting or (self._task is not None and not self._task.done()):
            return
        if quiet or self._clock.monotonic() - self._waiting[0].since >= PATIENCE:
            self._task = asyncio.create_task(self._answer(self._waiting.popleft().ask), name="backfill page")
            self._task.add_done_callback(lambda _: self._session.wake.set())

    async def stop(self) -> None:
        """Answer nothing more."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _answer(self, ask: _Ask) -> None:
        try:
            answer = await self._page(ask)
        except Exception as error:  # whatever it was, the forwarder meets it too, and it is the one to end over it
            log.warning("a page of the past, behind event %s, can't be read: %s", ask.after_id, error)
            answer = None
        reference = msgspec.json.encode(ask.id)
        if answer is None:
            text = b'{"id":%b,"error":"unavailable"}' % reference
        else:
            events, floor = answer
            data = b",".join([event.data for event in events])
            text = b'{"id":%b,"events":[%b],"floor":%b}' % (
                reference,
                data,
                b"null" if floor is None else b'"%d"' % floor,
            )
        with suppress(NotJoined):  # the topic has just ended
            self._session.push(self._topic, "backfill_page", text)

    async def _page(self, ask: _Ask) -> tuple[list[SourceEvent], int | None] | None:
        """The events, and the id up to which the source has lost what the hub asks for; None when it can't be told."""
        after, to = read_id(ask.after_id), read_id(ask.to_id)
        if after is None or to is None or ask.limit < 1 or ask.epoch != self._source.epoch:
            return None
        page = sorted(await self._source.page(after, min(ask.limit, self._limit)))
        for pause in _RETRIES:
            # The hub has had events behind `after`: an empty page says that they can't be read for the moment.
            if page:
                break
            await self._clock.sleep(pause)
            page = sorted(await self._source.page(after, min(ask.limit, self._limit)))
        if not page or self._source.epoch != ask.epoch:
            return None
        previous = page[0].prev_id
        events: list[SourceEvent] = []
        size = 0
        for event in page:
            sent = self._sendable(event)
            size += len(sent.data)
            if event.event_id > to or (events and size > self._max_bytes):
                break
            events.append(sent)
        # Of a page that is too large only a part is sent: ask the source for less the next time.
        self._limit = min(PAGE_EVENTS, max(1, 2 * len(events))) if size > self._max_bytes else PAGE_EVENTS
        return events, previous if previous is not None and previous > after else None

    def _sendable(self, event: SourceEvent) -> SourceEvent:
        if len(event.data) <= self._max_event_bytes:
            return event
        reason = f"the event has {len(event.data)} bytes, the hub takes {self._max_event_bytes}"
        return event._replace(data=tombstone(event.event_id, reason, envelope.read(event.data).session_id))
