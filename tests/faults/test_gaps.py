"""What the hub no longer has: the home sends it, or every app is told, and what it is told is true."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bridge_client.store.memory import MemoryStore
from bridge_server.app import Hub
from tests.faults.apps import KINDS, app_of_kind
from tests.faults.near import forwarding
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import until
from tests.support.running_hub import running_hub
from tests.support.stored import all_events

HELD = 1_000
"""Events that the small hub of these tests holds."""


async def publish(store: MemoryStore, count: int, size: int = 100) -> None:
    text = "x" * size
    await asyncio.gather(*(store.publish({"type": "note", "session_id": "s", "text": text}) for _ in range(count)))


def held(hub: Hub, server_id: str) -> int | None:
    return hub.homes.get(server_id).head


@pytest.mark.parametrize("past", [True, False], ids=["home sends its past", "older home"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cursor_below_what_is_held_gets_all_of_it_or_a_true_gap(tmp_path: Path, kind: str, past: bool) -> None:
    store = MemoryStore()
    async with running_hub(tmp_path, history_events=HELD) as hub, AsyncExitStack() as stack:
        server, token = hub.credentials.add_server("Home")
        await publish(store, 2 * HELD)
        await stack.enter_async_context(
            forwarding(store, hub.url, token, server.server_id, tmp_path / "cursor", past=past)
        )
        await until(lambda: held(hub, server.server_id) == 2 * HELD, "the hub has seen it all")
        records = [Record(f"{kind} behind {since}", since) for since in (0, HELD - 1, HELD, HELD + 1, 2 * HELD)]
        for record in records:
            _, device = hub.credentials.add_device(server.server_id, "App")
            await stack.enter_async_context(app_of_kind(kind, hub.url, device, server.server_id, record))
        await until(lambda: len(hub.homes.get(server.server_id).watchers) == len(records), "every app has joined")
        await until(lambda: all(record.entries for record in records[:-1]), "every verdict is out")
        await publish(store, 3)
        await until(lambda: all(record.last_id == 2 * HELD + 3 for record in records), "every app is live")
    nothing_lost(await all_events(store), *records)
    told = [] if past else ["expired"]
    assert [[gap.reason for gap in record.gaps] for record in records] == [told, told, [], [], []]
    if kind == "python" and not past:
        assert [gap.resumed_after for record in records for gap in record.gaps] == [HELD, HELD]


@pytest.mark.parametrize("past", [True, False], ids=["home sends its past", "older home"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_replay_that_eviction_overtakes_goes_on_at_home_or_is_told(
    tmp_path: Path, kind: str, past: bool
) -> None:
    """The app stalls in its replay while all that it still lacks is evicted.

    Where the home does not send its past, one that ignores `replay_complete` must hear of it too.
    """
    store = MemoryStore()
    record = Record(kind, 0)
    stall = asyncio.Event()

    async def pace() -> None:
        if len(record.entries) >= 20:
            await stall.wait()

    async with running_hub(tmp_path, history_events=HELD, history_bytes=64 << 20) as hub, AsyncExitStack() as stack:
        server, token = hub.credentials.add_server("Home")
        await publish(store, HELD, 8_000)
        await stack.enter_async_context(
            forwarding(store, hub.url, token, server.server_id, tmp_path / "cursor", past=past)
        )
        await until(lambda: held(hub, server.server_id) == HELD, "the hub holds the past")
        _, device = hub.credentials.add_device(server.server_id, "App")
        await stack.enter_async_context(app_of_kind(kind, hub.url, device, server.server_id, record, pace=pace))
        await until(lambda: len(record.entries) >= 20, "the replay has begun")
        await publish(store, 2 * HELD, 1_000)
        await until(lambda: held(hub, server.server_id) == 3 * HELD, "what the app lacks is evicted")
        stall.set()
        if not past:
            await until(lambda: record.gaps, "the app is told")
        await publish(store, 3)
        await until(lambda: record.last_id == 3 * HELD + 3, "the app is live")
    nothing_lost(await all_events(store), record)
    assert {gap.reason for gap in record.gaps} == (set() if past else {"expired"})
