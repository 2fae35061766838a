"""What is told of a request goes into the store in batches, in order, bounded, up to the first failure (row A41)."""

import asyncio
import json
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_client.publishing import MAX_WAITING, MAX_WAITING_BYTES, Publishing
from bridge_client.store import StoreClosed, Stored
from bridge_client.store.sqlite import SqliteStore
from protocol.errors import InvalidEvent
from tests.support.running_home import running_home

ROOT = Path(__file__).resolve().parents[2]


class Counted(SqliteStore):
    """Knows the sizes of the batches that it was given."""

    batches: list[int]

    async def publish_many(self, events: Sequence[Mapping[str, Any] | bytes]) -> list[Stored]:
        self.batches.append(len(events))
        return await super().publish_many(events)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Counted]:
    store = await Counted.open(tmp_path / "home.db")
    store.batches = []
    try:
        async with asyncio.timeout(60):
            yield store
    finally:
        await store.close()


@contextmanager
def busy(store: SqliteStore) -> Iterator[None]:
    """Another program is writing: no commit ends before this does."""
    other = sqlite3.connect(store.path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


def event(number: int, **members: Any) -> dict[str, Any]:
    return {"type": "partial", "session_id": "s", "number": number, **members}


async def numbers(store: SqliteStore) -> list[int]:
    return [json.loads(stored.data)["number"] for stored in await store.list(limit=20_000)]


async def turns(count: int = 2_000) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_A41_what_arrives_during_a_commit_is_stored_by_the_next_and_a_lone_event_at_once(store: Counted) -> None:
    publishing = Publishing(store)
    with busy(store):
        for number in range(100):
            await publishing.put(event(number))
        assert store.batches == [1]
    await publishing.flush()
    assert store.batches == [1, 99]
    await publishing.put(event(100))
    await store.wait((await store.list())[99].event_id)  # without a flush
    assert await numbers(store) == list(range(101))
    await publishing.flush()


@pytest.mark.parametrize(("size", "count"), [(10, 600), (100_000, 40)])
async def test_A41_who_puts_more_than_may_wait_waits_too(store: Counted, size: int, count: int) -> None:
    publishing = Publishing(store)
    put = 0

    async def put_all() -> None:
        nonlocal put
        for number in range(count):
            put += 1
            await publishing.put(event(number, text="x" * size))

    with busy(store):
        putting = asyncio.create_task(put_all())
        await turns()
        most = 1 + MAX_WAITING if size < 1_000 else 2 + MAX_WAITING_BYTES // size
        assert put == most
    await putting
    await publishing.flush()
    assert await numbers(store) == list(range(count))
    assert max(store.batches) <= most


async def test_A41_behind_an_event_that_can_not_be_stored_there_is_none(store: Counted) -> None:
    publishing = Publishing(store)
    with busy(store):
        await publishing.put(event(0))
        for number, members in enumerate(({}, {"event_id": "7"}, {}), 1):
            await publishing.put(event(number, **members))
    with pytest.raises(InvalidEvent, match="event_id"):
        await publishing.flush()
    assert isinstance(publishing.failed.result(), InvalidEvent)
    with pytest.raises(InvalidEvent, match="event_id"):
        await publishing.put(event(4))
    await turns(50)
    assert await numbers(store) == [0, 1]


async def test_A47_what_is_no_json_is_refused_at_once_and_changes_nothing(store: Counted) -> None:
    publishing = Publishing(store)
    await publishing.put(event(0))
    with pytest.raises(InvalidEvent, match="not a JSON value"):
        await publishing.put(event(1, bad=object()))
    await publishing.put(event(2))
    await publishing.flush()
    assert await numbers(store) == [0, 2]


async def test_A96_an_event_is_stored_also_if_who_put_it_is_cancelled_while_it_waits(store: Counted) -> None:
    publishing = Publishing(store)
    with busy(store):
        await publishing.put(event(0))
        for number in range(1, MAX_WAITING):
            await publishing.put(event(number))
        putting = asyncio.create_task(publishing.put(event(MAX_WAITING)))
        flushing = asyncio.create_task(publishing.flush())
        await turns(20)
        assert not putting.done()
        putting.cancel()
        flushing.cancel()
        await asyncio.wait({putting, flushing})
    await publishing.flush()
    assert await numbers(store) == list(range(MAX_WAITING + 1))


async def test_A41_a_store_that_is_closed_fails_who_waits(store: Counted) -> None:
    publishing = Publishing(store)
    await store.close()
    with pytest.raises(StoreClosed):
        await publishing.put(event(0))
    with pytest.raises(StoreClosed):
        await publishing.flush()
    assert isinstance(publishing.failed.result(), StoreClosed)


_DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from bridge_client.runners import Message
from tests.support.running_home import running_home
from tests.support.scripted_runner import ScriptedRunner, final, partial

async def main():
    async with running_home(Path(sys.argv[1])) as home:
        await home.sessions.create(session_id="s")
        script = [final("whole"), *(partial(str(n)) for n in range(100_000))]
        await home.requests.start("s", Message(role="user", content="x"), runner=ScriptedRunner(*script))
        await home.store.wait(600)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_A46_A94_A96_a_home_killed_in_a_fast_stream_leaves_a_beginning_of_it_and_a_session_that_loads(
    tmp_path: Path,
) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _DYING, str(tmp_path), cwd=ROOT)
    assert await process.wait() == -signal.SIGKILL
    async with running_home(tmp_path) as home:  # which ends what was left behind
        told = await home.told()
        pieces = [event["message"]["content"] for event in told if event["type"] == "partial"]
        assert pieces == [str(n) for n in range(len(pieces))]
        assert len(pieces) > 500
        assert [event["type"] for event in told[-2:]] == ["error", "request_completed"]
        record, messages = await home.sessions.history("s")
        assert (record.request_id, [message.content for message in messages]) == (None, ["x", "whole"])
