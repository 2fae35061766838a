"""The event store in PostgreSQL: what it promises beyond the contract, about connections, processes and restores."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bridge_client.store import StoreError
from bridge_client.store import postgres as backend
from bridge_client.store.postgres import PostgresStore
from bridge_client.store.postgres_tables import session_filter
from bridge_client.store.waiters import Wanted
from protocol.errors import InvalidEvent
from tests.contracts.stores import postgres_url
from tests.support.postgres_server import shared_server

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres_url(tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = await PostgresStore.open(url)
    yield store
    await store.close()


def sql(url: str, text: str) -> str:
    """What psql says in the schema of that address."""
    return shared_server().sql(f"SET search_path = {url.rpartition('=')[2]}; {text}")


APPENDER = """
import asyncio, json, sys
from bridge_client.store.postgres import PostgresStore

async def main(url, name):
    store = await PostgresStore.open(url)
    print("ready", flush=True)
    sys.stdin.readline()
    found = {}
    async def write(n):
        await store.publish({"type": "published", "session_id": f"s{n % 2}"})
        own = f"shared_{n}" if n % 3 else f"{name}_{n}"
        one = await store.append_event_with_sequence(f"s{n % 2}", {"id": own, "type": "t"})
        found[own] = [one.stored.event_id, one.sequence_number]
    await asyncio.gather(*map(write, range(60)))
    await store.close()
    print(json.dumps(found))

