"""The bound on memory that docs/operations.md states, with everything against it at once, at the hub and at home."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from tests.faults.apps import python_app
from tests.faults.scene import Scene, all_events
from tests.faults.test_memory import Peak, metric, never_reads, until_metric
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import until

MIB = 1 << 20

PROCESS = 64 * MIB
SOCKET = 12_000
HUB = {
    "history_bytes": 4 * MIB,
    "queue_handover_bytes": 32 * 1024,
    "queue_merge_bytes": 64 * 1024,
    "queue_hold_bytes": 256 * 1024,
    "queue_cut_bytes": 2 * MIB,
    "queue_total_bytes": 12 * MIB,
}


def hub_bound(sockets: int, slow: int) -> int:
    """What one home's hub may occupy, by the formula of the docs."""
    queues = min(HUB["queue_total_bytes"], slow * HUB["queue_cut_bytes"])
    return PROCESS + HUB["history_bytes"] + queues + slow * 3 * HUB["queue_handover_bytes"] + sockets * SOCKET


HOME_BOUND = PROCESS + 2 * 8 * MIB + 8 * MIB + 2 * MIB


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
        for record in reading:
            await stack.enter_async_context(python_app(scene.url, scene.device(), scene.server_id, record))
        await until(lambda: all(record.last_id == 1 for record in reading), "everybody is live")
        peaks = Peak(hub), Peak(home)
        watching = [asyncio.create_task(peak.watch()) for peak in peaks]
        cut = 0
        for wave in range(waves):
            lines = []
            for number in range(slow):
                wishes = {"partials": ("all", "merged")[number % 2]}
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


def _event(wave: int, number: int) -> dict[str, object]:
    """Three of four are parts of two texts that alternate, so that merging helps little."""
    text = json.dumps([wave, number]) + "y" * 1_500
    if number % 4 == 0:
        return {"type": "note", "session_id": "s", "text": text}
    request = f"r{number % 2}"
    return {"type": "partial", "session_id": "s", "request_id": request, "message": {"content": text}}
