"""A virtual network: TCP connections as asyncio transports, with all that can go wrong on the way.

Bytes of one direction stay in order (TCP), but come late, in pieces of any size, or not at all. A connection may be cut
after any byte, with one end, both or neither told; it may carry nothing for a while (stalled) or for ever (half open);
an attempt to connect may fail, hang, or reach the hub twice. A peer that takes nothing holds its sender back.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from tests.simulation.loop import Process, SimLoop, current


@dataclass
class Weather:
    """How the network is now: seconds one way, and chances."""

    slowest: float = 0.02
    pieces: float = 0.0
    refused: float = 0.0
    hanging: float = 0.0
    doubled: float = 0.0


class _Socket:
    def setsockopt(self, *option: object) -> None:
        pass

    def __init__(self, port: int) -> None:
        self._port = port

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self._port


class Server:
    """A listening socket (what `loop.create_server` returns, as far as the hub uses it)."""

    def __init__(self, network: "Network", port: int, factory: Callable[[], Any], owner: Process | None) -> None:
        self.sockets = [_Socket(port)]
        self.factory = factory
        self.owner = owner
        self.port = port
        self._network = network

    def close(self) -> None:
        if self._network.servers.get(self.port) is self:
            del self._network.servers[self.port]


class Network:
    """All connections of one run. `trace` is told what happens."""

    def __init__(self, loop: SimLoop, trace: Callable[[str], None]) -> None:
        self.loop = loop
        self.random = loop.random
        self.trace = trace
        self.weather = Weather()
        self.servers: dict[int, Server] = {}
        self.links: dict[int, Link] = {}
        self._made = 0
        loop.network = self

    def later(self, seconds: float, callback: Callable[..., object], *args: object) -> None:
        """Call back in the world's own context: what is under way outlives its sender."""
        self.loop.call_later(seconds, callback, *args, context=Context())

    def delay(self) -> float:
        """How long one piece takes."""
        return self.random.uniform(0.0002, self.weather.slowest)

    def listen(self, factory: Callable[[], Any], port: int) -> Server:
        if port in self.servers:
            raise OSError(98, "Address already in use")
        server = self.servers[port] = Server(self, port, factory, current())
        return server

    async def connect(self, factory: Callable[[], Any], port: int) -> tuple[Any, Any]:
        await asyncio.sleep(self.delay())
        chance = self.random.random()
        if chance < self.weather.refused or port not in self.servers:
            raise ConnectionRefusedError(111, "Connection refused")
        server = self.servers[port]
        if self.random.random() < self.weather.doubled:
            self._link(server, None)
        link = self._link(server, current())
        if chance > 1 - self.weather.hanging:  # the hub sees a connection, the client never hears of it
            link.stall()
            await asyncio.sleep(3600)
        protocol = factory()
        link.near.protocol = protocol
        protocol.connection_made(link.near)
        return link.near, protocol

    def _link(self, server: Server, client: Process | None) -> "Link":
        self._made += 1
        link = self.links[self._made] = Link(self, self._made, client, server.owner)
        if client is not None:
            for earlier in self.links.values():
                if earlier.near.process is None and earlier.near.mirrored is None:
                    earlier.near.mirrored = link.near
                    link.near.mirror = earlier.near
        self.later(self.delay(), link.accept, server)
        self.trace(f"connection {link.number} of {client.name if client else 'nobody'}")
        return link

    def woke(self, process: Process) -> None:
        """A process was thawed: it reads what has arrived meanwhile."""
        for link in self.of(process):
            if link.waiting is not None:
                link.accept(link.waiting)
            for end in (link.near, link.far):
                if end.process is process:
                    end.deliver()

    def of(self, process: Process) -> list["Link"]:
        """The open connections of a process."""
        return [link for link in self.links.values() if process in (link.near.process, link.far.process)]

    def kill(self, process: Process, *, silently: bool) -> None:
        """A process died: its kernel says so to its peers, or (`silently`: power lost) does not."""
        for server in list(self.servers.values()):
            if server.owner is process:
                server.close()
        for link in self.of(process):
            link.kill(process, silently)


