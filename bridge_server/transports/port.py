"""One port for everything: WebSocket upgrades go to our driver, the rest to aiohttp.

`Split` reads one request head. An upgrade is decided on at once (`handshake.py`) and either answered or handed to a
`WebSocketDriver`; any other request gets the protocol object that aiohttp's own runner makes, with the bytes read so
far. Only the first head of a connection is seen here, so every HTTP answer must close its connection: a proxy that
keeps one alive would send an upgrade where nobody expects it. One timer serves all connections.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Request
from websockets.server import ServerProtocol

from bridge_server.channels import Router
from bridge_server.clock import Clock
from bridge_server.hub import Hub
from bridge_server.limits import Limits, TooMany
from bridge_server.outbox import Budget
from bridge_server.peer import Peer
from bridge_server.transports import Transport
from bridge_server.transports.deflate import MARKING
from bridge_server.transports.handshake import Accepted, HttpRefusal, Mount, decide, http_date, switching
from bridge_server.transports.refusals import Refusals
from bridge_server.transports.strangers import Strangers
from bridge_server.transports.websocket import WebSocketDriver
from protocol.loopback import client_address

__all__ = ["Mount", "Port", "Router"]

log = logging.getLogger("bridge_server.port")

# Neither library may log for us: both print request heads, which hold credentials.
_silent = logging.getLogger("bridge_server.silent")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False
_silent.setLevel(logging.CRITICAL + 1)

MAX_HEAD: Final = 16 * 1024

SEND_BUFFER: Final = 128 * 1024
"""Bytes the kernel may hold for a connection, beyond every count of ours: so it is little."""

DRAIN_STEP: Final = 0.05
"""Seconds between two steps of a drain."""

GOODBYE_SECONDS: Final = 1.0
"""How long a drain waits for the last goodbyes."""

_UPGRADE = re.compile(rb"\r\n[Uu][Pp][Gg][Rr][Aa][Dd][Ee][ \t]*:[^\r\n]*[Ww][Ee][Bb][Ss][Oo][Cc][Kk][Ee][Tt]")


class Connection(Transport, Protocol):
    """What carries one connected peer, as the port and the application see it: a WebSocket, or a long-poll session."""

    peer: Peer | None

    def tick(self, now: float) -> None:
        """About once a second: end what is idle or stuck."""

    def hang_up(self) -> None:
        """End without a goodbye, if that is possible; what was written before still arrives."""


class Port:
    """Accepts connections, counts them, and ends them. `http` makes aiohttp's protocol objects."""

    def __init__(
        self,
        mounts: Sequence[Mount],
        http: Callable[[], asyncio.Protocol],
        *,
        hub: Hub,
        budget: Budget,
        clock: Clock,
        hosts: frozenset[str] | None,
        max_connections: int,
        handshake_timeout: float,
        limits: Limits,
        trusted_proxies: tuple[str, ...] = (),
    ) -> None:
        self.mounts = tuple(mounts)
        self.http = http
        self.hub = hub
        self.budget = budget
        self.clock = clock
        self.hosts = hosts
        self.max_connections = max_connections
        self.handshake_timeout = handshake_timeout
        self.limits = limits
        self.trusted_proxies = trusted_proxies
        self.drivers: set[Connection] = set()
        """Every connected peer, whatever carries it. Who carries one joins in, and leaves at the end."""
        self.splits: set[Split] = set()
        self.strangers = Strangers(limits, trusted_proxies)
        self.draining = False
        self.refusals = Refusals(clock)
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        # What is shorter than a tick would be kept late.
        kept = [(mount.idle_timeout, mount.poll_window, mount.ping_interval) for mount in mounts]
        self._period = min([1.0, *(seconds / 4 for three in kept for seconds in three if seconds)])

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; the address and port listened on. Raises OSError when it can't."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Split(self), host, port, reuse_address=True, backlog=4096)
        for listening in self._server.sockets:  # every connection inherits it
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._timer = loop.call_later(self._period, self._tick)
        name = self._server.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    def connected(self, driver: Connection, accepted: Accepted) -> Peer:
        """Count a peer in whose connection was accepted; it is the driver's to take it out of `drivers` at the end."""
        mount = accepted.mount
        self.drivers.add(driver)
        return Peer(
            driver,
            accepted.codec,
            accepted.identity,
            accepted.query,
            hub=self.hub,
            router=mount.router,
            budget=self.budget,
            clock=self.clock,
            channel_limit=mount.channel_limit,
            admission=accepted.admission,
        )

    def within_limits(
        self, decision: Accepted | HttpRefusal, peername: object, headers: Iterable[tuple[str, str]]
    ) -> Accepted | HttpRefusal:
        """Hold a decision against the limits on clients; `peername` is what the transport says.

        Comes last, because homes have limits of their own. Requests that are refused anyway are counted too.
        """
        now = self.clock.now()
        address = client_address(peername, headers, self.trusted_proxies)
        if isinstance(decision, Accepted):
            found = self.limits.admit(decision.identity, address, now)
        else:
            found = self.limits.refused(address, now)
        if isinstance(found, TooMany):
            return HttpRefusal(429, found.reason, retry_after=found.retry_after)
        return decision if found is None or isinstance(decision, HttpRefusal) else decision._replace(admission=found)

    def busy(self) -> HttpRefusal | None:
        """Why no further peer can connect now, or None."""
        if self.draining or len(self.drivers) >= self.max_connections:
            return HttpRefusal(503, "draining" if self.draining else "overloaded")
        return None

    def _tick(self) -> None:
        now = self.clock.now()
        for driver in tuple(self.drivers):
            driver.tick(now)
        for split in tuple(self.splits):
            split.tick(now)
        self.strangers.sweep()
        self._timer = asyncio.get_running_loop().call_later(self._period, self._tick)

    def stop_listening(self) -> None:
        """Take no new connections; those that exist are told 503 when they ask for an upgrade."""
        self.draining = True
        if self._server is not None:
            self._server.close()

    async def drain(self, seconds: float, code: int | None = 1012, reason: str = "restart") -> None:
        """End every socket, spread over `seconds`, and give the goodbyes a moment; then stop listening.

        With `code` None they end without a close frame. Takes at most `seconds` and GOODBYE_SECONDS, however many there
        are. Who asks for a socket meanwhile is told 503 and when to come back, and `/ready` says that the hub is
        draining.
        """
        self.draining = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = list(self.drivers)
        total = len(waiting)
        while waiting:
            passed = loop.time() - began
            due = total if passed >= seconds else int(total * passed / seconds) + 1
            while waiting and total - len(waiting) < due:
                driver = waiting.pop()
                if code is None:
                    driver.hang_up()
                else:
                    driver.close(code, reason)
            if waiting:
                await asyncio.sleep(DRAIN_STEP)
        for _ in range(int(GOODBYE_SECONDS / DRAIN_STEP)):
            if not self.drivers:
                break
            await asyncio.sleep(DRAIN_STEP)
        self.stop_listening()

    async def close(self) -> None:
        """End everything at once."""
        self.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
        for driver in tuple(self.drivers):
            driver.abort()
        for split in tuple(self.splits):
            split.abort()
        if self._server is not None:
            await asyncio.sleep(0)  # connection_lost of what was aborted

    def refused(self, refusal: HttpRefusal, peername: object, headers: Iterable[tuple[str, str]] = ()) -> None:
        """Count and log a refusal; `headers` only say whose address it was, behind a trusted proxy."""
        self.refusals.add(refusal.status, refusal.reason, client_address(peername, headers, self.trusted_proxies))


