"""The forwarder: every event in order and unchanged, no cursor past an acknowledgement."""

import json
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import pytest

from bridge_client.clock import SystemClock
from bridge_client.cursor import SavedCursor
from bridge_client.dial import Wire
from bridge_client.forwarder import Limits
from bridge_client.refill import refill_from
from bridge_client.sources import Mark, SourceEvent
from bridge_client.sources.store import StoreSource
from bridge_client.store.memory import MemoryStore
from tests.bridge_client.forwarding import (
    HUB_URL,
    SERVER_ID,
    Memory,
    Sparse,
    a_forwarder,
    a_store,
    cursor_at,
    ids,
    running,
)
from tests.bridge_client.scripted_hub import (
    WINDOW,
    Holding,
    MemoryWire,
    Peer,
    VirtualClock,
    scripted_hub,
    settle,
)


async def test_what_is_said_on_the_wire() -> None:
    store, cursor, seen = await a_store(3), Memory(), []

    async def hub_side(peer: Peer) -> None:
        seen.append(await peer.joined())
        frame = await peer.next()
        seen.append(frame)
        await peer.reply(frame[1], {"acked_id": "3"})
        await store.publish({"type": "late"})
        frame = await peer.next()
        seen.append(frame)
        await peer.reply(frame[1], {"acked_id": "4"})

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(4)
        assert hub.requests[0].headers["Authorization"] == "Bearer credential"
    events = [json.loads(event.data) for event in await store.list()]
    join, batch, single = seen
    assert join == {
        "protocol": 1,
        "epoch": store.epoch,
        "head_id": "3",
        "name": "a home",
        "instance": "one",
        "backfill": True,
        "requests": False,
    }
    assert batch[2:] == [f"server:{SERVER_ID}", "session_events", {"events": events[:3], "prev_id": None}]
    assert single[2:] == [f"server:{SERVER_ID}", "session_event", {"event": events[3], "prev_id": "3"}]
    mark = Mark(4, sha256((await store.list())[3].data).hexdigest())
    assert cursor.saved[-1] == SavedCursor(store.epoch, 4, "h1", HUB_URL, SERVER_ID, mark)


async def test_the_bytes_of_an_event_are_not_touched() -> None:
    """Numbers as written, order and duplicates of members: what the store holds is what travels (A203)."""
    store, received = MemoryStore(), []
    for text in (
        b'{"type":"a","n":1.50,"big":123456789012345678901234567890}',
        '{"type":"b", "z":"é\\u00e9"}'.encode(),
    ):
        await store.publish(text)
    wire = MemoryWire()

    async def dial(url: str, headers: Mapping[str, str]) -> Wire:
        return wire

    sent: list[bytes] = []

    async def record(data: bytes) -> None:
        sent.append(data)

    wire.send = record  # type: ignore[method-assign]
    clock = VirtualClock()
    async with running(a_forwarder(None, store, Memory(), dial=dial, clock=clock)):
        await settle()
        answer = {"resume_from": None, "window": WINDOW}
        wire.say("1", "1", f"server:{SERVER_ID}", "phx_reply", {"status": "ok", "response": answer})
        await settle()
    received = [event.data for event in await store.list()]
    assert b'{"events":[' + b",".join(received) + b'],"prev_id":null}' in sent[1]


async def test_an_event_published_while_idle_leaves_without_any_time_passing() -> None:
    store, wire, clock = await a_store(0), MemoryWire(), VirtualClock()

    async def dial(url: str, headers: Mapping[str, str]) -> Wire:
        return wire

    async with running(a_forwarder(None, store, Memory(), dial=dial, clock=clock)):
        await settle()
        wire.say("1", "1", f"server:{SERVER_ID}", "phx_reply", {"status": "ok", "response": {"resume_from": None}})
        await settle()
        before = clock.now
        await store.publish({"type": "note"})
        await settle()
        assert [frame[3] for frame in wire.sent] == ["phx_join", "session_event"]
        assert clock.now == before


