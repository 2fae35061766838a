"""What every source must do, run against each: our store in process, another server's API, somebody else's file."""

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import pytest

from bridge_client.refill import refill_from
from bridge_client.source_spec import parse
from bridge_client.sources import Source, SourceEvent
from bridge_client.sources.foreign_sqlite import ForeignSqlite
from bridge_client.sources.http import HttpSource
from bridge_client.sources.own_epoch import OwnEpoch
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore
from tests.support.foreign_server import ForeignServer, foreign_server
from tests.support.running_api import TOKEN, running_api

DEADLINE = 20


class Scene(Protocol):
    """A source, and the other end of it."""

    source: Source

    async def add(self, count: int = 1) -> None:
        """The other end gets so many events more."""

    async def go_back(self, keep: int) -> None:
        """Let the other end live another life: only its first `keep` events are left."""


class StoreScene:
    def __init__(self, store: EventStore) -> None:
        self.store = store
        self.source: Source = StoreSource(store)
        self.added = 0

    async def add(self, count: int = 1) -> None:
        for _ in range(count):
            self.added += 1
            await self.store.publish(event(self.added))

    async def go_back(self, keep: int) -> None:
        raise AssertionError("our own store does not go back")


class ServerScene:
    def __init__(self, server: ForeignServer, source: Source, as_text: bool) -> None:
        self.server = server
        self.source = source
        self._as_text = as_text

    async def add(self, count: int = 1) -> None:
        for _ in range(count):
            number = len(self.server.events) + 1
            self.server.add(str(number) if self._as_text else number, **event(number))

    async def go_back(self, keep: int) -> None:
        del self.server.events[keep:]
        if self.server.epoch is not None:
            self.server.epoch += "'"
        self.server.wake()


class FileScene:
    def __init__(self, path: Path, source: Source, column: Callable[[int], Any]) -> None:
        self.path = path
        self.source = source
        self._column = column

    async def add(self, count: int = 1) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            first = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM events").fetchone()[0]
            rows = [(number, self._column(number)) for number in range(first, first + count)]
            connection.executemany("INSERT INTO events (id, body) VALUES (?, ?)", rows)
            connection.commit()

    async def go_back(self, keep: int) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("DELETE FROM events WHERE id > ?", (keep,))
            connection.commit()


def event(number: int) -> dict[str, Any]:
    return {"type": "note", "session_id": "s", "n": number, "text": "é\u2028" * 3}


def make_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, body)")


@asynccontextmanager
async def http_source(url: str, folder: Path, **options: Any) -> AsyncIterator[HttpSource]:
    async with aiohttp.ClientSession() as session:
        yield await HttpSource.open(url, OwnEpoch(folder / "epoch", url), session, **options)


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Scene]:
    if kind in ("memory store", "SQLite store", "our API"):
        store: EventStore = MemoryStore() if kind == "memory store" else await SqliteStore.open(folder / "home.db")
        scene = StoreScene(store)
        if kind == "our API":
            async with (
                running_api(store) as client,
                http_source(client.api.url + "/events", folder, token=TOKEN) as http,
            ):
                scene.source = http
                yield scene
        else:
            yield scene
        await store.close()
    elif kind in ("plain server", "clever server"):
        async with foreign_server() as server:
            if kind == "plain server":
                server.shuffles = True
            else:
                server.epoch, server.says_reset, server.waits = "theirs", True, True
                server.knows |= {"limit", "wait_timeout_ms"}
            async with http_source(server.url, folder) as http:
                yield ServerScene(server, http, as_text=kind == "clever server")
    else:
        path = folder / "agent.db"
        make_table(path)
        spec = parse(f"sqlite:{path}?table=events")
        table = await ForeignSqlite.open(spec, OwnEpoch(folder / "epoch", str(spec)))  # type: ignore[arg-type]
        blob = kind == "file of blobs"
        yield FileScene(path, table, lambda n: json.dumps(event(n)).encode() if blob else json.dumps(event(n)))
        await table.close()


OURS = ["memory store", "SQLite store", "our API"]
FOREIGN = ["plain server", "clever server", "file of texts", "file of blobs"]


@pytest.fixture(params=[*OURS, *FOREIGN])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with asyncio.timeout(60), opened(request.param, tmp_path) as scene:
        yield scene


@pytest.fixture(params=FOREIGN)
async def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with asyncio.timeout(60), opened(request.param, tmp_path) as scene:
        yield scene


