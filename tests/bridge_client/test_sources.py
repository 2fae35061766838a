"""An event store as the forwarder's source."""

import asyncio
import random
import sqlite3
from pathlib import Path

import pytest

from bridge_client.sources import Source, SourceEvent
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore, Stored
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore


async def filled(store: EventStore, count: int) -> list[Stored]:
    return [await store.publish({"type": "t", "n": n}) for n in range(count)]


async def test_A9_pages_chain_every_event_to_the_one_before_it(tmp_path: Path) -> None:
    for store in (MemoryStore(), await SqliteStore.open(tmp_path / "events.db")):
        stored = await filled(store, 25)
        source: Source = StoreSource(store)
        read: list[SourceEvent] = []
        while page := await source.page(read[-1].event_id if read else 0, limit=7):
            assert len(page) <= 7
            read += page
        assert [(one.event_id, one.data) for one in read] == stored
        assert [one.prev_id for one in read] == [None, *(one.event_id for one in stored[:-1])]
        assert await source.head() == 25
        assert source.epoch == store.epoch
        await store.close()


async def test_prev_id_is_the_event_before_in_the_source_not_the_place_asked_for(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "events.db")
    await filled(store, 9)
    connection = sqlite3.connect(tmp_path / "events.db")
    connection.execute("DELETE FROM events WHERE id IN (4, 5, 6)")
    connection.commit()
    connection.close()
    await store.close()
    store = await SqliteStore.open(tmp_path / "events.db")
    page = await StoreSource(store).page(5)
    assert [(one.event_id, one.prev_id) for one in page] == [(7, 3), (8, 7), (9, 8)]
    assert await StoreSource(store).page(9) == []
    await store.close()


async def test_A9_who_keeps_up_with_the_store_is_given_the_same_chain_without_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await SqliteStore.open(tmp_path / "events.db"), await SqliteStore.open(tmp_path / "events.db")
    source, read = StoreSource(store), list[SourceEvent]()

    async def read_on() -> None:
        while page := await source.page(read[-1].event_id if read else 0):
            read.extend(page)

    await filled(store, 2)
    await read_on()
    with monkeypatch.context() as patch:
        for name in ("list", "preceding", "head"):
            patch.setattr(store, name, None)
        for _ in range(5):
            await filled(store, 3)
            await read_on()
    for writer in (other, store, other, other, store):  # what another process wrote lies between
        (stored,) = await filled(writer, 1)
        await asyncio.wait_for(source.wait(read[-1].event_id), 20)
        await read_on()
        assert read[-1].event_id == stored.event_id
    assert [(one.event_id, one.data) for one in read] == await other.list()
    assert [(one.event_id, one.prev_id) for one in read] == [(n, n - 1 or None) for n in range(1, 23)]
    await store.close()
    await other.close()


class Shuffled(MemoryStore):
    """A store of somebody else's that does not sort its pages, nor keep any in memory."""

    def recent(self, after: int, limit: int = 500) -> list[Stored] | None:
        return None

    async def list(
        self,
        *,
        since_id: int | None = None,
        limit: int = 500,
        session_id: str | None = None,
        request_id: str | None = None,
    ) -> list[Stored]:
        page = await super().list(since_id=since_id, limit=limit, session_id=session_id, request_id=request_id)
        random.Random(3).shuffle(page)
        return page


async def test_a_page_out_of_order_is_sorted() -> None:
    store = Shuffled()
    await filled(store, 12)
    assert [one.event_id for one in await store.list()] != list(range(1, 13))
    page = await StoreSource(store).page(0)
    assert [(one.event_id, one.prev_id) for one in page] == [(n, n - 1 or None) for n in range(1, 13)]


async def test_wait_and_a_new_epoch_come_from_the_store() -> None:
    store = MemoryStore()
    source = StoreSource(store)
    waiting = asyncio.ensure_future(source.wait(0))
    await filled(store, 1)
    await asyncio.wait_for(waiting, 20)
    before = source.epoch
    assert await source.renew_epoch() == source.epoch == store.epoch != before
