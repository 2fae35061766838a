"""The bound on memory that docs/operations.md states, with everything against it at once, at the hub and at home.

Apps that never read, on sockets and by long polling, with presence, with merging; an app that asks its home for long
pages all the time; at last one that reads from the start, which the hub no longer has.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from bridge_client.app_client import AppClient
from tests.faults.apps import python_app
from tests.faults.scene import Scene
from tests.faults.test_memory import Peak, metric, never_reads, until_metric
from tests.support.invariant import Record, nothing_lost
from tests.support.longpoll_client import longpoll_client
from tests.support.processes import until
from tests.support.stored import all_events

MIB = 1 << 20

PROCESS = 64 * MIB
PAGES = 32 * MIB
ANSWER = 1_000 * 1_700
SOCKET = 12_000
POLLING = 3
HUB = {
    "history_bytes": MIB,
    "queue_handover_bytes": 32 * 1024,
    "queue_merge_bytes": 64 * 1024,
    "queue_hold_bytes": 256 * 1024,
    "queue_cut_bytes": 2 * MIB,
    "queue_total_bytes": 12 * MIB,
}


def hub_bound(sockets: int, slow: int) -> int:
    """What one home's hub may occupy, by the formula of the docs."""
    queues = min(HUB["queue_total_bytes"], slow * HUB["queue_cut_bytes"])
    return PROCESS + PAGES + HUB["history_bytes"] + queues + slow * 3 * HUB["queue_handover_bytes"] + sockets * SOCKET


HOME_BOUND = PROCESS + 2 * 8 * MIB + 8 * MIB + 8 * MIB + 2 * MIB + 4 * ANSWER


@pytest.mark.parametrize(
    ("slow", "waves"),
    [
        pytest.param(12, 1, id="slice"),
        pytest.param(60, 15, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
    ],
)
async def test_hub_and_home_stay_under_their_bound(scene: Scene, slow: int, waves: int) -> None:
    """Waves of apps that never read, among them some that want merged parts, each until all of them are cut."""
    reading = [Record(f"reading {number}", 0) for number in range(3)]
    store = await scene.store()
    tokens = [scene.device() for _ in range(6)]
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(scene.hub(**HUB))
        home = await stack.enter_async_context(scene.home())
        await store.publish({"type": "note"})
        apps = [
            await stack.enter_async_context(python_app(scene.url, scene.device(), scene.server_id, record))
            for record in reading
        ]
        await until(lambda: all(record.last_id == 1 for record in reading), "everybody is live")
        peaks = Peak(hub), Peak(home)
        watching = [asyncio.create_task(peak.watch()) for peak in peaks]
        asking = asyncio.create_task(_ask_for_pages(apps[0]))
        cut = 0
        for wave in range(waves):
            lines = []
            for number in range(POLLING):
                await stack.enter_async_context(_never_polls(scene.url, scene.server_id, tokens[number]))
            for number in range(slow - POLLING):
                wishes = {"partials": ("all", "merged")[number % 2], "presence": number % 3 == 0}
                lines.append(never_reads(hub.port, scene.server_id, tokens[number % len(tokens)], wishes))
            await until_metric(scene.url, 'bridge_connections{peer="device"}', slow + len(reading))
            while await metric(scene.url, "bridge_cuts_total") < cut + slow:
                await asyncio.gather(*(store.publish(_event(wave, number)) for number in range(400)))
                last = await store.head()
                await until(lambda last=last: all(one.last_id == last for one in reading), "readers have it all", 60)
            cut += slow
            for line in lines:
                line.close()
            await until_metric(scene.url, 'bridge_connections{peer="device"}', len(reading))
        assert not asking.done(), f"its answers were pages: {asking}"
        asking.cancel()
        late = Record("late", 0)
        reading.append(late)
        await stack.enter_async_context(python_app(scene.url, scene.device(), scene.server_id, late))
        await until(lambda: late.last_id == last, "the late one has it all", 60)
        assert await metric(scene.url, "bridge_backfill_pages_total") > 0, "from the home's store"
        for task in watching:
            task.cancel()
        reasons = {
            reason: await metric(scene.url, f'bridge_cuts_total{{reason="{reason}"}}') for reason in ("queue", "total")
        }
    nothing_lost(await all_events(store), *reading)
    await store.close()
    assert reasons["total"] > 0, "the budget of all was reached"
    assert peaks[0].bytes <= hub_bound(slow + len(reading), slow), f"the hub: {peaks[0].bytes / MIB:.0f} MiB"
    assert peaks[1].bytes <= HOME_BOUND, f"the home: {peaks[1].bytes / MIB:.0f} MiB"


async def _ask_for_pages(app: AppClient) -> None:
    """A thousand events of the home's at a time, one request after the other."""
    since = 0
    while True:
        answer = await app.request("GET", f"/events?since_id={since}&limit=1000&compact=false")
        assert answer.status == 200, answer
        events = answer.json()["events"]
        since = int(events[-1]["event_id"]) if len(events) == 1_000 else 0


@asynccontextmanager
async def _never_polls(url: str, server_id: str, token: str) -> AsyncIterator[None]:
    """A long-poll session that has joined, and is not polled again."""
    async with longpoll_client(url, token) as client:
        assert await client.post(["1", "1", f"app:{server_id}", "phx_join", {}]) == 200
        yield


def _event(wave: int, number: int) -> dict[str, object]:
    """Three of four are parts of two texts that alternate, so that merging helps little."""
    text = json.dumps([wave, number]) + "y" * 1_500
    if number % 4 == 0:
        return {"type": "note", "session_id": "s", "text": text}
    request = f"r{number % 2}"
    return {"type": "partial", "session_id": "s", "request_id": request, "message": {"content": text}}
