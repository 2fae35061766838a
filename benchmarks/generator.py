"""The load: many apps and a few publishers on raw sockets, every delivery checked and timed.

One process, one core, no WebSocket library: a frame here is its header and its text, and what is looked for in what
arrives is the mark each event carries (`receiver.py`). An app that misses an event, gets one twice or out of order
counts as `wrong`. How a system is spoken to is its `Dialect`.
"""

import asyncio
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, cast

from benchmarks.receiver import Receiver

CONNECTING = 256
"""Connections being opened at a time."""

PATIENCE = 60.0
"""Seconds without a delivery after which a run is given up."""

Headers = Sequence[tuple[str, str]]


class Dialect(NamedTuple):
    """How to talk to one system. Every callable gets a group's number; texts travel as WebSocket text frames."""

    app_request: Callable[[int], tuple[str, Headers]]
    """Path and headers of an app's upgrade."""
    app_hello: Callable[[int], Sequence[str]]
    """What an app says after the upgrade: the first text at once, each further one after one more answer."""
    app_answers: int
    """Answers after the last hello until the app counts as joined."""
    publisher_request: Callable[[int], tuple[str, Headers]]
    publisher_hello: Callable[[int], Sequence[str]]
    publisher_answers: int
    publish: Callable[[int, int, str], str]
    """Group, number from 1, event as JSON → the text that publishes it. One frame must answer each."""


@dataclass
class Load:
    """How many apps and publishers, and how events are paced: by `rate`, else by a `window` per publisher.

    A window counts events that are not acknowledged yet, or with `by_deliveries` those some app has not got yet. The
    first `slow` apps join and then never read; the server has `goodbye` seconds to cut them. `publishers` False: events
    come from elsewhere (a home).
    """

    apps: int = 1000
    groups: int = 1
    events: int = 1200
    window: int = 16
    by_deliveries: bool = False
    rate: float = 0.0
    size: int = 250
    slow: int = 0
    warm_up: int = 0
    settle: float = 0.5
    goodbye: float = 10.0
    publishers: bool = True


@dataclass
class Result:
    """What a run showed. `latency_ms` is from the publisher's clock to the app's socket."""

    deliveries: int = 0
    wrong: int = 0
    connect_s: float = 0.0
    cpu_us_per_connect: float = 0.0
    bytes_per_app: float = 0.0
    seconds: float = 0.0
    cpu_us: float = 0.0
    """Server CPU per delivery, user and system."""
    latency_ms: dict[str, float] = field(default_factory=dict)
    generator_busy: float = 0.0
    """Share of its core that the generator used: near 1 it, and not the server, makes the latency."""
    cut: int = 0
    """Slow apps whose connection the server ended."""
    grown_bytes: int = 0
    """Server memory at the end of the events above that before them."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def event(number: int, size: int, now: int | None = None) -> str:
    """One event of about `size` bytes (`receiver.MARK`), marked with its number and the moment (default: this one)."""
    mark = f"lg.{number}.{now or time.monotonic_ns()}."
    return (
        f'{{"event_id":"{number}","type":"partial","session_id":"s-1","mark":"{mark}","text":"{"x" * (size - 100)}"}}'
    )


def percentiles(nanoseconds: Sequence[int]) -> dict[str, float]:
    """p50, p99, max and mean in milliseconds. Raises RuntimeError when nothing arrived."""
    if not nanoseconds:
        raise RuntimeError("not one event arrived at an app")
    ordered = sorted(nanoseconds)
    picked = {name: ordered[int((len(ordered) - 1) * part)] for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1))}
    return {name: value / 1e6 for name, value in (*picked.items(), ("mean", statistics.fmean(ordered)))}


def text_frame(text: str) -> bytes:
    """A client's text frame. The mask is zero: RFC 6455 allows it, and it is no work for the generator."""
    data = text.encode()
    if len(data) < 126:
        return bytes((0x81, 0x80 | len(data), 0, 0, 0, 0)) + data
    return bytes((0x81, 0xFE)) + len(data).to_bytes(2, "big") + b"\0\0\0\0" + data


class Frames:
    """Counts the data frames in what a server sends."""

    def __init__(self) -> None:
        self._rest = b""

    def count(self, data: bytes) -> int:
        """How many text or binary frames ended in `data`."""
        data = self._rest + data
        place = count = 0
        while place + 2 <= len(data):
            size, head = data[place + 1] & 127, 2
            if size >= 126:
                head = 4 if size == 126 else 10
                size = int.from_bytes(data[place + 2 : place + head], "big")
            if place + head + size > len(data):
                break
            count += data[place] & 0x0F in (1, 2)
            place += head + size
        self._rest = data[place:]
        return count


