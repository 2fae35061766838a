"""What a home answers when the hub asks for its past: the page, its limits, and live events first."""

import asyncio
import json
from typing import Any

from bridge_client.backfill import PAGE_BYTES, PATIENCE
from bridge_client.sources import SourceEvent
from bridge_client.sources.store import StoreSource
from bridge_client.store import StoreError
from bridge_client.store.memory import MemoryStore
from tests.bridge_client.forwarding import Memory, Sparse, a_forwarder, a_store, cursor_at, ids, running
from tests.bridge_client.scripted_hub import Peer, VirtualClock, scripted_hub, settle


def ask(epoch: str, after: int, to: int, page_id: str = "7", limit: int = 500) -> dict[str, Any]:
    return {"id": page_id, "epoch": epoch, "after_id": str(after), "to_id": str(to), "limit": limit}


async def answered(source: Any, head: int, *asks: dict[str, Any], **joined: Any) -> list[Any]:
    """The payloads of the pages that a home answers a hub which holds everything."""
    pages: list[Any] = []

    async def hub_side(peer: Peer) -> None:
        await peer.joined(resume_from=str(head), **joined)
        for one in asks:
            await peer.push("backfill", one)
            _, ref, _, name, payload = await peer.next()
            assert name == "backfill_page"
            pages.append(payload)
            await peer.reply(ref, {})
        done.set()

    done = asyncio.Event()
    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, source, Memory())):
        await done.wait()
    return pages


async def test_a_page_holds_the_events_asked_for_as_they_are_stored() -> None:
    store = await a_store(20)
    events = [json.loads(event.data) for event in await store.list()]
    (page,) = await answered(store, 20, ask(store.epoch, 3, 9))
    assert page == {"id": "7", "events": events[3:9], "floor": None}


async def test_limit_end_and_holes_are_kept_to() -> None:
    source = Sparse([2, 5, 9, 30, 31])
    pages = await answered(
        source,
        31,
        ask("sparse", 0, 31, limit=2),
        ask("sparse", 5, 29),
        ask("sparse", 9, 20),
    )
    assert [ids(page) for page in pages] == [[2, 5], [9], []]
    assert [page["floor"] for page in pages] == [None, None, None]


async def test_what_the_source_has_lost_is_named_by_its_floor() -> None:
    class Pruned(Sparse):
        async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
            return [event for event in self.events if event.event_id > max(after, 40)][:limit]

    source = Pruned(list(range(1, 60)))
    pages = await answered(source, 59, ask("sparse", 3, 50), ask("sparse", 40, 50), ask("sparse", 3, 20))
    assert [page["floor"] for page in pages] == ["40", None, "40"]
    assert [ids(page) for page in pages] == [list(range(41, 51)), list(range(41, 51)), []]


async def test_a_page_is_no_larger_than_it_may_be_and_has_one_event_at_least() -> None:
    store = MemoryStore()
    for size in (300_000, 60_000, 60_000, 60_000, 10):
        await store.publish({"type": "note", "text": "x" * size})
    pages = await answered(store, 5, *(ask(store.epoch, after, 5) for after in (0, 1, 3)))
    assert [ids(page) for page in pages] == [[1], [2, 3], [4, 5]]
    assert len(json.dumps(pages[1])) < PAGE_BYTES + 1_000


async def test_a_page_keeps_to_the_events_that_this_hub_takes_with_a_tombstone_for_the_rest() -> None:
    """An event that was forwarded under a larger limit must not break the message limit of this hub."""
    store = MemoryStore()
    for size in (1_500, 5_000, 1_500, 300):
        await store.publish({"type": "note", "text": "x" * size})
    pages = await answered(store, 4, ask(store.epoch, 0, 4), ask(store.epoch, 2, 4), max_event_bytes=2_000)
    assert [ids(page) for page in pages] == [[1, 2], [3, 4]]
    assert pages[0]["events"][1] == {
        "event_id": "2",
        "type": "unforwardable",
        "reason": f"the event has {len((await store.list())[1].data)} bytes, the hub takes 2000",
    }


async def test_another_epoch_or_nonsense_is_answered_with_an_error() -> None:
    store = await a_store(5)
    pages = await answered(store, 5, ask("another", 0, 5), ask(store.epoch, 0, 5, limit=0), ask(store.epoch, 4, 5))
    assert pages[:2] == [{"id": "7", "error": "unavailable"}] * 2
    assert ids(pages[2]) == [5]


async def test_a_source_that_fails_is_said_and_fails_nothing_else() -> None:
    class Failing(StoreSource):
        async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
            if after == 1:
                raise StoreError("the disk is on fire")
            return await super().page(after, limit)

    store = await a_store(5)
    pages = await answered(Failing(store), 5, ask(store.epoch, 1, 5), ask(store.epoch, 2, 5))
    assert pages[0] == {"id": "7", "error": "unavailable"}
    assert ids(pages[1]) == [3, 4, 5]


async def test_live_events_go_first() -> None:
    """With room for one event at a time, all that wait go out before the page that was asked for at the start."""
    store = await a_store(10)
    order: list[Any] = []

    async def hub_side(peer: Peer) -> None:
        await peer.joined(resume_from="5", window={"events": 1, "bytes": 1 << 20})
        await peer.push("backfill", ask(store.epoch, 0, 5))
        while len(order) < 6:
            _, ref, _, name, payload = await peer.next()
            order.append(name if name == "backfill_page" else ids(payload))
            await peer.reply(ref, {"acked_id": payload.get("event", {}).get("event_id")})

    cursor = cursor_at(store, 5)
    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor, clock=VirtualClock())):
        await cursor.reaches(10)
        while len(order) < 6:
            await settle()
    assert order == [[6], [7], [8], [9], [10], "backfill_page"]


async def test_a_page_that_has_waited_goes_although_live_events_wait() -> None:
    store, clock = await a_store(10), VirtualClock()
    order: list[Any] = []

    async def hub_side(peer: Peer) -> None:
        await peer.joined(resume_from="5", window={"events": 1, "bytes": 1 << 20})
        await peer.push("backfill", ask(store.epoch, 0, 5))
        while len(order) < 2:
            _, ref, _, name, _ = await peer.next()
            order.append(name)
            if name == "backfill_page":
                await peer.reply(ref, {})

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor_at(store, 5), clock=clock)):
        while len(order) < 1:
            await settle()
        while len(order) < 2:
            await clock.advance(PATIENCE)
    assert order == ["session_event", "backfill_page"]


async def test_what_was_asked_for_on_a_lost_link_is_not_answered_on_the_next() -> None:
    store = await a_store(5)
    seen: list[Any] = []

    async def first(peer: Peer) -> None:
        await peer.joined(resume_from="5")
        await peer.push("backfill", ask(store.epoch, 0, 5, "old"))
        peer.reset()

    async def second(peer: Peer) -> None:
        await peer.joined(resume_from="5")
        await peer.push("backfill", ask(store.epoch, 0, 5, "new"))
        seen.append((await peer.next())[4]["id"])
        await store.publish({"type": "late"})
        _, ref, *_ = await peer.next()
        await peer.reply(ref, {"acked_id": "6"})

    cursor = Memory()
    async with scripted_hub(first, second) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(6)
    assert seen == ["new"]
