"""What every session log must do, run against each backend."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from bridge_client.session_log import MAX_OWN_ID, EventIdTaken, Sequenced, stream_session_events
from bridge_client.store import MAX_EVENT_BYTES, StoreClosed
from protocol.errors import InvalidEvent
from protocol.event_id import MAX_EVENT_ID
from protocol.events import session_manager
from protocol.events.session_manager import Context, Draft, stamp
from tests.contracts.stores import BACKENDS, LOCAL, Opened, opened

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
STORED_AT = NOON + timedelta(hours=6)


@pytest.fixture(params=BACKENDS)
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened(request.param, tmp_path, wall=STORED_AT.timestamp) as found:
        yield found


def event(id: str | None = None, type: str = "message_streamed", **members: Any) -> dict[str, Any]:
    return {**({} if id is None else {"id": id}), "type": type, **members}


def numbers(events: list[Sequenced]) -> list[int]:
    return [one.sequence_number for one in events]


def members(one: Sequenced) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(one.stored.data)
    return found


# --- appending


async def test_B40_B41_B42_an_appended_event_is_an_event_of_the_store_with_its_place(both: Opened) -> None:
    store, log = both
    await store.publish({"type": "other"})
    first = await log.append_event_with_sequence("s", event("evt_1", data={"n": 1}))
    assert first.sequence_number == 1
    assert first.stored == (
        2,
        b'{"event_id":"2","sequence_number":1,"id":"evt_1","type":"message_streamed","data":{"n":1},"session_id":"s"}',
    )
    assert await store.list(since_id=1) == [first.stored] == await store.list(session_id="s")
    assert store.recent(1) == [first.stored]
    assert await store.head() == 2
    second = await log.append_event_with_sequence("s", event("evt_2"))
    other = await log.append_event_with_sequence("t", event("evt_3"))
    assert (second.sequence_number, other.sequence_number) == (2, 1)
    assert await log.get_events("s") == [first, second]


async def test_B43_B44_a_repeated_id_is_answered_with_what_was_stored(both: Opened) -> None:
    store, log = both
    first = await log.append_event_with_sequence("s", event("evt_1", data={"n": 1}))
    await log.append_event_with_sequence("s", event("evt_2"))
    for repeated in (event("evt_1", data={"n": 1}), event("evt_1", type="run_failed"), b'{"id":"evt_1","type":"x"}'):
        assert await log.append_event_with_sequence("s", repeated) == first
    assert await store.head() == 2
    assert store.recent(2) == []
    assert await log.get_latest_sequence("s") == 2
    assert (await log.append_event_with_sequence("s", event("evt_3"))).sequence_number == 3
    with pytest.raises(EventIdTaken, match=r"evt_1.*another session"):
        await log.append_event_with_sequence("t", event("evt_1"))
    assert await log.get_latest_sequence("t") == 0


async def test_an_event_without_an_id_is_stored_each_time_and_publish_looks_at_no_id(both: Opened) -> None:
    store, log = both
    assert numbers([await log.append_event_with_sequence("s", event()) for _ in range(2)]) == [1, 2]
    for _ in range(2):
        await store.publish(event("evt_1", session_id="s"))
    assert numbers([await log.append_event_with_sequence("s", event("evt_1")) for _ in range(2)]) == [5, 5]


async def test_B45_places_are_without_gap_or_repeat_under_many_appends_at_once(both: Opened) -> None:
    store, log = both

    async def write(n: int) -> tuple[str, Sequenced | None]:
        session = f"s{n % 3}"
        if n % 5 == 0:
            await store.publish(event(session_id=session))
            return session, None
        # Every id comes twice.
        return session, await log.append_event_with_sequence(session, event(f"evt_{session}_{n // 2 % 40}"))

    written = await asyncio.gather(*(write(n) for n in range(400)))
    for session in ("s0", "s1", "s2"):
        events = await log.get_events(session)
        assert numbers(events) == list(range(1, len(events) + 1))
        assert [one.stored for one in events] == await store.list(session_id=session)  # one order, one log
        told = {one for where, one in written if where == session and one is not None}
        assert told <= set(events)
        ids = [members(one)["id"] for one in events if "id" in members(one)]
        assert len(ids) == len(set(ids)) == len(told)
        assert await log.get_latest_sequence(session) == len(events)


async def test_B50_what_is_published_has_its_place_too_and_keeps_its_bytes(both: Opened) -> None:
    store, log = both
    published = await store.publish(b'{"type":"partial","session_id":"s","sequence_number":99}')
    appended = await log.append_event_with_sequence("s", event("evt_1"))
    assert await log.get_events("s") == [Sequenced(published, 1), appended]
    assert published.data == b'{"event_id":"1","type":"partial","session_id":"s","sequence_number":99}'
    assert appended.sequence_number == 2


@pytest.mark.parametrize("form", ["mapping", "bytes"])
async def test_a_number_from_elsewhere_gives_way_and_nothing_else_changes(both: Opened, form: str) -> None:
    given = {"id": "evt_1", "sequence_number": 7, "type": "a", "session_id": "s", "data": {"x": [1.5, None, "ä😀"]}}
    text = json.dumps(given, ensure_ascii=False).replace("1.5", "1.50" if form == "bytes" else "1.5")
    text = text.replace('"sequence_number"', r'"sequence\u005fnumber"')
    one = await both.log.append_event_with_sequence("s", given if form == "mapping" else text.encode())
    assert list(members(one)) == ["event_id", "sequence_number", "id", "type", "session_id", "data"]
    assert members(one) == {**given, "event_id": "1", "sequence_number": 1}
    assert given["sequence_number"] == 7
    assert form == "mapping" or b"1.50" in one.stored.data


async def test_a_canonical_event_is_stored_as_its_object(both: Opened) -> None:
    made = session_manager.new_event("run_started", "s", new_id=lambda: "0" * 32, now=lambda: NOON, run_id="r")
    one = await both.log.append_event_with_sequence("s", made)
    found = members(one)
    del found["event_id"]
    assert session_manager.from_map(found) == session_manager.from_map(
        session_manager.to_map(made) | {"sequence_number": 1}
    )
    assert await both.log.append_event_with_sequence("s", made) == one


async def test_surrogates_are_one_and_the_same_session_id_and_type(both: Opened) -> None:
    one = await both.log.append_event_with_sequence("\ud800", event("\udfff", type="\ud800", run_id="\ud800"))
    again = await both.log.append_event_with_sequence("\ufffd", b'{"id":"\\udfff","type":"x","session_id":"\\ud801"}')
    assert again == one
    assert members(one)["id"] == "\ufffd"
    assert await both.log.get_events("\udfff", type="\udfff", run_id="\udfff") == [one]
    assert await both.log.get_latest_sequence("\ud900") == 1


@pytest.mark.parametrize("both", LOCAL, indirect=True)  # one gate stands in front of all of them
@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (event("x", session_id="t"), "$.session_id"),
        (event("x", session_id=None), "$.session_id"),
        (event(""), "$.id"),
        (event("x" * (MAX_OWN_ID + 1)), "$.id"),
        ({"id": 5, "type": "a"}, "$.id"),
        ({"id": None, "type": "a"}, "$.id"),
        (b'{"id":["x"],"type":"a"}', "$.id"),
        (b'{"type":"a","session_id":"t"}', "$.session_id"),
        (b'{"type":"a","session_id":5}', "$.session_id"),
        ({"id": "x"}, "type"),
        ({"type": "a", "event_id": "1"}, "$.event_id"),
        ({"type": "a", "x": float("nan")}, "$.x"),
        (b'{"type":"a"', "truncated"),
        (b'["type"]', "array"),
        ("text", "str"),
        ({"type": "a", "x": "y" * MAX_EVENT_BYTES}, "bytes"),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, dict) else None,
)
async def test_what_can_not_be_stored_takes_no_place(both: Opened, refused: Any, says: str) -> None:
    with pytest.raises(InvalidEvent) as refusal:
        await both.log.append_event_with_sequence("s", refused)
    assert says in str(refusal.value)
    assert len(str(refusal.value)) < 500
    assert await both.log.get_latest_sequence("s") == 0
    assert (await both.log.append_event_with_sequence("s", event("x"))).sequence_number == 1


@pytest.mark.parametrize("backend", BACKENDS)
async def test_the_limit_counts_the_number_too(backend: str, tmp_path: Path) -> None:
    longest = len(
        f'{{"event_id":"{MAX_EVENT_ID}","sequence_number":{MAX_EVENT_ID},"type":"a","x":"","session_id":"s"}}'
    )
    async with opened(backend, tmp_path, max_event_bytes=200) as (_, log):
        await log.append_event_with_sequence("s", {"type": "a", "x": "y" * (200 - longest)})
        with pytest.raises(InvalidEvent, match="201 bytes"):
            await log.append_event_with_sequence("s", {"type": "a", "x": "y" * (201 - longest)})


async def test_a_cancelled_append_may_be_done_again(both: Opened) -> None:
    appending = asyncio.ensure_future(both.log.append_event_with_sequence("s", event("evt_1")))
    await asyncio.sleep(0)
    appending.cancel()
    await asyncio.wait([appending])
    assert (await both.log.append_event_with_sequence("s", event("evt_1"))).sequence_number == 1
    assert numbers(await both.log.get_events("s")) == [1]


# --- reading


async def test_B50_B51_B52_B53_B54_B55_B56_B57_B58_all_filters_alone_and_combined(both: Opened) -> None:
    store, log = both
    kinds = ("message_streamed", "tool_call_completed")
    written = []
    for n, (type, run) in enumerate(itertools.islice(itertools.cycle(itertools.product(kinds, "abc")), 24)):
        at = NOON + timedelta(minutes=n)
        names = {"run_id": run} if n % 2 else {"request_id": run}
        written.append(await log.append_event_with_sequence("s", event(type=type, timestamp=at.isoformat(), **names)))
        await log.append_event_with_sequence("t", event(type=type, timestamp=at.isoformat(), **names))
    assert [one.stored for one in written] == await store.list(session_id="s")

    def expected(after: int, before: int | None, run: str | None, type: str | None, minute: int | None) -> list[Any]:
        return [
            one
            for n, one in enumerate(written)
            if one.sequence_number > after
            and (before is None or one.sequence_number < before)
            and run in (None, members(one).get("run_id", members(one).get("request_id")))
            and type in (None, members(one)["type"])
            and (minute is None or n >= minute)
        ]

    for after, before, run, type, minute in itertools.product(
        (0, 7, 24), (None, 0, 8, 20, 2**70), (None, "b", "z"), (None, kinds[1]), (None, 9)
    ):
        since = None if minute is None else NOON + timedelta(minutes=minute)
        asked: dict[str, Any] = {"after": after, "before": before, "run_id": run, "type": type, "since": since}
        got = await log.get_events("s", **asked)
        assert got == expected(after, before, run, type, minute), asked
        assert await log.get_events("s", **asked, limit=2) == got[:2]
    assert await log.get_events("nobody") == []
    assert await log.get_events("s", after=2**70) == []


async def test_B53_since_is_inclusive_and_an_event_without_a_time_counts_from_when_it_was_stored(both: Opened) -> None:
    store, log = both
    own = ["2026-05-04T12:00:00Z", "2026-05-04T14:00:00.000001+02:00", "2026-05-04T12:00:00.000002"]
    for at in own:
        await log.append_event_with_sequence("s", event(timestamp=at))
    for nonsense in (None, 5, "yesterday", "9" * 5000, ["2026-05-04T12:00:00Z"]):
        await store.publish(event(session_id="s", timestamp=nonsense))
    await store.publish(event(session_id="s"))
    cases = {
        NOON: range(1, 10),
        NOON.replace(tzinfo=None): range(1, 10),
        NOON.astimezone(timezone(timedelta(hours=-7))): range(1, 10),
        NOON + timedelta(microseconds=1): range(2, 10),
        NOON + timedelta(microseconds=2): range(3, 10),
        NOON + timedelta(microseconds=3): range(4, 10),
        STORED_AT: range(4, 10),
        STORED_AT + timedelta(microseconds=1): range(0),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))): range(1, 10),
        datetime(9999, 12, 31, tzinfo=timezone(timedelta(hours=-14))): range(0),
    }
    for since, found in cases.items():
        assert numbers(await log.get_events("s", since=since)) == list(found), since


async def test_B59_the_latest_sequence_is_0_when_there_is_none(both: Opened) -> None:
    assert await both.log.get_latest_sequence("s") == 0
    for n in range(3):
        await both.log.append_event_with_sequence("s", event())
        assert await both.log.get_latest_sequence("s") == n + 1


async def test_refused_arguments(both: Opened) -> None:
    for wrong in ({"limit": 0}, {"limit": -1}, {"after": -1}, {"before": -1}, {"wait_timeout_ms": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            await both.log.get_events("s", **wrong)
    with pytest.raises(ValueError, match="poll_interval_ms"):
        await anext(stream_session_events(both.log, "s", poll_interval_ms=0))


async def test_a_page_of_large_events_is_cut_by_bytes_and_only_an_empty_page_is_the_end(both: Opened) -> None:
    for _ in range(10):
        await both.log.append_event_with_sequence("s", {"type": "x", "pad": "y" * (MAX_EVENT_BYTES - 200)})
    first = await both.log.get_events("s")
    assert 8 <= len(first) <= 9
    rest = await both.log.get_events("s", after=first[-1].sequence_number)
    assert numbers(first + rest) == list(range(1, 11))


async def test_B130_B131_B132_B133_B134_what_an_adapter_said_is_read_back_by_run(both: Opened) -> None:
    context = Context(session_id="s", run_id="r", provider="claude", new_id=lambda: "0" * 32, now=lambda: STORED_AT)
    draft = Draft("run_started", {}, {"model": "m", "provider": "x"}, provider_event_id="msg_1", timestamp=NOON)
    await both.log.append_event_with_sequence("s", stamp(draft, context, 0))
    await both.log.append_event_with_sequence("s", event(type="run_started", run_id="another"))
    (one,) = await both.log.get_events("s", run_id="r")
    assert members(one)["type"] == "run_started"
    assert members(one)["timestamp"] == "2026-05-04T12:00:00Z"
    assert members(one)["metadata"] == {"model": "m", "provider": "claude", "provider_event_id": "msg_1"}
    assert members(one)["provider"] == "claude"


# --- waiting


async def test_B125_a_read_waits_for_the_first_event_that_matches(both: Opened) -> None:
    store, log = both
    await log.append_event_with_sequence("s", event())
    asked = {"after": 1, "type": "run_completed", "run_id": "r", "wait_timeout_ms": 60_000}
    waiting = asyncio.ensure_future(log.get_events("s", **asked))
    for other in (
        event(session_id="t", type="run_completed", run_id="r"),
        event(session_id="s", type="run_completed", run_id="q"),
        event(session_id="s", type="run_failed", run_id="r"),
    ):
        await store.publish(other)
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    one = await log.append_event_with_sequence("s", event(type="run_completed", run_id="r"))
    assert await asyncio.wait_for(waiting, 20) == [one]


async def test_B125_a_read_does_not_wait_when_there_is_something_and_not_for_ever(both: Opened) -> None:
    one = await both.log.append_event_with_sequence("s", event())
    async with asyncio.timeout(20):
        assert await both.log.get_events("s", wait_timeout_ms=600_000) == [one]
        assert await both.log.get_events("s", after=1, wait_timeout_ms=20) == []


async def test_many_wait_each_is_woken_and_one_that_gives_up_leaves_the_others_alone(both: Opened) -> None:
    waiting = [asyncio.ensure_future(both.log.get_events(f"s{n % 4}", wait_timeout_ms=60_000)) for n in range(12)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    written = [(await both.log.append_event_with_sequence(f"s{n}", event())).stored for n in range(4)]
    found = await asyncio.wait_for(asyncio.gather(*waiting[1:]), 20)
    assert [events[0].stored for events in found] == [written[n % 4] for n in range(1, 12)]


async def test_closing_ends_those_who_wait_and_everything_after_it_is_refused(both: Opened) -> None:
    waiting = asyncio.ensure_future(both.log.get_events("s", wait_timeout_ms=600_000))
    await asyncio.wait([waiting], timeout=0.05)
    await both.store.close()
    with pytest.raises(StoreClosed):
        await asyncio.wait_for(waiting, 20)
    for call in (
        both.log.append_event_with_sequence("s", event()),
        both.log.get_events("s"),
        both.log.get_latest_sequence("s"),
    ):
        with pytest.raises(StoreClosed):
            await call


async def test_B120_B123_B124_a_stream_follows_lazily_and_goes_on_where_it_stopped(both: Opened) -> None:
    _, log = both
    for n in range(5):
        await log.append_event_with_sequence("s", event(f"evt_{n}"))
    seen = []
    async with asyncio.timeout(20):
        async for one in stream_session_events(log, "s", limit=2, wait_timeout_ms=30_000):
            seen.append(one.sequence_number)
            if len(seen) == 7:
                break
            if seen[-1] >= 5:
                await log.append_event_with_sequence("s", event(f"evt_{len(seen)}"))
        again = stream_session_events(log, "s", after=seen[-1], wait_timeout_ms=30_000)
        following = asyncio.ensure_future(anext(again))
        await asyncio.sleep(0)
        await log.append_event_with_sequence("s", event("evt_last"))
        assert (await following).sequence_number == 8
    assert seen == [1, 2, 3, 4, 5, 6, 7]