class Socket(asyncio.Protocol):
    """One connection: upgrade, hello after hello, then whatever comes goes to `taken`."""

    def __init__(self, request: tuple[str, Headers], hello: Sequence[str], answers: int) -> None:
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.taken: Callable[[bytes], None] = lambda data: None
        self.lost = False
        self.transport: asyncio.Transport
        self._request = request
        self._hello = list(hello)
        self._missing = answers + max(0, len(hello) - 1)
        self._head: bytes | None = b""
        self._frames = Frames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self.transport = cast("asyncio.Transport", transport)
        path, headers = self._request
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", "Connection: Upgrade", "Upgrade: websocket"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="]
        self.transport.write("\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers), "", ""]).encode())

    def data_received(self, data: bytes) -> None:
        """Answers first, events then."""
        if self._head is None and self.joined.done():
            self.taken(data)
            return
        if self._head is not None:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head.partition(b"\r\n")[0]:
                self._fail(head[:200].decode(errors="replace"))
                return
            self._head = None
            self._say()
        for _ in range(self._frames.count(data)):
            self._missing -= 1
            self._say()
        if self._missing <= 0 and not self.joined.done():
            self.joined.set_result(None)

    def _say(self) -> None:
        if self._hello:
            self.transport.write(text_frame(self._hello.pop(0)))

    def _fail(self, reason: str) -> None:
        if not self.joined.done():
            self.joined.set_exception(ConnectionError(reason))

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever waits for the join is told."""
        self.lost = True
        self._fail("closed before it had joined")


class Run:
    """One load against one server on loopback `port`, in steps: `connect`, `publish` (or events from elsewhere),
    `finish`, `close`. Made inside the running loop. Raises ConnectionError when the server refuses.
    """

    def __init__(self, port: int, dialect: Dialect, load: Load, server_pid: int) -> None:
        self.port = port
        self.dialect = dialect
        self.load = load
        self.server_pid = server_pid
        self.result = Result()
        self.patience = PATIENCE / 4
        """Seconds without a delivery after which `finish` counts what is missing."""
        self.receiver = Receiver(warm_up=load.warm_up, on_delivery=self._delivered if load.by_deliveries else None)
        self._per_group = load.events // load.groups
        self._credit = [asyncio.Semaphore(load.window) for _ in range(load.groups)]
        self._listeners = [len(range(group, load.apps, load.groups)) for group in range(load.groups)]
        self._arrived: list[dict[int, int]] = [{} for _ in range(load.groups)]
        self._expected = self._per_group * (load.apps - load.slow)
        self._apps: list[Socket] = []
        self._slow: list[Socket] = []
        self.publishers: list[Socket] = []
        self._cpu = self._own_cpu = self._memory = self._started = 0.0

    async def connect(self) -> None:
        """Open and join all apps, then the publishers."""
        load, dialect = self.load, self.dialect
        memory, cpu, started = memory_of(self.server_pid), cpu_seconds(self.server_pid), time.monotonic()
        numbers = iter(range(load.apps))
        await asyncio.gather(*(self._connect_some(numbers) for _ in range(CONNECTING)))
        self.result.connect_s = time.monotonic() - started
        await asyncio.sleep(load.settle)
        self.result.cpu_us_per_connect = (cpu_seconds(self.server_pid) - cpu) / load.apps * 1e6
        self.result.bytes_per_app = (memory_of(self.server_pid) - memory) / load.apps
        for group in range(load.groups if load.publishers else 0):
            hello, answers = dialect.publisher_hello(group), dialect.publisher_answers
            publisher = await self._open(dialect.publisher_request(group), hello, answers)
            self._listen_as_publisher(publisher, group)
            self.publishers.append(publisher)
        await asyncio.sleep(0.3)
        self._started, self._cpu = time.monotonic(), cpu_seconds(self.server_pid)
        self._memory, self._own_cpu = memory_of(self.server_pid), time.process_time()

    async def _connect_some(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            group, slow = number % self.load.groups, number < self.load.slow
            hello, answers = self.dialect.app_hello(group), self.dialect.app_answers
            app = await self._open(self.dialect.app_request(group), hello, answers, slow=slow)
            self._apps.append(app)
            if slow:
                app.transport.pause_reading()
                self._slow.append(app)
            else:
                app.transport.pause_reading()
                self.receiver.add(app.transport.get_extra_info("socket").fileno(), group)

    async def _open(
        self, request: tuple[str, Headers], hello: Sequence[str], answers: int, slow: bool = False
    ) -> Socket:
        loop = asyncio.get_running_loop()
        if slow:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connecting, or it does not count
            raw.setblocking(False)
            await loop.sock_connect(raw, ("127.0.0.1", self.port))
            _, opened = await loop.create_connection(lambda: Socket(request, hello, answers), sock=raw)
        else:
            _, opened = await loop.create_connection(lambda: Socket(request, hello, answers), "127.0.0.1", self.port)
        await opened.joined
        return opened

    def _delivered(self, group: int, number: int) -> None:
        arrived = self._arrived[group]
        arrived[number] = count = arrived.get(number, 0) + 1
        if count == self._listeners[group]:
            del arrived[number]
            self._credit[group].release()

    def _listen_as_publisher(self, publisher: Socket, group: int) -> None:
        credit, frames, dropped = self._credit[group], Frames(), self.load.by_deliveries

        def taken(data: bytes) -> None:
            for _ in range(0 if dropped else frames.count(data)):
                credit.release()

        publisher.taken = taken

    async def publish(self) -> None:
        """Publish the events of all groups."""
        await asyncio.gather(*(self._publish(group) for group in range(self.load.groups)))

    async def _publish(self, group: int) -> None:
        load, publisher, credit = self.load, self.publishers[group], self._credit[group]
        started = time.monotonic()
        for number in range(1, self._per_group + 1):
            if load.rate:
                await asyncio.sleep(max(0.0, started + number / load.rate - time.monotonic()))
            else:
                try:
                    await asyncio.wait_for(credit.acquire(), PATIENCE) if credit.locked() else await credit.acquire()
                except TimeoutError:
                    return  # something was lost; `finish` counts it
            publisher.transport.write(text_frame(self.dialect.publish(group, number, event(number, load.size))))

    async def finish(self) -> Result:
        """Wait until every app has every event, or until nothing has come for `patience` seconds."""
        load, result, receiver = self.load, self.result, self.receiver
        before, since = -1, time.monotonic()
        while receiver.deliveries < self._expected and time.monotonic() - since < self.patience:
            if receiver.deliveries != before:
                before, since = receiver.deliveries, time.monotonic()
            await asyncio.sleep(0.02)
        result.deliveries = receiver.deliveries
        result.wrong = receiver.wrong + max(0, self._expected - receiver.deliveries)
        result.seconds = max(0.0, receiver.last_arrival / 1e9 - self._started)
        result.generator_busy = (time.process_time() - self._own_cpu) / (time.monotonic() - self._started)
        await asyncio.sleep(0.1)
        result.cpu_us = (cpu_seconds(self.server_pid) - self._cpu) / max(1, result.deliveries) * 1e6
        result.grown_bytes = int(memory_of(self.server_pid) - self._memory)
        if receiver.latencies:
            result.latency_ms = percentiles(receiver.latencies)
        for app in self._slow:
            app.transport.resume_reading()
        for _ in range(int(load.goodbye * 10)):  # the server's goodbye has a deadline of its own
            if all(app.lost for app in self._slow):
                break
            await asyncio.sleep(0.1)
        result.cut = sum(app.lost for app in self._slow)
        return result

    def drop_apps(self) -> None:
        """End all connections of apps at once, as a network does."""
        for app in self._apps:
            if not app.lost:
                app.transport.abort()

    def close(self) -> None:
        """End all connections, without a trace in the kernel."""
        self.receiver.close()
        self.drop_apps()
        for publisher in self.publishers:
            if not publisher.lost:
                publisher.transport.abort()


async def play(port: int, dialect: Dialect, load: Load, server_pid: int) -> Result:
    """All steps of a run whose events the generator publishes."""
    run = Run(port, dialect, load, server_pid)
    try:
        await run.connect()
        await run.publish()
        return await run.finish()
    finally:
        run.close()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children so far."""
    return sum(int(stat[11]) + int(stat[12]) for stat in map(_stat, _family(pid))) / os.sysconf("SC_CLK_TCK")


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its children."""
    return sum(int(stat[21]) for stat in map(_stat, _family(pid))) * os.sysconf("SC_PAGE_SIZE")


def _stat(pid: int) -> list[str]:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2].split()


def _family(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(child) for child in file.read().split()]
    return [pid, *(member for child in children for member in _family(child))]