class Link:
    """One connection: `near` is the client's end, `far` the server's."""

    def __init__(self, network: Network, number: int, client: Process | None, server: Process | None) -> None:
        self.network = network
        self.number = number
        out, back = _Way(network), _Way(network)
        self.near = End(self, client, out, back)
        self.far = End(self, server, back, out)
        self.dead = False
        self.answered = True  # with a reset, what is sent into a dead connection
        self.waiting: Server | None = None  # in the backlog of a frozen process

    def accept(self, server: Server) -> None:
        end = self.far
        self.waiting = server if end.process is not None and end.process.frozen else None
        if self.waiting is not None:
            return
        if self.dead or end.process is None or not end.process.alive:
            self.near.lose(ConnectionResetError(104, "Connection reset by peer"))
            return
        end.protocol = end.process.run(server.factory)
        end.process.run(end.protocol.connection_made, end)
        end.deliver()

    def stall(self) -> None:
        """Carry nothing, without a word, until `flow`."""
        for way in (self.near.out, self.far.out):
            way.stalled = True

    def flow(self) -> None:
        """Carry again what waited."""
        for way in (self.near.out, self.far.out):
            way.stalled = False
            way.arrived()

    def cut(self, told: tuple[bool, bool]) -> None:
        """Lose what is under way, but for the first bytes; tell the client's end, the server's, both or neither."""
        self.network.trace(f"connection {self.number} cut, told: {told}")
        self.dead = True
        for way in (self.near.out, self.far.out):
            way.cut()
        for end, tell in ((self.near, told[0]), (self.far, told[1])):
            if tell:
                end.break_later()
        self.network.links.pop(self.number, None)

    def kill(self, process: Process, silently: bool) -> None:
        for end in (self.near, self.far):
            if end.process is process:
                end.lost = True
                end.out.buffer.clear()
                if silently:  # what is under way arrives all the same
                    self.dead = True
                    self.answered = self.network.random.random() < 0.5
                    end.into.cut()
                else:
                    end.out.finish(reset=self.network.random.random() < 0.5)


