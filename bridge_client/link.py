"""Keeps one Phoenix socket to the hub alive: dial, heartbeat, notice death, dial again for as long as that can help.

    Link     the endless part: `run(talk)` calls `talk` with each new Session, until it returns or nothing can help
    Session  one socket: join, push, and what the hub said, in order

Reconnecting: the n-th try in a row comes after a random time between 0 and min(60, 0.5 * 2^n) seconds, so that a
thousand homes that lost one hub do not return together. Only a socket that had worked for 30 s starts the count anew. A
time that the hub asks for is added. Every loss is logged, the first of a kind as a warning.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.wait import wait_exponential

from bridge_client.clock import Clock, SystemClock
from bridge_client.dial import Dialler, Disconnected, Stopped, WebSocketDialler, Wire, socket_url
from protocol import event_id
from protocol.client import (
    HEARTBEAT_INTERVAL,
    ChannelClosed,
    ChannelErrored,
    ClientConnection,
    ClientEvent,
    HubMute,
    Joined,
    JoinRefused,
    JoinTimedOut,
)
from protocol.codec import open_json
from protocol.errors import REFUSALS, BadEventId, ProtocolError

log = logging.getLogger(__name__)

HEALTHY_AFTER: Final = 30.0
"""Seconds after which a socket has proved itself: its loss starts the back-off anew."""

LONGEST_JUMP: Final = 30.0
"""Seconds by which a clock may run ahead of a sleep before it means that this machine, not the network, was away."""

_LONGEST_SLEEP: Final = 5.0
_STALL: Final = 1.0
_CATCH_UP: Final = 0.25
_INBOX_LIMIT: Final = 64

_T = TypeVar("_T")


class JoinRejected(Stopped):
    """The hub will not have us on a topic, and asking again would get the same answer."""

    def __init__(self, topic: str, reason: str) -> None:
        known = REFUSALS.get(reason)
        super().__init__(f"joining {topic} was refused: {reason}{f' ({known.meaning})' if known else ''}")
        self.reason = reason


class _ErrorReply(Struct):
    reason: str = ""
    retry_after_ms: float | None = None


_ERROR_REPLY: Final = msgspec.json.Decoder(_ErrorReply)


class Session:
    """One open socket. What the hub says is taken with `take` or `next`; what is pushed leaves at once, in order.

    Holds at most a few dozen events that nobody took; then it stops reading, which holds the hub back.
    """

    def __init__(self, wire: Wire, clock: Clock, heartbeat: float) -> None:
        self._wire = wire
        self._clock = clock
        self._connection = ClientConnection(clock.monotonic(), heartbeat_interval=heartbeat)
        self._inbox: deque[ClientEvent] = deque()
        self._unsent = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._ended: Exception | None = None
        self._close_code = 1000
        self._opened = clock.monotonic()
        self.opened_at = clock.wall()
        self.wake = asyncio.Event()
        """Set when something happened that `take` or a look at the clock would show; at least every few seconds."""

    # For the one who talks.

    async def join(self, topic: str, payload: Any) -> Raw:
        """Join a topic and wait for the answer; returns the response.

        What is left of an earlier join of it is dropped; what the hub pushes meanwhile stays to be taken, in order.
        Raises JoinRejected when asking again is useless, Disconnected when it may help (with the time to wait that
        the hub asked for).
        """
        self._inbox = deque(event for event in self._inbox if getattr(event, "topic", None) != topic)
        if len(self._inbox) < _INBOX_LIMIT:
            self._room.set()  # nobody may be left to take what was dropped: the answer must be read all the same
        self._connection.join(topic, Raw(msgspec.json.encode(payload)), self._clock.monotonic())
        self._unsent.set()
        early: list[ClientEvent] = []
        while True:
            match event := await self.next():
                case Joined(at, response) if at == topic:
                    self._inbox.extendleft(reversed(early))
                    return response
                case JoinRefused(at, response) if at == topic:
                    raise _rejected(topic, response)
                case JoinTimedOut(at) if at == topic:
                    raise Disconnected(f"joining {topic} was not answered in time")
                case ChannelErrored(at) | ChannelClosed(at) if at == topic:
                    raise Disconnected(f"{topic} ended while it was being joined")
                case _:
                    early.append(event)

    def push(self, topic: str, event: str, payload: bytes) -> str:
        """Push JSON bytes as they are; returns the ref of the Replied to come. Raises NotJoined.

        Never waits: the caller bounds what is unanswered.
        """
        ref = self._connection.push(topic, event, Raw(payload))
        self._unsent.set()
        return ref

    def take(self) -> list[ClientEvent]:
        """What happened since the last call. Once all of it was taken and the socket is gone: raises Disconnected.

        Resets `wake` before it looks, except when there is an end still to be told.
        """
        if self._ended is None:
            self.wake.clear()
        elif not self._inbox:
            raise self._ended
        events = list(self._inbox)
        self._inbox.clear()
        self._room.set()
        return events

    async def next(self) -> ClientEvent:
        """Wait for one event. Raises Disconnected once all was taken and the socket is gone."""
        while not self._inbox:
            if self._ended is not None:
                raise self._ended
            self.wake.clear()
            await self.wake.wait()
        event = self._inbox.popleft()
        if len(self._inbox) < _INBOX_LIMIT:
            self._room.set()
        return event

    def fail(self, why: Exception) -> None:
        """End the socket at once; `take` and `next` raise `why` after what had come before."""
        if self._ended is None:
            self._ended = why
            self._unsent.set()
            self.wake.set()

    # For the link.

    @property
    def healthy(self) -> bool:
        """Whether something came from the hub after the socket had been open for HEALTHY_AFTER."""
        return self._connection.last_heard - self._opened >= HEALTHY_AFTER

    async def converse(self, talk: Callable[["Session"], Awaitable[_T]]) -> _T:
        """Run `talk` while the socket is served, then close it."""
        tasks = [asyncio.create_task(self._serve(work)) for work in (self._read(), self._write(), self._watch())]
        try:
            return await talk(self)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if not self._room.is_set():
                self._wire.abort()  # the hub's goodbye would come behind all that nobody took
            await self._wire.close(self._close_code)

    async def _serve(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except ProtocolError as error:
            self._close_code = error.close_code
            self.fail(Disconnected(f"the hub sent what is no Phoenix message: {error.reason}"))
        except Exception as error:
            self.fail(error)

    async def _read(self) -> None:
        while True:
            data = await self._wire.recv()
            self._inbox.extend(self._connection.receive(data, binary=False, now=self._clock.monotonic()))
            if self._inbox:
                self.wake.set()
            if len(self._inbox) >= _INBOX_LIMIT:
                self._room.clear()
                await self._room.wait()
                self._connection.resumed(self._clock.monotonic())

    async def _write(self) -> None:
        while self._ended is None:
            await self._unsent.wait()
            self._unsent.clear()
            for message in self._connection.data_to_send():
                await self._wire.send(message.data)

    async def _watch(self) -> None:
        while self._ended is None:
            wall, now = self._clock.wall(), self._clock.monotonic()
            pause = max(0.0, min(self._connection.next_deadline - now, _LONGEST_SLEEP))
            await self._clock.sleep(pause)
            jump = max(self._clock.wall() - wall, self._clock.monotonic() - now) - pause
            if jump > _STALL:
                # We were not running. What the hub said meanwhile is to be read before its silence is judged: had
                # another forwarder taken over, coming back would take it back.
                await self._clock.sleep(_CATCH_UP)
            if jump > LONGEST_JUMP:
                self._die(f"this machine was asleep or its clock jumped by {jump:.0f} s")
            self._judge()

    def _judge(self) -> None:
        now = self._clock.monotonic()
        if not self._room.is_set():
            self._connection.resumed(now)  # nobody listens: the silence is ours
        for event in self._connection.tick(now):
            if isinstance(event, HubMute):
                self._die(f"nothing came from the hub for {event.seconds:.0f} s")
            else:
                self._inbox.append(event)
        self._unsent.set()
        self.wake.set()

    def _die(self, why: str) -> None:
        self.fail(Disconnected(why))
        self._wire.abort()


def _rejected(topic: str, response: Raw) -> Exception:
    reply = read_json(_ERROR_REPLY, response)
    known = REFUSALS.get(reply.reason)
    if known is not None and not known.come_back:
        return JoinRejected(topic, reply.reason)
    wait = None if reply.retry_after_ms is None else min(max(reply.retry_after_ms / 1000, 0.0), 3600.0)
    return Disconnected(f"joining {topic} was refused: {reply.reason[:100]!r}", retry_after=wait)


class _FullJitter(wait_exponential):
    """rand(0, min(60, 0.5 * 2^n)), n = 0 after a healthy socket, plus what the hub asked for."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(multiplier=0.5, max=60)
        self._rng = rng

    def __call__(self, retry_state: RetryCallState) -> float:
        lost = _lost(retry_state)
        if lost.healthy:
            retry_state.attempt_number = 1
        return (lost.retry_after or 0.0) + self._rng.uniform(0, super().__call__(retry_state))


