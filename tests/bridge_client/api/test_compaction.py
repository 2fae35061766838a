"""`GET /events` leaves out what the rest of an answer repeats (rows A28 to A33, decisions 2.14 and 2.15)."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bridge_client.store import EventStore
from bridge_client.store.memory import MemoryStore
from tests.support.running_api import ApiClient, running_api


@pytest.fixture
def store() -> EventStore:
    return MemoryStore()


@pytest.fixture
async def client(store: EventStore) -> AsyncIterator[ApiClient]:
    async with running_api(store) as client:
        yield client


def part(text: str, request: str = "r", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"type": "partial", "session_id": "s", "request_id": request, "message": message, **more}


def whole(text: str, request: str = "r") -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"type": "final", "session_id": "s", "request_id": request, "messages": [message]}


def tool(phase: str, payload: Any) -> dict[str, Any]:
    about = {"type": "tool_partial", "session_id": "s", "request_id": "r", "tool_call_id": "c"}
    return {**about, "phase": phase, "payload": payload}


async def publish(store: EventStore, *events: dict[str, Any]) -> None:
    for event in events:
        await store.publish(event)


def seen(answer: Any) -> list[tuple[int, str]]:
    return [(int(e["event_id"]), e.get("message", {}).get("content", e["type"])) for e in answer["events"]]


async def test_A29_partials_go_when_the_final_repeats_them(client: ApiClient, store: EventStore) -> None:
    await publish(store, part("Hel"), part("lo"), whole("Hello"), part("and more"))
    assert seen(await client.events(since_id=0)) == [(3, "final"), (4, "and more")]
    assert seen(await client.events(session_id="s")) == [(3, "final"), (4, "and more")]
    assert seen(await client.events(request_id="r")) == [(3, "final"), (4, "and more")]
    assert seen(await client.events(since_id=0, limit=2)) == [(2, "Hello")], "a page without the final keeps them"


async def test_2_15_partials_of_a_request_without_a_final_stay_merged(client: ApiClient, store: EventStore) -> None:
    over = {"type": "request_cancelled", "session_id": "s", "request_id": "r"}
    await publish(store, part("Hel"), part("lo"), over)
    assert seen(await client.events(since_id=0)) == [(2, "Hello"), (3, "request_cancelled")]


async def test_A30_tool_partials_go_when_the_result_is_there(client: ApiClient, store: EventStore) -> None:
    result = {"role": "tool", "content": "ab", "metadata": {"tool_call_id": "c"}}
    results = {"type": "tool_results", "session_id": "s", "request_id": "r", "messages": [result]}
    await publish(store, tool("start", {}), tool("stream", {"part": "a"}), tool("stream", {"part": "b"}), results)
    assert seen(await client.events(since_id=0)) == [(4, "tool_results")]


async def test_A31_A32_2_14_partials_merge_within_their_request_under_the_last_id(
    client: ApiClient, store: EventStore
) -> None:
    await publish(store, part("a", "1"), part("x", "2"), part("b", "1"), part("y", "2"), part("c", "1"))
    answer = await client.events(since_id=0)
    assert seen(answer) == [(4, "xy"), (5, "abc")]
    assert [event["request_id"] for event in answer["events"]] == ["2", "1"]
    assert answer["latest_event_id"] == "5"


async def test_A31_the_place_to_go_on_from_is_that_of_the_page(client: ApiClient, store: EventStore) -> None:
    await publish(store, *[part(str(n % 10)) for n in range(50)], whole("x"))
    since, text = "0", ""
    while events := (await client.events(since_id=since, limit=7))["events"]:
        text += "".join(event["message"]["content"] for event in events if event["type"] == "partial")
        since = events[-1]["event_id"]
    assert (text, since) == ("0123456789" * 5, "51")


async def test_A33_stored_events_stay_as_they_were(client: ApiClient, store: EventStore) -> None:
    await publish(store, part("Hel"), part("lo"), whole("Hello"))
    before = await store.list()
    await client.events(since_id=0)
    assert await store.list() == before
    answer = await client.ask("/events?since_id=0&compact=false")
    assert answer.body.startswith(b'{"events":[%b],' % b",".join(event.data for event in before))
    refused = await client.ask("/events?compact=yes")
    assert (refused.status, refused.json()["error"]["parameter"]) == (400, "compact")


async def test_A28_the_bootstrap_call_compacts_nothing_and_holds_nothing(client: ApiClient, store: EventStore) -> None:
    await publish(store, part("Hel"), part("lo"))
    assert (await client.events())["events"] == []


async def test_A51_A63_what_is_not_merged_keeps_its_bytes_and_what_is_keeps_its_numbers(
    client: ApiClient, store: EventStore
) -> None:
    odd = b'{"type":"partial","session_id":"s","request_id":"o", "n":1.0,"message":{"content":"a"},"big":%d}' % 10**30
    other = b'{"type":"note", "n":1.50,\n"big":123456789012345678901234567890}'
    for text in (odd, other, odd):
        await store.publish(text)
    answer = await client.ask("/events?since_id=0")
    assert (await store.list())[1].data in answer.body
    merged = json.loads(answer.body)["events"][-1]
    assert (merged["message"]["content"], merged["big"], merged["event_id"]) == ("aa", 10**30, "3")


@pytest.mark.parametrize("number", [b"1e999", b"9" * 5000])
async def test_a_number_beyond_all_bounds_costs_the_page_its_compaction_and_nothing_else(
    client: ApiClient, store: EventStore, number: bytes
) -> None:
    text = b'{"type":"partial","request_id":"o","message":{"content":"a"},"n":%b}'
    await store.publish(text % number)
    await store.publish(text % number)
    answer = await client.ask("/events?since_id=0")
    assert answer.status == 200
    assert all(event.data in answer.body for event in await store.list())