class _Way:
    """One direction: what the sender's transport holds, what is under way, what the receiver has not read."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.capacity = network.random.choice((2_000, 16_000, 100_000))
        self.buffer = bytearray()
        self.under_way: deque[tuple[float, bytes]] = deque()
        self.inbox = bytearray()
        self.carried = 0  # bytes under way or unread
        self.stalled = False
        self.broken = False
        self.finished: str | None = None
        self.source: End
        self.target: End
        self._last = 0.0

    def pump(self) -> None:
        """Move what there is room for from the sender onto the way."""
        loop, random = self.network.loop, self.network.random
        while self.buffer and self.carried < self.capacity:
            size = min(len(self.buffer), self.capacity - self.carried)
            if random.random() < self.network.weather.pieces:
                size = random.randint(1, min(size, random.choice((3, 100, 5_000))))
            piece = bytes(self.buffer[:size])
            del self.buffer[:size]
            self.carried += size
            self._last = max(self._last, loop.time() + self.network.delay())
            if not self.broken:
                self.under_way.append((self._last, piece))
                loop.call_at(self._last, self.arrived, context=Context())
        if not self.buffer and self.finished == "closing":
            self.finished = "eof"
            loop.call_at(max(self._last, loop.time() + self.network.delay()), self.arrived, context=Context())
        if len(self.buffer) <= self.source.low:
            self.source.has_room()

    def arrived(self) -> None:
        if self.stalled:
            return
        now = self.network.loop.time()
        while self.under_way and self.under_way[0][0] <= now:
            self.inbox += self.under_way.popleft()[1]
        self.target.deliver()

    def cut(self) -> None:
        """Nothing more gets through, but some bytes of what comes next."""
        if self.under_way and self.network.random.random() < 0.5:
            piece = self.under_way[0][1]
            self.inbox += piece[: self.network.random.randint(0, len(piece))]
            self.target.deliver()
        self.under_way.clear()
        self.broken = True

    def finish(self, *, reset: bool = False) -> None:
        """The sender sends no more: once all has left, the other side is told."""
        if self.finished is None:
            self.finished = "reset" if reset else "closing"
            if reset:
                self.target.break_later()
            else:
                self.pump()


class End(asyncio.Transport):
    """One end of a connection, as a transport."""

    def __init__(self, link: Link, process: Process | None, out: _Way, into: _Way) -> None:
        super().__init__()
        self.link = link
        self.process = process
        self.out = out
        self.into = into
        out.source = self
        into.target = self
        self.protocol: Any = None
        self.high, self.low = 65_536, 16_384
        self.lost = False
        self.mirror: End | None = None  # of an attempt that reached the hub twice: gets the first message too
        self.mirrored: End | None = None
        self._closing = False
        self._reading = True
        self._paused = False

    # What the network says.

    def _call(self, method: str, *args: object) -> None:
        if self.process is not None and self.process.alive and self.protocol is not None:
            self.process.run(getattr(self.protocol, method), *args)

    def deliver(self) -> None:
        """Hand over what has arrived, if the program reads."""
        into, process = self.into, self.process
        if process is None or not process.alive or self.lost or self._closing:
            if into.inbox and not into.broken and process is not None and not process.frozen:
                into.inbox.clear()  # nobody is left to read it: a reset answers
                into.source.break_later()
            return
        if self.protocol is None or not self._reading or process.frozen:
            return
        if into.inbox:
            data = bytes(into.inbox)
            into.inbox.clear()
            into.carried -= len(data)
            self.link.network.trace(f"{process.name} reads {len(data)} from {self.link.number}")
            self._call("data_received", data)
            into.pump()
        if into.finished == "eof" and not into.inbox and not into.under_way and not into.broken and not self.lost:
            into.finished = "told"
            self._call("eof_received")
            self.close()

    def break_later(self) -> None:
        """The connection is reset, and this end learns of it after a while."""
        network = self.link.network
        network.later(network.delay(), self.lose, ConnectionResetError(104, "Connection reset by peer"))

    def lose(self, error: Exception | None) -> None:
        """The connection is over for this end."""
        if self.lost:
            return
        self.lost = self._closing = True
        self.out.buffer.clear()
        if self.link.near.lost and self.link.far.lost:
            self.link.network.links.pop(self.link.number, None)
        self._call("connection_lost", error)

    def has_room(self) -> None:
        if self._paused and not self.lost:
            self._paused = False
            self.link.network.later(0, self._resume)
        if self._closing and not self.out.buffer:
            self.link.network.later(0, self.lose, None)

    def _resume(self) -> None:
        if not self.lost and not self._paused:
            self._call("resume_writing")

    # What the program says.

    def write(self, data: Any) -> None:
        if self.out.finished is not None and not self._closing:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.lost or self._closing or not data:
            return
        if self.mirror is not None:
            mirror, self.mirror = self.mirror, None
            mirror.write(data)
        if self.link.dead and self.link.answered and self.process is not None:
            self.break_later()  # a packet for a connection that the other side does not know
        self.out.buffer += data
        self.out.pump()
        if len(self.out.buffer) > self.high and not self._paused:
            self._paused = True
            self._call("pause_writing")

    def get_write_buffer_size(self) -> int:
        return len(self.out.buffer)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = 65_536 if high is None else high
        self.low = self.high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.out.finish()

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.link.network.later(0, self.deliver)

    def is_reading(self) -> bool:
        return self._reading

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.out.finish()
            if not self.out.buffer:
                self.link.network.later(0, self.lose, None)

    def abort(self) -> None:
        if not self.lost:
            self._closing = True
            self.out.buffer.clear()
            self.out.finish(reset=True)
            if not self.out.broken:
                self.link.far.break_later() if self is self.link.near else self.link.near.break_later()
            self.link.network.later(0, self.lose, None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 50_000 + self.link.number) if name == "peername" else default

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol
