"""`server:<server_id>` (A200 to A202, A208): the join, the pushes, every error, takeovers."""

import asyncio
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from bridge_server.auth import Device, Operator
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import OTHER_ID, SERVER_ID, Bench, HomeWire, event


def ok(acked: int | None) -> dict[str, Any]:
    return {"status": "ok", "response": {"acked_id": None if acked is None else str(acked)}}


def error(reason: str, acked: int | None, **details: Any) -> dict[str, Any]:
    acked_id = None if acked is None else str(acked)
    return {"status": "error", "response": {"reason": reason, **details, "acked_id": acked_id}}


@virtual_time
async def test_the_join_reply_says_where_to_go_on_and_how_fast() -> None:
    bench = Bench(window_events=7, window_bytes=1000, max_event_bytes=500)
    home = bench.home()
    assert home.joins("E", 3) == {
        "hub_epoch": bench.homes.hub_epoch,
        "link": 1,
        "resume_from": None,
        "window": {"events": 7, "bytes": 1000},
        "max_event_bytes": 500,
    }
    home.events(1, 3)
    home.drop()
    again = bench.home().joins("E", 5)
    assert (again["link"], again["resume_from"]) == (2, "3")
    assert Bench().homes.hub_epoch != bench.homes.hub_epoch


@virtual_time
async def test_the_join_reply_says_what_the_last_event_holds() -> None:
    """So that a store which was restored or copied knows that it is another history than the one held."""
    bench = Bench(history_seconds=60)
    home = bench.home()
    assert "resume_digest" not in home.joins()
    home.events(1, 3)
    log = bench.homes.get(SERVER_ID).log
    assert log is not None
    [last] = log.page(2, 3, 1) or []
    home.drop()
    again = bench.home().joins()
    assert (again["resume_from"], again["resume_digest"]) == ("3", sha256(last.data).hexdigest())
    log.expire(last.at + 61)
    gone = bench.home().joins()
    assert (gone["resume_from"], "resume_digest" in gone) == ("3", False)


@virtual_time
async def test_resume_from_may_be_above_what_the_home_states() -> None:
    bench = Bench()
    home = bench.home()
    home.joins()
    home.events(1, 9)
    assert bench.home().joins("E", 4)["resume_from"] == "9"


@virtual_time
async def test_another_epoch_starts_empty() -> None:
    bench = Bench()
    home = bench.home()
    home.joins()
    home.events(1, 9)
    home = bench.home()
    assert home.joins("F", 2)["resume_from"] is None
    assert home.event(1) == ok(1)


@pytest.mark.parametrize("topic", [f"server:{OTHER_ID}", "server:", "server:x", f"app:{SERVER_ID}"])
def test_a_home_joins_its_own_topic_and_nothing_else(topic: str) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        reply = bench.home().call("phx_join", {"epoch": "E"}, topic)
        assert reply == {"status": "error", "response": {"reason": "unauthorized"}}
        assert not list(bench.homes)

    check()


@virtual_time
async def test_nobody_else_joins_as_a_home() -> None:
    bench = Bench()
    device = Device(1, "d", SERVER_ID, "phone", frozenset({"view", "approve", "control"}))
    for wire in (bench.stranger(device), bench.stranger(Operator(1, "op")), bench.stranger(None)):
        reply = wire.call("phx_join", {"epoch": "E"}, f"server:{SERVER_ID}")
        assert reply == {"status": "error", "response": {"reason": "unauthorized"}}
    assert not list(bench.homes)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"protocol": "one"}, "protocol"),
        ({"epoch": ""}, "epoch"),
        ({"epoch": "e" * 129}, "epoch"),
        ({"epoch": 4}, "epoch"),
        ({"head_id": "007"}, "head_id"),
        ({"head_id": 7}, "head_id"),
        ({"head_id": "9007199254740992"}, "head_id"),
        ({"head_id": True}, "head_id"),
        ({"instance": ""}, "instance"),
        ({"instance": "i" * 129}, "instance"),
        ({"name": 3}, "name"),
        ({"name": "\n"}, "name"),
        ({"name": ""}, "name"),
        ({"x": "x" * 8192}, "payload"),
        ([], "payload"),
    ],
)
def test_a_bad_join_names_the_field_and_changes_nothing(payload: Any, field: str) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        assert bench.home().refused(payload) == {"reason": "bad_join", "field": field}
        assert not bench.record().online

    check()


