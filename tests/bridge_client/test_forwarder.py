"""The forwarder: every event in order and unchanged, no cursor past an acknowledgement, nothing lost in silence."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_client.clock import Clock
from bridge_client.cursor import CursorFile, SavedCursor
from bridge_client.dial import Disconnected, WebSocketDialler, Wire
from bridge_client.forwarder import EventRefused, Forwarder, Limits, Replaced
from bridge_client.link import Link
from bridge_client.refill import refill_from
from bridge_client.sources import SourceEvent
from bridge_client.sources.store import StoreSource
from bridge_client.store.memory import MemoryStore
from tests.bridge_client.scripted_hub import (
    DEADLINE,
    WINDOW,
    Holding,
    MemoryWire,
    NoWait,
    Peer,
    ScriptedHub,
    VirtualClock,
    scripted_hub,
    settle,
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


def ids(payload: Any) -> list[int]:
    return [int(event["event_id"]) for event in payload.get("events", [payload.get("event")])]


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
    assert join == {"protocol": 1, "epoch": store.epoch, "head_id": "3", "name": "a home", "instance": "one"}
    assert batch[2:] == [f"server:{SERVER_ID}", "session_events", {"events": events[:3], "prev_id": None}]
    assert single[2:] == [f"server:{SERVER_ID}", "session_event", {"event": events[3], "prev_id": "3"}]
    assert cursor.saved[-1] == SavedCursor(store.epoch, 4, "h1", HUB_URL, SERVER_ID)


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

    async def renew_epoch(self) -> str:
        raise AssertionError("not expected")


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


@pytest.mark.parametrize("reason", ["too_large", "invalid_event"])
async def test_case_88_a_refused_event_stops_the_forwarder_in_front_of_it(reason: str) -> None:
    store, cursor, held = await a_store(10), Memory(), Holding()

    async def hub_side(peer: Peer) -> None:
        await peer.joined()
        while True:
            _, ref, _, _, payload = await peer.next()
            good = [event for event in payload.get("events", [payload.get("event")]) if int(event["event_id"]) < 7]
            if good:
                held.take("session_events", {"events": good, "prev_id": payload["prev_id"]})
            assert 7 in ids(payload)
            answer = {"reason": reason, "id": "7", "limit": 99, "acked_id": held.last}
            await peer.reply(ref, answer, "error")

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)) as run:
        with pytest.raises(EventRefused) as refused:
            await run
        assert len(hub.peers) == 1
    assert (refused.value.event_id, refused.value.reason, refused.value.limit) == (7, reason, 99)
    assert cursor.at == 6
    assert held.ids == [1, 2, 3, 4, 5, 6]


async def test_case_61_an_event_over_the_hubs_limit_is_not_even_sent_and_all_before_it_is() -> None:
    store, cursor, held = await a_store(5), Memory(), Holding()
    await store.publish({"type": "note", "text": "x" * 5000})
    await store.publish({"type": "note"})

    async def hub_side(peer: Peer) -> None:
        await peer.joined(max_event_bytes=1000)
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)) as run:
        with pytest.raises(EventRefused, match="event 6: too_large, the limit is 1000 bytes"):
            await run
    assert (cursor.at, held.ids) == (5, [1, 2, 3, 4, 5])


@pytest.mark.parametrize("code", [1003, 1007, 1009])
async def test_case_62_an_event_that_breaks_the_socket_is_found_and_named(code: int) -> None:
    store, cursor, held = await a_store(50), Memory(), Holding()

    async def hub_side(peer: Peer) -> None:
        await peer.joined(resume_from=held.last)
        while True:
            _, ref, _, name, payload = await peer.next()
            if 33 in ids(payload):
                await peer.close(code)
                return
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)) as run:
        with pytest.raises(EventRefused, match=f"event 33: the hub closed with {code}"):
            await run
    assert (cursor.at, held.ids) == (32, list(range(1, 33)))


async def test_a_frame_fault_that_does_not_come_again_costs_nothing() -> None:
    store, cursor, held = await a_store(500), Memory(), Holding()

    async def once(peer: Peer) -> None:
        await peer.joined()
        await peer.next()
        await peer.close(1009)

    sizes: list[int] = []

    async def hub_side(peer: Peer) -> None:
        await peer.joined()
        while True:
            _, ref, _, name, payload = await peer.next()
            sizes.append(len(ids(payload)))
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(once, hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(500)
        for _ in range(300):
            await store.publish({"type": "note"})
        await cursor.reaches(800)
    assert held.ids == list(range(1, 801))
    assert sizes[0] == 1


async def test_rate_limited_waits_as_asked_and_sends_again() -> None:
    store, cursor, held, clock = await a_store(5), Memory(), Holding(), VirtualClock()
    wire, topic = MemoryWire(), f"server:{SERVER_ID}"

    async def dial(url: str, headers: Mapping[str, str]) -> Wire:
        return wire

    async with running(a_forwarder(None, store, cursor, dial=dial, clock=clock)):
        await settle()
        wire.say("1", "1", topic, "phx_reply", {"status": "ok", "response": {"resume_from": None}})
        await settle()
        answer = {"reason": "rate_limited", "retry_after_ms": 3000, "acked_id": "2"}
        wire.say("1", wire.sent[1][1], topic, "phx_reply", {"status": "error", "response": answer})
        await clock.advance(2.9)
        assert [frame[3] for frame in wire.sent] == ["phx_join", "session_events"]
        await clock.advance(0.2)
        assert (ids(wire.sent[2][4]), wire.sent[2][4]["prev_id"]) == ([3, 4, 5], "2")
        assert cursor.at == 2
    assert held.ids == []


async def test_a_hub_that_is_alive_but_never_answers_is_left() -> None:
    store, cursor, clock = await a_store(5), Memory(), VirtualClock()
    wires: list[MemoryWire] = []
    topic = f"server:{SERVER_ID}"

    async def dial(url: str, headers: Mapping[str, str]) -> Wire:
        wires.append(MemoryWire())
        return wires[-1]

    async with running(a_forwarder(None, store, cursor, dial=dial, clock=clock)):
        await settle()
        wires[0].say("1", "1", topic, "phx_reply", {"status": "ok", "response": {"resume_from": None}})
        for _ in range(7):
            await clock.advance(10.0)
            wires[0].say(None, None, "phoenix", "alive", {})
        assert len(wires) == 2
    assert cursor.at is None


async def test_a_second_forwarder_takes_over_and_the_first_says_so_and_stops() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.joined()
        await peer.push("replaced", {"instance": "two"})
        await peer.end("phx_close", {})

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, await a_store(1000), Memory())) as run:
        with pytest.raises(Replaced, match="two"):
            await run
        assert len(hub.peers) == 1


async def test_a_stale_link_is_a_takeover_too() -> None:
    async def hub_side(peer: Peer) -> None:
        await peer.joined()
        _, ref, *_ = await peer.next()
        await peer.reply(ref, {"reason": "stale_link", "acked_id": None}, "error")

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, await a_store(1), Memory())) as run:
        with pytest.raises(Replaced):
            await run


@pytest.mark.parametrize("event", ["phx_error", "phx_close"])
async def test_the_end_of_the_topic_is_not_the_end(event: str) -> None:
    store, cursor, held = await a_store(5), Memory(), Holding()

    async def ends(peer: Peer) -> None:
        await peer.joined()
        await peer.end(event, {"reason": "channel_crash"} if event == "phx_error" else {})

    async with scripted_hub(ends, held.serve) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(5)
    assert held.ids == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("code", [1001, 1002, 1003, 1007, 1008, 1009, 1011, 1012, 1013, 1014, 4000, "reset"])
async def test_case_89_a_link_lost_before_the_answer_is_sent_again_and_harmless(code: int | str) -> None:
    """The hub took the events, then the socket died: they come again and are repeats."""
    store, cursor, held = await a_store(5), Memory(), Holding()

    async def takes_and_dies(peer: Peer) -> None:
        await peer.joined()
        _, _, _, name, payload = await peer.next()
        held.take(name, payload)
        if isinstance(code, int):
            await peer.close(code)
        else:
            peer.reset()

    async def forgetful(peer: Peer) -> None:  # says less than it holds, so that everything comes again
        await peer.joined(resume_from="2")
        _, ref, _, name, payload = await peer.next()
        await peer.reply(ref, *held.take(name, payload))
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(takes_and_dies, forgetful) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(5)
    assert held.ids == [1, 2, 3, 4, 5]
    assert held.repeats == 3


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


@pytest.mark.parametrize("after", range(13))
async def test_the_link_cut_at_each_frame_loses_and_doubles_nothing(after: int) -> None:
    store, cursor, held, plan = await a_store(600), Memory(), Holding(), Cut(after)
    async with scripted_hub(held.serve) as hub, running(a_forwarder(hub, store, cursor, dial=plan)):
        await cursor.reaches(600)
        await store.publish({"type": "note"})
        await cursor.reaches(601)
    assert held.ids == list(range(1, 602))
    assert plan.cut == (after < 12)  # a join and its reply, five pushes and their answers
    for earlier, later in zip(cursor.saved, cursor.saved[1:], strict=False):
        assert earlier.event_id <= later.event_id


async def test_case_79_a_store_that_went_back_begins_a_new_epoch_and_is_sent_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, held, epochs = await a_store(12), Holding(), []
    old = store.epoch
    cursor = cursor_at(store, 5000)

    async def hub_side(peer: Peer) -> None:
        epochs.append((await peer.joined())["epoch"])
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await held.reaches(12)
        await cursor.is_at(store.epoch, 12)
    assert epochs == [store.epoch] != [old]
    assert cursor.saved[-1].epoch == store.epoch
    assert [r.levelname for r in caplog.records if "went back in time" in r.getMessage()] == ["WARNING"]


async def test_a_hub_that_holds_more_than_the_store_shows_a_restored_store() -> None:
    store, held, epochs = await a_store(12), Holding(), []

    async def hub_side(peer: Peer) -> None:
        epochs.append((await peer.joined(resume_from="40"))["epoch"])
        epochs.append((await peer.joined(resume_from=None))["epoch"])
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    old = store.epoch
    cursor = cursor_at(store, 10)
    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await held.reaches(12)
        await cursor.is_at(store.epoch, 12)
    assert epochs == [old, store.epoch]
    assert old != store.epoch


@pytest.mark.parametrize("which", ["epoch", "hub", "server"])
async def test_case_80_a_cursor_of_something_else_is_not_used(which: str, caplog: pytest.LogCaptureFixture) -> None:
    store, held = await a_store(3), Holding()
    cursor = Memory(
        SavedCursor(
            "other" if which == "epoch" else store.epoch,
            2,
            None,
            "http://other" if which == "hub" else HUB_URL,
            "other" if which == "server" else SERVER_ID,
        )
    )
    async with scripted_hub(held.serve) as hub, running(a_forwarder(hub, store, cursor, Limits(refill_events=0))):
        await cursor.reaches(3)
    assert held.ids == [1, 2, 3]
    assert "belongs to another" in caplog.text


class WatchedFile(CursorFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.was_saved = asyncio.Event()

    def save(self, cursor: SavedCursor) -> None:
        super().save(cursor)
        self.was_saved.set()


async def test_a_damaged_cursor_file_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cursor.json"
    path.write_bytes(b"{")
    store, held, file = await a_store(3), Holding(), WatchedFile(path)
    async with scripted_hub(held.serve) as hub, running(a_forwarder(hub, store, file)):
        await file.was_saved.wait()
    assert held.ids == [1, 2, 3]
    saved = file.load()
    assert saved is not None
    assert saved.event_id == 3
    await file.close()


async def test_case_88_while_the_hub_is_away_nothing_is_read() -> None:
    source, cursor, held = Sparse(list(range(1, 30))), Memory(), Holding()
    async with scripted_hub(held.serve) as hub:
        hub.refusals.extend([(500, "", {})] * 20)
        forwarder = a_forwarder(hub, source, cursor)
        async with running(forwarder):
            await hub.all_refused.wait()
            assert source.pages == 0
            assert forwarder.status.connected_since is None
            await cursor.reaches(29)
            assert "HTTP 500" in (forwarder.status.last_error or "")
            assert forwarder.status.lag == 0
            assert forwarder.status.last_ack_at is not None
    assert held.ids == list(range(1, 30))


async def test_an_epoch_renewed_by_somebody_else_is_noticed() -> None:
    store, cursor, epochs = await a_store(3), Memory(), []
    held: dict[str, Holding] = {}

    async def hub_side(peer: Peer) -> None:
        epoch = (await peer.joined())["epoch"]
        epochs.append(epoch)
        holding = held.setdefault(epoch, Holding())
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *holding.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(3)
        await store.renew_epoch()
        await store.publish({"type": "note"})
        await cursor.reaches(4)
    assert epochs[-1] == store.epoch
    assert held[store.epoch].ids == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "answer",
    [
        lambda ref: {"acked_id": 3},
        lambda ref: {"acked_id": "03"},
        lambda ref: {"acked_id": None},
        lambda ref: {"acked_id": "1"},
        lambda ref: {},
    ],
)
async def test_an_answer_that_makes_no_sense_never_moves_the_cursor(answer: Callable[[str], Any]) -> None:
    store, cursor, held = await a_store(3), Memory(), Holding()
    before: list[int | None] = []

    async def confused(peer: Peer) -> None:
        await peer.joined()
        _, ref, *_ = await peer.next()
        await peer.reply(ref, answer(ref))

    async def sane(peer: Peer) -> None:
        before.append(cursor.at)
        await held.serve(peer)

    async with scripted_hub(confused, sane) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(3)
    assert before == [None]
    assert held.ids == [1, 2, 3]


async def test_debug_logging_shows_no_event(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bridge_client")
    store, cursor, held = MemoryStore(), Memory(), Holding()
    await store.publish({"type": "note", "text": "a private remark"})
    async with scripted_hub(held.serve) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(1)
    assert caplog.records
    assert "private" not in caplog.text
