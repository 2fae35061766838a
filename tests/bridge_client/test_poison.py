"""Events that the hub will never take: found, tried three times, kept for their owner, and replaced by a tombstone."""

import asyncio
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bridge_client.dead_letters import DeadLetters
from bridge_client.home_topic import EventRefused
from bridge_client.poison import STRIKES, Suspicion
from bridge_client.store.memory import MemoryStore
from bridge_client.window import Batch
from tests.bridge_client.forwarding import Memory, a_forwarder, a_store, ids, letters_in, running
from tests.bridge_client.scripted_hub import Holding, Peer, scripted_hub

REFUSALS = ["too_large", "invalid_event", "not named", "bad_push", 1003, 1007, 1009]
PLACES = {"first": (7, {1}), "middle": (7, {4}), "last": (7, {7}), "alone": (1, {1}), "two in a row": (7, {3, 4})}


class Refusing:
    """A hub that takes every event but some, and these never. `restarts`: it goes away after each of its refusals."""

    def __init__(self, poison: set[int], how: str | int, *, restarts: bool = False) -> None:
        self.held = Holding()
        self.refusals: Counter[int] = Counter()
        """How often each event was refused when it was known which one."""
        self._poison = poison
        self._how = how
        self._restarts = restarts

    async def serve(self, peer: Peer) -> None:
        await peer.joined(resume_from=self.held.last)
        while True:
            _, ref, _, name, payload = await peer.next()
            events = payload.get("events", [payload.get("event")])
            at = next((place for place, event in enumerate(events) if self._refuses(event)), None)
            if at is None:
                await peer.reply(ref, *self.held.take(name, payload))
                continue
            if isinstance(self._how, int):
                self.refusals.update(ids(payload) if len(events) == 1 else [])
                await peer.close(self._how)
                return
            named = self._how in ("too_large", "invalid_event")
            if events[:at] and self._how != "bad_push":
                self.held.take("session_events", {"events": events[:at], "prev_id": payload["prev_id"]})
            self.refusals.update([int(events[at]["event_id"])] if named or len(events) == 1 else [])
            await peer.reply(ref, self._answer(events[at]["event_id"] if named else None), "error")
            if self._restarts:
                await peer.close(1012)
                return

    def _refuses(self, event: Any) -> bool:
        return int(event["event_id"]) in self._poison and event["type"] != "unforwardable"

    def _answer(self, event_id: str | None) -> dict[str, Any]:
        reason = "invalid_event" if self._how == "not named" else self._how
        answer = {"reason": reason, "id": event_id, "acked_id": self.held.last}
        return answer | ({"limit": 99} if reason == "too_large" else {"message": "it is not for us"})


async def check(letters: DeadLetters, store: MemoryStore, hub: Refusing, poison: set[int]) -> None:
    """What every scene below has to end with."""
    events = [json.loads(event.data) for event in await store.list()]
    for event, there in zip(events, hub.held.events, strict=True):
        if int(event["event_id"]) in poison:
            reason = there.pop("reason")
            assert there == {"event_id": event["event_id"], "type": "unforwardable", "session_id": "s"}
            assert "3 times" in reason
        else:
            assert there == event
    kept = await letters.list()
    assert [json.loads(letter.data) for letter in kept] == [events[number - 1] for number in sorted(poison)]
    assert hub.refusals == dict.fromkeys(poison, STRIKES)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", REFUSALS)
async def test_case_88_a_poison_event_is_given_up_and_all_around_it_arrive(how: str | int, place: str) -> None:
    """case 88: one event always refused: dead-lettered after three tries, the next delivered, the cursor behind."""
    count, poison = PLACES[place]
    store, cursor, letters, hub_side = await a_store(count), Memory(), DeadLetters.in_memory(), Refusing(poison, how)
    async with scripted_hub(hub_side.serve) as hub, running(a_forwarder(hub, store, cursor, letters=letters)):
        await cursor.reaches(count)
    await check(letters, store, hub_side, poison)
    for earlier, later in zip(cursor.saved, cursor.saved[1:], strict=False):
        assert earlier.event_id <= later.event_id


