"""The hub dies without a word and comes back empty, several times, while events flow."""

import asyncio
import random

from tests.faults.apps import phoenix_app, python_app
from tests.faults.scene import Scene, publish_steadily
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import until
from tests.support.stored import all_events

KILLS = 3
PER_SECOND = 50


async def test_no_app_loses_an_event_when_the_hub_is_killed(scene: Scene, effort: int) -> None:
    chance = random.Random(1)
    phoenix, old_phoenix = Record("phoenix", 0), Record("phoenix 1.0.0", 0)
    resuming, starting = Record("python, from the start", 0), Record("python, from now on")
    records = [phoenix, old_phoenix, resuming, starting]
    away = Record("python, away all the time", 0)
    away_token = scene.device()
    store = await scene.store()
    kills = KILLS * effort
    async with scene.hub() as hub, scene.home():
        async with python_app(scene.url, away_token, scene.server_id, away):
            await store.publish({"type": "note", "text": "the first"})
            await until(lambda: away.entries, "it has the first event, and goes")
        async with (
            phoenix_app(scene.url, scene.device(), scene.server_id, phoenix),
            phoenix_app(scene.url, scene.device(), scene.server_id, old_phoenix, vsn="1.0.0"),
            python_app(scene.url, scene.device(), scene.server_id, resuming),
            python_app(scene.url, scene.device(), scene.server_id, starting),
        ):
            enough = asyncio.Event()
            publishing = asyncio.create_task(publish_steadily(store, PER_SECOND, enough))
            await until(lambda: all(len(record.entries) > 5 for record in records), "every app receives")
            for _ in range(kills):
                await hub.kill()
                await asyncio.sleep(chance.uniform(0, 0.3))  # how long it is away, not a wait for anything
                await hub.start()
                seen = [len(record.entries) for record in records]
                await until(
                    lambda seen=seen: all(len(r.entries) > n + 5 for r, n in zip(records, seen, strict=True)),
                    "every app receives again",
                )
            # What this one lacks, the home had acknowledged long ago, and the hub has forgotten.
            async with python_app(scene.url, away_token, scene.server_id, away):
                await until(lambda: len(away.entries) > len(phoenix.entries) - 5, "who was away has caught up")
                enough.set()
                await publishing
                last = await store.head()
                records.append(away)
                await until(lambda: all(record.last_id == last for record in records), "every app has the last event")
        events = await all_events(store)
    await store.close()
    nothing_lost(events, *records)
    assert [gap for record in records for gap in record.gaps] == [], (
        "what the home sent again held everything the apps lacked"
    )
