"""The forwarder when a store, a cursor or an epoch is not the one it was."""

import asyncio
import logging
from hashlib import sha256
from pathlib import Path

import pytest

from bridge_client.cursor import CursorFile, SavedCursor
from bridge_client.forwarder import Limits
from bridge_client.sources import Mark, SourceEvent
from bridge_client.sources.store import StoreSource
from tests.bridge_client.forwarding import (
    HUB_URL,
    SERVER_ID,
    Memory,
    a_forwarder,
    a_store,
    cursor_at,
    ids,
    running,
)
from tests.bridge_client.scripted_hub import (
    Holding,
    Peer,
    Script,
    scripted_hub,
)


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


class TurnsWhenAsked(StoreSource):
    """A source that notices another life of what it reads just when its head is asked for."""

    async def head(self) -> int | None:
        if not self.turned:
            self.turned = True
            await self.renew_epoch()
        return await super().head()

    turned = False


async def test_an_epoch_that_begins_while_joining_is_sent_from_its_start() -> None:
    store, held, epochs = await a_store(12), Holding(), []
    cursor = cursor_at(store, 10)

    async def hub_side(peer: Peer) -> None:
        epochs.append((await peer.joined())["epoch"])
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    async with (
        scripted_hub(hub_side) as hub,
        running(a_forwarder(hub, TurnsWhenAsked(store), cursor, Limits(refill_events=1))),
    ):
        await held.reaches(12)
        await cursor.is_at(store.epoch, 12)
    assert epochs == [store.epoch]
    assert held.ids == list(range(1, 13)), "the cursor was the other epoch's"


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


async def test_a_hub_that_lacks_what_was_removed_here_is_sent_a_new_epoch(caplog: pytest.LogCaptureFixture) -> None:
    """It lost its newest events (its memory came from a backup), and retention has gone beyond its end since."""

    class Pruned(StoreSource):
        async def page(self, after: int, limit: int = 500) -> list[SourceEvent]:
            return await super().page(max(after, 8), limit)

    caplog.set_level(logging.INFO, "bridge_client")
    store, held, epochs = await a_store(12), Holding(), []
    old, cursor = store.epoch, cursor_at(store, 12)

    async def hub_side(peer: Peer) -> None:
        epochs.append((await peer.joined(resume_from="5"))["epoch"])
        epochs.append((await peer.joined(resume_from=None))["epoch"])
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, Pruned(store), cursor)):
        await held.reaches(12)
        await cursor.is_at(store.epoch, 12)
    assert epochs == [old, store.epoch]
    assert held.ids == [9, 10, 11, 12]
    assert "no longer has events 6 to 8, which the hub lacks" in caplog.text
    assert "the hub holds nothing of this store: sending from event 9" in caplog.messages, "the first there is"


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


async def test_a_store_of_an_epoch_that_was_left_does_not_come_back_in_it(caplog: pytest.LogCaptureFixture) -> None:
    """A backup of an earlier epoch: apps may have read beyond its head, so its ids must not be given anew in it."""
    store, epochs = await a_store(3), list[str]()
    old = store.epoch
    cursor = Memory(SavedCursor("a later epoch", 9, None, HUB_URL, SERVER_ID))
    held = Holding()

    async def hub_side(peer: Peer) -> None:
        epochs.append((await peer.joined())["epoch"])
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor)):
        await held.reaches(3)
    assert epochs == [store.epoch] != [old]
    assert caplog.text.count("it is not in the epoch that was forwarded last") == 1


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


async def test_what_was_acknowledged_in_one_epoch_is_never_saved_as_a_place_in_the_next() -> None:
    """The store turns while events are under way: their acknowledgement must not let the next start skip anything."""
    store, cursor, held = await a_store(3), Memory(), Holding()
    old = store.epoch

    async def turns(peer: Peer) -> None:
        await peer.joined()
        _, ref, *_ = await peer.next()
        await store.renew_epoch()
        await peer.reply(ref, {"acked_id": "3"})

    async with scripted_hub(turns, held.serve) as hub, running(a_forwarder(hub, store, cursor)):
        await held.reaches(3)
        await cursor.is_at(store.epoch, 3)
    assert held.ids == [1, 2, 3]
    assert [saved.epoch for saved in cursor.saved if saved.epoch != store.epoch] == [old]


@pytest.mark.parametrize("digest", ["of another event", None])
async def test_an_event_that_is_another_one_now_shows_a_restored_store(digest: str | None) -> None:
    """Though the cursor, the head and the epoch fit. A cursor of an older version says no digest, and is believed."""
    store, held, epochs = await a_store(12), Holding(), []
    old = store.epoch
    mark = None if digest is None else Mark(9, digest)
    cursor = Memory(SavedCursor(old, 10, "h0", HUB_URL, SERVER_ID, mark))

    async def hub_side(peer: Peer) -> None:
        epochs.append((await peer.joined())["epoch"])
        while True:
            _, ref, _, name, payload = await peer.next()
            await peer.reply(ref, *held.take(name, payload))

    async with scripted_hub(hub_side) as hub, running(a_forwarder(hub, store, cursor, Limits(refill_events=1))):
        await held.reaches(12)
        await cursor.is_at(store.epoch, 12)
    assert held.ids == (list(range(1, 13)) if digest else [11, 12])
    assert (epochs == [old]) == (digest is None)


async def test_the_hub_says_what_its_last_event_holds() -> None:
    store, held = await a_store(12), Holding()
    events = await store.list()
    seen: list[tuple[str, list[int]]] = []

    def hub_side(digest: str) -> Script:
        async def script(peer: Peer) -> None:
            epoch = (await peer.joined(resume_from="10", resume_digest=digest))["epoch"]
            if digest != right:
                epoch = (await peer.joined())["epoch"]
            _, _, _, _, payload = await peer.next()
            seen.append((epoch, ids(payload)))
            await peer.close(1012)

        return script

    right, old = sha256(events[9].data).hexdigest(), store.epoch
    async with (
        scripted_hub(hub_side(right), hub_side("0" * 64), held.serve) as hub,
        running(a_forwarder(hub, store, Memory())),
    ):
        await held.reaches(12)
    assert seen == [(old, [11, 12]), (store.epoch, list(range(1, 13)))]
    assert old != store.epoch
