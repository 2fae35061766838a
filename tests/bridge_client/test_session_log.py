"""Following a session's log, on virtual time; and what its SQLite form promises beyond the contract."""

import asyncio
import json
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bridge_client import session_log
from bridge_client.session_log import EventIdTaken, Sequenced, stream_session_events
from bridge_client.store.group_commit import _LATEST, _REPEATED
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_log import SqliteSessionLog, page_query
from bridge_client.store.waiters import Wanted
from tests.support.old_stores import make_old
from tests.support.virtual_time import settle, virtual_time

ROOT = Path(__file__).resolve().parent.parent.parent
PLACES = 6
"""The version of files from which on events have their places."""


class Reads(MemoryStore):
    """Notes when it was read, and with what."""

    def __init__(self, *, waits: bool = True) -> None:
        super().__init__()
        self.reads: list[tuple[float, dict[str, Any]]] = []
        self._waits = waits

    async def get_events(self, session_id: str, **asked: Any) -> list[Sequenced]:
        self.reads.append((asyncio.get_running_loop().time() - 1000, dict(asked)))
        if not self._waits:
            asked["wait_timeout_ms"] = 0
        return await super().get_events(session_id, **asked)

    @property
    def times(self) -> list[float]:
        return [round(at, 3) for at, _ in self.reads]


async def follow(log: MemoryStore, found: list[int], **options: Any) -> None:
    async for one in stream_session_events(log, "s", **options):
        found.append(one.sequence_number)


async def publish(log: MemoryStore, **members: Any) -> None:
    await log.publish({"type": "t", "session_id": "s", **members})


@virtual_time
async def test_B121_B122_polling_is_the_default_and_sleeps_a_quarter_second_between_empty_reads() -> None:
    log, found = Reads(), list[int]()
    await publish(log)
    following = asyncio.create_task(follow(log, found))
    await asyncio.sleep(0.9)
    assert found == [1]
    assert log.times == [0, 0, 0.25, 0.5, 0.75]
    assert [asked["after"] for _, asked in log.reads] == [0, 1, 1, 1, 1]
    assert {(asked["limit"], asked["wait_timeout_ms"]) for _, asked in log.reads} == {(100, 0)}
    assert (session_log.STREAM_LIMIT, session_log.STREAM_POLL_MS) == (100, 250)
    await publish(log)
    await asyncio.sleep(0.2)
    assert found == [1, 2]
    following.cancel()


@virtual_time
async def test_B121_the_interval_and_the_page_can_be_chosen() -> None:
    log, found = Reads(), list[int]()
    for _ in range(5):
        await publish(log)
    following = asyncio.create_task(follow(log, found, limit=2, poll_interval_ms=1000, after=1, type="t"))
    await asyncio.sleep(2.5)
    assert found == [2, 3, 4, 5]
    assert log.times == [0, 0, 0, 1, 2]
    following.cancel()


@virtual_time
async def test_B126_B128_who_waits_reads_once_and_again_for_an_event_that_matches_only() -> None:
    log, found = Reads(), list[int]()
    following = asyncio.create_task(follow(log, found, wait_timeout_ms=60_000, run_id="r"))
    await asyncio.sleep(10)
    for _ in range(50):
        await publish(log, run_id="another")
        await asyncio.sleep(0.1)
    assert log.times == [0]
    await publish(log, run_id="r")
    await settle()
    assert found == [51]  # at once: the clock has not moved
    assert log.times == [0, 15]
    await asyncio.sleep(125)
    assert log.times == [0, 15, 75, 135]  # no time between two waits, and none slept away
    following.cancel()


@virtual_time
async def test_B127_a_store_that_can_not_wait_is_polled() -> None:
    log, found = Reads(waits=False), list[int]()
    following = asyncio.create_task(follow(log, found, wait_timeout_ms=5_000))
    await asyncio.sleep(0.6)
    assert log.times == [0, 0.25, 0.5]
    following.cancel()


async def test_B123_nothing_is_read_before_it_is_asked_for() -> None:
    log = Reads()
    for _ in range(6):
        await publish(log)
    stream = stream_session_events(log, "s", limit=3)
    assert log.reads == []
    taken = [(await anext(stream)).sequence_number for _ in range(3)]
    assert (taken, len(log.reads)) == ([1, 2, 3], 1)
    await stream.aclose()  # type: ignore[attr-defined]


# --- SQLite


