"""The forwarder when a store, a cursor or an epoch is not the one it was."""

import asyncio
from pathlib import Path

import pytest

from bridge_client.cursor import CursorFile, SavedCursor
from bridge_client.forwarder import Limits
from bridge_client.sources.store import StoreSource
from tests.bridge_client.forwarding import (
    HUB_URL,
    SERVER_ID,
    Memory,
    a_forwarder,
    a_store,
    cursor_at,
    running,
)
from tests.bridge_client.scripted_hub import (
    Holding,
    Peer,
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
