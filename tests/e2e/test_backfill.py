"""What a hub does not hold, fetched from a real store by a real forwarder: all of it, once, in order, or a gap said."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client.app_client import AppClient, CaughtUp, Event, Gap
from bridge_client.cursor import CursorFile, SavedCursor
from bridge_client.forwarder import Limits
from bridge_client.sources import SourceEvent
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_retention import SqliteRetention
from tests.e2e.test_forward_and_receive import DEADLINE, World
from tests.support.running_hub import running_hub

REFILL = Limits(refill_events=100)


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with running_hub(tmp_path, history_events=100, status_grace=0.1, **getattr(request, "param", {})) as hub:
        made = World(hub, tmp_path)
        async with asyncio.timeout(DEADLINE):
            yield made


async def publish(store: EventStore, count: int, size: int = 40) -> None:
    """Many at once: the store commits them in groups."""
    for _ in range(0, count, 1000):
        await asyncio.gather(
            *(
                store.publish({"type": "partial", "session_id": "s", "text": "é" * size})
                for _ in range(min(count, 1000))
            )
        )


async def acknowledged(world: World, store: EventStore, event_id: int) -> None:
    """What an earlier hub had: the forwarder begins with the newest events."""
    cursor = CursorFile(world.folder / "cursor-one.json", interval=0.01)
    cursor.save(SavedCursor(store.epoch, event_id, "an earlier hub", world.url, world.server_id))
    await cursor.close()


async def forwarded(world: World, store: EventStore) -> None:
    """Return once the hub holds the store's last event."""
    head = await store.head()
    while world.hub.homes.get(world.server_id).head != head:
        await asyncio.sleep(0.01)


async def take(client: AppClient, last: int) -> list[Any]:
    """Events and gaps, until the event `last`."""
    taken: list[Any] = []
    async for item in client:
        if isinstance(item, Event | Gap):
            taken.append(item)
        if isinstance(item, Event) and item.event_id == last:
            return taken
    raise AssertionError("the stream ended")


@pytest.mark.parametrize("count", [10_000, pytest.param(50_000, marks=pytest.mark.soak)])
async def test_a_long_past_is_recovered_whole_while_live_events_flow(world: World, tmp_path: Path, count: int) -> None:
    """An app that was away for ever gets all of it: the bytes of the store, once, in order; no gap is said."""
    store = await SqliteStore.open(tmp_path / "home.db")
    try:
        await publish(store, count)
        await acknowledged(world, store, count - 100)
        async with world.forwarding(store, limits=REFILL):
            await forwarded(world, store)

            async def live() -> None:
                for _ in range(500):
                    await store.publish({"type": "partial", "session_id": "s", "text": "live"})

            async with world.app((store.epoch, 0)) as client:
                publishing = asyncio.create_task(live())
                got = await take(client, count + 500)
                await publishing
        last = 0
        for page_start in range(0, count + 500, 500):
            for stored, item in zip(
                await store.list(since_id=page_start), got[page_start : page_start + 500], strict=True
            ):
                assert (item.event_id, item.data) == (last + 1, stored.data)
                last += 1
        assert last == len(got) == count + 500
    finally:
        await store.close()


async def test_many_apps_read_the_past_together_and_the_home_reads_it_about_once(world: World) -> None:
    store = MemoryStore()
    await publish(store, 2_000)
    async with world.forwarding(store, limits=REFILL):
        await forwarded(world, store)
        apps = [world.app((store.epoch, 0)) for _ in range(8)]

        async def one(app: AppClient) -> list[int]:
            async with app:
                return [item.event_id for item in await take(app, 2_000)]

        for ids in await asyncio.gather(*map(one, apps)):
            assert ids == list(range(1, 2_001))
    shared = world.hub.homes.backfills
    assert shared.started == 8
    assert shared.fetches <= 8, "1,900 events in pages of 500, read once for all of them"


@pytest.mark.parametrize("world", [{"cold_wait": 5.0}], ids=["waits not long"], indirect=True)
async def test_a_home_that_is_away_leaves_a_gap_and_what_it_has_comes_when_it_is_back(world: World) -> None:
    store = MemoryStore()
    await publish(store, 1_000)
    async with world.forwarding(store, limits=REFILL):
        await forwarded(world, store)
    async with world.app((store.epoch, 10), recover_retained=False) as client:
        async for item in client:
            if isinstance(item, Gap):
                assert item == Gap("expired", 10, 900)
                break
    async with world.app((store.epoch, 10)) as client, world.forwarding(store, limits=REFILL):
        got = await take(client, 1_000)
    assert [item.event_id for item in got if isinstance(item, Event)] in (
        list(range(11, 1_001)),
        list(range(901, 1_001)),
    )
    async with world.forwarding(store, limits=REFILL), world.app((store.epoch, 10)) as client:
        assert [item.event_id for item in await take(client, 1_000)] == list(range(11, 1_001))


