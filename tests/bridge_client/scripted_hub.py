"""A hub that says what a test tells it to: real sockets on loopback, scripted replies. And time a test can turn.

async def first(peer: Peer) -> None:      # one script per connection, the last one for all that follow
    join = await peer.joined({"resume_from": None, ...})
    await peer.close(1012)

async with scripted_hub(first, second) as hub: ...
"""

import asyncio
import heapq
import itertools
import json
import random
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from bridge_client.dial import Disconnected
from protocol import frames

DEADLINE = 20.0
"""Seconds after which a test that waits for the other side has failed."""

WINDOW = {"events": 1000, "bytes": 1 << 20}


class Peer:
    """The hub's end of one connection. Heartbeats are answered by themselves unless `mute`."""

    def __init__(self, ws: ServerConnection, number: int) -> None:
        self._ws = ws
        self.number = number
        self.headers = ws.request.headers if ws.request else Headers()
        self.mute = False
        self.join_ref: str | None = None
        self.topic = ""

    async def next(self) -> list[Any]:
        """The next message that is no heartbeat: [join_ref, ref, topic, event, payload]."""
        while True:
            frame: list[Any] = json.loads(await self._ws.recv())
            if frame[2] != "phoenix":
                return frame
            if not self.mute:
                await self.send(None, frame[1], "phoenix", "phx_reply", {"status": "ok", "response": {}})

    async def join(self, response: Any = None, status: str = "ok") -> Any:
        """Take the join that has to come next (a leave before it aside) and answer it; returns its payload."""
        event = frames.LEAVE
        while event == frames.LEAVE:
            self.join_ref, ref, self.topic, event, payload = await self.next()
        assert event == frames.JOIN
        await self.reply(ref, {} if response is None else response, status)
        return payload

    async def joined(self, **more: Any) -> Any:
        """Answer a home's join as a hub that holds nothing, but for `more`."""
        answer = {"hub_epoch": "h1", "link": 1, "resume_from": None, "window": WINDOW, "max_event_bytes": 1 << 20}
        return await self.join({**answer, **more})

    async def reply(self, ref: str, response: Any, status: str = "ok") -> None:
        await self.send(self.join_ref, ref, self.topic, "phx_reply", {"status": status, "response": response})

    async def push(self, event: str, payload: Any) -> None:
        await self.send(self.join_ref, None, self.topic, event, payload)

    async def end(self, event: str, payload: Any) -> None:
        """phx_error or phx_close."""
        await self.send(self.join_ref, self.join_ref, self.topic, event, payload)

    async def send(self, *slots: Any) -> None:
        await self._ws.send(json.dumps(slots, separators=(",", ":")))

    async def send_text(self, text: str) -> None:
        await self._ws.send(text)

    async def close(self, code: int) -> None:
        await self._ws.close(code)

    def reset(self) -> None:
        """End the TCP connection with a reset, without a closing handshake."""
        raw: socket.socket = self._ws.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._ws.transport.abort()

    async def gone(self) -> None:
        """Answer heartbeats until the client is gone."""
        with suppress(ConnectionClosed):
            while True:
                await self.next()


Script = Callable[[Peer], Awaitable[None]]


class ScriptedHub:
    """`refusals` are answered before the upgrade, one per attempt, before any script runs."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self._scripts = scripts
        self.url = ""
        self.requests: list[Request] = []
        self.refusals: list[tuple[int, str, Mapping[str, str]]] = []
        self.failures: list[BaseException] = []
        self.peers: list[Peer] = []
        self.all_refused = asyncio.Event()
        """Set when the last of the refusals has been said."""

    def process(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if not self.refusals:
            return None
        status, body, headers = self.refusals.pop(0)
        if not self.refusals:
            self.all_refused.set()
        head = Headers({"Content-Length": str(len(body)), "Connection": "close", **headers})
        return Response(status, HTTPStatus(status).phrase, head, body.encode())

    async def handle(self, ws: ServerConnection) -> None:
        peer = Peer(ws, len(self.peers))
        self.peers.append(peer)
        script = self._scripts[min(peer.number, len(self._scripts) - 1)]
        try:
            await script(peer)
            await peer.gone()
        except ConnectionClosed:
            pass
        except Exception as error:
            self.failures.append(error)
            await ws.close(1011)


@asynccontextmanager
async def scripted_hub(*scripts: Script) -> AsyncIterator[ScriptedHub]:
    """Listens on a free port of 127.0.0.1. At the end, what went wrong in a script fails the test."""
    hub = ScriptedHub(scripts)
    async with serve(
        hub.handle, "127.0.0.1", 0, process_request=hub.process, ping_interval=None, compression=None, max_size=None
    ) as server:
        hub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield hub
    if hub.failures:
        raise hub.failures[0]


class Holding:
    """What an honest hub holds of one epoch, and the answers that follow from it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.repeats = 0
        self._changed = asyncio.Event()

    async def reaches(self, event_id: int) -> None:
        """Return once the last event held is `event_id`."""
        while self.last != str(event_id):
            self._changed.clear()
            await self._changed.wait()

    @property
    def ids(self) -> list[int]:
        return [int(event["event_id"]) for event in self.events]

    @property
    def last(self) -> str | None:
        return self.events[-1]["event_id"] if self.events else None

    def take(self, name: str, payload: Any) -> tuple[Any, str]:
        """The response and status for a push of events."""
        self._changed.set()
        events = [payload["event"]] if name == "session_event" else payload["events"]
        previous = payload["prev_id"]
        for event in events:
            if self.last is not None and int(event["event_id"]) <= int(self.last):
                self.repeats += 1
            elif self.last is None or previous == self.last:
                self.events.append(event)
            else:
                return {"reason": "gap", "resume_from": self.last, "acked_id": self.last}, "error"
            previous = event["event_id"]
        return {"acked_id": previous}, "ok"

    async def serve(self, peer: Peer, until: int | None = None) -> None:
        """Join and answer honestly, until the id `until` is held (for ever if None)."""
        await peer.joined(resume_from=self.last)
        while until is None or self.last is None or int(self.last) < until:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *self.take(name, payload))


class NoWait(random.Random):
    """Chance that always picks the start: every retry comes at once."""

    def uniform(self, a: float, b: float) -> float:
        return a


class VirtualClock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.wall_offset = 1_700_000_000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = itertools.count()

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + self.wall_offset

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._count), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Let time pass; each sleeper wakes at its own time, and what follows from it happens before the next one."""
        end = self.now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            self.now, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
                await settle()
        self.now = end
        await settle()


async def settle() -> None:
    """Let everything run that can run without I/O."""
    for _ in range(25):
        await asyncio.sleep(0)


class MemoryWire:
    """A wire in memory: the test is its other end."""

    def __init__(self) -> None:
        self.sent: list[list[Any]] = []
        self._incoming: asyncio.Queue[bytes | Disconnected] = asyncio.Queue()
        self.closed_with: int | None = None
        self.aborted = False

    def say(self, *slots: Any) -> None:
        self._incoming.put_nowait(json.dumps(slots).encode())

    def lose(self, why: Disconnected) -> None:
        self._incoming.put_nowait(why)

    async def recv(self) -> bytes:
        got = await self._incoming.get()
        if isinstance(got, Disconnected):
            raise got
        return got

    async def send(self, data: bytes) -> None:
        self.sent.append(json.loads(data))

    async def close(self, code: int = 1000) -> None:
        self.closed_with = code

    def abort(self) -> None:
        self.aborted = True
