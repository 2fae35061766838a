"""What every event store must do, run against each backend."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_client.sources.store import StoreSource
from bridge_client.store import MAX_EVENT_BYTES, EventStore, PlainStore, StoreClosed
from bridge_client.store.adapted import Adapted
from protocol.codec import MAX_EVENT_DEPTH
from protocol.errors import InvalidEvent
from protocol.event_id import MAX_EVENT_ID
from tests.contracts.stores import BACKENDS, LOCAL, STORES, Plain
from tests.contracts.stores import opened_store as opened
from tests.support.running_api import running_api


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventStore]:
    async with opened(request.param, tmp_path) as store:
        yield store


def event(number: int = 0, **members: Any) -> dict[str, Any]:
    return {"type": "partial", "session_id": "s", "number": number, **members}


def number_of(data: bytes) -> int:
    number: int = json.loads(data)["number"]
    return number


async def all_ids(store: EventStore, **filters: Any) -> list[int]:
    ids: list[int] = []
    while page := await store.list(since_id=ids[-1] if ids else None, **filters):
        ids += [stored.event_id for stored in page]
    return ids


# --- ids and order


async def test_A3_A4_A5_A8_publish_adds_the_event_id_as_a_string(store: EventStore) -> None:
    stored = await store.publish(event(7))
    assert stored.event_id == 1
    assert stored.data == b'{"event_id":"1","type":"partial","session_id":"s","number":7}'
    assert await store.list() == [stored]


async def test_A6_ids_rise_as_numbers_over_all_sessions_in_publish_order(store: EventStore) -> None:
    stored = [await store.publish(event(n, session_id=f"s{n % 3}")) for n in range(12)]
    ids = [one.event_id for one in stored]
    assert ids == sorted(set(ids))
    assert await store.list() == stored
    assert [one.event_id for one in await store.list(since_id=9)] == [i for i in ids if i > 9]  # "10" > "9"
    assert [number_of(one.data) for one in await store.list()] == list(range(12))


async def test_A6_a_thousand_publishes_at_once_get_ids_in_call_order(store: EventStore) -> None:
    stored = await asyncio.gather(*(store.publish(event(n)) for n in range(1000)))
    ids = [one.event_id for one in stored]
    assert ids == sorted(set(ids))
    read = await store.list(limit=2000)
    assert read == stored


@pytest.mark.parametrize("backend", STORES)
async def test_A6_order_holds_while_publishers_wait_for_room(backend: str, tmp_path: Path) -> None:
    options = {"max_queued_bytes": 2000} if backend in ("sqlite", "postgres") else {}
    async with opened(backend, tmp_path, **options) as store:
        stored = await asyncio.gather(*(store.publish(event(n, pad="x" * (n % 700))) for n in range(300)))
        assert [number_of(one.data) for one in await store.list()] == list(range(300))
        assert [one.event_id for one in stored] == await all_ids(store)


async def test_A6_many_at_once_are_stored_in_their_order_up_to_the_first_that_may_not_be(store: EventStore) -> None:
    assert await store.publish_many([]) == []
    stored = await store.publish_many([event(0), b'{"type":"partial","number":1}', event(2)])
    assert await store.list() == stored
    assert [number_of(one.data) for one in stored] == [0, 1, 2]
    with pytest.raises(InvalidEvent, match=r"\$\.event_id"):
        await store.publish_many([event(3), event(4), event(5, event_id="9"), event(6)])
    with pytest.raises(InvalidEvent):
        await store.publish_many([event(7, bad=math.nan), event(8)])
    assert [number_of(one.data) for one in await store.list()] == [0, 1, 2, 3, 4]
    await store.close()
    with pytest.raises(StoreClosed):
        await store.publish_many([event(9)])


async def test_A6_single_and_many_publishes_at_once_keep_their_order(store: EventStore) -> None:
    calls: list[Any] = [store.publish_many([event(n), event(n + 1)]) for n in range(0, 300, 3)]
    calls = [
        call for n, many in zip(range(0, 300, 3), calls, strict=True) for call in (many, store.publish(event(n + 2)))
    ]
    await asyncio.gather(*calls)
    read = [number_of(one.data) for one in await store.list()]
    assert [read.index(n) for n in range(0, 300, 3)] == sorted(read.index(n) for n in range(0, 300, 3))
    assert sorted(read) == list(range(300))


async def test_head_and_preceding(store: EventStore) -> None:
    assert await store.head() is None
    assert await store.preceding(5) is None
    assert await store.floor() == 0
    ids = [(await store.publish(event(n))).event_id for n in range(3)]
    assert await store.head() == ids[-1]
    assert await store.preceding(ids[0] - 1) is None
    assert await store.preceding(ids[1]) == ids[1]
    assert await store.preceding(MAX_EVENT_ID) == ids[-1]
    assert await store.preceding(2**70) == ids[-1]


# --- recent


@pytest.mark.parametrize("store", BACKENDS, indirect=True)
async def test_recent_gives_what_list_gives_or_knows_that_it_can_not(store: EventStore) -> None:
    assert store.recent(0) == []
    stored = [await store.publish(event(n)) for n in range(7)]
    for after in range(8):
        assert store.recent(after) == stored[after:]
        assert store.recent(after, limit=3) == stored[after : after + 3]
    assert store.recent(2**70) in ([], None)
    await asyncio.gather(*(store.publish(event(n, pad="x" * 9_000)) for n in range(600)))
    everything = await store.list(limit=2000)
    known = 0
    for after in range(0, 607, 3):
        recent = store.recent(after, limit=50)
        known += recent is not None
        assert recent in (everything[after : after + 50], None)
    assert known >= 20  # the newest are there
    await store.close()
    with pytest.raises(StoreClosed):
        store.recent(0)


# --- list


async def test_A9_A21_since_id_is_exclusive(store: EventStore) -> None:
    stored = [await store.publish(event(n)) for n in range(5)]
    assert await store.list(since_id=stored[1].event_id) == stored[2:]
    assert await store.list(since_id=0) == stored
    assert await store.list(since_id=stored[-1].event_id) == []
    assert await store.list(since_id=2**70) == []


async def test_A20_A22_A23_filters_alone_and_combined(store: EventStore) -> None:
    stored = [
        await store.publish({"type": "x", "session_id": session, "request_id": request, "n": n})
        for n, (session, request) in enumerate([(s, r) for _ in range(3) for s in ("a", "b") for r in ("1", "2", "3")])
    ]
    bare = await store.publish({"type": "application_notification"})

    def expected(since: int, session: str | None, request: str | None) -> list[Any]:
        def matches(data: bytes) -> bool:
            members = json.loads(data)
            return session in (None, members.get("session_id")) and request in (None, members.get("request_id"))

        return [one for one in [*stored, bare] if one.event_id > since and matches(one.data)]

    for since in (0, 4, 11):
        for session in (None, "a", "b", "c", ""):
            for request in (None, "1", "3", "\ud800"):
                got = await store.list(since_id=since, session_id=session, request_id=request)
                assert got == expected(since, session, request), (since, session, request)
    page = await store.list(session_id="b", request_id="2", limit=2)
    assert page == expected(0, "b", "2")[:2]


async def test_limit_and_refused_arguments(store: EventStore) -> None:
    stored = [await store.publish(event(n)) for n in range(4)]
    assert await store.list(limit=3) == stored[:3]
    for wrong in ({"limit": 0}, {"limit": -1}, {"since_id": -1}):
        with pytest.raises(ValueError):
            await store.list(**wrong)


@pytest.mark.parametrize("backend", STORES)
async def test_a_page_of_large_events_is_cut_by_bytes_and_only_an_empty_page_is_the_end(
    backend: str, tmp_path: Path
) -> None:
    async with opened(backend, tmp_path) as store:
        ids = [(await store.publish({"type": "x", "pad": "y" * (MAX_EVENT_BYTES - 100)})).event_id for _ in range(12)]
        first = await store.list(limit=500)
        assert 8 <= len(first) <= 9
        assert await all_ids(store, limit=500) == ids


# --- exactness

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_text, inner, max_size=4),
    max_leaves=20,
)
_objects = st.dictionaries(_text.filter(lambda key: key not in ("event_id", "type", "session_id")), _values, max_size=6)


@pytest.mark.parametrize("backend", LOCAL)
@settings(max_examples=60, deadline=None)
@given(events=st.lists(_objects, min_size=1, max_size=8))
def test_A3_any_json_object_comes_back_as_it_was(backend: str, events: list[dict[str, Any]]) -> None:
    async def check() -> None:
        with TemporaryDirectory() as folder:
            async with opened(backend, Path(folder)) as store:
                full = [{"type": "t", **one} for one in events]
                await asyncio.gather(*(store.publish(one) for one in full))
                stored = await store.list()
                assert len(stored) == len(full)
                for one, was in zip(stored, full, strict=True):
                    assert json.loads(one.data) == {"event_id": str(one.event_id), **was}
                    assert list(json.loads(one.data)) == ["event_id", *was]

    asyncio.run(check())


@pytest.mark.parametrize(
    "text",
    [
        b'{"type":"a","n":1e400,"m":' + b"1234567890" * 5 + b',"z":1.0,"e":1E+2,"zero":-0}',
        b'{"type":"a","twice":1,"twice":2}',
        b'{ "type" : "a" ,\n  "x" : [ 1, 2 ]\n}',
        '{"type":"ä","emoji":"😀","pair":"\\ud83d\\ude00","slash":"\\/"}'.encode(),
        b'{"type":"a","n":' + b"9" * 5000 + b"}",
        b'{"ty\\u0070e":"a"}',
        b'{"type":"a","request_id":5,"data":null}',
    ],
)
async def test_bytes_are_spliced_not_encoded_again(store: EventStore, text: bytes) -> None:
    await store.publish(b" \n" + text + b"\r\n")
    (stored,) = await store.list()
    assert stored.data == b'{"event_id":"1",' + text[1:].lstrip()


async def test_lone_surrogates_are_repaired_pairs_are_kept(store: EventStore) -> None:
    await store.publish({"type": "a", "session_id": "\udfff", "x": "a\ud800b", "k\udc00": "\ud83d\ude00"})
    await store.publish(
        b'{"type":"a","session_id":"\\udfff","x":"a\\uD800b","k\\udc00":"\\ud83d\\ude00","y":"\\\\ud800"}'
    )
    one, two = (json.loads(stored.data) for stored in await store.list())
    assert {key: one[key] for key in ("session_id", "x", "k\ufffd")} == {
        "session_id": "\ufffd",
        "x": "a\ufffdb",
        "k\ufffd": "😀",
    }
    assert {key: value for key, value in two.items() if key not in ("event_id", "y")} == {
        key: value for key, value in one.items() if key != "event_id"
    }
    assert two["y"] == "\\ud800"
    assert len(await store.list(session_id="\ufffd")) == 2
    assert len(await store.list(session_id="\ud900")) == 2


async def test_any_mapping_is_taken_and_later_changes_to_it_do_not_matter(store: EventStore) -> None:
    class Members(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return {"type": "a", "x": (1, 2)}[key]

        def __iter__(self) -> Any:
            return iter(("type", "x"))

        def __len__(self) -> int:
            return 2

    await store.publish(Members())
    mutable = {"type": "b", "x": [1]}
    await store.publish(mutable)
    mutable["x"] = [2]
    assert [stored.data for stored in await store.list()] == [
        b'{"event_id":"1","type":"a","x":[1,2]}',
        b'{"event_id":"2","type":"b","x":[1]}',
    ]


# --- refusals


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


_cycle: dict[str, Any] = {"type": "a"}
_cycle["again"] = _cycle


@pytest.mark.parametrize("store", LOCAL, indirect=True)  # one gate stands in front of all of them
@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ({"type": "a", "x": math.nan}, "$.x: nan"),
        ({"type": "a", "x": [{"y": -math.inf}]}, "$.x[0].y: -inf"),
        ({"type": "a", "x": [1, b"raw"]}, "$.x[1]: bytes"),
        ({"type": "a", "x": {1, 2}}, "$.x: set"),
        ({"type": "a", "x": {1: 2}}, "$.x: the key 1 is not a string"),
        ({"type": "a", None: 2}, "$: the key None"),
        ({"type": "a", "x": {True: 2}}, "the key True"),
        ({"type": "a", "x": nested(MAX_EVENT_DEPTH)}, "deeper than"),
        ({"type": "a", "x": nested(100_000)}, "deeper than"),
        (_cycle, "deeper than"),
        ({"type": "a", "x": 10**5000}, "$"),
        ({}, "type"),
        ({"type": ""}, "$.type"),
        ({"type": None}, "$.type"),
        ({"type": 5}, "$.type"),
        ({"type": "a", "session_id": 5}, "$.session_id"),
        ({"type": "a", "session_id": None}, "$.session_id"),
        ({"type": "a", "event_id": "5"}, "$.event_id"),
        ({"type": "a", "event_id": None}, "$.event_id"),
        ({"type": "a", "x": "y" * MAX_EVENT_BYTES}, "bytes"),
        ([("type", "a")], "list"),
        ("text", "str"),
        (b'{"type":"a","x":NaN}', "malformed"),
        (b'{"type":"a","x":Infinity}', "malformed"),
        (b'{"type":"a","x":"\xff"}', "UTF-8"),
        (b'{"type":"a","x":' + b"[" * MAX_EVENT_DEPTH + b"]" * MAX_EVENT_DEPTH + b"}", "deeper"),
        (b'{"type":"a","x":' + b"[" * 100_000, "deeper"),
        (b'{"type":"a","event\\u005fid":"5"}', "$.event_id"),
        (b'{"type":"a","session_id":[]}', "$.session_id"),
        (b'{"type":"a"', "truncated"),
        (b'{"type":"a"}{}', "trailing"),
        (b'["type","a"]', "array"),
        (b"", ""),
        (b"null", "null"),
        (b'{"type":"a","x":"' + b"y" * MAX_EVENT_BYTES + b'"}', "bytes"),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, dict) else None,
)
async def test_A10_A11_what_the_wire_cannot_carry_is_refused(store: EventStore, refused: Any, says: str) -> None:
    with pytest.raises(InvalidEvent) as refusal:
        await store.publish(refused)
    assert says in str(refusal.value)
    assert len(str(refusal.value)) < 500
    assert await store.head() is None
    assert (await store.publish(event())).event_id == 1


async def test_the_deepest_event_is_taken(store: EventStore) -> None:
    await store.publish({"type": "a", "x": nested(MAX_EVENT_DEPTH - 1)})
    await store.publish(b'{"type":"a","x":' + b"[" * (MAX_EVENT_DEPTH - 1) + b"]" * (MAX_EVENT_DEPTH - 1) + b"}")
    assert len(await store.list()) == 2


@pytest.mark.parametrize("backend", STORES)
async def test_the_limit_counts_the_whole_event_with_the_longest_id(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path, max_event_bytes=200) as store:
        whole = len(f'{{"event_id":"{MAX_EVENT_ID}","type":"a","x":""}}')
        await store.publish({"type": "a", "x": "y" * (200 - whole)})
        with pytest.raises(InvalidEvent, match="201 bytes"):
            await store.publish({"type": "a", "x": "y" * (201 - whole)})


# --- wake-up


async def test_a_waiting_reader_is_woken_by_the_next_event(store: EventStore) -> None:
    first = await store.publish(event())
    waiting = asyncio.ensure_future(store.wait(first.event_id))
    done, _ = await asyncio.wait([waiting], timeout=0.3)
    assert not done
    second = await store.publish(event())
    await asyncio.wait_for(waiting, 20)
    assert await store.list(since_id=first.event_id) == [second]


async def test_wait_returns_at_once_for_what_is_there(store: EventStore) -> None:
    await store.publish(event())
    await asyncio.wait_for(store.wait(0), 20)


async def test_a_reader_that_waits_and_reads_misses_nothing(store: EventStore) -> None:
    seen: list[int] = []

    async def read() -> None:
        while len(seen) < 200:
            await store.wait(seen[-1] if seen else 0)
            seen.extend([number_of(one.data) + 1 for one in await store.list(since_id=len(seen))])

    reading = [asyncio.ensure_future(read())]
    for n in range(200):
        await store.publish(event(n))
    await asyncio.wait_for(asyncio.gather(*reading), 20)
    assert seen == list(range(1, 201))


async def test_a_cancelled_wait_leaves_the_others_alone(store: EventStore) -> None:
    one, two = asyncio.ensure_future(store.wait(0)), asyncio.ensure_future(store.wait(0))
    await asyncio.wait([one, two], timeout=0.05)
    one.cancel()
    await store.publish(event())
    await asyncio.wait_for(two, 20)
    assert one.cancelled()


# --- epoch and end of life


@pytest.mark.parametrize("backend", STORES)
async def test_each_store_has_its_own_epoch_which_can_be_renewed(backend: str, tmp_path: Path) -> None:
    async with opened(backend, tmp_path / "a") as store, opened(backend, tmp_path / "b") as other:
        assert len({store.epoch, other.epoch}) == 2
        assert len(store.epoch) >= 16
        before, stored = store.epoch, await store.publish(event())
        renewed = await store.renew_epoch()
        assert renewed == store.epoch != before
        assert await store.list() == [stored]


async def test_close_stores_what_was_accepted_and_ends_the_waiters(store: EventStore) -> None:
    publishing = [asyncio.ensure_future(store.publish(event(n))) for n in range(50)]
    waiting = asyncio.ensure_future(store.wait(10**6))
    await asyncio.wait([publishing[0]])
    await store.close()
    await store.close()
    assert [stored.event_id for stored in await asyncio.gather(*publishing)] == list(range(1, 51))
    with pytest.raises(StoreClosed):
        await waiting
    for call in (store.publish(event()), store.list(), store.head(), store.preceding(1), store.floor(), store.wait(0)):
        with pytest.raises(StoreClosed):
            await call
    with pytest.raises(StoreClosed):
        await store.renew_epoch()


# --- what anybody may bring


async def test_A7_a_store_that_only_publishes_and_lists_is_forwarded_and_answers_like_any_other(tmp_path: Path) -> None:
    offered = {name for name in vars(PlainStore) if not name.startswith("_")}
    assert offered == {"publish", "list"}
    plain = Plain()
    assert {name for name in vars(Plain) if not name.startswith("_")} == offered
    store = Adapted(plain, epoch="kept")
    for n in range(3):
        await plain.publish(event(n))  # by somebody else
    source = StoreSource(store)
    assert (source.epoch, await source.head()) == ("kept", 3)
    page = await source.page(1, 10)
    assert [(one.event_id, one.prev_id, number_of(one.data)) for one in page] == [(2, 1, 1), (3, 2, 2)]
    waiting = asyncio.ensure_future(source.wait(3))
    await asyncio.sleep(0)
    await plain.publish(event(3))
    await asyncio.wait_for(waiting, 20)
    async with running_api(store) as client:
        answer = await client.events(since_id=2, session_id="s")
    assert ([one["number"] for one in answer["events"]], answer["latest_event_id"]) == ([2, 3], "4")
