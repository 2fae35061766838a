"""`app:<server_id>` (A203 to A206): the join, its limits, filters, the home's status. Resume is in test_resume.py."""

import asyncio
from typing import Any

import msgspec
import pytest

from bridge_server.auth import Operator
from protocol.codec import V1
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import OTHER_ID, SERVER_ID, Bench, Wire, event


@virtual_time
async def test_the_join_reply_names_the_hubs_place_and_the_home() -> None:
    bench = Bench()
    assert bench.app().join() == {
        "epoch": None,
        "head_id": None,
        "recovered": True,
        "gap": None,
        "server": {"online": False, "since": bench.clock.shown(bench.clock.now()), "name": None},
    }
    home = bench.home()
    home.joins("E", None, name="attic")
    came = bench.clock.shown(bench.clock.now())
    home.events(1, 3)
    assert bench.app().join() == {
        "epoch": "E",
        "head_id": "3",
        "recovered": True,
        "gap": None,
        "server": {"online": True, "since": came, "name": "attic"},
    }


@virtual_time
async def test_A204_an_event_arrives_exactly_as_the_home_wrote_it() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    odd = b'{ "event_id":"1", "type" : "partial",\t"n":1.0e2, "u":"\\u00e9\xc3\xa9", "s":null,"session_id":7}'
    home.call("session_event", msgspec.Raw(b'{"prev_id":null,"event":' + odd + b"}"))
    await settle()
    assert b'"session_event",{"event":' + odd + b"}]" in b"".join(app.transport.writes)


@pytest.mark.parametrize("topic", [f"app:{OTHER_ID}", f"server:{SERVER_ID}", f"server:{OTHER_ID}", "app:", "app:x"])
def test_A206_a_device_joins_its_own_home_and_nothing_else(topic: str) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        app = bench.app()
        reply = app.call("phx_join", {}, topic)
        assert reply == {"status": "error", "response": {"reason": "unauthorized"}}
        # Nothing was made for a name that a stranger chose.
        assert [home.server_id for home in bench.homes] == []

    check()


@virtual_time
async def test_A206_neither_a_home_nor_an_operator_nor_nobody_joins_as_an_app() -> None:
    bench = Bench()
    for wire in (bench.home(), bench.stranger(Operator(1, "op")), bench.stranger(None)):
        reply = wire.call("phx_join", {}, f"app:{SERVER_ID}")
        assert reply == {"status": "error", "response": {"reason": "unauthorized"}}


@virtual_time
async def test_A206_events_stay_with_their_home() -> None:
    bench = Bench()
    home, other = bench.home(), bench.home(OTHER_ID)
    apps = [bench.app(), bench.app(OTHER_ID)]
    home.joins()
    other.joins("O")
    for app in apps:
        app.join()
    home.events(1, 2)
    other.events(1, 3)
    await settle()
    assert [app.ids() for app in apps] == [[1, 2], [1, 2, 3]]


@virtual_time
async def test_A203_nothing_comes_before_the_join_or_after_the_leave() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    home.events(1, 1)
    await settle()
    assert app.all() == []
    app.join()
    home.events(2, 2)
    await settle()
    app.call("phx_leave", {})
    home.events(3, 3)
    await settle()
    assert app.ids() == [2]
    assert not bench.record().watchers
    assert bench.hub.listeners(bench.topic()) == ()


# What a join may say.


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"types": ["t"] * 65}, "types"),
        ({"types": [1]}, "types"),
        ({"types": "partial"}, "types"),
        ({"epoch": ""}, "epoch"),
        ({"epoch": "e" * 129}, "epoch"),
        ({"epoch": 5}, "epoch"),
        ({"session_id": 5}, "session_id"),
        ({"partials": "some"}, "partials"),
        ({"partials": None}, "partials"),
        ({"unknown": "x" * 8192}, "payload"),
        ([], "payload"),
        ("text", "payload"),
        (7, "payload"),
    ],
)
def test_a_bad_join_names_the_field(payload: Any, field: str) -> None:
    @virtual_time
    async def check() -> None:
        assert Bench().app().refused(payload) == {"reason": "bad_join", "field": field}

    check()