class Split(asyncio.Protocol):
    """A connection whose first request head is being read."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._head = b""
        self._transport: asyncio.Transport | None = None
        self._since = port.clock.now()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._port.splits.add(self)
        if not self._port.strangers.take(transport):
            self._answer(HttpRefusal(429, "too_many_connections"))

    def data_received(self, data: bytes) -> None:
        """Part of the head, perhaps with what follows it."""
        # Line ends before a request mean nothing (RFC 9112 section 2.2), the end of a head least of all.
        self._head = self._head + data if self._head else data.lstrip(b"\r\n")
        end = self._head.find(b"\r\n\r\n")
        if (end if end >= 0 else len(self._head)) > MAX_HEAD:
            self._answer(HttpRefusal(431, "bad_request", f"a request head is at most {MAX_HEAD} bytes"))
        elif end >= 0 and _UPGRADE.search(self._head, 0, end + 2):
            self._upgrade(self._head[: end + 4], self._head[end + 4 :])
        elif end >= 0 or not _looks_like_http(self._head):
            self._hand_over(self._port.http(), self._head)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended before its head was read, or was answered here."""
        self._port.splits.discard(self)
        if self._transport is not None:
            self._port.strangers.drop(self._transport)

    def tick(self, now: float) -> None:
        """End a connection that does not finish its head."""
        if now - self._since >= self._port.handshake_timeout:
            self.abort()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _hand_over(self, protocol: asyncio.Protocol, data: bytes) -> None:
        assert self._transport is not None
        self._port.splits.discard(self)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(data)

    def _upgrade(self, data: bytes, rest: bytes) -> None:
        # Only the head: what follows it is for the driver, under the mount's limits.
        port = self._port
        protocol = ServerProtocol(logger=_silent)
        protocol.receive_data(data)
        requests = [event for event in protocol.events_received() if isinstance(event, Request)]
        if not requests or not data.startswith(b"GET "):
            self._answer(HttpRefusal(400, "bad_request", "not a WebSocket handshake: GET, HTTP/1.1, one header a line"))
            return
        headers = requests[0].headers
        if refusal := port.busy():
            self._answer(refusal, headers)
            return
        try:
            decision = decide(requests[0], port.mounts, port.hosts)
        except Exception:
            log.exception("a handshake failed")
            decision = HttpRefusal(500, "internal")
        assert self._transport is not None
        peername = self._transport.get_extra_info("peername")
        decision = port.within_limits(decision, peername, headers.raw_items())
        if isinstance(decision, HttpRefusal):
            self._answer(decision, headers)
        else:
            self._accept(protocol, requests[0], decision, rest)

    def _accept(self, protocol: ServerProtocol, request: Request, accepted: Accepted, rest: bytes) -> None:
        port, transport, mount = self._port, self._transport, accepted.mount
        assert transport is not None
        protocol.max_message_size = mount.max_frame_bytes
        protocol.send_response(switching(request, accepted, port.clock.wall()))
        window_bits = None
        if accepted.deflate is not None:
            protocol.extensions = [MARKING]
            window_bits = accepted.deflate.window_bits
        # The protocol holds on to the request while it lives: 2 KB that nobody reads again, and the credential.
        request.headers.clear()
        request.path = ""
        handover = port.budget.marks.handover_bytes
        driver = WebSocketDriver(transport, protocol, mount, window_bits, port.clock, port.drivers.discard, handover)
        driver.peer = port.connected(driver, accepted)
        port.splits.discard(self)
        port.strangers.drop(transport)
        transport.set_protocol(driver)
        driver.started(rest)

    def _answer(self, refusal: HttpRefusal, headers: Headers | None = None) -> None:
        assert self._transport is not None
        told = () if headers is None else headers.raw_items()
        self._port.refused(refusal, self._transport.get_extra_info("peername"), told)
        self._transport.write(_response(refusal, self._port.clock.wall()))
        self._transport.close()


def _looks_like_http(data: bytes) -> bool:
    # A TLS hello or plain garbage never ends a head; aiohttp answers it with its own 400.
    return not data or data[:1].isalpha()


def _response(refusal: HttpRefusal, now: float) -> bytes:
    content: dict[str, Any] = {"reason": refusal.reason}
    if refusal.hint:
        content["message"] = refusal.hint
    body = msgspec.json.encode(content)
    again = f"Retry-After: {refusal.retry_after}\r\n" if refusal.status in (429, 503) else ""
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\n"
        f"Date: {http_date(int(now))}\r\n"
        f"Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        f"{again}Connection: close\r\n\r\n"
    )
    return head.encode() + body
