"""The SQLite event store: what it promises beyond the contract, about crashes, processes, files and full disks."""

import asyncio
import json
import os
import random
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_client.store import StoreError
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_file import connect

ROOT = Path(__file__).resolve().parent.parent.parent

PUBLISHER = """
    import asyncio, os, sys
    from bridge_client.store.sqlite import SqliteStore

    async def main(path, name, workers, count):
        store = await SqliteStore.open(path)
        async def publish(worker):
            for n in range(count):
                stored = await store.publish({"type": "t", "session_id": name, "key": f"{name}/{worker}/{n}"})
                os.write(1, f"{stored.event_id} {name}/{worker}/{n}\\n".encode())
        await asyncio.gather(*map(publish, range(workers)))
        await store.close()

    path, name, workers, count = sys.argv[1:]
    asyncio.run(main(path, name, int(workers), int(count)))
"""


@contextmanager
def program(source: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a Python program over the project's code; whatever happens, it is gone afterwards."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def confirmed(lines: bytes) -> dict[int, str]:
    """What a publisher was told: id -> key. Its last line may be cut off."""
    pairs = [line.split() for line in lines.decode().split("\n")[:-1]]
    assert len({event_id for event_id, _ in pairs}) == len(pairs)
    return {int(event_id): key for event_id, key in pairs}


async def everything(path: Path) -> dict[int, str]:
    store = await SqliteStore.open(path)
    found: dict[int, str] = {}
    while page := await store.list(since_id=max(found, default=0)):
        for event_id, data in page:
            members = json.loads(data)
            assert members["event_id"] == str(event_id)
            found[event_id] = members.get("key", "")
    await store.close()
    return found


async def test_every_publish_that_returned_survives_kill_9(tmp_path: Path) -> None:
    path, chance, promised = tmp_path / "events.db", random.Random(7), dict[int, str]()
    for round_ in range(6):
        with program(PUBLISHER, path, f"r{round_}", 20, 100_000) as process:
            assert process.stdout is not None
            lines = b"".join(process.stdout.readline() for _ in range(chance.randrange(1, 400)))
            process.send_signal(signal.SIGKILL)
            told = confirmed(lines + process.stdout.read())
        assert told
        assert min(told) > max(promised, default=0)  # none reused
        promised |= told
    found = await everything(path)
    assert {event_id: found.get(event_id) for event_id in promised} == promised
    keys = list(found.values())
    assert len(keys) == len(set(keys))


async def test_A6_two_processes_on_one_file_share_one_order(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    with program(PUBLISHER, path, "a", 8, 40) as one, program(PUBLISHER, path, "b", 8, 40) as two:
        # This process reads along: an id below one already read must never turn up.
        store, seen = await SqliteStore.open(path), list[int]()
        while len(seen) < 640:
            await asyncio.wait_for(store.wait(seen[-1] if seen else 0), 60)
            seen += [event_id for event_id, _ in await store.list(since_id=seen[-1] if seen else 0)]
        told = [confirmed(process.stdout.read()) for process in (one, two) if process.stdout]
        assert [one.wait(), two.wait()] == [0, 0]
        await store.close()
    assert not told[0].keys() & told[1].keys()
    assert sorted(told[0] | told[1]) == seen == list(range(1, 641))
    assert await everything(path) == told[0] | told[1]


async def test_ids_and_epoch_survive_a_restart_and_deleted_ids_are_not_reused(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    store = await SqliteStore.open(path)
    epoch = store.epoch
    for _ in range(3):
        last = await store.publish({"type": "t"})
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events")
    connection.commit()
    connection.close()
    store = await SqliteStore.open(path)
    assert store.epoch == epoch
    assert await store.head() is None
    assert (await store.publish({"type": "t"})).event_id == last.event_id + 1
    renewed = await store.renew_epoch()
    await store.close()
    store = await SqliteStore.open(path)
    assert store.epoch == renewed
    await store.close()


async def test_a_store_opened_by_two_in_one_process_wakes_both_and_shows_both_the_epoch(tmp_path: Path) -> None:
    one = await SqliteStore.open(tmp_path / "events.db")
    two = await SqliteStore.open(tmp_path / "events.db")
    assert one.epoch == two.epoch
    waiting = asyncio.ensure_future(two.wait(0))
    epoch = await one.renew_epoch()
    stored = await one.publish({"type": "t"})
    await asyncio.wait_for(waiting, 20)
    assert await two.list() == [stored]
    assert two.epoch == epoch
    await one.close()
    await two.close()


async def test_every_commit_is_synced(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "events.db")
    connection = sqlite3.connect(tmp_path / "events.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()
    writer = connect(tmp_path / "events.db")
    assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
    writer.close()
    await store.close()


async def test_files_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    store = await SqliteStore.open(folder / "events.db")
    await store.publish({"type": "t"})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"events.db": 0o600, "events.db-wal": 0o600, "events.db-shm": 0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    await store.close()
    (folder / "events.db").chmod(0o644)
    await (await SqliteStore.open(folder / "events.db")).close()
    assert stat.S_IMODE((folder / "events.db").stat().st_mode) == 0o600


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    await (await SqliteStore.open(path)).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"newer version.*upgrade"):
        await SqliteStore.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("content", ["text", "foreign", "folder"])
async def test_what_is_no_event_store_is_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "events.db"
    if content == "text":
        path.write_text("this is no database\n" * 100)
    elif content == "folder":
        path.mkdir()
    else:
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE mine (x)")
        connection.close()
    before = path.is_file() and path.read_bytes()
    with pytest.raises(StoreError, match=r"events\.db"):
        await SqliteStore.open(path)
    assert (path.is_file() and path.read_bytes()) == before


async def test_many_may_make_one_new_file_at_once(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(tmp_path / "events.db") for _ in range(8)))
    assert len({store.epoch for store in stores}) == 1
    stored = await asyncio.gather(*(store.publish({"type": "t"}) for store in stores))
    assert sorted(one.event_id for one in stored) == list(range(1, 9))
    for store in stores:
        await store.close()


DISK_FULL = """
    import asyncio, json, os, resource, sys
    from bridge_client.store import StoreError
    from bridge_client.store.sqlite import SqliteStore

    async def main(path):
        store = await SqliteStore.open(path)
        kept = [(await store.publish({"type": "t", "n": 0})).event_id]
        room = os.stat(path + "-wal").st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (room + 65536, resource.RLIM_INFINITY))
        failed = 0
        for n in range(1, 30):  # each too big for what is left after the first few
            try:
                kept.append((await store.publish({"type": "t", "n": n, "pad": "x" * 20000})).event_id)
            except StoreError as error:
                failed, said = failed + 1, str(error)
        small = await asyncio.gather(*(store.publish({"type": "t", "pad": "x" * 9000}) for _ in range(50)),
                                     return_exceptions=True)
        kept += [one.event_id for one in small if not isinstance(one, BaseException)]
        failed_together = sum(isinstance(one, StoreError) for one in small)
        readable = [one.event_id for one in await store.list()]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        kept.append((await store.publish({"type": "t", "n": 99, "pad": "x" * 20000})).event_id)
        await store.close()
        print(json.dumps({"kept": kept, "failed": [failed, failed_together], "said": said, "readable": readable}))

    asyncio.run(main(sys.argv[1]))
"""


async def test_a_full_disk_fails_the_publishes_in_it_and_no_others(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    with program(DISK_FULL, path) as process:
        output, _ = process.communicate(timeout=60)
    outcome: dict[str, Any] = json.loads(output)
    assert min(outcome["failed"]) > 20
    assert "check the disk and its free space" in outcome["said"]
    assert str(path) in outcome["said"]
    assert outcome["readable"] == outcome["kept"][:-1]
    assert outcome["kept"] == list(range(1, len(outcome["kept"]) + 1))
    assert list(await everything(path)) == outcome["kept"]


async def test_a_locked_file_is_waited_for_and_the_loop_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    store = await SqliteStore.open(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    publishing = asyncio.ensure_future(store.publish({"type": "t"}))
    done, _ = await asyncio.wait([publishing], timeout=0.2)
    assert not done
    assert await store.list() == []
    other.execute("COMMIT")
    other.close()
    assert (await asyncio.wait_for(publishing, 20)).event_id == 1
    await store.close()


async def test_waiting_for_room_bounds_what_is_queued(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    store = await SqliteStore.open(path, max_queued_bytes=10_000)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    publishing = [asyncio.ensure_future(store.publish({"type": "t", "pad": "x" * 1000})) for _ in range(100)]
    await asyncio.wait(publishing, timeout=0.05)
    assert 0 < store._queued_bytes <= 10_000
    publishing[50].cancel()
    closing = asyncio.ensure_future(store.close())
    await asyncio.wait([closing], timeout=0.05)
    other.execute("COMMIT")
    other.close()
    await closing
    outcomes = await asyncio.gather(*publishing, return_exceptions=True)
    written = [one for one in outcomes if not isinstance(one, BaseException)]
    assert 5 < len(written) < 12
    assert all(isinstance(one, (StoreError, asyncio.CancelledError)) for one in outcomes[len(written) :])


async def test_idle_waiting_costs_next_to_nothing(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "events.db")
    waiting = asyncio.ensure_future(store.wait(0))
    before, started = time.process_time(), time.monotonic()
    await asyncio.wait([waiting], timeout=1.5)
    assert time.process_time() - before < 0.05 * (time.monotonic() - started)
    await store.publish({"type": "t"})
    await asyncio.wait_for(waiting, 20)
    await store.close()


async def test_a_store_that_is_never_closed_does_not_keep_the_process(tmp_path: Path) -> None:
    source = """
        import asyncio, sys
        from bridge_client.store.sqlite import SqliteStore

        async def main():
            store = await SqliteStore.open(sys.argv[1])
            await store.publish({"type": "t", "key": "k"})

        asyncio.run(main())
    """
    with program(source, tmp_path / "events.db") as process:
        process.communicate(timeout=30)
        assert process.returncode == 0
    assert await everything(tmp_path / "events.db") == {1: "k"}
    assert os.listdir(tmp_path) == ["events.db"]


@pytest.mark.parametrize("how", ["removed", "replaced", "directory removed"])
async def test_a_store_that_lost_its_file_says_so_and_acknowledges_nothing(tmp_path: Path, how: str) -> None:
    path = tmp_path / "d" / "events.db"
    store = await SqliteStore.open(path)
    other: SqliteStore | None = None
    gone = re.escape(f"{path} was replaced or removed while it was in use; restart this program")
    try:
        await store.publish({"type": "t", "session_id": "s"})
        waiting = asyncio.ensure_future(store.wait(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        if how == "directory removed":
            path.parent.rename(tmp_path / "elsewhere")
        else:
            for name in path.parent.iterdir():
                name.unlink()
        if how == "replaced":
            other = await SqliteStore.open(path)
            assert await other.head() is None
        async with asyncio.timeout(20):
            with pytest.raises(StoreError, match=gone):
                await waiting
            for attempt in (
                store.publish({"type": "t", "session_id": "s"}),
                store.list(),
                store.head(),
                store.preceding(1),
                store.renew_epoch(),
            ):
                with pytest.raises(StoreError, match=gone):
                    await attempt
    finally:
        await store.close()
    if other is not None:  # and the one in its place is none the worse for it
        assert (await other.publish({"type": "t", "session_id": "s"})).event_id == 1
        await other.close()


async def test_a_store_named_by_a_relative_path_survives_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = await SqliteStore.open("events.db")
    monkeypatch.chdir("/")
    assert (await store.publish({"type": "t", "session_id": "s"})).event_id == 1
    assert await store.head() == 1
    await store.close()
