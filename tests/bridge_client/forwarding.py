"""A forwarder under test, and what it reads from and writes to."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bridge_client.clock import Clock
from bridge_client.cursor import SavedCursor
from bridge_client.dead_letters import DeadLetters
from bridge_client.dial import Disconnected, WebSocketDialler, Wire
from bridge_client.forwarder import Forwarder, Limits
from bridge_client.link import Link
from bridge_client.sources import SourceEvent
from bridge_client.sources.store import StoreSource
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite_file import open_letters
from tests.bridge_client.scripted_hub import (
    DEADLINE,
    NoWait,
    ScriptedHub,
)

SERVER_ID = "abcdefghijklmnopqrstuvwxyz"


HUB_URL = "http://hub.example.org"


async def a_store(count: int, size: int = 10) -> MemoryStore:
    store = MemoryStore()
    for n in range(count):
        await store.publish({"type": "note", "session_id": "s", "n": n, "text": "x" * size})
    return store


class Memory:
    """A cursor store that keeps every cursor it was given."""

    def __init__(self, saved: SavedCursor | None = None) -> None:
        self.saved = [] if saved is None else [saved]
        self.changed = asyncio.Event()

    def load(self) -> SavedCursor | None:
        return self.saved[-1] if self.saved else None

    def save(self, cursor: SavedCursor) -> None:
        self.saved.append(cursor)
        self.changed.set()

    async def flush(self) -> None:
        pass

    @property
    def at(self) -> int | None:
        return self.saved[-1].event_id if self.saved else None

    async def reaches(self, event_id: int) -> None:
        while self.at is None or self.at < event_id:
            self.changed.clear()
            await self.changed.wait()

    async def is_at(self, epoch: str, event_id: int) -> None:
        while not self.saved or (self.saved[-1].epoch, self.at) != (epoch, event_id):
            self.changed.clear()
            await self.changed.wait()


def cursor_at(store: MemoryStore, event_id: int) -> Memory:
    return Memory(SavedCursor(store.epoch, event_id, "h0", HUB_URL, SERVER_ID))


def a_forwarder(
    hub: ScriptedHub | None,
    source: Any,
    cursor: Any,
    limits: Limits | None = None,
    clock: Clock | None = None,
    letters: DeadLetters | None = None,
    **link: Any,
) -> Forwarder:
    url = HUB_URL if hub is None else hub.url
    return Forwarder(
        StoreSource(source) if isinstance(source, MemoryStore) else source,
        cursor,
        Link(url, "credential", rng=NoWait(), clock=clock, **link),
        server_id=SERVER_ID,
        hub_url=HUB_URL,
        name="a home",
        instance="one",
        limits=limits,
        letters=letters,
        clock=clock,
    )


@asynccontextmanager
async def running(forwarder: Forwarder) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.create_task(forwarder.run())
    try:
        async with asyncio.timeout(DEADLINE):
            yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def letters_in(path: Path, clock: Clock | None = None) -> DeadLetters:
    return await DeadLetters.open(lambda: open_letters(path), path, clock)


def ids(payload: Any) -> list[int]:
    return [int(event["event_id"]) for event in payload.get("events", [payload.get("event")])]


class Sparse:
    """A source whose ids have holes."""

    epoch = "sparse"

    def __init__(self, event_ids: list[int]) -> None:
        self.events = [
            SourceEvent(n, previous or None, b'{"event_id":"%d","type":"x"}' % n)
            for previous, n in zip([0, *event_ids], event_ids, strict=False)
        ]
        self.pages = 0

    async def head(self) -> int | None:
        return self.events[-1].event_id if self.events else None

    async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
        self.pages += 1
        page = [event for event in self.events if event.event_id > after][: min(limit, 10)]
        return page[::-1]  # out of order, as a careless server answers

    async def wait(self, after: int) -> None:
        await asyncio.Event().wait()

    async def knows(self, event_id: int, digest: str) -> bool | None:
        return None

    async def renew_epoch(self) -> str:
        raise AssertionError("not expected")


class Cut:
    """A dialler whose first wire breaks after so many messages, sent and received together."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.wires = 0
        self.cut = False

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Wire:
        wire = await WebSocketDialler()(url, headers)
        self.wires += 1
        return wire if self.wires > 1 else _CutWire(wire, self)


class _CutWire:
    def __init__(self, wire: Wire, plan: Cut) -> None:
        self._wire = wire
        self._plan = plan

    def _count(self) -> None:
        self._plan.after -= 1
        if self._plan.after < 0:
            self._plan.cut = True
            self._wire.abort()

    async def recv(self) -> bytes:
        data = await self._wire.recv()
        self._count()
        if self._plan.cut:
            raise Disconnected("cut by the test")
        return data

    async def send(self, data: bytes) -> None:
        self._count()
        await self._wire.send(data)

    async def close(self, code: int = 1000) -> None:
        await self._wire.close(code)

    def abort(self) -> None:
        self._wire.abort()
