"""The link is cut at each frame in turn, on the home's side and on the app's side, until a run passes uncut."""

from pathlib import Path

import pytest

from bridge_client.store.memory import MemoryStore
from bridge_server.app import Hub
from tests.faults.apps import KINDS, app_of_kind, python_app
from tests.faults.near import forwarding
from tests.faults.wire import Loss, Wire
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import until
from tests.support.stored import all_events

EVENTS = 4
MOST_FRAMES = 60

both_losses = pytest.mark.parametrize("loss", ["lost", "delivered"])


async def published(store: MemoryStore, number: int) -> None:
    await store.publish({"type": "note", "session_id": "s", "number": number})


@both_losses
async def test_the_home_cut_at_each_frame_of_join_push_and_acknowledgement(
    hub: Hub, tmp_path: Path, loss: Loss
) -> None:
    frame = 1
    while await cut_at_home(hub, tmp_path, Wire(hub.port, cut_at=frame, loss=loss), f"home, frame {frame}"):
        frame += 1
        assert frame < MOST_FRAMES, "the exchange never passes uncut"
    assert frame > 2 * EVENTS, "each push and each acknowledgement was cut once"


async def cut_at_home(hub: Hub, folder: Path, wire: Wire, name: str) -> int:
    """A home of its own sends a few events, one at a time, over `wire`; returns how often that was cut."""
    server, token = hub.credentials.add_server("Home")
    _, device = hub.credentials.add_device(server.server_id, "App")
    store, record = MemoryStore(), Record(name, 0)
    await published(store, 0)
    async with (
        wire,
        python_app(hub.url, device, server.server_id, record),
        forwarding(store, wire.url, token, server.server_id, folder / f"{server.server_id}.cursor"),
    ):
        for number in range(1, EVENTS + 1):
            await until(lambda number=number: record.last_id == number, f"event {number} arrives")
            await published(store, number)
        await until(lambda: record.last_id == EVENTS + 1, "all is there")
    nothing_lost(await all_events(store), record)
    assert record.gaps == []
    return wire.cuts


@both_losses
@pytest.mark.parametrize("kind", KINDS)
async def test_the_app_cut_at_each_frame_of_join_replay_and_live(
    hub: Hub, tmp_path: Path, loss: Loss, kind: str
) -> None:
    server, token = hub.credentials.add_server("Home")
    store = MemoryStore()
    for number in range(EVENTS):
        await published(store, number)
    async with forwarding(store, hub.url, token, server.server_id, tmp_path / "cursor"):
        await until(lambda: hub.homes.get(server.server_id).head == EVENTS, "the hub holds the past")
        frame = 1
        while await cut_at_app(hub, server.server_id, store, Wire(hub.port, cut_at=frame, loss=loss), kind):
            frame += 1
            assert frame < MOST_FRAMES, "the exchange never passes uncut"
    assert frame > 2 * EVENTS, "the reply, each replayed and each live event was cut once"


async def cut_at_app(hub: Hub, server_id: str, store: MemoryStore, wire: Wire, kind: str) -> int:
    """An app of its own gets the last few events, and then a few more, over `wire`; how often that was cut."""
    _, device = hub.credentials.add_device(server_id, "App")
    head = await store.head() or 0
    record = Record(f"{kind} behind {head - EVENTS}", head - EVENTS)
    async with wire, app_of_kind(kind, wire.url, device, server_id, record):
        for number in range(head + 1, head + EVENTS + 1):
            await until(lambda number=number: record.last_id == number - 1, f"event {number - 1} arrives")
            await published(store, number)
        await until(lambda: record.last_id == head + EVENTS, "all is there")
    nothing_lost(await all_events(store), record)
    assert record.gaps == []
    return wire.cuts