# session_event and session_events.


@virtual_time
async def test_A201_A202_an_event_is_acked_and_published() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    assert home.event(1) == ok(1)
    assert home.events(2, 4) == ok(4)
    await settle()
    assert app.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("prev", [None, 0, 2, 7, 99, "bare"])
def test_a_repeat_is_acked_and_not_delivered_whatever_its_prev_id(prev: Any) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home, app = bench.home(), bench.app()
        home.joins()
        app.join()
        home.events(1, 3)
        assert home.event(2, prev=prev, type="another") == ok(3)
        assert home.event(3, prev=prev) == ok(3)
        await settle()
        assert app.ids() == [1, 2, 3]

    check()


@virtual_time
async def test_a_batch_may_start_with_repeats() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    home.events(1, 3)
    assert home.events(2, 6) == ok(6)
    await settle()
    assert app.ids() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("prev", [None, 0, 2, 4, 9])
def test_an_event_that_does_not_follow_is_a_gap(prev: int | None) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home = bench.home()
        home.joins()
        home.events(1, 3)
        assert home.event(10, prev=prev) == error("gap", 3, resume_from="3")
        assert home.event(4) == ok(4)

    check()


@virtual_time
async def test_ids_may_leave_holes_that_prev_id_vouches_for() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    assert home.event(4, prev=None) == ok(4)
    assert home.event(9, prev=4) == ok(9)
    await settle()
    assert app.ids() == [4, 9]


@virtual_time
async def test_a_hub_that_holds_nothing_takes_any_prev_id_as_the_floor() -> None:
    bench = Bench()
    home = bench.home()
    home.joins("E", 50)
    assert home.event(41, prev=40) == ok(41)
    log = bench.record().log
    assert log is not None
    assert (log.floor, log.head) == (40, 41)


@pytest.mark.parametrize("prev", [5, 6])
def test_a_prev_id_that_is_not_below_its_event_is_refused(prev: int) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home = bench.home()
        home.joins()
        reply = home.event(5, prev=prev)
        assert reply["response"]["reason"] == "invalid_event"
        assert bench.record().log is None

    check()


BAD_EVENTS = [
    ({"type": "partial"}, "invalid_event", None),
    ({"type": "partial", "event_id": "007"}, "invalid_event", "007"),
    ({"type": "partial", "event_id": 7}, "invalid_event", None),
    ({"event_id": "{id}"}, "invalid_event", None),
    ({"event_id": "{id}", "type": ""}, "invalid_event", "{id}"),
    ({"event_id": "{id}", "type": 5}, "invalid_event", None),
    ([], "invalid_event", None),
    ("text", "invalid_event", None),
    ({"event_id": "{id}", "type": "t", "data": "x" * 600}, "too_large", "{id}"),
]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("bad", range(len(BAD_EVENTS)))
def test_a_refused_batch_keeps_its_good_prefix(place: int, bad: int) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench(max_event_bytes=500)
        home, app = bench.home(), bench.app()
        home.joins()
        app.join()
        home.events(1, 2)
        shape, reason, named = BAD_EVENTS[bad]
        number = 3 + place
        text = msgspec.json.encode(shape).replace(b"{id}", str(number).encode())
        events: list[Any] = [event(n) for n in range(3, 7)]
        events[place] = msgspec.Raw(text)
        reply = home.call("session_events", {"events": events, "prev_id": "2"})
        response = reply["response"]
        assert (reply["status"], response["reason"]) == ("error", reason)
        assert response["id"] == (named and named.replace("{id}", str(number)))
        assert response["acked_id"] == str(number - 1)
        assert response.get("limit") == (500 if reason == "too_large" else None)
        # What was in flight behind it is refused too, and single events go on from there.
        assert home.events(7, 8) == error("gap", number - 1, resume_from=str(number - 1))
        assert home.event(number) == ok(number)
        await settle()
        assert app.ids() == list(range(1, number + 1))

    check()