@pytest.mark.parametrize("how", ["too_large", "not named", "bad_push"])
async def test_case_88_the_tries_are_counted_over_restarts_of_the_hub(how: str) -> None:
    poison = {3, 4}
    store, cursor, letters = await a_store(7), Memory(), DeadLetters.in_memory()
    hub_side = Refusing(poison, how, restarts=True)
    async with scripted_hub(hub_side.serve) as hub, running(a_forwarder(hub, store, cursor, letters=letters)):
        await cursor.reaches(7)
    await check(letters, store, hub_side, poison)


async def test_case_62_after_a_frame_fault_events_go_alone_until_the_poison_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """case 62: an event over the hub's frame limit: marked, logged, skipped, the next one delivered."""
    store, cursor, hub_side, sizes = await a_store(450), Memory(), Refusing({333}, 1009), list[int]()

    async def serve(peer: Peer) -> None:
        take = peer.next

        async def counted() -> list[Any]:
            frame = await take()
            if frame[3].startswith("session_event"):
                sizes.append(len(ids(frame[4])))
            return frame

        peer.next = counted  # type: ignore[method-assign]
        await hub_side.serve(peer)

    async with scripted_hub(serve) as hub, running(a_forwarder(hub, store, cursor)):
        await cursor.reaches(450)
        for _ in range(300):
            await store.publish({"type": "note", "session_id": "s"})
        await cursor.reaches(750)
    assert hub_side.held.ids == list(range(1, 751))
    first_alone = sizes.index(1)
    assert set(sizes[:first_alone]) <= {200, 250, 450 - 400, 133, 117}
    assert max(sizes[-3:]) > 1, "the caution ends with what was under suspicion"
    [told] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert told.getMessage() == (
        "the hub will not take event 333 (the hub closed the socket with 1009, 3 times): a tombstone goes out in its"
        " place; see bridge-client dead-letters"
    )


async def test_case_61_an_event_over_the_hubs_limit_is_not_even_sent() -> None:
    """case 61, case 62: what the hub said it would not take is set aside at once; its neighbours arrive."""
    store, cursor, letters, held = await a_store(5), Memory(), DeadLetters.in_memory(), Holding()
    await store.publish({"type": "note", "session_id": "s" * 500, "text": "x" * 5000})
    await store.publish({"type": "note"})
    largest = 0

    async def hub_side(peer: Peer) -> None:
        nonlocal largest
        await peer.joined(max_event_bytes=1000)
        while True:
            _, ref, _, name, payload = await peer.next()
            largest = max(largest, *(len(json.dumps(event)) for event in payload.get("events", [payload.get("event")])))
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor, letters=letters)):
        await cursor.reaches(7)
    assert held.ids == list(range(1, 8))
    assert largest < 1000, "the session that made it large is not in the tombstone either"
    [letter] = await letters.list()
    assert (letter.event_id, letter.data) == (6, (await store.list())[5].data)
    assert letter.reason == f"too_large: {letter.size} bytes, the hub takes 1000"
    assert await letters.limit() == 1000


async def test_what_stands_in_its_place_is_the_same_when_the_hub_has_lost_its_memory(tmp_path: Path) -> None:
    """The poison is not tried again, not even by another process: its place is taken, and that is on the disk."""
    store, poison = await a_store(6), {4}
    before = Refusing(poison, "invalid_event")
    for hub_side in (before, after := Refusing(poison, 1007)):
        cursor, letters = Memory(), await letters_in(tmp_path / "letters")
        async with scripted_hub(hub_side.serve) as hub, running(a_forwarder(hub, store, cursor, letters=letters)):
            await cursor.reaches(6)
        await letters.close()
    assert after.held.events == before.held.events
    assert (before.refusals, after.refusals) == ({4: 3}, {})


