"""What one page of `GET /events` costs in a store with many events: the work is counted, not timed.

`python -m benchmarks pages` gives the times.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client.api.events import Events, read_query
from bridge_client.store.sqlite import SqliteStore
from protocol.events.compaction import plan


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "home.db")
    await asyncio.gather(*(store.publish(part(number)) for number in range(600)))
    yield store
    await store.close()


def part(number: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": f"token {number} "}
    return {"type": "partial", "session_id": "s", "request_id": f"r{number // 300}", "message": message}


FILTERS = [
    ({}, "INTEGER PRIMARY KEY (rowid>?)"),
    ({"session_id": "s"}, "events_of_session (session_id=? AND id>?)"),
    ({"request_id": "r1"}, "events_of_request (request_id=? AND id>?)"),
    ({"session_id": "s", "request_id": "r1"}, "events_of_request (request_id=? AND id>?)"),
]


@pytest.mark.parametrize(("filters", "index"), FILTERS)
async def test_A20_every_filter_is_answered_from_an_index_in_its_order(
    store: SqliteStore, filters: dict[str, str], index: str
) -> None:
    """A request is a small part of its session: with both filters its own index is the one that reads the fewest."""
    asked: list[str] = []
    await store.query(lambda file: file.set_trace_callback(asked.append))
    await store.list(since_id=400, **filters)
    await store.query(lambda file: file.set_trace_callback(None))
    (query,) = [text for text in asked if text.startswith("SELECT id, data FROM events")]
    plans = await store.query(lambda file: [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {query}")])
    assert len(plans) == 1, "no sorting behind it"
    assert index in plans[0]


@pytest.mark.parametrize("filters", [filters for filters, _ in FILTERS])
async def test_A20_a_page_is_three_looks_at_the_store(store: SqliteStore, filters: dict[str, str]) -> None:
    """Head, page, floor: each is a turn of the reader's thread."""
    looks: list[str] = []
    await store.query(lambda file: file.set_trace_callback(looks.append))
    body = await Events(store).answer(read_query([("since_id", "300"), *filters.items()]))
    await store.query(lambda file: file.set_trace_callback(None))
    assert b"token 599" in body
    assert len([text for text in looks if text.startswith("SELECT")]) == 3


def calls(events: list[Any]) -> int:
    """Calls of functions, of ours and of the interpreter, that planning these events takes."""
    count = 0

    def note(frame: Any, what: str, argument: Any) -> None:
        nonlocal count
        count += what in ("call", "c_call")

    sys.setprofile(note)
    try:
        plan(events)
    finally:
        sys.setprofile(None)
    return count


def test_A31_compaction_looks_at_each_part_a_few_times_however_many_there_are() -> None:
    """Each part's text and request are read once; nothing is compared with everything before it."""
    few, many = ([part(number) for number in range(size)] for size in (100, 1_000))
    per_event = calls(many) / 1_000
    assert per_event < 70
    assert per_event <= calls(few) / 100 * 1.05