def _lost(state: RetryCallState) -> Disconnected:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, Disconnected), "only a Disconnected is retried"
    return error


class Link:
    """The connection of one credential to one hub. The credential is sent as a bearer token and shown nowhere else."""

    def __init__(
        self,
        url: str,
        credential: str,
        *,
        dial: Dialler | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        heartbeat: float = HEARTBEAT_INTERVAL,
    ) -> None:
        """Raises ValueError for a URL that is no hub's (see `socket_url`) or a credential that fits no header."""
        if not credential or not credential.isascii() or not credential.isprintable() or " " in credential:
            raise ValueError("the credential is empty or holds characters that no header carries")
        self._url = socket_url(url)
        self._headers = {"Authorization": f"Bearer {credential}"}
        self._dial = dial or WebSocketDialler()
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._heartbeat = heartbeat
        self.hub = urlsplit(self._url).netloc
        self.connected_since: float | None = None
        """Wall clock seconds at which the socket now in use opened, None without one."""
        self.last_error: str | None = None
        """Why the last socket was lost or could not be opened."""

    async def run(self, talk: Callable[[Session], Awaitable[_T]]) -> _T:
        """Call `talk` with one session after the other until it returns, and return what it returns.

        When talk raises Disconnected, or there is no socket, the next try follows by the rule above. Anything else
        it raises ends the run, and so does a Stopped: revoked credential, refused join.
        """
        retrying = AsyncRetrying(
            sleep=self._clock.sleep,
            wait=_FullJitter(self._rng),
            retry=retry_if_exception_type(Disconnected),
            before_sleep=self._report,
            reraise=True,
        )
        result: _T = await retrying(self._once, talk)
        return result

    async def _once(self, talk: Callable[[Session], Awaitable[_T]]) -> _T:
        wire = await self._dial(self._url, self._headers)
        session = Session(wire, self._clock, self._heartbeat)
        self.connected_since = session.opened_at
        log.info("connected to %s", self.hub)
        try:
            return await session.converse(talk)
        except Disconnected as lost:
            lost.healthy = session.healthy
            raise
        finally:
            self.connected_since = None

    def _report(self, state: RetryCallState) -> None:
        why = str(_lost(state))
        level = logging.INFO if why == self.last_error else logging.WARNING
        self.last_error = why
        wait = "at once" if state.upcoming_sleep < 0.05 else f"in {state.upcoming_sleep:.1f} s"
        log.log(level, "%s: %s; trying again %s", self.hub, why, wait)


def read_json(decoder: msgspec.json.Decoder[_T], payload: Raw) -> _T:
    """A payload of the hub's, decoded. Raises Disconnected if it has another shape than was agreed."""
    try:
        return open_json(decoder, bytes(payload))
    except ProtocolError as error:
        raise Disconnected(f"the hub sent what can't be read: {error.reason}") from None


def read_id(text: str | None) -> int | None:
    """An event id in a payload of the hub's. Raises Disconnected if it is none."""
    try:
        return None if text is None else event_id.parse(text)
    except BadEventId as error:
        raise Disconnected(f"the hub sent what is {error}") from None
