"""Apps of three kinds, each writing a Record: the Python client, and phoenix-like ones in both serializer versions."""

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

from bridge_client.app_client import AppClient, Event, Gap
from tests.support.invariant import Record

MUTE_SECONDS = 0.5
"""A phoenix-like app that hears nothing for this long sends a heartbeat; after as long again it drops the socket."""


Pace = Callable[[], Awaitable[object]]
"""Awaited after each thing an app takes: what makes it a slow reader."""


class Impatient(random.Random):
    """Waits as short as they may come."""

    def uniform(self, low: float, high: float) -> float:
        return min(high, 0.1) * self.random()


@asynccontextmanager
async def python_app(
    url: str, token: str, server_id: str, record: Record, *, heartbeat: float = 1.0, pace: Pace | None = None
) -> AsyncIterator[AppClient]:
    """The Python client at work for as long as the context lasts; it asks for what is retained after a gap."""
    cursor = None if record.last_id is None else (None, record.last_id)
    async with AppClient(url, token, server_id, cursor=cursor, rng=Impatient(), heartbeat=heartbeat) as client:
        reading = asyncio.create_task(_read(client, record, pace))
        try:
            yield client
            if reading.done():
                reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _read(client: AppClient, record: Record, pace: Pace | None) -> None:
    async for item in client:
        if isinstance(item, Event):
            record.got(item.event_id, item.data)
        elif isinstance(item, Gap):
            record.missed(item.reason, item.from_id, item.resume_after)
        if pace is not None:
            await pace()


class _Push(msgspec.Struct):
    event: msgspec.Raw


class _Id(msgspec.Struct):
    event_id: str


_V2 = msgspec.json.Decoder(tuple[Any, Any, str, str, msgspec.Raw])
_V1 = msgspec.json.Decoder(dict[str, msgspec.Raw])


class PhoenixApp:
    """What an app on phoenix.js does: it joins with the last id it has seen, and again after each drop or `phx_error`.

    It ignores `replay_complete`: the verdict on its cursor it reads in the join's reply, and nowhere else. After a gap
    it goes on from the `head_id` of that reply.
    """

    def __init__(
        self, url: str, token: str, server_id: str, record: Record, *, vsn: str = "2.0.0", pace: Pace | None = None
    ) -> None:
        self._url = url.replace("http", "ws", 1) + f"/socket/websocket?vsn={vsn}"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._topic = f"app:{server_id}"
        self._record = record
        self._v1 = vsn == "1.0.0"
        self._pace = pace
        self._refs = 0
        self._join_ref = ""
        self._place = record.last_id
        self.joins = 0

    async def run(self) -> None:
        """Receive until cancelled."""
        while True:
            with contextlib.suppress(OSError, WebSocketException, InvalidHandshake, TimeoutError):
                async with asyncio.timeout(5):
                    socket = await connect(
                        self._url,
                        additional_headers=self._headers,
                        proxy=None,
                        compression=None,
                        ping_interval=None,
                        close_timeout=0.2,
                        max_size=None,
                    )
                try:
                    await self._talk(socket)
                finally:
                    socket.transport.abort()
            await asyncio.sleep(0.05)

    async def _talk(self, socket: ClientConnection) -> None:
        await self._join(socket)
        mute = False
        while True:
            try:
                async with asyncio.timeout(MUTE_SECONDS):
                    message = await socket.recv(decode=False)
            except TimeoutError:
                if mute:
                    return
                mute = True
                await self._send(socket, None, "phoenix", "heartbeat", {})
                continue
            mute = False
            await self._take(socket, message)
            if self._pace is not None:
                await self._pace()

    async def _take(self, socket: ClientConnection, message: bytes) -> None:
        if self._v1:
            fields = _V1.decode(message)
            ref, topic, event = (msgspec.json.decode(fields[name]) for name in ("ref", "topic", "event"))
            join_ref, payload = self._join_ref, fields["payload"]
        else:
            join_ref, ref, topic, event, payload = _V2.decode(message)
        if topic != self._topic or join_ref != self._join_ref:
            return
        if event == "session_event":
            data = bytes(msgspec.json.decode(payload, type=_Push).event)
            self._place = int(msgspec.json.decode(data, type=_Id).event_id)
            self._record.got(self._place, data)
        elif event == "phx_reply" and ref == self._join_ref:
            self._judged(json.loads(bytes(payload)))
        elif event == "phx_error" and not (self._v1 and ref not in (None, self._join_ref)):
            await asyncio.sleep(0.02)
            await self._join(socket)

    def _judged(self, reply: dict[str, Any]) -> None:
        assert reply["status"] == "ok", reply
        answer = reply["response"]
        if answer["recovered"] is False:
            gap, head = answer["gap"], answer["head_id"]
            after = None if gap["reason"] == "hub_reset" or head is None else int(head)
            told = (gap["reason"], int(gap["from_id"]), after)
            if not self._record.gaps or self._record.entries[-1] != told:  # an absent home: each rejoin repeats it
                self._record.missed(*told)
            if after is not None:
                self._place = after

    async def _join(self, socket: ClientConnection) -> None:
        self.joins += 1
        wishes = {} if self._place is None else {"since_id": str(self._place)}
        self._join_ref = str(self._refs + 1)
        await self._send(socket, self._join_ref, self._topic, "phx_join", wishes)

    async def _send(self, socket: ClientConnection, join_ref: str | None, topic: str, event: str, payload: Any) -> None:
        self._refs += 1
        ref = str(self._refs)
        message: Any = [join_ref, ref, topic, event, payload]
        if self._v1:
            message = {"topic": topic, "event": event, "payload": payload, "ref": ref, "join_ref": join_ref}
        await socket.send(json.dumps(message))


@asynccontextmanager
async def phoenix_app(
    url: str, token: str, server_id: str, record: Record, *, vsn: str = "2.0.0", pace: Pace | None = None
) -> AsyncIterator[PhoenixApp]:
    """A PhoenixApp at work for as long as the context lasts."""
    app = PhoenixApp(url, token, server_id, record, vsn=vsn, pace=pace)
    running = asyncio.create_task(app.run())
    try:
        yield app
        if running.done():
            running.result()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


KINDS = ("python", "phoenix", "phoenix 1.0.0")


def app_of_kind(
    kind: str, url: str, token: str, server_id: str, record: Record, *, pace: Pace | None = None
) -> AbstractAsyncContextManager[object]:
    """An app at work for as long as the context lasts; `kind` is one of KINDS."""
    if kind == "python":
        return python_app(url, token, server_id, record, heartbeat=0.3, pace=pace)
    return phoenix_app(url, token, server_id, record, vsn=kind[8:] or "2.0.0", pace=pace)