@pytest.mark.parametrize(
    "payload",
    [
        {"types": ["t"] * 64},
        {"epoch": "e" * 128, "partials": "merged"},
        {"cursor": "server"},
        {"x": "x" * (8192 - 8)},
        None,
        {"since_id": None, "session_id": None, "types": None, "epoch": None},
        {"types": []},
    ],
)
def test_a_join_at_the_limits_is_taken(payload: Any) -> None:
    @virtual_time
    async def check() -> None:
        Bench().app().join(payload)

    check()


@pytest.mark.parametrize(
    "text",
    [
        '"garbage"',
        '""',
        '" 7"',
        '"+7"',
        '"-1"',
        '"007"',
        '"1_0"',
        '"7.0"',
        '"٧"',
        f'"{"1" * 4301}"',
        "1" * 4301,
        '"9007199254740992"',
        "9007199254740992",
        "18446744073709551616",
        "7.5",
        "-1",
        "1e400",
        "true",
        "false",
        "{}",
        "[7]",
    ],
)
def test_A21_a_malformed_cursor_is_bad_cursor(text: str) -> None:
    @virtual_time
    async def check() -> None:
        payload = msgspec.Raw(b'{"since_id":' + text.encode() + b"}")
        assert Bench().app().refused(payload) == {"reason": "bad_cursor"}

    check()


@pytest.mark.parametrize("text", ['"7"', "7", "7.0", "0.7e1", '"9007199254740991"', "0", "-0.0"])
def test_A21_a_cursor_may_come_as_text_or_as_a_whole_number(text: str) -> None:
    @virtual_time
    async def check() -> None:
        assert Bench().app().join(msgspec.Raw(b'{"since_id":' + text.encode() + b"}"))["recovered"] is None

    check()


# Filters.

SHOWN = [
    event(1, "partial", "one", message={"role": "assistant", "content": "not in the final"}),
    event(2, "final", "one"),
    event(3, "partial", "two"),
    event(4, "final", None),
    event(5, "notification", "two"),
    event(6, "LLM_PARTIAL", "one"),
    event(7, "tool_partial", "two"),
    event(8, "message_streamed", "two"),
]

FILTERS = [
    ({}, [1, 2, 3, 4, 5, 6, 7, 8]),
    ({"session_id": "one"}, [1, 2, 6]),
    ({"types": ["final", "notification"]}, [2, 4, 5]),
    ({"types": []}, []),
    ({"partials": "none"}, [2, 4, 5]),
    ({"partials": "merged"}, [1, 2, 3, 4, 5, 6, 7, 8]),
    ({"session_id": "two", "partials": "none"}, [5]),
    ({"session_id": "one", "types": ["partial"], "partials": "none"}, []),
]


@pytest.mark.parametrize(("filter", "expected"), FILTERS)
def test_a_filter_hides_the_same_events_live_and_in_a_replay(filter: dict[str, Any], expected: list[int]) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home, live = bench.home(), bench.app()
        home.joins()
        live.join(filter)
        home.call("session_events", {"events": SHOWN, "prev_id": None})
        await settle()
        replayed = bench.app()
        assert replayed.join({"since_id": "0", "epoch": "E", **filter})["recovered"] is True
        await settle()
        assert live.ids() == expected
        assert replayed.ids() == expected
        # The app's new cursor lies behind what the filter hid, too.
        last = replayed.new()[-1]
        assert last.event == "replay_complete"
        assert last.payload == {"epoch": "E", "to_id": "8", "recovered": True, "gap": None}

    check()


