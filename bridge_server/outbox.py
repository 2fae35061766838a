"""The way out of one peer: straight to its transport while that takes everything, else through a queue.

A peer whose transport takes everything has an empty outbox, and events reach its transport without touching this
object. When the transport is full the peer is *busy*: events are queued as references (`backlog.py`) and become bytes
only when there is room, one handover at a time. What is queued is counted, bounded per peer and in all; the peer that
does not move, or the largest queue when the sum is too much, is cut, and comes back with its cursor.

Two lanes: what belongs to a channel keeps one order; what belongs to the socket alone (heartbeat replies) may overtake
it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from bridge_server.backlog import Backlog, Entry, Level, Marks
from bridge_server.hub import Listener
from bridge_server.message import Form, Message
from bridge_server.seldom import Seldom
from bridge_server.transports import Transport
from protocol.server import Channel

URGENT_BYTES: Final = 64 * 1024
"""Most that may wait in the socket's own lane: a peer that sends heartbeats and never reads is cut."""

_OVERHEAD: Final = 48
"""Bytes one waiting answer costs beside its data: a pong of two bytes is no smaller in memory."""

CUTS: Final = ("queue", "stuck", "total", "answers")
"""Why a peer is cut: its queue is too long, it takes nothing, all queues together are too long, its own answers wait.
"""


