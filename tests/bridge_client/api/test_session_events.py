"""GET /sessions/{session_id}/events: filters, refusals, waiting, and what comes after a restore."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_home import Home, running_home
from tests.support.scripted_runner import ScriptedRunner, reply


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with running_home(tmp_path, ScriptedRunner(*reply("In ", "March."))) as home:
        yield home


async def events(home: Home, session_id: str = "s", **query: Any) -> Any:
    answer = await home.ask(f"/sessions/{session_id}/events", params={k: str(v) for k, v in query.items()})
    assert answer.status == 200, answer.body
    return answer.json()


def numbers(answer: Any) -> list[int]:
    return [one["sequence_number"] for one in answer["events"]]


async def test_B50_B54_B55_B56_B58_a_sessions_events_come_by_their_places_as_they_are_stored(home: Home) -> None:
    stored = []
    for n in range(9):
        text = b'{"type":"partial", "session_id":"s","n":%d.50}' % n
        stored.append((await home.store.publish(text)).data)
        await home.store.publish({"type": "partial", "session_id": "other"})
    answer = await home.ask("/sessions/s/events")
    assert answer.body == b'{"events":[%b],"latest_sequence":9,"epoch":"%b"}' % (
        b",".join(b'{"sequence_number":%d,"event":%b}' % pair for pair in enumerate(stored, 1)),
        home.store.epoch.encode(),
    )
    assert numbers(await events(home, after=3, before=8, limit=2)) == [4, 5]
    assert numbers(await events(home, after=9)) == []
    assert await events(home, "nobody") == {"events": [], "latest_sequence": 0, "epoch": home.store.epoch}
    assert numbers(await events(home, unknown="x", before=2**53 - 1)) == [*range(1, 10)]


async def test_B50_B51_B52_what_a_request_does_is_in_the_log_of_its_session(home: Home) -> None:
    await home.create()
    await home.send("When?", request_id="r-1")
    await home.until("request_completed")
    every, of_run = await events(home), await events(home, run_id="r-1")
    assert numbers(every) == [*range(1, len(every["events"]) + 1)]
    assert every["events"][0]["event"]["type"] == "session_created"
    assert [one["event"] for one in of_run["events"]] == await home.told("r-1")
    (last,) = (await events(home, run_id="r-1", type="request_completed"))["events"]
    assert last == every["events"][-1]


async def test_B53_B57_since_takes_times_as_people_write_them(home: Home) -> None:
    for minute in range(3):
        at = f"2026-05-04T12:0{minute}:00Z"
        await home.store.publish({"type": "t", "session_id": "s", "run_id": "r", "timestamp": at})
    for since in (
        "2026-05-04T12:01:00Z",
        "2026-05-04T14:01+02:00",
        "2026-05-04T14:01:00 02:00",
        "2026-05-04 12:01",
        "2026-05-04T12:00:30.123456789Z",
    ):
        assert numbers(await events(home, since=since, run_id="r", type="t", after=0)) == [2, 3], since
    assert numbers(await events(home, since="2026-05-05")) == []


@pytest.mark.parametrize(
    ("query", "name"),
    [
        *((f"{name}={value}", name) for name in ("after", "before") for value in ("-1", "x", "", "1" * 17, "٣")),
        *((f"limit={value}", "limit") for value in ("0", "1001", "-1", "x")),
        *((f"since={value}", "since") for value in ("", "now", "2026-13-01", "20260504", "1" * 99, "2026-W01-1")),
        ("run_id=", "run_id"),
        ("type=", "type"),
        ("type=a&type=b", "type"),
        ("wait_timeout_ms=-1", "wait_timeout_ms"),
        ("wait_timeout_ms=9999999999", "wait_timeout_ms"),
    ],
)
async def test_what_is_out_of_bounds_is_refused_by_name(home: Home, query: str, name: str) -> None:
    answer = await home.ask(f"/sessions/s/events?{query}")
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["parameter"]) == (400, "bad_parameter", name)
    assert error["message"].startswith(f"{name} ")


async def test_B125_an_answer_waits_for_an_event_that_matches(home: Home) -> None:
    asking = asyncio.ensure_future(events(home, type="wanted", wait_timeout_ms=25_000))
    while not home.store.waiters:
        await asyncio.sleep(0.005)
    await home.store.publish({"type": "other", "session_id": "s"})
    await home.store.publish({"type": "wanted", "session_id": "s"})
    answer = await asyncio.wait_for(asking, 20)
    assert numbers(answer) == [2]
    assert answer["latest_sequence"] == 2
    assert numbers(await events(home, after=2, wait_timeout_ms=10)) == []


async def test_a_place_beyond_the_session_is_answered_from_its_start(home: Home) -> None:
    await home.store.publish({"type": "t", "session_id": "s"})
    answer = await events(home, after=5, wait_timeout_ms=25_000)
    assert (numbers(answer), answer["reset"]) == ([1], True)
    empty = await events(home, "t", after=5, wait_timeout_ms=25_000)
    assert (numbers(empty), empty["reset"], empty["latest_sequence"]) == ([], True, 0)


async def test_the_events_need_the_token_and_say_who_may_keep_them(home: Home) -> None:
    assert (await home.ask("/sessions/s/events", token=None)).status == 401
    answer = await home.ask("/sessions/s%3A1/events")
    assert answer.headers["Cache-Control"] == "no-store"
    assert json.loads(answer.body)["events"] == []
