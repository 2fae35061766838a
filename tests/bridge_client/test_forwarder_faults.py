"""The forwarder when things go wrong: refusals, lost links, takeovers. Nothing is lost in silence."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bridge_client.dial import Wire
from bridge_client.home_topic import Replaced
from bridge_client.store.memory import MemoryStore
from tests.bridge_client.forwarding import SERVER_ID, Cut, Memory, Sparse, a_forwarder, a_store, ids, running
from tests.bridge_client.scripted_hub import (
    Holding,
    MemoryWire,
    Peer,
    VirtualClock,
    scripted_hub,
    settle,
)


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
