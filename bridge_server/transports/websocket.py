"""The Phoenix protocol over WebSocket: a thin asyncio driver around websockets' sans-I/O `ServerProtocol`.

`ServerProtocol` parses frames, answers pings and closes, and enforces RFC 6455; this driver owns the socket, joins
fragments, and writes frames that the hub built once for many (RFC 6455 section 5: server frames are not masked).
`handshake.py` decides who gets this far.
"""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from typing import Final

from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from bridge_server.clock import Clock
from bridge_server.peer import Peer
from bridge_server.transports.deflate import DeflatedFrame, inflate, wrapper
from bridge_server.transports.handshake import Mount
from bridge_server.transports.shortcut import Shortcut
from bridge_server.transports.taken import untaken
from protocol.codec import Encoded
from protocol.errors import ProtocolError

log = logging.getLogger("bridge_server.websocket")

SLICE: Final = 16 * 1024
"""Bytes parsed per loop turn and socket: a flood of tiny frames must not hold up the others."""

MAX_FRAGMENTS: Final = 1024
"""Fragments one message may come in; empty ones cost the sender nothing."""

CLOSE_SECONDS: Final = 5.0
"""How long a peer may take to answer or take a goodbye before the connection is aborted."""

_FAULTS: Final = frozenset({1002, 1003, 1007, 1009})

# Looked up once: every look-up of an enumeration's member costs a call.
_TEXT, _BINARY = Opcode.TEXT, Opcode.BINARY

_TEXT_HEAD, _BINARY_HEAD = 0x80 | Opcode.TEXT, 0x80 | Opcode.BINARY


def frame(message: Encoded) -> bytes:
    """One whole, unmasked, uncompressed WebSocket frame."""
    data = message.data
    first = _BINARY_HEAD if message.binary else _TEXT_HEAD
    length = len(data)
    if length < 126:
        return bytes((first, length)) + data
    if length < 65_536:
        return struct.pack("!BBH", first, 126, length) + data
    return struct.pack("!BBQ", first, 127, length) + data


