"""Real processes behind a network that cuts, stalls and trickles at random, on the home's side and on the apps'."""

import asyncio
from contextlib import AsyncExitStack

from tests.faults.apps import KINDS, app_of_kind
from tests.faults.scene import Scene, publish_steadily
from tests.faults.weather import Weather
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import PATIENCE, until
from tests.support.stored import all_events


async def test_nothing_is_lost_in_bad_weather(scene: Scene, effort: int) -> None:
    """It stays bad until each way has been cut several times; `FAULTS_EFFORT` makes that more."""
    records = [Record(kind, 0) for kind in KINDS]
    store = await scene.store()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(scene.hub())
        home_side = await stack.enter_async_context(Weather(scene.port, 1))
        app_side = await stack.enter_async_context(Weather(scene.port, 2))
        scene.set_hub_url(home_side.url)
        await stack.enter_async_context(scene.home())
        for kind, record in zip(KINDS, records, strict=True):
            app = app_of_kind(kind, app_side.url, scene.device(), scene.server_id, record)
            await stack.enter_async_context(app)
        enough = asyncio.Event()
        publishing = asyncio.create_task(publish_steadily(store, 60, enough))
        most = 2 * effort
        await until(
            lambda: (
                min(home_side.cuts, app_side.cuts) >= most
                and min(side.stalls + side.trickles for side in (home_side, app_side)) >= most
            ),
            "each way was cut, stalled and trickled",
            PATIENCE * effort,
        )
        enough.set()
        await publishing
        for side in (home_side, app_side):
            side.clear()
        last = await store.head()
        await until(lambda: all(record.last_id == last for record in records), "every app has the last event", PATIENCE)
    nothing_lost(await all_events(store), *records)
    await store.close()
    assert [gap for record in records for gap in record.gaps] == [], "the hub held everything all the time"