class Lost(StoreSource):
    """A store whose oldest events, up to `floor`, are gone."""

    def __init__(self, store: EventStore, floor: int) -> None:
        super().__init__(store)
        self.floor = floor

    async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
        return await super().page(max(after, self.floor), limit)


async def test_what_the_home_has_deleted_is_an_honest_gap_from_its_own_floor(world: World) -> None:
    store = MemoryStore()
    await publish(store, 1_000)
    source = Lost(store, 300)
    async with world.forwarding(store, limits=REFILL, source=source):
        await forwarded(world, store)
        async with world.app((store.epoch, 10)) as client:
            gap, *events = await take(client, 1_000)
    assert gap == Gap("expired", 10, 300)
    assert [item.event_id for item in events] == list(range(301, 1_001))


async def pruned(store: SqliteStore, acked: int) -> None:
    """Retention has removed what lies before the event `acked`."""
    stock = SqliteRetention(store)
    while await stock.mark(0.0):
        pass
    while (await stock.remove((await stock.marks())[-1], acked)).more:
        pass
    assert await store.floor() == acked - 1


async def test_2_5_what_retention_has_removed_is_told_by_hub_and_home_alike(world: World, tmp_path: Path) -> None:
    """Removed while the home runs, and found removed by a hub that knows nothing: both know the floor."""
    store = await SqliteStore.open(tmp_path / "home.db")
    try:
        await publish(store, 2_000)
        await acknowledged(world, store, 1_900)
        async with world.forwarding(store, limits=REFILL):
            await forwarded(world, store)
            async with world.app((store.epoch, 500)) as client:
                assert [item.event_id for item in await take(client, 2_000)] == list(range(501, 2_001))
            await pruned(store, 801)
            async with world.app((store.epoch, 500)) as client:
                gap, *events = await take(client, 2_000)
                assert gap == Gap("expired", 500, 800)
                assert [item.event_id for item in events] == list(range(801, 2_001))
            async with world.app((store.epoch, 800)) as client:
                assert [item.event_id for item in await take(client, 2_000)] == list(range(801, 2_001))
    finally:
        await store.close()


async def test_2_5_the_floor_of_a_store_is_the_floor_of_a_hub_that_was_sent_all_of_it(
    world: World, tmp_path: Path
) -> None:
    """A hub that took the first event's predecessor for none would promise events that are gone."""
    store = await SqliteStore.open(tmp_path / "home.db")
    try:
        await publish(store, 1_000)
        await pruned(store, 951)
        async with world.forwarding(store, limits=REFILL):
            await forwarded(world, store)
            assert world.hub.homes.get(world.server_id).log.floor == 950
            async with world.app((store.epoch, 10)) as client:
                gap, *events = await take(client, 1_000)
        assert gap == Gap("expired", 10, 950)
        assert [item.event_id for item in events] == list(range(951, 1_001))
    finally:
        await store.close()


async def test_two_epochs_of_a_store_are_never_mixed(world: World) -> None:
    """The store is renewed while an app reads its past: it is told, and reads the new life from its start."""
    store = MemoryStore()
    await publish(store, 2_000, size=2_000)  # more than the line between hub and app holds
    async with world.forwarding(store, limits=REFILL):
        await forwarded(world, store)
        first = store.epoch
        async with world.app((first, 0)) as client:
            before: list[int] = []
            async for item in client:
                if isinstance(item, Event):
                    before.append(item.event_id)
                if len(before) == 700:
                    break
            await store.renew_epoch()
            after: list[Any] = []
            async for item in client:
                if isinstance(item, Gap):
                    after.append(item.reason)
                elif isinstance(item, Event) and "epoch_changed" not in after:
                    before.append(item.event_id)
                elif isinstance(item, CaughtUp) and after:
                    break
            assert before == list(range(1, len(before) + 1))
            assert after[0] == "epoch_changed"
            assert len(before) < 2_000
            assert client.cursor is not None
            assert client.cursor.epoch == store.epoch != first


async def test_a_large_event_goes_alone_and_pages_keep_to_the_hubs_limit(world: World) -> None:
    store = MemoryStore()
    for size in (10, 900_000, 10, 100_000, 100_000, 900_000, 10):
        await store.publish({"type": "note", "text": "x" * size})
    await publish(store, 200)
    async with world.forwarding(store, limits=REFILL):
        await forwarded(world, store)
        async with world.app((store.epoch, 0)) as client:
            got = await take(client, 207)
    assert [item.data for item in got] == [event.data for event in await store.list()]


async def test_pages_keep_to_the_message_limit_of_a_hub_that_takes_small_events_only(tmp_path: Path) -> None:
    async with running_hub(tmp_path, history_events=5, max_event_bytes=2_000) as hub, asyncio.timeout(DEADLINE):
        world, store = World(hub, tmp_path), MemoryStore()
        await publish(store, 200, size=900)
        async with world.forwarding(store, limits=Limits(refill_events=5)):
            await forwarded(world, store)
            async with world.app((store.epoch, 0)) as client:
                got = await take(client, 200)
        assert [item.data for item in got] == [event.data for event in await store.list()]