async def test_an_event_is_one_dead_letter_over_all_epochs() -> None:
    store, letters = await a_store(6), DeadLetters.in_memory()
    for _ in range(2):
        cursor, hub_side = Memory(), Refusing({4}, "invalid_event")
        async with scripted_hub(hub_side.serve) as hub, running(a_forwarder(hub, store, cursor, letters=letters)):
            await cursor.reaches(6)
        assert [(letter.epoch, letter.event_id) for letter in await letters.list()] == [(store.epoch, 4)]
        await store.renew_epoch()


async def test_a_hub_that_refuses_even_the_tombstone_stops_the_forwarder_in_front_of_it() -> None:
    store, cursor, held = await a_store(5), Memory(), Holding()

    async def hub_side(peer: Peer) -> None:
        await peer.joined(resume_from=held.last)
        while True:
            _, ref, _, name, payload = await peer.next()
            if 3 in ids(payload):
                good = [event for event in payload.get("events", []) if int(event["event_id"]) < 3]
                if good:
                    held.take("session_events", {"events": good, "prev_id": payload["prev_id"]})
                await peer.reply(ref, {"reason": "invalid_event", "id": "3", "acked_id": held.last}, "error")
            else:
                await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)) as run:
        with pytest.raises(EventRefused, match="refuses even a tombstone for event 3"):
            await run
    assert (held.ids, cursor.at) == ([1, 2], 2)


async def test_a_hub_that_names_an_event_it_was_not_sent_kills_nothing() -> None:
    store, cursor, letters, held = await a_store(5), Memory(), DeadLetters.in_memory(), Holding()

    async def confused(peer: Peer) -> None:
        await peer.joined()
        _, ref, *_ = await peer.next()
        await peer.reply(ref, {"reason": "invalid_event", "id": "77", "acked_id": None}, "error")

    scripts = [confused] * (STRIKES + 1)
    async with scripted_hub(*scripts, held.serve) as hub, running(a_forwarder(hub, store, cursor, letters=letters)):
        await cursor.reaches(5)
    assert held.ids == [1, 2, 3, 4, 5]
    assert await letters.count() == 0


async def test_a_letter_that_can_not_be_kept_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The disk is full when the event is to be set aside: nothing is sent in its place until there is room."""
    store, cursor, hub_side = await a_store(5, size=9_000), Memory(), Refusing({3}, "invalid_event")
    letters = await letters_in(tmp_path / "letters")
    letters._connection.execute("PRAGMA max_page_count = 1")  # what it has already: nothing more fits
    async with scripted_hub(hub_side.serve) as hub, running(a_forwarder(hub, store, cursor, letters=letters)):
        await cursor.reaches(2)
        await asyncio.wait_for(_said(caplog, "can't be set aside"), 20)
        assert hub_side.held.ids == [1, 2]
        letters._connection.execute("PRAGMA max_page_count = 1000000")
        await cursor.reaches(5)
    assert hub_side.held.ids == [1, 2, 3, 4, 5]
    assert await letters.count() == 1
    await letters.close()


async def _said(caplog: pytest.LogCaptureFixture, text: str) -> None:
    while text not in caplog.text:
        await asyncio.sleep(0.01)


# The rule by itself.


def batch(last_id: int, events: int = 1) -> Batch:
    return Batch(last_id, events, 10, "")


def test_only_the_event_named_or_alone_is_condemned_and_only_the_third_time() -> None:
    suspicion = Suspicion()
    for _ in range(10):
        assert suspicion.broke([batch(9, events=5)], "r") is None
        assert suspicion.broke([batch(5), batch(6)], "r") is None
    assert suspicion.alone
    assert [suspicion.broke([batch(6)], "r"), suspicion.refused(6, "r")] == [None, None]
    assert suspicion.refused(6, "why") == (6, "why, 3 times")
    assert suspicion.refused(7, "why") is None, "each event has its own count"


def test_an_acknowledgement_clears_those_it_covers() -> None:
    suspicion = Suspicion()
    suspicion.broke([batch(5, events=3), batch(9, events=2)], "r")
    suspicion.acknowledged(8)
    assert suspicion.alone
    suspicion.acknowledged(9)
    assert not suspicion.alone
