"""One client of long polling: a connection without a socket.

The same `Peer` as on a WebSocket, with the same channels, order and replay. While a poll waits, the session has room,
and what is written in one loop turn is one batch. At any other time it is full, so that what the client has not fetched
is queued and counted in its outbox, like that of any slow peer.

A batch is the session's until its answer is written: a poll whose client left before leaves it to the next. If a client
leaves in the middle of an answer nobody can know what it has, so the session ends, and the client comes back with its
cursor. No timer and no task belongs to a session: the port's tick ends windows and sessions.
"""

import asyncio
import secrets
import sys
from collections.abc import Callable
from typing import Final

from bridge_server.peer import Peer
from bridge_server.transports import longpoll_wire as wire
from bridge_server.transports.handshake import Mount
from bridge_server.transports.port import Port
from bridge_server.transports.taken import untaken
from protocol.codec import Encoded
from protocol.errors import MalformedMessage

PATIENCE: Final = 1.5
"""How many windows a session lives without a poll."""


class Session:
    """One client. Fulfils the `Transport` contract for its peer, and `port.Connection`."""

    __slots__ = (
        "_batch",
        "_deadline",
        "_last_poll",
        "_lock",
        "_on_gone",
        "_poll",
        "_port",
        "_readable",
        "_reading",
        "_size",
        "_unsent",
        "ended",
        "id",
        "mount",
        "peer",
        "posts",
        "writing",
    )

    @staticmethod
    def wrap(message: Encoded) -> bytes:
        """See the contract."""
        return wire.wrap(message)

    def __init__(self, port: Port, mount: Mount, on_gone: Callable[["Session"], None]) -> None:
        self.id = secrets.token_bytes(wire.ID_BYTES)
        self.mount = mount
        self.peer: Peer | None = None
        self.ended: tuple[int, str] | None = None
        """Close code and reason, once it is over."""
        self.posts = 0
        self.writing: asyncio.Transport | None = None
        """The connection on which a batch is being written, while that takes longer than a turn."""
        self._port = port
        self._on_gone = on_gone
        self._last_poll = port.clock.now()
        self._deadline = 0.0
        self._poll: asyncio.Future[bool] | None = None
        self._batch: list[bytes] = []
        self._size = 0
        self._unsent = 0  # of the answer that is being written, when that was last looked at
        self._reading = True
        self._readable: asyncio.Future[None] | None = None
        self._lock: asyncio.Lock | None = None

    def started(self, peer: Peer) -> None:
        """Take the peer that this session carries."""
        self.peer = peer
        peer.outbox.pause(self._last_poll)

    # What the peer and the port say.

    def write(self, data: bytes) -> None:
        """See the contract. What is written in one turn leaves in one batch, of about one handover at most."""
        if self.ended is not None:
            return
        if not self._batch:
            asyncio.get_running_loop().call_soon(self._complete)
        self._batch.append(data)
        self._size += len(data)
        if self._size >= self._port.budget.marks.handover_bytes:
            self._fill()

    def unsent(self) -> int:
        """See the contract."""
        return self._size

    def pause_reading(self) -> None:
        """See the contract."""
        self._reading = False

    def resume_reading(self) -> None:
        """See the contract."""
        self._reading = True
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)
        self._readable = None

    def close(self, code: int, reason: str) -> None:
        """See the contract. The goodbye is the answer to the poll that waits, or to the next one: 410."""
        if self.ended is None:
            self.ended = (code, reason)
            self._batch.clear()
            self._on_gone(self)
            if self.peer is not None:
                self.peer.gone("idle" if reason == "idle" else "closed")
            self._end_poll()
            self.resume_reading()
            if self.writing is not None:
                self.writing.abort()

    def hang_up(self) -> None:
        """See `port.Connection`: nothing but the next answer can say that it is over."""
        self.close(1012, "restart")

    def abort(self) -> None:
        """See the contract."""
        self.close(1001, "aborted")

    def tick(self, now: float) -> None:
        """End a window without messages, and a session that is not polled any more."""
        if self._poll is not None:
            if now >= self._deadline and not self._batch:
                self._end_poll()
        elif self.writing is not None and (unsent := untaken(self.writing)) < self._unsent:
            self._unsent, self._last_poll = unsent, now  # a slow client that is fetching its answer is no idle one
        elif now - self._last_poll >= self.mount.poll_window * PATIENCE:
            self.close(1001, "idle")

    # Polls.

    @property
    def waiting(self) -> bool:
        """Whether a poll waits for messages."""
        return self._poll is not None

    async def poll(self) -> bool:
        """Wait until there is a batch to `take`; a poll that waits already ends. False: the window, or all, is over."""
        self._end_poll()
        now = self._last_poll = self._port.clock.now()
        if self._batch:
            return True
        assert self.peer is not None
        poll = self._poll = asyncio.get_running_loop().create_future()
        self._deadline = now + self.mount.poll_window
        self.peer.outbox.resume(now)
        try:
            ready = await poll
        except asyncio.CancelledError:
            if self._poll is poll:
                self._end_poll()
            raise
        return ready and bool(self._batch)

    def take(self) -> bytes:
        """The batch there is: from here on the caller's to deliver."""
        batch, self._batch = self._batch, []
        self._size = 0
        return b"".join(batch)

    def answering(self, transport: asyncio.Transport) -> None:
        """The batch that was taken is written to `transport` from now on."""
        self.writing = transport
        self._unsent = sys.maxsize

    def answered(self) -> None:
        """All of it was handed over, or the client is gone."""
        self.writing = None
        self._last_poll = self._port.clock.now()

    def _complete(self) -> None:
        if self._poll is not None and self._batch:
            self._end_poll(ready=True)

    def _end_poll(self, *, ready: bool = False) -> None:
        poll, self._poll = self._poll, None
        if poll is not None:
            self._last_poll = self._port.clock.now()
            self._fill()
            if not poll.done():
                poll.set_result(ready)

    def _fill(self) -> None:
        if self.peer is not None:
            self.peer.outbox.pause(self._port.clock.now())

    # Messages of the client.

    async def receive(self, body: bytes, *, ndjson: bool) -> None:
        """Handle the messages of one POST, in order, each when those before it were handled.

        A join that is undecided holds up those behind it. Raises TimeoutError when it does so for a whole window,
        TooManyLines. A malformed message, as anywhere, ends the session.
        """
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock, asyncio.timeout(self.mount.poll_window):
            await self._wait_until_readable()
            try:
                for line in wire.messages(body, ndjson=ndjson):
                    self._take_in(line)
                    await self._wait_until_readable()
                    if self.ended is not None:
                        return
            except MalformedMessage as error:
                self.close(error.close_code, error.reason)

    def _take_in(self, line: wire.Line) -> None:
        assert self.peer is not None
        if len(line.data) > self.mount.max_frame_bytes:
            self.close(1009, f"a message is at most {self.mount.max_frame_bytes} bytes")
        else:
            self.peer.receive(line.data, binary=line.binary)

    async def _wait_until_readable(self) -> None:
        while not self._reading:
            if self._readable is None:
                self._readable = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._readable)
