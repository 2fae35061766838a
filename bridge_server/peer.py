"""One connected peer: who it is, what it has joined, and its way out.

The peer drives the protocol machine: every message a transport hands in becomes at most one event, the event becomes a
call on a channel, and what the machine wants sent goes into the outbox, in order. It knows no transport and no topic
of ours.
"""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bridge_server.auth import Identity, shown
from bridge_server.channels import UNKNOWN_EVENT, Channel, Factory, Handled, Joined, Ok, Refuse, Reply, Router, Stop
from bridge_server.clock import Clock
from bridge_server.hub import Hub, Listener
from bridge_server.limits import Admission
from bridge_server.message import EVERYTHING, Filter, Form
from bridge_server.outbox import Budget, Outbox
from bridge_server.transports import Transport
from protocol import frames, server
from protocol.codec import Codec
from protocol.errors import ProtocolError
from protocol.frames import Binary, Payload
from protocol.server import JoinRequested, LeaveRequested, PushReceived, ServerConnection
from protocol.topics import check_name

log = logging.getLogger("bridge_server.peer")

_ANSWERS = (Reply, Stop)

MAX_WAITING = 1000
"""Messages that may wait behind a handler that is busy; one more and the channel crashes."""


class _Membership:
    """A channel of this peer at work. Is the `Socket` that the channel sees."""

    __slots__ = ("_at_end", "_busy", "_listeners", "_tasks", "_waiting", "channel", "ended", "handler", "peer", "topic")

    def __init__(self, peer: "Peer", channel: server.Channel, factory: Factory) -> None:
        self.peer = peer
        self.channel = channel
        self.topic = channel.topic
        self.ended = False
        self._busy = False
        self._waiting: deque[PushReceived | LeaveRequested] | None = None
        self._tasks: set[asyncio.Task[None]] | None = None
        self._listeners: tuple[Listener, ...] = ()
        self._at_end: tuple[Callable[[str], None], ...] = ()
        self.handler: Channel = factory(self)

    @property
    def identity(self) -> Identity | None:
        """See `channels.Socket`, here and below."""
        return self.peer.identity

    @property
    def query(self) -> dict[str, str]:
        return self.peer.query

    def push(self, event: str, payload: Any) -> None:
        if not self.ended:
            self.peer.connection.push(self.channel, check_name(event), _content(payload))
            self.peer.send()

    def reply(self, ref: Any, reply: Reply) -> None:
        if not self.ended:
            self.peer.reply(self.channel, ref, reply)
            self.peer.send()

    def listen(self, pubsub_topic: str, filter: Filter = EVERYTHING) -> Listener:
        peer = self.peer
        form = Form(peer.codec, self.topic, self.channel.head, peer.outbox.transport.wrap)
        listener = peer.hub.listen(pubsub_topic, self.channel, form, peer.outbox, filter, self._crash)
        if self.ended:
            peer.hub.forget(listener)  # nothing would end it
            return listener
        self._listeners += (listener,)
        peer.outbox.listeners += (listener,)
        return listener

    def send_events(self, listener: Listener, frames: bytes) -> None:
        if not self.ended:
            self.peer.outbox.put_events(self.channel, frames, listener.form)

    async def drained(self) -> None:
        await self.peer.outbox.drained()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.start(work)

    def start(self, work: Coroutine[Any, Any, None], awaited: Awaitable[Any] | None = None) -> None:
        """Run `work`, and `awaited` which it waits for, as a task that ends with the channel."""
        task = asyncio.get_running_loop().create_task(self._guarded(work))
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # Cancelled before its first step, neither would ever be awaited.
        task.add_done_callback(lambda _: work.close())
        if inspect.iscoroutine(awaited):
            task.add_done_callback(lambda _: awaited.close())

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            log.exception("a task of channel %s failed", self.topic)
            self._crash()

    def at_end(self, call: Callable[[str], None]) -> None:
        if self.ended:
            call("stopped")
        else:
            self._at_end += (call,)

    def close(self) -> None:
        if not self.ended:
            self.end("stopped")
            self.peer.connection.close(self.channel)
            self.peer.send()

    def fail(self, reason: str) -> None:
        if not self.ended:
            self.end("failed")
            self.peer.connection.fail(self.channel, reason)
            self.peer.send()

    def _crash(self) -> None:
        self.fail("channel_crash")

    # What the peer calls.

    def end(self, reason: str) -> None:
        """Terminate the channel: its handler may still push, then nothing of it goes out but what the machine adds."""
        if self.ended:
            return
        if not self.peer.is_gone:
            self.flush_listeners()
            self.peer.outbox.purge(self.channel)
        try:
            self.handler.terminate(reason)
        except Exception:
            log.exception("terminate of channel %s failed", self.topic)
        self.ended = True
        outbox = self.peer.outbox
        for listener in self._listeners:
            self.peer.hub.forget(listener)
        if self._listeners:
            outbox.listeners = tuple(listener for listener in outbox.listeners if listener not in self._listeners)
        for task in tuple(self._tasks or ()):
            if task is not asyncio.current_task():
                task.cancel()
        self._waiting = None
        self.peer.forget(self)
        for call in self._at_end:
            try:
                call(reason)
            except Exception:
                log.exception("what follows the end of channel %s failed", self.topic)

    def flush_listeners(self) -> None:
        """Deliver what was published before: the next message of this channel comes after it."""
        for listener in self._listeners:
            if listener.topic.due:
                self.peer.outbox.flush()
                listener.topic.flush()

    def take(self, event: PushReceived | LeaveRequested) -> None:
        """Handle a message now, or after the one that is being handled."""
        if not self._busy:
            self._handle(event)
            return
        if self._waiting is None:
            self._waiting = deque()
        if len(self._waiting) >= MAX_WAITING:
            self._crash()
        else:
            self._waiting.append(event)

    def _handle(self, event: PushReceived | LeaveRequested) -> None:
        if isinstance(event, LeaveRequested):
            self.end("left")
            self.peer.connection.left(event)
            return
        try:
            if event.retry_after_ms:
                result: Any = self.handler.too_soon(event.retry_after_ms)
            elif not isinstance(event.event, str):
                result = UNKNOWN_EVENT
            else:
                result = self.handler.handle_in(event.event, event.payload, event.ref)
            if result is None or isinstance(result, _ANSWERS):
                self._finish(event, result)
                return
            if not inspect.isawaitable(result):
                raise TypeError(
                    f"handle_in returned {result!r}; it must return Reply, Stop, None, or an awaitable of these"
                )
        except Exception:
            log.exception("channel %s failed on %.80r", self.topic, event.event)
            self._crash()
            return
        self._busy = True
        self.start(self._wait(event, result), result)

    async def _wait(self, event: PushReceived, result: Awaitable[Handled]) -> None:
        self._finish(event, await result)
        self._busy = False
        while self._waiting and not self._busy and not self.ended:
            self._handle(self._waiting.popleft())
        self.peer.send()

    def _finish(self, event: PushReceived, result: Handled) -> None:
        reply = result.reply if isinstance(result, Stop) else result
        if self.ended:
            return
        if reply is not None:
            self.peer.reply(self.channel, event.ref, reply)
        if isinstance(result, Stop):
            self.peer.send()
            self.close()