@pytest.mark.parametrize(("resume", "first"), [(2, 3), (9, 10), (None, 1)])
async def test_it_goes_on_where_the_hub_says_lower_or_higher_than_its_own_cursor(
    resume: int | None, first: int
) -> None:
    store, seen = await a_store(10), []
    cursor = cursor_at(store, 5)

    async def hub_side(peer: Peer) -> None:
        await peer.joined(resume_from=None if resume is None else str(resume))
        _, ref, _, _, payload = await peer.next()
        seen.append((ids(payload)[0], payload["prev_id"]))
        await peer.reply(ref, {"acked_id": "10"})

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(10)
    assert seen == [(first, None if first == 1 else str(first - 1))]


async def test_a_hub_that_holds_everything_is_sent_nothing_and_the_cursor_follows() -> None:
    store, cursor = await a_store(10), Memory()

    async def hub_side(peer: Peer) -> None:
        await peer.joined(resume_from="10")
        await store.publish({"type": "note"})
        _, _, _, _, payload = await peer.next()
        assert ids(payload) == [11]

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(10)


@pytest.mark.parametrize(
    ("cursor", "limits", "first"),
    [
        (100, Limits(refill_events=7), 94),
        (None, Limits(refill_events=7), 1),
        (50, Limits(refill_events=7), 51),
        (100, Limits(refill_events=2000), 1),
        (100, Limits(refill_bytes=500), 95),
        (100, Limits(refill_events=0), None),
    ],
)
async def test_a_hub_that_lost_its_memory_is_refilled(cursor: int | None, limits: Limits, first: int | None) -> None:
    store, held = await a_store(100, size=10), Holding()
    store_cursor = Memory() if cursor is None else cursor_at(store, cursor)
    async with scripted_hub(held.serve) as hub, running(a_forwarder(hub, store, store_cursor, limits)):
        if first is None:
            await store.publish({"type": "note"})
            first = 101
        await held.reaches(await store.head() or 0)
    assert held.ids == list(range(first, (await store.head() or 0) + 1))


async def test_the_refill_finds_its_place_among_sparse_ids() -> None:
    source = Sparse([n**3 for n in range(1, 101)])
    start = await refill_from(source, 10**6, events=20, size=1 << 20)
    assert start == 80**3
    assert await refill_from(source, 10**6, events=500, size=1 << 20) == 0
    assert await refill_from(Sparse([]), 0, events=20, size=100) == 0


async def test_case_82_ids_with_holes_and_out_of_order_pages_go_out_in_numeric_order() -> None:
    source, held, cursor = Sparse([8, 9, 10, 11, 99, 100, 5000, 12_000]), Holding(), Memory()
    async with scripted_hub(held.serve) as hub, running(a_forwarder(hub, source, cursor)):
        await cursor.reaches(12_000)
    assert held.ids == [8, 9, 10, 11, 99, 100, 5000, 12_000]


async def test_a_gap_is_filled_from_where_the_hub_says_and_older_answers_are_ignored() -> None:
    store, held, cursor = await a_store(1000), Holding(), Memory()

    async def hub_side(peer: Peer) -> None:
        await peer.joined()
        frames = [await peer.next() for _ in range(3)]
        await peer.reply(frames[0][1], *held.take(*frames[0][3:5]))
        held.events = held.events[:150]
        for frame in frames[1:]:
            await peer.reply(frame[1], *held.take(*frame[3:5]))
        while held.last != "1000":
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(1000)
        assert len(hub.peers) == 1
    assert held.ids == list(range(1, 1001))


async def test_a_hub_that_answers_gap_for_ever_is_left(caplog: pytest.LogCaptureFixture) -> None:
    store, cursor, held = await a_store(3), Memory(), Holding()

    async def stubborn(peer: Peer) -> None:
        await peer.joined()
        while True:
            _, ref, *_ = await peer.next()
            await peer.reply(ref, {"reason": "gap", "resume_from": "1", "acked_id": None}, "error")

    async with scripted_hub(stubborn, held.serve) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(3)
    assert "did not take events: 'gap'" in caplog.text


