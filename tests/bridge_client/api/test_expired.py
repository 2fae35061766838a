"""`GET /events` below the floor of retention: never a silent gap (decision 2.5)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_retention import SqliteRetention
from tests.support.running_api import ApiClient, running_api
from tests.support.running_home import running_home

DEADLINE = 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """Twelve events of two sessions, of which the first six were removed."""
    store = await SqliteStore.open(tmp_path / "home.db")
    for number in range(12):
        await store.publish({"type": "note", "session_id": "ab"[number % 2], "request_id": f"r{number % 3}"})
    await prune(store, 7)
    yield store
    await store.close()


async def prune(store: SqliteStore, acked: int) -> None:
    stock = SqliteRetention(store)
    await stock.mark(1_000_000.0)
    removed = await stock.remove((await stock.marks())[-1], acked)
    assert removed.floor == acked - 1


@pytest.fixture
async def client(store: SqliteStore) -> AsyncIterator[ApiClient]:
    async with running_api(store) as client:
        yield client


def ids(answer: Any) -> list[int]:
    return [int(event["event_id"]) for event in answer["events"]]


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({"since_id": 0}, [7, 8, 9, 10, 11, 12]),
        ({"since_id": 5}, [7, 8, 9, 10, 11, 12]),
        ({"since_id": 3, "session_id": "a"}, [7, 9, 11]),
        ({"since_id": 3, "session_id": "nobody"}, []),
        ({"request_id": "r1"}, [8, 11]),
        ({"session_id": "b"}, [8, 10, 12]),
    ],
)
async def test_a_reader_below_the_floor_is_told_it(client: ApiClient, query: dict[str, Any], wanted: list[int]) -> None:
    answer = await client.events(**query)
    assert (ids(answer), answer["expired"], answer["floor"]) == (wanted, True, "6")
    assert "reset" not in answer


@pytest.mark.parametrize("since", [6, 7, 12])
async def test_a_reader_at_the_floor_or_above_misses_nothing_and_is_told_nothing(client: ApiClient, since: int) -> None:
    answer = await client.events(since_id=since)
    assert ids(answer) == list(range(since + 1, 13))
    assert not answer.keys() & {"expired", "floor", "reset"}


async def test_the_bootstrap_call_and_a_reset_say_what_they_said(client: ApiClient, store: SqliteStore) -> None:
    place = {"events": [], "epoch": store.epoch, "latest_event_id": "12"}
    assert await client.events() == place
    answer = await client.events(since_id=40)
    assert (ids(answer), answer["reset"]) == ([7, 8, 9, 10, 11, 12], True)
    assert (answer["expired"], answer["floor"]) == (True, "6"), "the start that it goes back to is gone"


async def test_whoever_is_told_does_not_wait(client: ApiClient) -> None:
    async with asyncio.timeout(DEADLINE):
        answer = await client.events(since_id=1, session_id="nobody", wait_timeout_ms=30_000)
    assert (ids(answer), answer["floor"]) == ([], "6")
    waiting = asyncio.create_task(client.events(since_id=6, session_id="nobody", wait_timeout_ms=30_000))
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done
    waiting.cancel()


async def test_a_page_read_before_a_removal_is_never_passed_off_as_whole(store: SqliteStore) -> None:
    """The removal falls between the look at the store's end and the reading of the page."""
    listing = store.list

    async def list_late(**query: Any) -> Any:
        await prune(store, 10)
        return await listing(**query)

    async with running_api(store) as client:
        store.list = list_late  # type: ignore[method-assign]
        answer = await client.events(since_id=7)
    assert (ids(answer), answer["floor"]) == ([10, 11, 12], "9")


async def test_A24_a_session_whose_cursor_is_below_the_floor_is_told_and_goes_on(tmp_path: Path) -> None:
    async with running_home(tmp_path) as home, asyncio.timeout(DEADLINE):
        await home.create("old")
        for _ in range(5):
            await home.store.publish({"type": "note", "session_id": "other"})
        await prune(home.store, 5)
        answer = await home.events(session_id="old")
        assert (ids(answer), answer["expired"], answer["floor"]) == ([], True, "4")
        await home.append("hello", session_id="old")
        answer = await home.events(session_id="old", since_id=answer["floor"])
        assert [event["type"] for event in answer["events"]] == ["message_appended", "checkpoint"]
        assert "expired" not in answer


async def test_a_reader_of_a_session_is_told_which_of_its_places_are_gone(tmp_path: Path) -> None:
    """B56, B125: never a silent gap, at once, whatever is asked for; and not again behind the floor."""
    async with running_home(tmp_path) as home:
        for number in range(12):
            await home.store.publish({"type": "note", "session_id": "ab"[number % 2], "run_id": "r"})
        await home.store.publish({"type": "note"})
        await prune(home.store, 7)  # three of each session

        async def ask(query: str, session_id: str = "a") -> tuple[list[int], Any, Any]:
            async with asyncio.timeout(DEADLINE):
                answer = (await home.ask(f"/sessions/{session_id}/events?{query}")).json()
            return [one["sequence_number"] for one in answer["events"]], answer.get("expired"), answer.get("floor")

        assert await ask("after=1&before=3&wait_timeout_ms=25000") == ([], True, 3)
        assert await ask("type=other&wait_timeout_ms=25000") == ([], True, 3)
        assert await ask("run_id=r&after=2&limit=1") == ([4], True, 3)
        assert await ask("after=3") == ([4, 5, 6], None, None)
        assert await ask("after=3&before=4") == ([], None, None)
        assert await ask("after=3&type=other") == ([], None, None)
        assert await ask("after=9") == ([4, 5, 6], True, 3)
        assert await ask("after=6") == ([], None, None)
        assert await ask("", "nobody") == ([], None, None)
        await prune(home.store, 13)
        assert await ask("wait_timeout_ms=25000") == ([], True, 6)
        assert await ask("after=6") == ([], None, None)