def _content(value: Any) -> Payload:
    return value if isinstance(value, Binary) else frames.raw(value)


class Peer:
    """One connection of an app or a home. Called by its transport, never blocks, and raises nothing."""

    __slots__ = (
        "_admission",
        "_members",
        "clock",
        "codec",
        "connection",
        "hub",
        "identity",
        "is_gone",
        "outbox",
        "query",
        "router",
    )

    def __init__(
        self,
        transport: Transport,
        codec: Codec,
        identity: Identity | None,
        query: dict[str, str],
        *,
        hub: Hub,
        router: Router,
        budget: Budget,
        clock: Clock,
        channel_limit: int,
        admission: Admission | None = None,
    ) -> None:
        self.codec = codec
        self.identity = identity
        self.query = query
        self.hub = hub
        self.router = router
        self.clock = clock
        self.connection = ServerConnection(codec, channel_limit=channel_limit)
        self.outbox = Outbox(transport, budget, self._cut)
        self._members: dict[server.Channel, _Membership] = {}
        self._admission = admission
        self.is_gone = False

    def receive(self, data: bytes, *, binary: bool) -> None:
        """Handle one whole message. A message that is no frame ends this connection, and only this one."""
        if self.is_gone:
            return
        try:
            wait = self._admission.message(self.clock.now()) if self._admission is not None else 0
            event = self.connection.receive(data, binary=binary, retry_after_ms=wait)
        except ProtocolError as error:
            self.send()
            self.outbox.flush()
            self.outbox.transport.close(error.close_code, error.reason)
            return
        self._run(event)

    def _run(self, event: server.Event | None) -> None:
        while event is not None and not self.is_gone:
            if isinstance(event, JoinRequested):
                self._join(event)
            else:
                member = self._members.get(event.channel)
                if member is not None:
                    member.take(event)
            self.send()
            event = self.connection.next_event()
        self.send()

    def _join(self, event: JoinRequested) -> None:
        if event.replaced is not None and (old := self._members.get(event.replaced)):
            old.end("replaced")
        if event.retry_after_ms:
            self.connection.refuse(event, frames.raw(server.rate_limited(event.retry_after_ms)))
            return
        factory = self.router.match(event.channel.topic)
        if factory is None:
            self.connection.refuse(event, frames.raw({"reason": "unmatched topic"}))
            return
        member = _Membership(self, event.channel, factory)
        self._members[event.channel] = member
        try:
            result: Any = member.handler.join(event.payload)
            if inspect.isawaitable(result):
                self.outbox.transport.pause_reading()
                member.start(self._wait_for_join(event, member, result), result)
                return
            self._joined(event, member, result)
        except Exception as error:
            self._join_crashed(event, member, error)

    async def _wait_for_join(self, event: JoinRequested, member: _Membership, result: Awaitable[Joined]) -> None:
        try:
            self._joined(event, member, await result)
        except Exception as error:
            self._join_crashed(event, member, error)
        if not self.is_gone:
            self.outbox.transport.resume_reading()
            self._run(self.connection.next_event())

    def _joined(self, event: JoinRequested, member: _Membership, result: Any) -> None:
        if self.is_gone:
            return
        if isinstance(result, Ok):
            response = result.response
            self.connection.accept(event, _content(response))
            self.send()
            member.handler.joined()
        elif isinstance(result, Refuse):
            response = _content(result.response)
            member.end("refused")
            self.connection.refuse(event, response)
        else:
            raise TypeError(f"join returned {result!r}; it must return Ok, Refuse, or an awaitable of these")

    def _join_crashed(self, event: JoinRequested, member: _Membership, error: Exception) -> None:
        log.error("join of %.200r crashed", event.channel.topic, exc_info=error)
        if self.connection.joining:
            member.end("failed")
            self.connection.refuse(event, frames.raw({"reason": "join crashed"}))
        else:
            member.fail("channel_crash")

    def reply(self, channel: server.Channel, ref: Any, reply: Reply) -> None:
        """Answer a message of a channel.

        The channel crashes when the reply can't be put into this peer's serializer.
        """
        try:
            self.connection.reply(channel, ref, reply.status, _content(reply.response))
        except (ValueError, TypeError):
            log.exception("a reply on channel %s can't be sent", channel.topic)
            if member := self._members.get(channel):
                member.fail("channel_crash")

    def send(self) -> None:
        """Move what the protocol machine wants sent into the outbox."""
        messages = self.connection.data_to_send()
        if not messages:
            return
        outbox = self.outbox
        wrap = outbox.transport.wrap
        for channel, message in messages:
            if channel is not None and outbox.listeners and (member := self._members.get(channel)):
                member.flush_listeners()
            outbox.put(channel, wrap(message))

    def forget(self, member: _Membership) -> None:
        """A channel ended."""
        self._members.pop(member.channel, None)

    def gone(self, reason: str = "closed") -> None:
        """The connection is over.

        Every channel ends, nothing is sent any more. Called by the transport, once or more; the first `reason` counts:
        `closed`, or `idle` for a peer that was silent for too long.
        """
        if not self.is_gone:
            self.is_gone = True
            if self._admission is not None:
                self._admission.release()
            self.outbox.drop()
            for member in tuple(self._members.values()):
                member.end(reason)

    def _cut(self) -> None:
        said = "%s reads too slowly and is cut"
        self.outbox.lines.log(log, logging.WARNING, "cut", said, shown(self.identity))
        self.outbox.transport.close(1013, "slow")
