"""The disk is full: the store refuses what it can't keep, the hub goes on relaying; both recover by themselves.

No file may grow then (RLIMIT_FSIZE), the logs of these programs included.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from bridge_client.store import StoreError
from tests.faults.apps import python_app
from tests.faults.scene import Scene
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import cursor_on_disk, until
from tests.support.stored import all_events

IGNORE = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
"""A write beyond the limit then fails, as on a full disk (EFBIG), and does not end the process."""


def limit_files(pid: int, size: int) -> None:
    """No file of a process may grow beyond `size` from now on."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """The same for this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_full_disk_under_the_store_loses_nothing_that_was_accepted(scene: Scene) -> None:
    """What `publish` refused is nowhere; what it took reaches the app, before and after."""
    record = Record("python", 0)
    store = await scene.store()
    text = "x" * 2_000
    accepted: list[int] = []
    async with (
        scene.hub(),
        scene.home(),
        python_app(scene.url, scene.device(), scene.server_id, record),
    ):
        for number in range(20):
            accepted.append((await store.publish({"type": "note", "n": number, "text": text})).event_id)
        grown = max(path.stat().st_size for path in scene.home_folder.glob("home.db*"))
        refused = 0
        with small_files(grown + 30_000):
            for number in range(100):
                try:
                    accepted.append((await store.publish({"type": "note", "n": number, "text": text})).event_id)
                except StoreError:
                    refused += 1
        assert refused, "the disk was never full"
        for number in range(5):
            accepted.append((await store.publish({"type": "note", "n": number, "text": "room again"})).event_id)
        await until(lambda: record.last_id == accepted[-1], "what was accepted arrives")
    events = await all_events(store)
    await store.close()
    assert [event.event_id for event in events] == accepted
    nothing_lost(events, record)
    assert record.gaps == []


async def test_a_full_disk_under_the_cursor_stops_no_event(scene: Scene) -> None:
    """The forwarder goes on, its cursor on disk stays behind; with room again it catches up."""
    record = Record("python", 0)
    store = await scene.store()
    async with (
        scene.hub(),
        scene.home(code=IGNORE) as home,
        python_app(scene.url, scene.device(), scene.server_id, record),
    ):
        await store.publish({"type": "note", "n": 1})
        await until(lambda: cursor_on_disk(scene.home_folder) == 1, "the cursor is saved")
        limit_files(home.pid, 10)
        for number in range(2, 6):
            await store.publish({"type": "note", "n": number})
        await until(lambda: record.last_id == 5, "events get through all the same")
        assert cursor_on_disk(scene.home_folder) == 1
        limit_files(home.pid, resource.RLIM_INFINITY)
        await until(lambda: cursor_on_disk(scene.home_folder) == 5, "the cursor is saved")
    nothing_lost(await all_events(store), record)
    await store.close()


async def test_a_full_disk_under_the_hub_stops_no_event(scene: Scene) -> None:
    """Who is known gets in and is served; nothing that the hub must write is on the path of an event."""
    records = [Record("before", 0), Record("meanwhile", 0)]
    tokens = [scene.device(), scene.device()]
    store = await scene.store()
    async with (
        scene.hub(code=IGNORE) as hub,
        scene.home(),
        python_app(scene.url, tokens[0], scene.server_id, records[0]),
    ):
        await store.publish({"type": "note", "n": 1})
        await until(lambda: records[0].last_id == 1, "events flow")
        limit_files(hub.pid, 0)
        async with python_app(scene.url, tokens[1], scene.server_id, records[1]):
            for number in range(2, 10):
                await store.publish({"type": "note", "n": number})
            await until(lambda: all(record.last_id == 9 for record in records), "they still do, for both")
            assert hub.running
        limit_files(hub.pid, resource.RLIM_INFINITY)
        await store.publish({"type": "note", "n": 10})
        await until(lambda: records[0].last_id == 10, "and afterwards")
    nothing_lost(await all_events(store), records[0])
    await store.close()