async def read(source: Source, after: int = 0, limit: int = 500) -> list[SourceEvent]:
    events: list[SourceEvent] = []
    while page := await source.page(events[-1].event_id if events else after, limit):
        assert len(page) <= limit
        events += page
    return events


async def test_an_empty_source(scene: Scene) -> None:
    assert await scene.source.head() is None
    assert await scene.source.page(0) == []
    assert await scene.source.page(7) == []
    assert scene.source.epoch


@pytest.mark.parametrize("limit", [1, 7, 500])
async def test_every_event_comes_once_in_order_in_canonical_form(scene: Scene, limit: int) -> None:
    await scene.add(25)
    assert await scene.source.head() == 25
    events = await read(scene.source, limit=limit)
    assert [one.event_id for one in events] == list(range(1, 26))
    assert [one.prev_id for one in events] == [None, *range(1, 25)]
    for one in events:
        assert json.loads(one.data) == {"event_id": str(one.event_id), **event(one.event_id)}
        assert one.data.count(b'"event_id"') == 1


async def test_what_was_read_is_read_again_with_the_same_bytes(scene: Scene) -> None:
    await scene.add(9)
    epoch = scene.source.epoch
    events = await read(scene.source)
    assert await read(scene.source) == events
    assert await read(scene.source, after=4) == events[4:]
    await scene.add()
    assert (await read(scene.source))[:9] == events
    assert scene.source.epoch == epoch


async def test_wait_returns_when_an_event_can_be_read(scene: Scene) -> None:
    await scene.add(3)
    assert len(await read(scene.source)) == 3
    async with asyncio.timeout(DEADLINE):
        await scene.source.wait(2)
        for number in (4, 5):
            waiting = asyncio.ensure_future(scene.source.wait(number - 1))
            await asyncio.sleep(random.Random(number).uniform(0, 0.1))  # whenever it comes
            assert not waiting.done()
            await scene.add()
            await waiting
            assert [one.event_id for one in await scene.source.page(number - 1)] == [number]


async def test_a_wait_can_be_cancelled_and_begun_again(scene: Scene) -> None:
    waiting = asyncio.ensure_future(scene.source.wait(0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await scene.add()
    async with asyncio.timeout(DEADLINE):
        await scene.source.wait(0)
    assert [one.event_id for one in await scene.source.page(0)] == [1]


async def test_a_writer_that_never_stops_is_read_without_gap_or_repeat(scene: Scene) -> None:
    total, got = 60, list[int]()

    async def write() -> None:
        for _ in range(total):
            await scene.add()
            await asyncio.sleep(0)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(write())
        while len(got) < total:
            page = await scene.source.page(got[-1] if got else 0)
            got += [one.event_id for one in page]
            if not page:
                await scene.source.wait(got[-1] if got else 0)
    assert got == list(range(1, total + 1))


async def test_a_new_epoch_is_another_name_for_the_same_events(scene: Scene) -> None:
    await scene.add(3)
    events, before = await read(scene.source), scene.source.epoch
    assert await scene.source.renew_epoch() == scene.source.epoch != before
    assert await read(scene.source) == events


async def test_a_refill_begins_where_the_newest_events_do(scene: Scene) -> None:
    await scene.add(50)
    assert await refill_from(scene.source, 50, events=20, size=1 << 20) == 30


async def test_going_back_in_time_begins_another_epoch_and_ends_a_wait(foreign: Scene) -> None:
    await foreign.add(10)
    before = foreign.source.epoch
    assert len(await read(foreign.source)) == 10
    waiting = asyncio.ensure_future(foreign.source.wait(10))
    await asyncio.sleep(0.05)
    await foreign.go_back(4)
    async with asyncio.timeout(DEADLINE):
        await waiting
    assert foreign.source.epoch != before
    assert await foreign.source.page(10) == [], "not before the head was asked for: that reader is in the old epoch"
    assert await foreign.source.head() == 4
    await foreign.add(2)
    assert [one.event_id for one in await read(foreign.source)] == [1, 2, 3, 4, 5, 6]


async def test_the_epoch_outlives_the_process(tmp_path: Path) -> None:
    async with opened("file of texts", tmp_path) as scene:
        await scene.add(3)
        assert len(await read(scene.source)) == 3
        epoch = await scene.source.renew_epoch()
    again = OwnEpoch(tmp_path / "epoch", str(parse(f"sqlite:{tmp_path / 'agent.db'}?table=events")))
    assert again.value == epoch
