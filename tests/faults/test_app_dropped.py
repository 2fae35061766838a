"""Apps are dropped at random moments, during replay and live: by a reset, by silence, by a goodbye."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bridge_client.store.memory import MemoryStore
from bridge_server.app import Hub
from tests.faults.apps import KINDS, app_of_kind
from tests.faults.near import forwarding
from tests.faults.scene import publish_steadily
from tests.faults.wire import Wire
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import until
from tests.support.stored import all_events

PAST = 4_000
DROPS = 6
GOODBYES = (1000, 1001, 1006, 1011, 1012, 1013, 4000)


def drop(wire: Wire, chance: random.Random) -> None:
    match chance.randrange(3):
        case 0:
            wire.reset()
        case 1:
            wire.freeze()
        case 2:
            wire.say_goodbye(chance.choice(GOODBYES))


async def drop_often(wire: Wire, record: Record, chance: random.Random, drops: int) -> None:
    """Let the app receive a little, then drop it, again and again: most drops fall into a replay."""
    for _ in range(drops):
        seen = len(record.entries)
        await until(lambda seen=seen: len(record.entries) > seen, f"{record.name} receives")
        await asyncio.sleep(chance.choice([0, 0.002, 0.01, 0.05]))  # the moment is to be random
        drop(wire, chance)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_app_dropped_at_random_moments_has_every_event(
    hub: Hub, tmp_path: Path, kind: str, effort: int
) -> None:
    chance = random.Random(kind)
    server, token = hub.credentials.add_server("Home")
    store = MemoryStore()
    await asyncio.gather(*(store.publish({"type": "note", "n": n, "text": "x" * (n % 900)}) for n in range(PAST)))
    records = [Record(f"{kind} {number}", since) for number, since in enumerate([0, PAST // 2, None])]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(forwarding(store, hub.url, token, server.server_id, tmp_path / "cursor"))
        await until(lambda: hub.homes.get(server.server_id).head == PAST, "the hub holds the past")
        dropping = []
        for record in records:
            _, device = hub.credentials.add_device(server.server_id, "App")
            wire = await stack.enter_async_context(Wire(hub.port))
            await stack.enter_async_context(app_of_kind(kind, wire.url, device, server.server_id, record))
            dropping.append(drop_often(wire, record, chance, DROPS * effort))
        enough = asyncio.Event()
        live = asyncio.create_task(publish_steadily(store, 200, enough))
        await asyncio.gather(*dropping)
        enough.set()
        await live
        last = await store.head()
        await until(lambda: all(record.last_id == last for record in records), "every app has the last event")
    nothing_lost(await all_events(store), *records)
    assert [gap for record in records for gap in record.gaps] == [], "the hub held everything all the time"
