"""The forwarder dies without a word, while another process goes on writing into the store."""

import asyncio
import json
import random
from contextlib import AsyncExitStack
from itertools import count

from tests.faults.apps import phoenix_app, python_app
from tests.faults.scene import Scene
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import IngestProgram, cursor_on_disk, until
from tests.support.stored import all_events

DIES_BEFORE_SAVING = """
import os, signal, bridge_client.cursor as cursor
write = cursor._write_whole
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
cursor._write_whole = lambda path, data: die() if b'"%d"' in data else write(path, data)
"""


async def write_lines(ingest: IngestProgram, enough: asyncio.Event, per_second: float = 100.0) -> None:
    """Feed the other program lines at a steady pace; it publishes each as it comes."""
    for number in count():
        if enough.is_set():
            break
        await ingest.feed(json.dumps({"type": "note", "n": number, "text": "zażółć \U0001f41d"}).encode() + b"\n")
        await asyncio.sleep(1 / per_second)
    ingest.feed_end()
    assert await ingest.ended() == 0, ingest.text


async def test_no_event_is_lost_or_doubled_when_the_home_is_killed(scene: Scene, effort: int) -> None:
    """Killed at random moments, and each time started again, with the cursor it had saved by then."""
    chance = random.Random(2)
    records = [Record("phoenix", 0), Record("python", 0)]
    store = await scene.store()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(scene.hub())
        home = await stack.enter_async_context(scene.home())
        await stack.enter_async_context(phoenix_app(scene.url, scene.device(), scene.server_id, records[0]))
        await stack.enter_async_context(python_app(scene.url, scene.device(), scene.server_id, records[1]))
        ingest = await stack.enter_async_context(scene.ingest())
        enough = asyncio.Event()
        writing = asyncio.create_task(write_lines(ingest, enough))
        for _ in range(4 * effort):
            seen = records[0].last_id or 0
            await until(lambda seen=seen: (records[0].last_id or 0) > seen + 5, "events get through")
            await asyncio.sleep(chance.uniform(0, 0.1))  # the moment is to be random
            await home.kill()
            await home.start()
        enough.set()
        await writing
        last = await store.head()
        await until(lambda: all(record.last_id == last for record in records), "every app has the last event")
        await until(lambda: cursor_on_disk(scene.home_folder) == last, "the cursor reaches the last event")
    nothing_lost(await all_events(store), *records)
    await store.close()
    assert [gap for record in records for gap in record.gaps] == [], "the hub held everything all the time"


async def test_the_home_killed_between_acknowledgement_and_saved_cursor(scene: Scene) -> None:
    """The cursor on disk is then older than what the hub holds: the hub says where to go on, and nothing is doubled."""
    record = Record("python", 0)
    store = await scene.store()
    async with scene.hub() as hub, python_app(scene.url, scene.device(), scene.server_id, record):
        for round_ in range(1, 4):
            await store.publish({"type": "note", "round": round_})
            async with scene.home(code=DIES_BEFORE_SAVING % round_) as home:
                assert await home.ended() == -9, home.text
            assert cursor_on_disk(scene.home_folder) in (None, round_ - 1), "killed before it could save"
        await until(lambda: record.last_id == 3, "what was acknowledged is there")
        async with scene.home():
            await until(lambda: cursor_on_disk(scene.home_folder) == 3, "all is acknowledged")
            await hub.kill()  # what the hub held is gone: the home sends its past again, behind the apps' back
            await hub.start()
            await store.publish({"type": "note", "round": "last"})
            await until(lambda: record.last_id == 4, "the last one is there")
    nothing_lost(await all_events(store), record)
    await store.close()
    assert record.gaps == []