asyncio.run(main(*sys.argv[1:]))
"""


async def test_B43_B44_B45_two_processes_append_at_once_without_gap_and_each_id_once(
    url: str, store: PostgresStore
) -> None:
    command = [sys.executable, "-c", APPENDER, url]
    both = [
        await asyncio.create_subprocess_exec(*command, name, cwd=ROOT, stdin=PIPE, stdout=PIPE) for name in ("a", "b")
    ]
    seen: list[int] = []
    try:
        async with asyncio.timeout(60):
            for process in both:
                assert process.stdout is not None
                assert await process.stdout.readline() == b"ready\n"
            telling = [asyncio.ensure_future(process.communicate(b"go\n")) for process in both]
            while len(seen) < 200:  # this process reads along: an id below one already read must never turn up
                await store.wait(seen[-1] if seen else 0)
                seen += [one.event_id for one in await store.list(since_id=seen[-1] if seen else 0)]
            told = [json.loads(output) for output, _ in await asyncio.gather(*telling)]
    finally:
        for process in both:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert seen == list(range(1, 201))
    for own in set(told[0]) & set(told[1]):
        assert told[0][own] == told[1][own]
    assert len(set(told[0]) | set(told[1])) == 80
    for session in ("s0", "s1"):
        events = await store.get_events(session)
        assert [event.sequence_number for event in events] == list(range(1, 101))
        assert [event.stored for event in events] == await store.list(session_id=session)


async def test_ids_places_and_epoch_survive_a_restart_also_of_removed_events(url: str) -> None:
    store = await PostgresStore.open(url)
    for n in range(3):
        await store.append_event_with_sequence("s", {"type": "t", "id": f"evt_{n}"})
    epoch = store.epoch
    await store.close()
    sql(url, "DELETE FROM bridge_events")
    store = await PostgresStore.open(url)
    assert (store.epoch, await store.head(), await store.get_latest_sequence("s")) == (epoch, None, 3)
    one = await store.append_event_with_sequence("s", {"type": "t", "id": "evt_0"})
    assert (one.stored.event_id, one.sequence_number) == (4, 4)
    renewed = await store.renew_epoch()
    await store.close()
    store = await PostgresStore.open(url)
    assert store.epoch == renewed
    await store.close()


async def test_many_may_make_one_new_database_at_once(url: str) -> None:
    stores = await asyncio.gather(*(PostgresStore.open(url) for _ in range(4)))
    assert len({store.epoch for store in stores}) == 1
    stored = await asyncio.gather(*(store.publish({"type": "t"}) for store in stores))
    assert sorted(one.event_id for one in stored) == [1, 2, 3, 4]
    for store in stores:
        await store.close()


async def test_what_another_process_stores_ends_a_wait(url: str, store: PostgresStore) -> None:
    other = await PostgresStore.open(url)
    waiting = [
        asyncio.ensure_future(store.wait(1)),
        asyncio.ensure_future(store.get_events("s", type="wanted", wait_timeout_ms=60_000)),
    ]
    await other.publish({"type": "other", "session_id": "s"})
    await other.publish({"type": "wanted", "session_id": "s"})
    _, found = await asyncio.wait_for(asyncio.gather(*waiting), 30)
    assert [one.sequence_number for one in found] == [2]
    await other.close()


async def test_no_text_is_too_long_or_too_odd_for_the_indexes(store: PostgresStore) -> None:
    for n, name in enumerate(("a\u0000b", "x" * 100_000, "x" * 100_001, "ä" * 128, "ä" * 129, ""), 1):
        one = await store.append_event_with_sequence(name, {"type": name or "t", "run_id": name, "id": f"i{n}"})
        assert one.sequence_number == 1
        assert await store.get_events(name, type=name or "t", run_id=name) == [one]
        assert await store.list(session_id=name, request_id=None) == [one.stored]


async def test_what_is_refused_takes_neither_id_nor_place(store: PostgresStore) -> None:
    for refused in ({"type": "a", "session_id": "s", "x": float("nan")}, b'{"session_id":"s"}', b'{"type":"a"'):
        with pytest.raises(InvalidEvent):
            await store.publish(refused)
        with pytest.raises(InvalidEvent):
            await store.append_event_with_sequence("s", refused)
    one = await store.append_event_with_sequence("s", {"type": "a"})
    assert (one.stored.event_id, one.sequence_number) == (1, 1)


async def test_no_query_scans_the_table(url: str, store: PostgresStore) -> None:
    for n in range(3):
        await store.publish({"type": "t", "session_id": f"s{n}", "request_id": "r"})
    asked: list[tuple[list[str], list[Any], str]] = [
        (*session_filter(Wanted("s", "r", "t", 5, 1, 9, 100, 0)), "sequence"),
        (*session_filter(Wanted("s", None, None, None, 1, 9, 100, 0)), "sequence"),
        (["id > $1", "session = $2"], [1, b"s"], "id"),
        (["id > $1", "request = $2"], [1, b"r"], "id"),
        (["id > $1"], [1], "id"),
    ]
    indexes = [
        *("bridge_events_by_sequence", "bridge_events_by_sequence"),
        *("bridge_events_of_session", "bridge_events_of_request", "bridge_events_pkey"),
    ]
    async with store._pool.acquire() as connection:
        # Three rows are read quicker than any index; what counts is that there is a way without sorting.
        await connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
        for (where, values, order), index in zip(asked, indexes, strict=True):
            query = f"EXPLAIN SELECT id, data FROM bridge_events WHERE {' AND '.join(where)} ORDER BY {order} LIMIT 100"
            plan = "\n".join(row[0] for row in await connection.fetch(query, *values))
            assert f"Index Scan using {index} on bridge_events" in plan, plan
            assert "Seq Scan" not in plan, plan
            assert "Sort" not in plan, plan
        await connection.reset()


async def test_broken_connections_are_made_anew(url: str, store: PostgresStore) -> None:
    first = await store.publish({"type": "t"})
    ours = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'session-bridge'"
    assert int(shared_server().sql(ours)) >= 1
    outcomes: list[Any] = [first]
    async with asyncio.timeout(30):
        while len(outcomes) < 2:
            # Some find out that their connection is broken: they are not stored.
            with suppress(StoreError):
                outcomes.append(await store.publish({"type": "t"}))
    assert await store.list() == outcomes


@pytest.mark.parametrize("stored", [True, False])
async def test_a_commit_whose_end_was_not_heard_is_looked_up(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """The connection breaks in the moment of the commit: behind it, or in front of it."""
    await store.publish({"type": "before"})
    real = backend.asyncpg.transaction.Transaction.commit
    broken = 0

    async def commit(transaction: Any) -> None:
        nonlocal broken
        broken += 1
        if broken == 1:
            if stored:
                await real(transaction)
            transaction._connection.terminate()
            raise ConnectionResetError("the line went dead")
        await real(transaction)

    monkeypatch.setattr(backend.asyncpg.transaction.Transaction, "commit", commit)
    publishing = store.publish({"type": "meanwhile"})
    if stored:
        assert (await publishing).event_id == 2
    else:
        with pytest.raises(StoreError, match="went dead"):
            await publishing
    after = await store.publish({"type": "after"})
    kinds = [json.loads(one.data)["type"] for one in await store.list()]
    assert kinds == ["before", *(["meanwhile"] if stored else []), "after"]
    assert after.event_id == len(kinds)


async def test_an_earlier_state_that_was_restored_is_noticed(url: str, store: PostgresStore) -> None:
    for _ in range(3):
        await store.publish({"type": "t", "session_id": "s"})
    assert store.restored == 0
    waiting = asyncio.ensure_future(store.wait(3))
    await asyncio.sleep(0)
    sql(url, "BEGIN; DELETE FROM bridge_events WHERE id > 1; UPDATE bridge_about SET last_id = 1; COMMIT")
    await asyncio.wait_for(waiting, 30)
    assert store.restored == 1
    assert store.recent(1) == []


async def test_a_newer_schema_is_refused(url: str) -> None:
    await (await PostgresStore.open(url)).close()
    sql(url, "UPDATE bridge_about SET version = 99")
    with pytest.raises(StoreError, match=r"newer version.*upgrade"):
        await PostgresStore.open(url)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://me:secret@127.0.0.1:1/db", "is PostgreSQL running there"),
        ("postgresql://me:secret@127.0.0.1:port/db", "can't open"),
        ("mysql://me:secret@127.0.0.1/db", "can't open"),
        ("", "make the database first"),
    ],
)
async def test_what_can_not_be_opened_says_why_and_no_secret(tmp_path: Path, url: str, says: str) -> None:
    url = url or postgres_url(tmp_path).replace("/postgres?", "/nowhere?")
    with pytest.raises(StoreError) as refusal:
        await PostgresStore.open(url)
    assert says in str(refusal.value)
    assert "secret" not in str(refusal.value)


async def test_the_example_of_the_docs_works(url: str) -> None:
    text = (ROOT / "docs" / "operations.md").read_text("utf-8").partition("\n## Events in PostgreSQL\n")[2]
    names: dict[str, Any] = {}
    exec(compile(text.partition("```python\n")[2].partition("```")[0], "docs/operations.md", "exec"), names)
    stored, (event,) = await names["keep_in_postgres"](url)
    assert (event.event_id, event.prev_id, event.data) == (1, None, stored.data)