async def test_the_window_bounds_what_is_unanswered() -> None:
    store, cursor, held = await a_store(2000), Memory(), Holding()

    async def hub_side(peer: Peer) -> None:
        await peer.joined(window={"events": 300, "bytes": 1 << 20})
        waiting: list[Any] = []
        while held.last != "2000":
            while sum(len(ids(frame[4])) for frame in waiting) < min(300, 2000 - int(held.last or 0)):
                waiting.append(await peer.next())
            assert sum(len(ids(frame[4])) for frame in waiting) <= 300
            frame = waiting.pop(0)
            await peer.reply(frame[1], *held.take(*frame[3:5]))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(2000)
    assert held.ids == list(range(1, 2001))


async def test_batches_keep_their_limits_and_a_large_event_goes_alone() -> None:
    store, cursor, held, frames = MemoryStore(), Memory(), Holding(), []
    for size in [*[1000] * 600, 300_000, 10, 900_000, *[60_000] * 20]:
        await store.publish({"type": "note", "text": "x" * size})

    async def hub_side(peer: Peer) -> None:
        await peer.joined()
        while held.last != "623":
            frame = await peer.next()
            frames.append((frame[3], ids(frame[4]), len(json.dumps(frame[4], separators=(",", ":")))))
            await peer.reply(frame[1], *held.take(*frame[3:5]))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(623)
    assert held.ids == list(range(1, 624))
    for name, event_ids, size in frames:
        if name == "session_events":
            assert 2 <= len(event_ids) <= 200
            assert size <= 256 * 1024
        else:
            assert len(event_ids) == 1
    assert [event_ids for name, event_ids, _ in frames if name == "session_event"][:1] == [[601]]


async def test_case_85_an_unordered_page_is_sent_in_order_and_the_cursor_waits_for_all_of_it() -> None:
    """case 85: the store answers [12, 10, 11]: 10, 11, 12 are sent; the cursor is at 12 only once all are acked."""
    source, cursor, sent = Sparse([10, 11, 12]), Memory(), list[int]()
    page = await source.page(0)
    shuffled = [page[0], page[2], page[1]]
    source.page = lambda after, limit=500: _answer(shuffled if after < 10 else [])  # type: ignore[method-assign]
    assert [event.event_id for event in await source.page(0)] == [12, 10, 11]
    places: list[int | None] = []

    async def hub_side(peer: Peer) -> None:
        await peer.joined(window={"events": 1, "bytes": 1 << 20})
        for _ in range(3):
            _, ref, _, _, payload = await peer.next()
            sent.extend(ids(payload))
            places.append(cursor.at)
            await peer.reply(ref, {"acked_id": str(sent[-1])})

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, source, cursor)):
        await cursor.reaches(12)
    assert sent == [10, 11, 12]
    assert places == [None, 10, 11]


async def _answer(page: list[SourceEvent]) -> list[SourceEvent]:
    return page


async def test_case_83_events_of_one_timestamp_all_arrive_though_pages_end_among_them() -> None:
    """case 83: 50 events, one timestamp, pages of ten: 50 arrive."""
    store, held, cursor = MemoryStore(), Holding(), Memory()
    for n in range(50):
        await store.publish({"type": "note", "timestamp": "2026-01-01T00:00:00Z", "n": n})
    source = StoreSource(store)
    read = source.page
    source.page = lambda after, limit=500: read(after, 10)  # type: ignore[method-assign]
    async with scripted_hub(held.serve) as hub, running(a_forwarder(hub, source, cursor)):
        await cursor.reaches(50)
    assert [event["n"] for event in held.events] == list(range(50))


@pytest.mark.parametrize("hours", [-1 / 6, 1 / 6, 5])
async def test_cases_47_and_106_a_home_whose_clock_is_wrong_connects_and_forwards(hours: float) -> None:
    """case 47: ten minutes off; case 106: five hours. No credential here depends on the home's clock."""
    store, held, cursor, clock = await a_store(3), Holding(), Memory(), WrongClock(hours * 3600)
    async with scripted_hub(held.serve) as hub:
        forwarder = a_forwarder(hub, store, cursor, clock=clock)
        async with running(forwarder):
            await cursor.reaches(3)
            assert forwarder.status.last_ack_at == pytest.approx(time.time() + hours * 3600, abs=60)
    assert held.ids == [1, 2, 3]


class WrongClock(SystemClock):
    def __init__(self, off: float) -> None:
        self._off = off

    def wall(self) -> float:
        return super().wall() + self._off