class Budget:
    """The marks of all outboxes, the bytes queued for all peers together, and what was done about slow ones.

    When the bytes exceed `limit`, the largest queue is cut first. `now` is the monotonic clock that ages are told by.
    """

    def __init__(
        self, limit: int = 256 * 2**20, marks: Marks | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit = limit
        self.marks = marks or Marks()
        self.now = now
        self.used = 0
        self.busy: set[Outbox] = set()
        self.cuts = dict.fromkeys(CUTS, 0)
        self.lines = Seldom(now)
        """What is said in the log of slow peers: a storm of them is one line a second."""
        self.merged_parts = 0
        self.passed = {Level.MERGE: 0, Level.HOLD: 0}
        """Queues that passed a mark."""

    def add(self, size: int) -> None:
        """Count `size` more bytes and cut until the sum fits again."""
        self.used += size
        while self.used > self.limit and self.busy:
            max(self.busy, key=lambda outbox: outbox.queued).cut("total")


class Outbox:
    """The way out of one peer. Every method but `drained` is synchronous; nothing raises but `put_message`.

    After `drop` everything is ignored.
    """

    __slots__ = (
        "_budget",
        "_closed",
        "_cork",
        "_cut",
        "_drained",
        "_progress",
        "_queue",
        "_unsent",
        "_urgent",
        "_urgent_bytes",
        "listeners",
        "paused",
        "queued",
        "transport",
    )

    def __init__(self, transport: Transport, budget: Budget, cut: Callable[[], None]) -> None:
        self.transport = transport
        self.paused = False
        self.queued = 0
        self.listeners: tuple[Listener, ...] = ()
        self._budget = budget
        self._cut = cut
        self._queue: Backlog | None = None
        self._urgent: deque[bytes] | None = None
        self._urgent_bytes = 0
        self._cork: list[bytes] | None = None
        self._drained: list[asyncio.Future[None]] | None = None
        self._progress = 0.0
        self._unsent = 0
        self._closed = False

    # Sending.

    def put(self, channel: Channel | None, data: bytes) -> None:
        """Send finished wire bytes of a channel, or of the socket when `channel` is None."""
        if self._closed:
            return
        if not self.paused:
            if self._cork is not None:
                self._cork.append(data)
            else:
                self.transport.write(data)
        elif channel is not None:
            self._enqueue(channel, data, None, len(data))
        else:
            if self._urgent is None:
                self._urgent = deque()
            self._urgent.append(data)
            self._urgent_bytes += len(data) + _OVERHEAD
            self._count(len(data))
            if self._urgent_bytes > URGENT_BYTES:
                self.cut("answers")

    def put_events(self, channel: Channel, data: bytes, form: Form) -> None:
        """Send finished wire bytes that hold events of a channel."""
        if self.paused:
            self._enqueue(channel, data, form, len(data))
        else:
            self.put(channel, data)

    def put_message(self, channel: Channel, message: Message, form: Form) -> None:
        """Send one shared message of a channel; its bytes are formed when there is room.

        Raises ValueError for a binary message and a serializer that has none.
        """
        if self.paused:
            if message.binary:
                form.frame(message)  # raises now what nobody could handle later
            self._enqueue(channel, message, form, message.size)
        else:
            self.put(channel, form.frame(message))

    def _enqueue(self, channel: Channel, item: Message | bytes, form: Form | None, size: int) -> None:
        if self._closed:
            return
        budget = self._budget
        now = budget.now()
        queue = self._queue
        if queue is None:
            queue = self._queue = Backlog(budget.marks)
        queue.add(Entry(channel, item, form, size, now))
        self._count(size)
        if self._queue is not queue:
            return  # the sum was too much, and this queue the longest: it is cut
        if queue.is_due:
            self._shrink(queue, now)
        if self.queued > budget.marks.cut_bytes:
            self.cut("queue")

    def _shrink(self, queue: Backlog, now: float) -> None:
        passed = queue.level
        freed, parts, level = queue.shrink(now)
        budget = self._budget
        budget.merged_parts += parts
        for mark in (Level.MERGE, Level.HOLD):
            budget.passed[mark] += passed < mark <= level
        self._count(-freed)

    def _count(self, size: int) -> None:
        self.queued += size
        self._budget.add(size)

    def purge(self, channel: Channel) -> None:
        """Forget the queued events of a channel that ends, and what was queued for it behind them."""
        if self._queue:
            self._count(-self._queue.purge(channel))

    def cork(self) -> None:
        """Collect what is put until `uncork`: the answers to one read leave in one write."""
        if self._cork is None:
            self._cork = []

    def uncork(self) -> None:
        """Write what was collected."""
        data, self._cork = self._cork, None
        if data:
            self.transport.write(data[0] if len(data) == 1 else b"".join(data))

    def flush(self) -> None:
        """Write what was collected so far and go on collecting."""
        if self._cork:
            self.uncork()
            self._cork = []

    # What the transport says.

    def pause(self, now: float) -> None:
        """The transport is full: everything is queued from now on."""
        if not self.paused and not self._closed:
            self.paused = True
            self._progress = now
            self._unsent = self.transport.unsent()
            self._budget.busy.add(self)
            for listener in self.listeners:
                listener.became_busy()

    def resume(self, now: float) -> None:
        """The transport has room: hand it the next bytes, and be idle again when nothing is left."""
        self._progress = now
        self.paused = False
        if self._queue:
            self._shrink(self._queue, now)
        while not self.paused and (self._urgent or self._queue):
            self.transport.write(self._next_bytes(now))  # may pause again
        if not self.paused:
            self._queue = self._urgent = None
            self._budget.busy.discard(self)
            for listener in self.listeners:
                listener.became_idle()
            self._release()

    def _next_bytes(self, now: float) -> bytes:
        parts: list[bytes] = []
        if self._urgent:
            parts += self._urgent
            self._count(-sum(map(len, parts)))
            self._urgent = None
        self._urgent_bytes = 0
        queue = self._queue
        if queue:
            before = queue.bytes
            parts += queue.take(self._budget.marks.handover_bytes, queue.held(now))
            self._count(queue.bytes - before)
        return b"".join(parts)

    async def drained(self) -> None:
        """Wait until the peer takes more. Returns at once for an idle peer; is cancelled when the peer goes."""
        if self.paused:
            if self._drained is None:
                self._drained = []
            future = asyncio.get_running_loop().create_future()
            self._drained.append(future)
            await future

    def _release(self) -> None:
        if self._drained:
            waiters, self._drained = self._drained, None
            for future in waiters:
                if not future.done():
                    future.set_result(None)

    def stuck(self, now: float) -> bool:
        """Whether this busy peer took nothing for `cut_seconds`. Called by the shared wheel about once a second."""
        if not self.paused:
            return False
        unsent = self.transport.unsent()
        if unsent < self._unsent:
            self._progress = now
        self._unsent = unsent
        return now - self._progress >= self._budget.marks.cut_seconds

    def cut(self, reason: str) -> None:
        """Give up on this peer: forget what is queued and end the connection so that it comes back with its cursor.

        `reason` is one of CUTS.
        """
        if not self._closed:
            self._budget.cuts[reason] += 1
            self.drop()
            self._cut()

    @property
    def lines(self) -> Seldom:
        """What is said in the log of slow peers, of all of a hub."""
        return self._budget.lines

    def drop(self) -> None:
        """Forget everything and count for nothing; called when the peer goes."""
        self._closed = True
        self._count(-self.queued)
        self._queue = self._urgent = self._cork = None
        self._budget.busy.discard(self)