@virtual_time
async def test_the_limit_of_an_event_counts_its_own_bytes() -> None:
    bench = Bench(max_event_bytes=100)
    home = bench.home()
    home.joins()
    room = 100 - len(msgspec.json.encode(event(1, data="")))
    assert home.event(1, data="x" * room) == ok(1)
    assert home.event(2, data="x" * (room + 1)) == error("too_large", 1, id="2", limit=100)


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("session_event", {}),
        ("session_event", {"prev_id": None}),
        ("session_event", {"event": {}, "prev_id": 2}),
        ("session_event", {"event": event(3), "prev_id": "two"}),
        ("session_event", {"event": event(3), "prev_id": "02"}),
        ("session_events", {}),
        ("session_events", {"events": {}}),
        ("session_events", {"events": [event(n) for n in range(3, 204)], "prev_id": "2"}),
        ("session_event", []),
        ("session_event", None),
    ],
)
def test_a_push_of_a_wrong_shape_is_refused_whole(name: str, payload: Any) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home = bench.home()
        home.joins()
        home.events(1, 2)
        response = home.call(name, payload)["response"]
        assert (response["reason"], response["acked_id"]) == ("bad_push", "2")
        assert home.event(3) == ok(3)

    check()


@virtual_time
async def test_a_binary_push_is_refused() -> None:
    bench = Bench()
    home = bench.home()
    home.joins()
    data = bytes((0, 1, 1, len(home.topic), 13)) + b"1" + b"9" + home.topic.encode() + b"session_event" + b"\x00"
    home.peer.receive(data, binary=True)
    assert home.answer("9") == error("bad_push", None)


@virtual_time
async def test_a_batch_of_200_is_taken_and_an_empty_one_changes_nothing() -> None:
    bench = Bench()
    home = bench.home()
    home.joins()
    assert home.call("session_events", {"events": [], "prev_id": None}) == ok(None)
    assert home.events(1, 200) == ok(200)
    assert home.call("session_events", {"events": [], "prev_id": "7"}) == ok(200)


@virtual_time
async def test_a_batch_holds_256_kib_at_most_and_a_larger_event_goes_alone() -> None:
    bench = Bench()
    home = bench.home()
    home.joins()
    frame = len(msgspec.json.encode(event(1, data="")))
    halves = [event(n, data="x" * (128 * 1024 - frame)) for n in (1, 2)]
    assert home.call("session_events", {"events": halves, "prev_id": None}) == ok(2)
    halves = [event(n, data="x" * (128 * 1024 - frame + n - 3)) for n in (3, 4)]
    response = home.call("session_events", {"events": halves, "prev_id": "2"})["response"]
    assert (response["reason"], response["acked_id"]) == ("bad_push", "2")
    alone = [event(3, data="x" * 500_000)]
    assert home.call("session_events", {"events": alone, "prev_id": "2"}) == ok(3)


@virtual_time
async def test_an_unknown_message_is_answered() -> None:
    bench = Bench()
    home = bench.home()
    home.joins()
    assert home.call("nonsense", {}) == {"status": "error", "response": {"reason": "unknown event"}}


# A foreign forwarder.


@virtual_time
async def test_A208_a_foreign_forwarder_is_trusted_to_go_on_where_it_stopped() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    app.join()
    home.join({})
    assert home.event(500, prev="bare") == ok(500)
    assert home.event(500, prev="bare") == ok(500)
    home.drop()
    home = bench.home()
    assert home.join({})["resume_from"] == "500"
    assert home.event(499, prev="bare") == ok(500)
    assert home.event(502, prev="bare") == ok(502)
    await settle()
    assert app.ids() == [500, 502]