class WebSocketDriver(asyncio.Protocol):
    """One upgraded connection. Fulfils the `Transport` contract for its peer."""

    __slots__ = (
        "_awaited",
        "_clock",
        "_deadline",
        "_deflated",
        "_fragments",
        "_idle_timeout",
        "_last_seen",
        "_limit",
        "_on_gone",
        "_opcode",
        "_ping_interval",
        "_pinged",
        "_protocol",
        "_reading",
        "_rest",
        "_shortcut",
        "_transport",
        "peer",
        "wrap",
        "write",
    )

    def __init__(
        self,
        transport: asyncio.Transport,
        protocol: ServerProtocol,
        mount: Mount,
        window_bits: int | None,
        clock: Clock,
        on_gone: Callable[["WebSocketDriver"], None],
        handover: int,
    ) -> None:
        # `window_bits` is None without permessage-deflate.
        self.peer: Peer | None = None
        self.wrap = frame if window_bits is None else wrapper(window_bits, frame)
        self.write = transport.write  # the hub calls it for every event: no frame of ours in between
        self._transport = transport
        self._protocol = protocol
        self._limit = mount.max_frame_bytes
        self._shortcut = Shortcut(mount.max_frame_bytes)
        self._idle_timeout = mount.idle_timeout
        self._ping_interval = mount.ping_interval
        self._clock = clock
        self._on_gone = on_gone
        self._last_seen = self._pinged = clock.now()
        self._awaited = False
        self._deadline: float | None = None
        self._fragments: list[bytes] | None = None
        self._opcode = Opcode.TEXT
        self._deflated = False
        self._reading = True
        self._rest = b""
        transport.set_write_buffer_limits(high=handover, low=handover // 4)

    def started(self, rest: bytes) -> None:
        """Answer the handshake, and take the frames that came with it."""
        for data in self._protocol.data_to_send():
            self._transport.write(data)
        if rest:
            self.data_received(rest)

    # What asyncio says.

    def data_received(self, data: bytes) -> None:
        """Bytes from the peer; more than a slice of them is parsed over several turns."""
        self._last_seen = self._clock.now()
        if len(data) <= SLICE and self._reading and not self._rest:
            self._parse(data)
            return
        waiting = bool(self._rest)
        self._rest += data
        if not waiting:
            self._next_slice()

    def _next_slice(self) -> None:
        if not self._reading or self._transport.is_closing():
            return  # a join is undecided: what came after it waits here until `resume_reading`
        data, self._rest = self._rest[:SLICE], self._rest[SLICE:]
        if self._rest:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._next_slice)
        else:
            self._transport.resume_reading()
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        peer = self.peer
        if peer is None:
            return
        protocol = self._protocol
        peer.outbox.cork()
        for opcode, piece in self._shortcut.cut(data):
            if not opcode:
                protocol.receive_data(piece)
                for received in protocol.events_received():
                    if self._deadline is None and isinstance(received, Frame):
                        self._take(peer, received)
            elif self._deadline is None and protocol.state is OPEN:
                peer.receive(piece, binary=opcode == Opcode.BINARY)
        peer.outbox.uncork()
        self._pump()

    def _take(self, peer: Peer, received: Frame) -> None:
        opcode = received.opcode
        if opcode is _TEXT or opcode is _BINARY:
            self._deflated = isinstance(received, DeflatedFrame)
            if received.fin:
                self._message(peer, bytes(received.data), opcode)
            else:
                self._opcode = opcode
                self._fragments = [bytes(received.data)]
        elif opcode == Opcode.CONT and self._fragments is not None:
            self._fragments.append(bytes(received.data))
            if received.fin:
                data, self._fragments = b"".join(self._fragments), None
                self._message(peer, data, self._opcode)
            elif len(self._fragments) >= MAX_FRAGMENTS:
                self._fragments = None
                self.close(1009, "too many fragments")
        elif opcode == Opcode.CLOSE:
            log.debug("a peer closed its socket")

    def _message(self, peer: Peer, data: bytes, opcode: Opcode) -> None:
        if self._deflated:
            try:
                data = inflate(data, self._limit)
            except ProtocolError as fault:
                peer.outbox.flush()
                self.close(fault.close_code, fault.reason)
                return
        peer.receive(data, binary=opcode == Opcode.BINARY)

    def _pump(self) -> None:
        """Write what the protocol wants written: pongs, and the closing handshake."""
        for data in self._protocol.data_to_send():
            if not data:
                self._half_close()
            elif data[0] & 0x0F == Opcode.CLOSE:
                self._transport.write(data)
            elif self._protocol.state is OPEN and self.peer is not None:
                self.peer.outbox.put(None, data)  # a ping or pong; counted when the peer does not read
            # Once it is told goodbye, a peer gets no pongs: nobody would count them.
        if self._protocol.state is not OPEN:
            self._closing()

    def _half_close(self) -> None:
        # A transport raises on a write that comes after this, in the middle of a delivery to others: the hub lets go of
        # `write` first. It may raise here, too, when the peer has reset the connection meanwhile.
        self._closing()
        # Closing with unread input would reset the connection, and the goodbye could be lost on its way.
        if not self._transport.is_closing():
            if self._transport.can_write_eof():
                with contextlib.suppress(OSError):
                    self._transport.write_eof()
            else:
                self._transport.close()

    def eof_received(self) -> bool:
        """The peer sends no more: the connection ends."""
        self._protocol.receive_eof()
        self._pump()
        return False

    def pause_writing(self) -> None:
        """The peer takes less than it is sent."""
        if self.peer is not None:
            self.peer.outbox.pause(self._clock.now())

    def resume_writing(self) -> None:
        """The peer has caught up with what the transport held."""
        if self.peer is not None and self._deadline is None:
            self.peer.outbox.resume(self._clock.now())

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._closing()
        self._on_gone(self)

    # What the peer and the port say.

    def unsent(self) -> int:
        """See the contract."""
        return untaken(self._transport)

    def pause_reading(self) -> None:
        """See the contract."""
        self._reading = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """See the contract."""
        if not self._reading:
            self._reading = True
            asyncio.get_running_loop().call_soon(self._next_slice)

    def close(self, code: int, reason: str) -> None:
        """See the contract. A peer that broke the protocol is not waited for; another may answer the goodbye."""
        if self._deadline is None:
            text = reason.encode()[:120].decode(errors="ignore")  # a close frame holds 123 bytes
            if code in _FAULTS:
                self._protocol.fail(code, text)
            else:
                self._protocol.send_close(code, text)
            self._pump()

    def hang_up(self) -> None:
        """End without a close frame, as a proxy or a kernel would: what was written before still arrives."""
        if self._deadline is None:
            self._half_close()

    def _closing(self) -> None:
        # From here on nothing but the closing handshake may be written: the hub must not hold `write` any more.
        if self._deadline is None:
            self._deadline = self._clock.now() + CLOSE_SECONDS
            if self.peer is not None:
                self.peer.gone()

    def abort(self) -> None:
        """See the contract. Without lingering: the kernel gives up on what was not taken, too."""
        if (raw := self._transport.get_extra_info("socket")) is not None:
            try:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError:
                log.debug("the socket of a peer was closed already")
        self._transport.abort()

    def tick(self, now: float) -> None:
        """About once a second: end what is idle, stuck, or does not take its goodbye."""
        if self._deadline is not None:
            if now >= self._deadline:
                self.abort()
        elif now - self._last_seen >= self._idle_timeout:
            if self.peer is not None:
                self.peer.gone("idle")
            self.close(1001, "idle")
        elif self.peer is not None and self.peer.outbox.stuck(now):
            self.peer.outbox.cut("stuck")
        elif self._ping_interval and now - self._pinged >= self._ping_interval:
            self._ping(now)

    def _ping(self, now: float) -> None:
        # A peer that is behind has pings behind what it has not read: `stuck` judges it.
        if self.peer is None or self.peer.outbox.paused:
            self._pinged, self._awaited = now, False
        elif self._awaited and self._last_seen < self._pinged:
            self.close(1001, "mute")
        else:
            self._pinged, self._awaited = now, True
            self._protocol.send_ping(b"")
            self._pump()
