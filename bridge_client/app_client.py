"""The app's side: receive the events of one home, in order, each once, also over drops.

    async with AppClient(url, credential, server_id, cursor=saved) as client:
        async for item in client:
            ...                    # an Event, a Gap, a ServerStatus or a CaughtUp
            save(client.cursor)    # covers everything up to and including this item
    answer = await client.request("POST", "/sessions/garden/send", {"content": "water the roses"})

What it promises: every event this app may see comes once and in order, or a Gap says between which two places something
is missing. Connecting, losing the connection and resuming happen inside. Who takes items slowly is served slowly: at
most a few dozen wait here, then nothing more is read from the socket (while a request waits for its answer: more).
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec
from msgspec import Raw, Struct

from bridge_client.app_requests import PATIENCE, AppRequests, Response
from bridge_client.clock import Clock, SystemClock
from bridge_client.dial import Dialler, Disconnected, Stopped
from bridge_client.link import Link, Session, read_id, read_json
from protocol import envelope
from protocol.client import HEARTBEAT_INTERVAL, ChannelClosed, ChannelErrored, Received, Replied
from protocol.errors import InvalidEvent
from protocol.topics import app_topic

log = logging.getLogger(__name__)

QUEUE_LIMIT: Final = 32
"""Items that wait for a slow consumer before the socket is no longer read."""

REQUEST_QUEUE_LIMIT: Final = 4096
"""The same while a request waits: its answer comes behind them, and who waits for it may be the one to take them."""

LONGEST_REJOIN_WAIT: Final = 10.0
"""Seconds before a topic that keeps ending is joined again, at most."""


class Place(NamedTuple):
    """How far an app has read. The epoch is None while the hub has not named it."""

    epoch: str | None
    event_id: int


@dataclass(frozen=True, slots=True)
class Event:
    """One event, its bytes exactly as the home wrote them."""

    event_id: int
    type: str
    session_id: str | None
    data: bytes

    @property
    def value(self) -> dict[str, Any]:
        """The event, decoded. Decodes anew at each use, and never fails for an event that came through the hub.

        A number beyond what a float holds is an infinity; so is an integer of more digits than Python converts.
        """
        try:
            value: dict[str, Any] = msgspec.json.decode(self.data)
        except msgspec.MsgspecError:  # numbers and lone surrogates that are JSON all the same
            value = json.loads(self.data, parse_int=_number)
        return value


@dataclass(frozen=True, slots=True)
class Gap:
    """Events are missing behind `from_id`; what follows is true again.

    `reason` is expired, epoch_changed, ahead or hub_reset. `resume_after` is the place behind which everything follows
    that the hub still holds, None if it holds nothing. A second Gap may follow at once and begin there.
    """

    reason: str
    from_id: int | None
    resume_after: int | None


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Whether the home is there; times as the hub writes them."""

    online: bool
    since: str | None
    last_event_at: str | None = None


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What was missed has been delivered, or a Gap told; from here on events are live. None: the place is not known."""

    to_id: int | None


Item = Event | Gap | ServerStatus | CaughtUp


def _number(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)


class TopicEnded(Stopped):
    """The hub ended the topic for good (`phx_close`)."""


class _Gap(Struct):
    reason: str
    from_id: str | None = None
    resume_after: str | None = None


class _Server(Struct):
    online: bool
    since: str | None = None
    last_event_at: str | None = None
    epoch: str | None = None
    head_id: str | None = None


class _Joined(Struct):
    epoch: str | None = None
    head_id: str | None = None
    recovered: bool | None = None
    gap: _Gap | None = None
    server: _Server | None = None


class _Complete(Struct):
    epoch: str | None = None
    to_id: str | None = None
    recovered: bool | None = None
    gap: _Gap | None = None


class _Pushed(Struct):
    event: Raw


_JOINED: Final = msgspec.json.Decoder(_Joined)
_COMPLETE: Final = msgspec.json.Decoder(_Complete)
_PUSHED: Final = msgspec.json.Decoder(_Pushed)
_SERVER: Final = msgspec.json.Decoder(_Server)


class AppClient:
    """Receives the events of one home. An async context manager and, inside it, an async iterator; use each once.

    Iteration ends by an exception only: Stopped (CredentialRefused, JoinRejected, TopicEnded).

    `cursor` is the place to resume behind; None means only what happens from now on. `session_id` and `types` choose
    among the events; the cursor moves all the same. With `recover_retained` a Gap is followed by all that the hub still
    holds instead of by what happens next: ids may then go back, and events known from before the gap come again.
    """

    def __init__(
        self,
        url: str,
        credential: str,
        server_id: str,
        *,
        cursor: tuple[str | None, int] | None = None,
        session_id: str | None = None,
        types: Sequence[str] | None = None,
        partials: Literal["all", "merged", "none"] = "all",
        recover_retained: bool = True,
        dial: Dialler | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        heartbeat: float = HEARTBEAT_INTERVAL,
    ) -> None:
        """Raises ValueError for a URL or credential that can't be used."""
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._link = Link(url, credential, dial=dial, clock=self._clock, rng=self._rng, heartbeat=heartbeat)
        self._topic = app_topic(server_id)
        self.connected = False
        """Whether there is a socket to the hub."""
        self.behind: int | None = None
        """How many events the hub has that are still to come: it does not say."""
        self._wishes: dict[str, Any] = {"partials": partials}
        if session_id is not None:
            self._wishes["session_id"] = session_id
        if types is not None:
            self._wishes["types"] = list(types)
        self._recover_retained = recover_retained
        self._place = None if cursor is None else Place(*cursor)  # behind the last item put into the queue
        self._taken = self._place  # behind the last item the consumer took
        self._epoch: str | None = None  # of the events that come, once the hub has said it
        self._requests = AppRequests(self._topic)
        self._queue: asyncio.Queue[tuple[Item | None, Place | None]] = asyncio.Queue()
        self._room = asyncio.Event()  # set when the queue may have room for one more
        self._task: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        self._last_gap: Gap | None = None
        self._last_status: ServerStatus | None = None
        self._retrieving = False  # the next join asks for what is retained after a gap
        self._skip = 0  # by how much less each such join in a row asks for
        self._rejoins = 0  # in a row, without a good verdict between them

    @property
    def cursor(self) -> Place | None:
        """Where to resume behind, once the item last taken has been dealt with. None while there is no place yet."""
        return self._taken

    async def request(
        self, method: str, path: str, body: Any = None, *, request_id: str | None = None, timeout: float = PATIENCE
    ) -> Response:
        """Ask the home's API through the hub; any status is an answer. Works while the client is entered.

        A lost connection is waited for, and the request sent again under its id, which makes it safe: what changes
        something is done once. Give a `request_id` (8 to 128 letters, digits, - and _) to repeat it yourself later.
        `timeout` in seconds. Raises RequestFailed, ValueError for a body that is no JSON.
        """
        if self._failure is not None:
            raise self._failure
        pending = self._requests.ask(method, path, body, request_id)
        self._room.set()  # the answer comes behind what waits
        return await self._requests.wait(pending, timeout)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"app client of {self._topic}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._requests.fail(RuntimeError("the client was closed"))

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        if self._failure is not None and self._queue.empty():
            raise self._failure
        item, place = await self._queue.get()
        self._room.set()
        if item is None:
            assert self._failure is not None
            raise self._failure
        self._taken = place
        return item

    async def _run(self) -> None:
        try:
            await self._link.run(self._talk)
        except Exception as error:
            self._failure = error
            self._requests.fail(error)
            self._queue.put_nowait((None, None))

    async def _talk(self, session: Session) -> None:
        self.connected = True
        try:
            while True:
                await self._attend(session)
                self._requests.left()
                if self._retrieving:
                    continue  # what is retained gets less while we wait
                self._rejoins += 1
                longest = min(LONGEST_REJOIN_WAIT, 0.25 * 2 ** min(self._rejoins, 10))
                await self._clock.sleep(self._rng.uniform(0, longest))
        finally:
            self.connected = False
            self._requests.left()

    async def _attend(self, session: Session) -> None:
        """Join and pass on what comes. Returns when the topic is to be joined again."""
        had_cursor = self._place is not None
        joined = read_json(_JOINED, await session.join(self._topic, self._request()))
        self._retrieving = False
        if joined.server is not None:
            await self._tell_status(joined.server)
        told = joined.recovered is False
        if told:
            if await self._fell_behind(joined.gap, joined.epoch, read_id(joined.head_id)):
                return
            if joined.gap is not None and joined.gap.reason != "hub_reset":  # then the cursor may still be good
                self._settle(joined.epoch, read_id(joined.head_id))
        elif joined.recovered is None and self._place is not None:
            # Events come only if they are of the epoch asked for; without one, of that which the hub names here.
            self._settle(self._place.epoch or joined.epoch, self._place.event_id)
        elif joined.recovered:
            self._settle(joined.epoch, self._place.event_id if self._place is not None else read_id(joined.head_id))
        self._requests.joined(session)
        while True:
            match await session.next():
                case Received(event="session_event", payload=payload):
                    await self._pass_on(payload, had_cursor)
                case Received(event="replay_complete", payload=payload):
                    complete = read_json(_COMPLETE, payload)
                    behind = complete.recovered is False and not told
                    if behind and await self._fell_behind(complete.gap, complete.epoch, read_id(complete.to_id)):
                        return
                    await self._caught_up(complete)
                case Received(event="server_status", payload=payload):
                    if await self._tell_status(read_json(_SERVER, payload)):
                        return
                case Received(event="body_part", payload=payload):
                    self._requests.part(payload)
                case Replied(ref=ref, ok=ok, response=response):
                    self._requests.replied(ref, ok, response)
                case ChannelErrored():
                    return
                case ChannelClosed():
                    raise TopicEnded(f"the hub ended {self._topic}: this app has to be paired again")

    def _request(self) -> dict[str, Any]:
        if self._place is None:
            return self._wishes
        epoch = {} if self._place.epoch is None else {"epoch": self._place.epoch}
        return {**self._wishes, **epoch, "since_id": str(self._place.event_id)}

    async def _pass_on(self, payload: Raw, had_cursor: bool) -> None:
        data = bytes(read_json(_PUSHED, payload).event)
        try:
            event_id, kind, session_id = envelope.read(data)
        except InvalidEvent as error:
            raise Disconnected(f"the hub sent an event that can't be read: {error.args[0]}") from None
        if had_cursor and self._place is not None and event_id <= self._place.event_id:
            return  # a repeat; without a cursor, lower ids belong to another epoch of the home
        self._place = Place(self._epoch, event_id)
        self._last_gap = None
        await self._put(Event(event_id, kind, session_id, data))

    async def _caught_up(self, complete: _Complete) -> None:
        to_id = read_id(complete.to_id)
        self._settle(complete.epoch, to_id)
        if complete.recovered:
            self._skip, self._rejoins, self._last_gap = 0, 0, None
        await self._put(CaughtUp(to_id))

    async def _fell_behind(self, gap: _Gap | None, epoch: str | None, head: int | None) -> bool:
        """Tell the gap; whether to join again for what is retained.

        A busy hub drops its oldest events even while it is asked for them: each try in a row leaves more of them out,
        until one is in time or nothing is left to ask for.
        """
        if gap is None:
            raise Disconnected("the hub said that events are missing, but not which")
        told = Gap(gap.reason, read_id(gap.from_id), read_id(gap.resume_after))
        if self._recover_retained and epoch is not None and told.resume_after is not None:
            place = told.resume_after + self._skip
            self._retrieving = self._skip == 0 or (head is not None and place < head)
            if self._retrieving:
                self._skip = max(16, 2 * self._skip)
                self._place = Place(epoch, place)
            else:
                self._skip, place = 0, place if head is None else head
            told = replace(told, resume_after=place)
        if told != self._last_gap:  # while a home stays away each rejoin repeats it
            self._last_gap = told
            await self._put(told)
        return self._retrieving

    def _settle(self, epoch: str | None, event_id: int | None) -> None:
        self._epoch = epoch or self._epoch
        if event_id is not None:
            self._place = Place(epoch, event_id)
        elif epoch is not None and self._elsewhere(epoch):
            self._place = None  # a place in an epoch that is over

    async def _tell_status(self, server: _Server) -> bool:
        """Tell it; whether to join again: moved along, for it joined without a cursor, it has one now to be judged."""
        self._epoch = server.epoch or self._epoch
        start = read_id(server.head_id)  # told to who joined without a cursor
        if start is not None and self._place is None:
            self._settle(server.epoch, start)
        status = ServerStatus(server.online, server.since, server.last_event_at)
        last = self._last_status
        if last is None or (status.online, status.since) != (last.online, last.since):
            self._last_status = status
            await self._put(status)
        return start is not None and self._elsewhere(server.epoch)

    def _elsewhere(self, epoch: str | None) -> bool:
        return self._place is not None and self._place.epoch not in (None, epoch)

    async def _put(self, item: Item) -> None:
        while self._queue.qsize() >= (REQUEST_QUEUE_LIMIT if len(self._requests) else QUEUE_LIMIT):
            self._room.clear()
            await self._room.wait()
        self._queue.put_nowait((item, self._place))