@virtual_time
async def test_A204_apps_of_both_serializers_get_the_same_events() -> None:
    bench = Bench()
    home, old, new = bench.home(), bench.app(codec=V1), bench.app()
    home.joins()
    old.join()
    new.join()
    home.events(1, 5)
    home.event(6)
    await settle()
    assert old.ids() == new.ids() == [1, 2, 3, 4, 5, 6]
    assert {got.join_ref for got in new.all()} == {"1"}
    assert b"join_ref" not in b"".join(old.transport.writes)


# The home's status.


def statuses(app: Wire) -> list[bool]:
    return [got.payload["online"] for got in app.all() if got.event == "server_status"]


@virtual_time
async def test_server_status_is_told_once_a_home_was_away_for_the_grace_period() -> None:
    """Case 110."""
    bench = Bench(status_grace=5.0)
    app, home = bench.app(), bench.home()
    app.join()
    home.joins()
    home.event(1)
    await settle()
    at = bench.clock.shown(bench.clock.now())
    assert app.new()[-2].payload["online"] is True
    await asyncio.sleep(3)
    home.drop()
    left = bench.clock.now()
    await asyncio.sleep(4.9)
    assert statuses(app) == [True]
    await asyncio.sleep(60)
    assert statuses(app) == [True, False]
    told = [got.payload for got in app.all() if got.event == "server_status"][-1]
    since = bench.clock.shown(left)
    assert told == {"online": False, "since": since, "last_event_at": at, "epoch": "E", "head_id": "0"}


@virtual_time
async def test_server_status_says_nothing_of_a_home_that_is_back_within_the_grace_period() -> None:
    """Case 110."""
    bench = Bench(status_grace=5.0)
    app, home = bench.app(), bench.home()
    app.join()
    home.joins()
    # Each absence is short; the end of the first one's grace falls into the second.
    for _ in range(3):
        await asyncio.sleep(10)
        home.drop()
        await asyncio.sleep(3)
        home = bench.home()
        home.joins()
        await asyncio.sleep(1)
        home.drop()
        await asyncio.sleep(4)
        home = bench.home()
        home.joins()
    await asyncio.sleep(60)
    assert statuses(app) == [True]


@virtual_time
async def test_a_half_dead_old_link_never_marks_a_live_one_offline() -> None:
    bench = Bench(status_grace=5.0)
    app, old, new = bench.app(), bench.home(), bench.home()
    app.join()
    old.joins()
    new.joins()
    await asyncio.sleep(20)
    old.drop()
    await asyncio.sleep(20)
    assert bench.record().online
    assert statuses(app) == [True]
    assert new.event(1)["status"] == "ok"


@virtual_time
async def test_an_app_that_joins_within_the_grace_period_is_told_what_the_others_were_told() -> None:
    bench = Bench(status_grace=5.0)
    home = bench.home()
    home.joins()
    await settle()
    came = bench.clock.shown(bench.record().shown_since)
    home.drop()
    await asyncio.sleep(2)
    back, gone = bench.app(), bench.app()
    assert back.join()["server"] == {"online": True, "since": came, "name": "the den"}
    home = bench.home()
    home.joins()
    await asyncio.sleep(20)
    assert statuses(back) == [True]  # nothing new, but it names the place, which nobody knew when this app joined
    home.drop()
    await asyncio.sleep(2)
    gone.join()
    await asyncio.sleep(20)
    assert statuses(gone) == [False]
    assert bench.app().join()["server"]["online"] is False


@virtual_time
async def test_rule_2_an_app_whose_verdict_is_open_hears_in_which_epoch_it_is_judged() -> None:
    """It gave a cursor without an epoch, and the home came back with another store before it had refilled."""
    bench = Bench()
    app, home = bench.app(), bench.home()
    app.join({"since_id": "0"})
    home.joins("E", 5)
    home.drop()
    home = bench.home()
    home.joins("F", 1)
    home.event(1)
    await settle()
    told = [
        got.payload["epoch"] if got.event == "server_status" else got.event
        for got in app.all()
        if got.event in ("server_status", "session_event")
    ]
    assert told == ["E", "F", "session_event"]