@virtual_time
async def test_a_home_without_an_epoch_keeps_the_one_the_hub_holds_else_a_random_one() -> None:
    bench, other = Bench(), Bench()
    for one in (bench, other):
        one.home().join({})
    first = bench.app().join()["epoch"]
    assert isinstance(first, str)
    assert len(first) >= 12
    assert other.app().join()["epoch"] != first
    bench.home().join({})
    assert bench.app().join()["epoch"] == first
    bench.home().joins("E")
    bench.home().join({})
    assert bench.app().join()["epoch"] == "E"


# Several connections of one home.


def names(home: HomeWire) -> list[str]:
    return [got.event for got in home.all() if got.event != "phx_reply"]


@virtual_time
async def test_a_takeover_tells_the_old_holder_and_ends_its_channel() -> None:
    bench = Bench()
    old, new = bench.home(), bench.home()
    assert old.joins("E", None, instance="one")["link"] == 1
    old.event(1)
    assert new.joins("E", 1, instance="two")["link"] == 2
    told = old.new()
    assert [got.event for got in told] == ["replaced", "phx_close"]
    assert told[0].payload == {"instance": "two"}
    # What the old one still pushes does not enter the log.
    assert old.event(2) == {"status": "error", "response": {"reason": "unmatched topic"}}
    assert new.event(2) == ok(2)
    assert old.transport.closed is None  # its socket is its own affair


@virtual_time
async def test_an_append_of_a_link_that_is_not_the_current_one_is_refused_and_acks_nothing() -> None:
    bench = Bench()
    home = bench.home()
    home.joins("E")
    home.event(1)
    bench.record().holder = None  # as if the link had ended without its channel knowing
    assert home.event(2) == error("stale_link", None)
    assert bench.record().head == 1


@virtual_time
async def test_the_same_connection_may_join_again() -> None:
    bench = Bench()
    home = bench.home()
    for link in range(1, 9):
        assert home.joins("E")["link"] == link
    assert home.event(1) == ok(1)
    assert "replaced" not in names(home)
    assert bench.record().online


@virtual_time
async def test_a_fourth_takeover_in_a_minute_is_flapping() -> None:
    bench = Bench()
    holder = bench.home()
    holder.joins()
    for _ in range(3):
        await asyncio.sleep(10)
        holder = bench.home()
        holder.joins()
    late = bench.home()
    refusal = late.refused({"epoch": "E"})
    assert refusal["reason"] == "flapping"
    assert 39_000 <= refusal["retry_after_ms"] <= 40_000
    assert names(holder) == []  # the one that is there stays
    assert holder.event(1) == ok(1)
    await asyncio.sleep(refusal["retry_after_ms"] / 1000)
    late.joins()
    assert names(holder) == ["replaced", "phx_close"]


@virtual_time
async def test_reconnects_are_no_takeovers() -> None:
    bench = Bench()
    for _ in range(20):
        home = bench.home()
        home.joins()
        home.drop()


@virtual_time
async def test_a_seventh_epoch_within_an_hour_is_rate_limited() -> None:
    bench = Bench()
    home = bench.home()
    home.joins("0")
    for number in range(1, 7):
        await asyncio.sleep(60)
        home.drop()
        home = bench.home()
        home.joins(str(number))
    home.event(1)
    home.drop()
    late = bench.home()
    refusal = late.refused({"epoch": "7"})
    assert refusal["reason"] == "rate_limited"
    assert 3_299_000 <= refusal["retry_after_ms"] <= 3_300_000
    assert bench.record().head == 1  # the epoch held stays
    assert late.joins("6", 1)["resume_from"] == "1"
    late.drop()
    await asyncio.sleep(3300)
    bench.home().joins("7")
