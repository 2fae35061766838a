"""`GET /events` over a real socket (rows A20 to A27 and A34, decision 2.12), on every event store."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge_client.api import ApiError
from bridge_client.api.events import LONGEST_WAIT_MS, MAX_LIMIT, Events, Query, read_query
from bridge_client.store import EventStore, Stored
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore
from protocol.event_id import MAX_EVENT_ID
from tests.support.running_api import ApiClient, running_api

DEADLINE = 20


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    store: EventStore = MemoryStore() if request.param == "memory" else await SqliteStore.open(tmp_path / "home.db")
    yield store
    await store.close()


@pytest.fixture
async def client(store: EventStore) -> AsyncIterator[ApiClient]:
    async with running_api(store) as client:
        yield client


async def publish(store: EventStore, *places: tuple[str | None, str | None]) -> list[Stored]:
    """One event for each (session, request)."""
    stored = []
    for session, request in places:
        members = {"session_id": session, "request_id": request}
        stored.append(await store.publish({"type": "note", **{k: v for k, v in members.items() if v is not None}}))
    return stored


MIXED = [("a", "r1"), ("b", "r2"), ("a", "r1"), ("a", None), (None, None), ("b", "r2"), ("a", "r3")]


def ids(answer: Any) -> list[int]:
    return [int(event["event_id"]) for event in answer["events"]]


async def test_A26_without_a_filter_there_is_only_a_place_to_begin(client: ApiClient, store: EventStore) -> None:
    empty = {"events": [], "epoch": store.epoch, "latest_event_id": "0"}
    assert await client.events() == empty
    await publish(store, *MIXED)
    assert await client.events() == empty | {"latest_event_id": "7"}
    assert await client.events(limit=3) == empty | {"latest_event_id": "7"}


async def test_A27_polling_on_from_there_delivers_what_follows_and_nothing_before(
    client: ApiClient, store: EventStore
) -> None:
    for _ in range(2):  # also from an empty store
        place = (await client.events())["latest_event_id"]
        new = await publish(store, *MIXED)
        assert ids(await client.events(since_id=place)) == [event.event_id for event in new]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"since_id": 0}, [1, 2, 3, 4, 5, 6, 7]),
        ({"since_id": 3}, [4, 5, 6, 7]),
        ({"since_id": 7}, []),
        ({"session_id": "a"}, [1, 3, 4, 7]),
        ({"session_id": "a", "since_id": 3}, [4, 7]),
        ({"request_id": "r2"}, [2, 6]),
        ({"request_id": "r2", "since_id": 2}, [6]),
        ({"session_id": "a", "request_id": "r1"}, [1, 3]),
        ({"session_id": "a", "request_id": "r1", "since_id": 1}, [3]),
        ({"session_id": "a", "request_id": "r2"}, []),
        ({"session_id": "nobody"}, []),
        ({"since_id": 0, "limit": 2}, [1, 2]),
        ({"session_id": "a", "limit": 1}, [1]),
    ],
)
async def test_A20_to_A25_and_A34_any_combination_of_filters(
    client: ApiClient, store: EventStore, query: dict[str, Any], wanted: list[int]
) -> None:
    await publish(store, *MIXED)
    answer = await client.events(**query)
    assert ids(answer) == wanted
    assert (answer["epoch"], answer["latest_event_id"]) == (store.epoch, "7")
    assert "reset" not in answer


async def test_A9_events_are_the_bytes_that_the_store_holds(client: ApiClient, store: EventStore) -> None:
    odd = b'{"type":"x", "n":1.0,\n "big":123456789012345678901234567890, "n":2e0,"t":"\xc3\xa9\\u00e9"}'
    stored = [await store.publish(odd), *await publish(store, *MIXED)]
    answer = await client.ask("/events?since_id=0")
    joined = b",".join(event.data for event in stored)
    epoch = json.dumps(store.epoch).encode()
    assert answer.body == b'{"events":[%b],"epoch":%b,"latest_event_id":"8"}' % (joined, epoch)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Cache-Control"] == "no-store"


async def test_2_12_a_since_id_beyond_the_store_resets(client: ApiClient, store: EventStore) -> None:
    assert await client.events(since_id=1) == {
        "events": [], "epoch": store.epoch, "latest_event_id": "0", "reset": True,
    }  # fmt: skip
    await publish(store, *MIXED)
    answer = await client.events(since_id=8, wait_timeout_ms=30_000)
    assert (ids(answer), answer["reset"]) == ([1, 2, 3, 4, 5, 6, 7], True)
    answer = await client.events(since_id=MAX_EVENT_ID, session_id="b")
    assert (ids(answer), answer["reset"]) == ([2, 6], True)


BAD_IDS = ["", "-1", "+1", "01", " 1", "1 ", "1.0", "1e3", "0x1", "null", "abc", "9007199254740992", "1" * 40, "١"]


@pytest.mark.parametrize("since_id", BAD_IDS)
async def test_2_12_a_garbage_since_id_is_refused_by_name(client: ApiClient, since_id: str) -> None:
    answer = await client.ask("/events", params={"since_id": since_id})
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["parameter"]) == (400, "bad_parameter", "since_id")
    assert error["message"].startswith("since_id ")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=0", "limit"),
        (f"limit={MAX_LIMIT + 1}", "limit"),
        ("limit=-1", "limit"),
        ("limit=many", "limit"),
        ("limit=", "limit"),
        ("wait_timeout_ms=-1", "wait_timeout_ms"),
        ("wait_timeout_ms=soon", "wait_timeout_ms"),
        ("wait_timeout_ms=1e3", "wait_timeout_ms"),
        ("session_id=", "session_id"),
        ("request_id=", "request_id"),
        ("since_id=1&since_id=2", "since_id"),
        ("session_id=a&session_id=b", "session_id"),
    ],
)
async def test_2_10_no_bad_parameter_is_passed_over(client: ApiClient, query: str, name: str) -> None:
    answer = await client.ask(f"/events?{query}")
    assert (answer.status, answer.json()["error"]["parameter"]) == (400, name)


def test_what_is_no_parameter_of_ours_is_passed_over() -> None:
    assert read_query([("_", "1"), ("_", "2"), ("limit", "1000")]) == Query(None, None, None, 1000, 0.0)


def test_a_wait_is_bounded() -> None:
    assert read_query([("wait_timeout_ms", "99999999")]).wait == LONGEST_WAIT_MS / 1000
    assert read_query([("wait_timeout_ms", "250")]).wait == 0.25


@given(st.lists(st.tuples(st.sampled_from(["since_id", "session_id", "limit", "wait_timeout_ms", "x"]), st.text())))
def test_any_query_is_read_or_refused(pairs: list[tuple[str, str]]) -> None:
    try:
        query = read_query(pairs)
    except ApiError as error:
        if error.status != 400:
            raise
    else:
        assert 1 <= query.limit <= MAX_LIMIT
        assert 0 <= query.wait <= LONGEST_WAIT_MS / 1000


# Waiting.


async def test_a_wait_ends_with_the_first_event_that_matches(client: ApiClient, store: EventStore) -> None:
    await publish(store, ("a", "r1"))
    query = {"since_id": 1, "session_id": "a", "wait_timeout_ms": 30_000}
    async with asyncio.timeout(DEADLINE):
        waiting = asyncio.create_task(client.events(**query))
        await publish(store, ("b", None), ("b", None))
        await client.events()  # an answer to another request: those two were seen by the one that waits, or are now
        assert not waiting.done()
        await publish(store, ("a", "r2"))
        answer = await waiting
    assert (ids(answer), answer["latest_event_id"]) == ([4], "4")


async def test_a_wait_for_what_is_there_does_not_wait(client: ApiClient, store: EventStore) -> None:
    await publish(store, *MIXED)
    async with asyncio.timeout(DEADLINE):
        assert ids(await client.events(since_id=5, wait_timeout_ms=30_000)) == [6, 7]
        assert ids(await client.events(wait_timeout_ms=30_000)) == []


async def test_a_wait_in_vain_ends_with_an_empty_page(client: ApiClient, store: EventStore) -> None:
    await publish(store, ("a", None))
    began = asyncio.get_running_loop().time()
    answer = await client.events(since_id=1, wait_timeout_ms=80)
    assert asyncio.get_running_loop().time() - began >= 0.08
    assert answer == {"events": [], "epoch": store.epoch, "latest_event_id": "1"}


async def test_nothing_published_while_the_question_is_asked_is_missed() -> None:
    """An event that comes after the page was read and before the wait begins ends the wait."""

    class Late(MemoryStore):
        async def list(self, **filters: Any) -> list[Stored]:
            page = await super().list(**filters)
            if not page:
                await self.publish({"type": "late"})
            return page

    async with asyncio.timeout(DEADLINE):
        answer = json.loads(await Events(Late()).answer(Query(0, None, None, 500, 30.0)))
    assert ids(answer) == [1]


async def test_events_of_another_process_end_a_wait(tmp_path: Path) -> None:
    here, there = await SqliteStore.open(tmp_path / "home.db"), await SqliteStore.open(tmp_path / "home.db")
    async with running_api(here) as client, asyncio.timeout(DEADLINE):
        waiting = asyncio.create_task(client.events(since_id=0, wait_timeout_ms=30_000))
        await there.publish({"type": "note"})
        assert ids(await waiting) == [1]
    await here.close()
    await there.close()


async def test_a_page_is_bounded_in_bytes(tmp_path: Path) -> None:
    store = MemoryStore()
    for _ in range(20):
        await store.publish({"type": "big", "text": "x" * 900_000})
    async with running_api(store) as client:
        first = await client.events(since_id=0)
        assert 0 < len(first["events"]) < 20
        read = ids(first)
        while page := ids(await client.events(since_id=read[-1])):
            read += page
    assert read == list(range(1, 21))


async def test_readers_together_see_each_event_once_and_in_order(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "home.db")
    total = 300

    async def reader(client: ApiClient) -> list[int]:
        read: list[int] = []
        while len(read) < total:
            read += ids(await client.events(since_id=read[-1] if read else 0, limit=7, wait_timeout_ms=5000))
        return read

    async with running_api(store) as client, asyncio.timeout(30):
        readers = [asyncio.create_task(reader(client)) for _ in range(5)]
        for _ in range(total):
            await store.publish({"type": "note"})
        assert await asyncio.gather(*readers) == [list(range(1, total + 1))] * 5
    await store.close()


async def test_a_store_that_fails_is_said_to_be_unavailable(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "home.db")
    async with running_api(store) as client:
        await store.close()
        answer = await client.ask("/events?since_id=0")
    assert (answer.status, answer.json()["error"]["code"]) == (503, "store_unavailable")