def program(source: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", textwrap.dedent(source), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


APPENDER = """
    import asyncio, json, sys
    from bridge_client.store.sqlite import SqliteStore
    from bridge_client.store.sqlite_log import SqliteSessionLog

    async def main(path, name):
        store = await SqliteStore.open(path)
        log = SqliteSessionLog(store)
        print("ready", flush=True)
        sys.stdin.readline()
        found = {}
        async def write(n):
            await store.publish({"type": "published", "session_id": f"s{n % 2}"})
            own = f"shared_{n}" if n % 3 else f"{name}_{n}"
            one = await log.append_event_with_sequence(f"s{n % 2}", {"id": own, "type": "t"})
            found[own] = [one.stored.event_id, one.sequence_number]
        await asyncio.gather(*map(write, range(60)))
        await store.close()
        print(json.dumps(found))

    asyncio.run(main(*sys.argv[1:]))
"""


async def test_B43_B44_B45_two_processes_append_at_once_without_gap_and_each_id_once(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    with program(APPENDER, path, "a") as one, program(APPENDER, path, "b") as two:
        try:
            for process in (one, two):
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            told = [json.loads(out) for out, _ in [p.communicate(timeout=60) for p in started(one, two)]]
        finally:
            one.kill()
            two.kill()
    for own in set(told[0]) & set(told[1]):
        assert told[0][own] == told[1][own]  # the same event, whoever came first
    assert len(set(told[0]) | set(told[1])) == 80
    store = await SqliteStore.open(path)  # and after a restart
    log = SqliteSessionLog(store)
    for session in ("s0", "s1"):
        events = await log.get_events(session)
        assert [event.sequence_number for event in events] == list(range(1, 101))
        assert [event.stored for event in events] == await store.list(session_id=session)
        ids = [json.loads(event.stored.data).get("id") for event in events]
        assert len([own for own in ids if own]) == len({own for own in ids if own}) == 40
    again = await log.append_event_with_sequence("s1", {"id": "shared_1", "type": "t"})
    assert [again.stored.event_id, again.sequence_number] == told[0]["shared_1"]
    await store.close()


def started(*processes: "subprocess.Popen[str]") -> tuple["subprocess.Popen[str]", ...]:
    """Both get their word to begin before either is waited for."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


async def test_B126_a_wait_reads_no_events_while_nothing_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await SqliteStore.open(tmp_path / "events.db")
    log, queries = SqliteSessionLog(store), 0

    async def counted(read: Callable[[sqlite3.Connection], Any]) -> Any:
        nonlocal queries
        queries += 1
        return await SqliteStore.query(store, read)

    monkeypatch.setattr(store, "query", counted)
    waiting = asyncio.ensure_future(log.get_events("s", type="wanted", wait_timeout_ms=60_000))
    while not queries:
        await asyncio.sleep(0)
    for n in range(40):
        await store.publish({"type": "other", "session_id": "s", "n": n})
        await store.publish({"type": "wanted", "session_id": "t", "n": n})
    before = queries
    await store.publish({"type": "wanted", "session_id": "s"})
    (one,) = await asyncio.wait_for(waiting, 20)
    assert (one.sequence_number, one.stored.event_id) == (41, 81)
    # A look for other processes' commits may coincide with one of ours, and is then taken for news.
    assert before < 40
    await store.close()


async def test_B125_what_another_process_appends_ends_the_wait(tmp_path: Path) -> None:
    stores = [await SqliteStore.open(tmp_path / "events.db") for _ in range(2)]
    logs = [SqliteSessionLog(store) for store in stores]
    waiting = asyncio.ensure_future(logs[0].get_events("s", type="wanted", wait_timeout_ms=60_000))
    await asyncio.sleep(0)
    await logs[1].append_event_with_sequence("s", {"type": "other"})
    one = await logs[1].append_event_with_sequence("s", {"type": "wanted"})
    assert await asyncio.wait_for(waiting, 20) == [one]
    for store in stores:
        await store.close()


async def test_no_query_scans_the_table(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "events.db")
    every = Wanted("s", "r", "t", 5, 1, 9, 100, 0)
    few = every._replace(run_id=None, type=None, since=None)

    def plans(file: sqlite3.Connection) -> dict[str, list[str]]:
        queries: dict[str, tuple[str, Any]] = {
            "every filter": page_query(every),
            "no filter": page_query(few),
            "latest": (_LATEST, {"id": "s"}),
            "repeated": (_REPEATED, ("evt",)),
            "list": ("SELECT id, data FROM events WHERE id > ? AND session_id = ? ORDER BY id", (1, "s")),
            "head": ("SELECT max(id) FROM events", ()),
        }
        return {
            name: [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {query}", values)]
            for name, (query, values) in queries.items()
        }

    found = await store.query(plans)
    await store.close()
    by_sequence = "SEARCH events USING INDEX events_by_sequence (session_id=? AND sequence>? AND sequence<?)"
    assert found["every filter"] == found["no filter"] == [by_sequence]
    assert found["repeated"] == ["SEARCH events USING INDEX events_by_own_id (own_id=?)"]
    assert found["list"] == ["SEARCH events USING INDEX events_of_session (session_id=? AND id>?)"]
    assert "SEARCH events USING COVERING INDEX events_by_sequence (session_id=? AND sequence>?)" in found["latest"]
    wrong = [line for lines in found.values() for line in lines if "events" in line and "SEARCH" not in line]
    assert wrong == []
    assert [line for lines in found.values() for line in lines if "TEMP B-TREE" in line] == []


@pytest.mark.parametrize("version", range(1, PLACES))
async def test_an_old_files_events_get_their_places(tmp_path: Path, version: int) -> None:
    def text(number: int, **members: Any) -> bytes:
        return json.dumps({"event_id": str(number), **members}).encode()

    old = [
        ("s", text(1, type="a", session_id="s", run_id="r", timestamp="2026-05-04T12:00:00Z")),
        (None, text(2, type="b")),
        ("t", text(3, type="a", session_id="t", request_id="q")),
        ("s", text(4, type="c", session_id="s", request_id="q", timestamp=5)),
        ("s", b'{"event_id":"5","type":"x","type":"c","session_id":"s","n":1e999}'),
    ]
    make_old(tmp_path / "events.db", version, *old)
    store = await SqliteStore.open(tmp_path / "events.db")
    log = SqliteSessionLog(store)
    stored = await store.list()
    assert [one.data for one in stored] == [data for _, data in old]
    s, t = [stored[0], stored[3], stored[4]], [stored[2]]
    assert await log.get_events("s") == [Sequenced(one, n) for n, one in enumerate(s, 1)]
    assert await log.get_events("t", run_id="q") == [Sequenced(t[0], 1)]
    assert [one.sequence_number for one in await log.get_events("s", type="c")] == [2, 3]
    since = datetime(2026, 5, 4, tzinfo=UTC)
    assert [one.sequence_number for one in await log.get_events("s", since=since)] == [1]
    assert (await log.append_event_with_sequence("s", {"type": "new"})).sequence_number == 4
    await store.close()


async def test_a_number_is_not_given_again_when_its_event_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    store = await SqliteStore.open(path)
    for n in range(3):
        await SqliteSessionLog(store).append_event_with_sequence("s", {"type": "t", "id": f"evt_{n}"})
    await store.publish({"type": "t"})
    for remove, left in (("id = 1", [2, 3]), ("id > 0", [])):
        with closing(sqlite3.connect(path)) as file, file:
            file.execute(f"DELETE FROM events WHERE {remove}")
        assert [one.sequence_number for one in await SqliteSessionLog(store).get_events("s")] == left
        assert await SqliteSessionLog(store).get_latest_sequence("s") == 3
    await store.close()
    store = await SqliteStore.open(path)
    # The event is gone, and so is the memory of its id: it is another one.
    assert (await SqliteSessionLog(store).append_event_with_sequence("s", {"type": "t", "id": "evt_0"}))[1] == 4
    await store.close()


async def test_a_write_that_is_undone_leaves_no_hole_in_the_places(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "events.db")
    log = SqliteSessionLog(store)

    def fail(file: sqlite3.Connection, stored: Any) -> None:
        raise KeyError("undone")

    def event(session: str) -> dict[str, str]:
        return {"type": "t", "session_id": session}

    outcomes = await asyncio.gather(
        store.publish(event("s")),
        store.transact([event("s"), event("t"), event("s")], fail),
        log.append_event_with_sequence("s", {"type": "t", "id": "evt_1"}),
        store.transact([event("t"), event("s")], lambda file, stored: len(stored)),
        log.append_event_with_sequence("t", {"type": "t", "id": "evt_1"}),
        log.append_event_with_sequence("s", {"type": "t", "id": "evt_1"}),
        log.append_event_with_sequence("t", {"type": "t"}),
        return_exceptions=True,
    )
    assert isinstance(outcomes[1], KeyError)
    assert isinstance(outcomes[4], EventIdTaken)
    assert outcomes[2] == outcomes[5]
    assert [one.event_id for one in await store.list()] == [1, 2, 3, 4, 5]
    for session, count in (("s", 3), ("t", 2)):
        assert [one.sequence_number for one in await log.get_events(session)] == [*range(1, count + 1)]
    await store.close()
