"""Events from the home's own API come as an app client's do: once, in order, also over a restart or a new store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge_client.app_client import CaughtUp, Event, Gap, ServerStatus
from bridge_client.dial import Stopped
from bridge_client.local_events import PAGE, LocalEvents
from bridge_client.store.memory import MemoryStore
from tests.bridge_client.scripted_hub import NoWait
from tests.support.running_api import TOKEN, running_api

DEADLINE = 40.0


class Where:
    """Where the home listens, for now."""

    def __init__(self) -> None:
        self.url: str | None = None

    def __call__(self) -> str | None:
        return self.url


@asynccontextmanager
async def following(where: Where, **more: Any) -> AsyncIterator[LocalEvents]:
    async with asyncio.timeout(DEADLINE), LocalEvents(where, TOKEN, rng=NoWait(), **more) as events:
        yield events


async def take(events: LocalEvents, count: int) -> list[Any]:
    """The next items, events as their ids."""
    return [item.event_id if isinstance(item, Event) else item for item in [await anext(events) for _ in range(count)]]


async def publish(store: MemoryStore, *sessions: str) -> None:
    for session in sessions:
        await store.publish({"type": "note", "session_id": session})


async def test_A222_it_begins_with_what_happens_next() -> None:
    store, where = MemoryStore(), Where()
    await publish(store, "s", "s")
    async with running_api(store) as api, following(where) as events:
        where.url = api.api.url
        assert await take(events, 2) == [ServerStatus(True, None), CaughtUp(2)]
        assert (events.connected, events.cursor) == (True, (store.epoch, 2))
        asking = asyncio.create_task(take(events, 1))
        await publish(store, "s")
        assert await asking == [3]
        assert events.cursor == (store.epoch, 3)


async def test_a_cursor_is_resumed_behind_page_by_page_and_the_bytes_are_the_store_s() -> None:
    store, where = MemoryStore(), Where()
    await publish(store, *["s"] * (PAGE + 20))
    async with running_api(store) as api, following(where, cursor=(None, 10)) as events:
        where.url = api.api.url
        await anext(events)
        first = await anext(events)
        assert isinstance(first, Event)
        assert first.data == (await store.list(since_id=10, limit=1))[0].data
        assert events.behind == 10
        assert await take(events, PAGE + 10) == [*range(12, PAGE + 21), CaughtUp(PAGE + 20)]
        assert events.behind == 0


async def test_only_the_events_of_one_session() -> None:
    store, where = MemoryStore(), Where()
    await publish(store, "a", "b", "a")
    async with running_api(store) as api, following(where, cursor=(None, 0), session_id="a") as events:
        where.url = api.api.url
        assert (await take(events, 4))[1:] == [1, 3, CaughtUp(3)]


async def test_a_home_that_goes_and_comes_back_loses_nothing() -> None:
    store, where = MemoryStore(), Where()
    async with following(where) as events:
        assert await take(events, 1) == [ServerStatus(False, None)]
        async with running_api(store) as api:
            where.url = api.api.url
            assert await take(events, 2) == [ServerStatus(True, None), CaughtUp(0)]
            await publish(store, "s")
            assert await take(events, 1) == [1]
        await publish(store, "s")
        assert await take(events, 1) == [ServerStatus(False, None)]
        async with running_api(store) as api:
            where.url = api.api.url
            assert await take(events, 2) == [ServerStatus(True, None), 2]


async def test_a_store_that_was_replaced_is_told_as_a_gap_and_read_from_its_start() -> None:
    old, new, where = MemoryStore(), MemoryStore(), Where()
    await publish(old, "s", "s", "s")
    await publish(new, "s")
    async with following(where, cursor=(old.epoch, 3)) as events:
        async with running_api(new) as api:
            where.url = api.api.url
            items = await take(events, 4)
        assert items == [ServerStatus(True, None), Gap("epoch_changed", 3, 0), 1, CaughtUp(1)]
        assert events.cursor == (new.epoch, 1)


class Pruned(MemoryStore):
    """Its first three events are gone."""

    async def list(self, **query: Any) -> Any:
        return await super().list(**query | {"since_id": max(query.get("since_id") or 0, 3)})

    async def floor(self) -> int:
        return 3


async def test_2_5_what_retention_has_removed_is_told_as_a_gap_and_the_rest_follows() -> None:
    store, where = Pruned(), Where()
    await publish(store, *"sssss")
    async with running_api(store) as api, following(where, cursor=(store.epoch, 1)) as events:
        where.url = api.api.url
        assert await take(events, 5) == [ServerStatus(True, None), Gap("expired", 1, 3), 4, 5, CaughtUp(5)]


async def test_a_token_that_is_refused_ends_it() -> None:
    where = Where()
    async with running_api(MemoryStore()) as api:
        where.url = api.api.url
        async with LocalEvents(where, "another") as events:
            with pytest.raises(Stopped, match=r"refuses the token in its state directory \(401\)"):
                await anext(events)
