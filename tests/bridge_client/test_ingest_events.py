"""What a value of the input becomes: an event of the home's own vocabulary, or one that wraps it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bridge_client.ingest import ingest
from bridge_client.store.memory import MemoryStore


async def stored(*values: Any, **options: Any) -> list[dict[str, Any]]:
    text = "\n".join(value if isinstance(value, str) else json.dumps(value) for value in values)

    async def whole() -> AsyncIterator[bytes]:
        yield text.encode()

    store = MemoryStore()
    report = await ingest(store, whole(), **options)
    assert not report.problems
    return [json.loads(one.data) for one in await store.list(limit=1000)]


APPENDED = {"type": "message_appended", "session_id": "garden", "role": "user", "content": "hi", "message": {}}


async def test_an_event_of_the_homes_own_vocabulary_goes_through_as_it_is() -> None:
    started = {"type": "request_started", "session_id": "garden", "request_id": "r", "more": [1]}
    assert await stored(APPENDED, started) == [{"event_id": "1", **APPENDED}, {"event_id": "2", **started}]


async def test_what_the_command_line_says_of_the_session_counts_and_an_id_of_another_store_goes() -> None:
    own = {"event_id": "77", **APPENDED}
    assert await stored(own, session_id="s \u00e4") == [{"event_id": "1", **APPENDED, "session_id": "s \u00e4"}]
    by_hand = {"type": "message_appended", "role": "user", "content": "hi"}
    assert await stored(by_hand, session_id="s") == [{"event_id": "1", **by_hand, "session_id": "s"}]


async def test_A56_a_final_is_stored_without_its_session() -> None:
    final = {"type": "final", "session_id": "s", "request_id": "r", "messages": [{"content": "x"}]}
    assert await stored({**final, "session": {"secret": 1}}) == [{"event_id": "1", **final}]


@pytest.mark.parametrize(
    "value",
    [
        {"type": "error", "error": {"type": "overloaded_error"}},  # a provider's
        {"type": "partial", "message": "text"},
        {"type": "assistant_message", "content": "hello", "session_id": "s"},
        {"type": "note", "session_id": "s", "content": "hello"},
    ],
)
async def test_what_only_has_such_a_name_is_wrapped(value: dict[str, Any]) -> None:
    assert await stored(value) == [{"event_id": "1", "type": value["type"], "data": value}]


async def test_A80_an_internal_event_is_named_and_skipped() -> None:
    async def whole() -> AsyncIterator[bytes]:
        yield b'1\n{"type":"session_checkpoint","session_id":"s","request_id":"r"}\n'

    report = await ingest(MemoryStore(), whole())
    assert (report.published, [problem.line for problem in report.problems]) == (1, [2])


async def test_an_array_of_objects_is_one_event_for_each() -> None:
    events = await stored("[", json.dumps(APPENDED) + ",", '{"type": "note", "n": 1}', "]", session_id="s")
    assert [event["type"] for event in events] == ["message_appended", "note"]
    assert events[1]["data"] == {"type": "note", "n": 1}
    assert [event["data"] for event in await stored([{"a": 1}, {"b": 2}])] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("value", [[], [1, 2], [{"a": 1}, 2], [[{"a": 1}]]])
async def test_any_other_array_is_one_event(value: list[Any]) -> None:
    assert [event["data"] for event in await stored(value)] == [value]
