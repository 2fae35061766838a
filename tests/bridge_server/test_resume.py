"""Resume: what an app with a cursor is told and given, on a warm hub, a cold one, and when the ground moves."""

import asyncio
from typing import Any

import pytest

from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import Bench, HomeWire, Wire

TRUE = {"recovered": True, "gap": None}
OPEN = {"recovered": None, "gap": None}


def false(reason: str, from_id: int, resume_after: int | None) -> dict[str, Any]:
    floor = None if resume_after is None else str(resume_after)
    return {"recovered": False, "gap": {"reason": reason, "from_id": str(from_id), "resume_after": floor}}


def verdict(response: dict[str, Any]) -> dict[str, Any]:
    return {"recovered": response["recovered"], "gap": response["gap"]}


def completions(app: Wire) -> list[dict[str, Any]]:
    return [got.payload for got in app.all() if got.event == "replay_complete"]


def errors(app: Wire) -> list[str]:
    return [got.payload["reason"] for got in app.all() if got.event == "phx_error"]


def order(app: Wire) -> list[Any]:
    """What came, without replies and status: ids, and the names of the rest."""
    return [
        int(got.payload["event"]["event_id"]) if got.event == "session_event" else got.event
        for got in app.all()
        if got.event not in ("phx_reply", "server_status")
    ]


def complete(epoch: str | None, to: int | None, verdict: dict[str, Any]) -> dict[str, Any]:
    return {"epoch": epoch, "to_id": None if to is None else str(to), **verdict}


def warm(bench: Bench, last: int = 5, epoch: str = "E") -> HomeWire:
    """A home whose events 1 to `last` the hub holds."""
    home = bench.home()
    home.joins(epoch)
    for first in range(1, last + 1, 200):
        assert home.events(first, min(first + 199, last))["status"] == "ok"
    return home


# Rules 1 and 2 on a warm hub.


@virtual_time
async def test_rule_1_reply_then_replay_then_replay_complete_then_live() -> None:
    bench = Bench()
    home, app = warm(bench), bench.app()
    ref = app.send("phx_join", {"since_id": "2", "epoch": "E"})
    home.event(6)
    await settle()
    home.event(7)
    await settle()
    assert app.all()[0].ref == ref
    assert app.all()[0].payload["response"]["head_id"] == "5"
    assert order(app) == [3, 4, 5, "replay_complete", 6, 7]
    assert completions(app) == [complete("E", 5, TRUE)]


@virtual_time
async def test_rule_1_the_replay_comes_in_pages_paced_by_the_app() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    for number in range(1, 41):
        home.event(number, data="x" * 8000)
    app.transport.frozen = True
    app.send("phx_join", {"since_id": "0", "epoch": "E"})
    pages = 0
    while app.ids()[-1:] != [40]:
        await settle()
        # One page lies in the transport, no event in the outbox: a slow app can't make the hub queue its history.
        assert app.transport.unsent() < 80_000
        assert app.peer.outbox.queued < 1000
        app.transport.take()
        pages += 1
    assert pages >= 5
    app.transport.thaw()
    home.event(41)
    await settle()
    assert order(app) == [*range(1, 41), "replay_complete", 41]


@virtual_time
async def test_rule_2_a_join_without_since_id_asks_for_nothing() -> None:
    bench = Bench()
    home, app = warm(bench), bench.app()
    assert verdict(app.join()) == TRUE
    assert completions(app) == [complete("E", 5, TRUE)]
    home.event(6)
    await settle()
    assert order(app) == ["replay_complete", 6]


@virtual_time
async def test_rule_2_since_id_without_epoch_means_the_current_epoch() -> None:
    bench = Bench()
    warm(bench)
    app = bench.app()
    assert verdict(app.join({"since_id": "3"})) == TRUE
    await settle()
    assert order(app) == [4, 5, "replay_complete"]


@virtual_time
async def test_rule_2_a_cursor_at_the_head_is_complete_at_once() -> None:
    bench = Bench()
    home, app = warm(bench), bench.app()
    assert verdict(app.join({"since_id": "5", "epoch": "E"})) == TRUE
    assert completions(app) == [complete("E", 5, TRUE)]
    home.event(6)
    await settle()
    assert order(app) == ["replay_complete", 6]


@virtual_time
async def test_rule_2_expired_names_the_floor_and_joining_there_yields_everything_retained() -> None:
    bench = Bench(history_events=3)
    home, app = warm(bench, 10), bench.app()
    reply = app.join({"since_id": "6", "epoch": "E"})
    assert verdict(reply) == false("expired", 6, 7)
    assert reply["head_id"] == "10"
    assert completions(app) == [complete("E", 10, false("expired", 6, 7))]
    home.event(11)
    await settle()
    assert order(app) == ["replay_complete", 11]  # live from head_id
    again = bench.app()
    assert verdict(again.join({"since_id": "8", "epoch": reply["epoch"]})) == TRUE
    await settle()
    assert order(again) == [9, 10, 11, "replay_complete"]


@virtual_time
async def test_rule_2_the_floor_is_the_prev_id_of_the_oldest_event() -> None:
    bench = Bench()
    home = bench.home()
    home.joins("E", 20)
    home.event(20, prev=17)
    assert verdict(bench.app().join({"since_id": "16"})) == false("expired", 16, 17)
    assert verdict(bench.app().join({"since_id": "17"})) == TRUE


@virtual_time
async def test_rule_2_the_floor_of_a_bare_first_event_is_its_own_id() -> None:
    bench = Bench()
    home = bench.home()
    home.join({})
    home.event(20, prev="bare")
    home.event(25, prev="bare")
    assert verdict(bench.app().join({"since_id": "19"})) == false("expired", 19, 20)
    app = bench.app()
    assert verdict(app.join({"since_id": "20"})) == TRUE
    await settle()
    assert order(app) == [25, "replay_complete"]


@virtual_time
async def test_rule_2_prev_id_null_makes_everything_recoverable() -> None:
    bench = Bench()
    home = bench.home()
    home.joins("E", 3)
    home.event(3, prev=None)  # the first event the store ever held need not be number 1
    app = bench.app()
    assert verdict(app.join({"since_id": "0"})) == TRUE
    await settle()
    assert order(app) == [3, "replay_complete"]


@virtual_time
async def test_rule_2_a_foreign_epoch_is_epoch_changed_while_the_home_is_there() -> None:
    bench = Bench()
    home, app = warm(bench), bench.app()
    assert verdict(app.join({"since_id": "3", "epoch": "before"})) == false("epoch_changed", 3, 0)
    assert completions(app) == [complete("E", 5, false("epoch_changed", 3, 0))]
    home.event(6)
    await settle()
    assert order(app) == ["replay_complete", 6]
    assert errors(app) == []


@virtual_time
async def test_rule_4_ahead_is_above_the_stated_head_and_the_last_id_held() -> None:
    bench = Bench()
    warm(bench)
    app = bench.app()
    assert verdict(app.join({"since_id": "6", "epoch": "E"})) == false("ahead", 6, 0)
    assert completions(app) == [complete("E", 5, false("ahead", 6, 0))]


@virtual_time
async def test_rule_4_a_cursor_between_the_last_id_and_the_stated_head_waits_for_the_refill() -> None:
    bench = Bench()
    warm(bench).drop()
    home = bench.home()
    assert home.joins("E", 9)["resume_from"] == "5"
    app, beyond = bench.app(), bench.app()
    assert verdict(app.join({"since_id": "7", "epoch": "E"})) == OPEN
    assert verdict(beyond.join({"since_id": "10", "epoch": "E"})) == OPEN
    home.events(6, 8)
    await settle()
    assert order(app) == []
    home.events(9, 10)
    await settle()
    assert order(app) == [8, 9, "replay_complete", 10]
    # Judged at the stated head, in the middle of the batch; by then 10 was ahead.
    assert completions(beyond) == [complete("E", 9, false("ahead", 10, 0))]
    assert errors(beyond) == ["ahead"]


async def stopped_in_its_replay() -> tuple[Bench, HomeWire, Wire]:
    """An app that took a first page of its replay and then no more."""
    bench = Bench(history_events=10)
    home, app = bench.home(), bench.app()
    home.joins()
    for number in range(1, 11):
        home.event(number, data="x" * 30_000)
    app.transport.frozen = True
    app.send("phx_join", {"since_id": "0", "epoch": "E"})
    while not app.ids():
        await settle()
        app.transport.take()
    await settle()
    return bench, home, app


@virtual_time
async def test_rule_2_a_page_evicted_before_its_turn_ends_the_replay() -> None:
    _, home, app = await stopped_in_its_replay()
    assert app.answer("1")["response"]["recovered"] is True
    assert app.ids() == [1, 2]
    home.events(11, 19)
    app.transport.thaw()
    await settle()
    last = max(number for number in app.ids() if number < 11)
    assert completions(app) == [complete("E", 19, false("expired", last, 9))]
    assert order(app) == [*range(1, last + 1), "replay_complete", "phx_error"]
    # Who reads no `replay_complete` would go on at the head and never know: it joins again, and the reply tells.
    assert errors(app) == ["expired"]
    home.event(20)
    await settle()
    assert order(app)[-1] == "phx_error"  # the failed join gets nothing more


@virtual_time
async def test_rule_2_eviction_after_a_null_reply_is_also_answered_with_phx_error() -> None:
    bench = Bench(history_events=10)
    app = bench.app()
    assert verdict(app.join({"since_id": "0", "epoch": "E"})) == OPEN
    app.transport.frozen = True
    home = bench.home()
    home.joins("E", 10)
    for number in range(1, 11):
        home.event(number, data="x" * 30_000)
    while not app.ids():
        app.transport.take()
        await settle()
    home.events(11, 19)
    app.transport.thaw()
    await settle()
    sent = app.ids()
    assert sent == list(range(1, len(sent) + 1))
    assert len(sent) < 10
    assert completions(app) == [complete("E", 19, false("expired", sent[-1], 9))]
    assert errors(app) == ["expired"]
    again = bench.app()
    assert verdict(again.join({"since_id": str(sent[-1]), "epoch": "E"})) == false("expired", sent[-1], 9)
    home.event(20)
    await settle()
    assert app.ids() == sent  # the failed join gets nothing more
    assert order(again) == ["replay_complete", 20]


@virtual_time
async def test_rule_2_eviction_after_replay_complete_makes_the_app_join_again() -> None:
    bench = Bench(history_events=10)
    home, app = bench.home(), bench.app()
    home.joins()
    for number in range(1, 4):
        home.event(number, data="x" * 30_000)
    app.transport.frozen = True
    app.send("phx_join", {"since_id": "0", "epoch": "E"})
    await settle()
    for number in range(4, 9):
        home.event(number, data="x" * 30_000)
    while not completions(app):
        app.transport.take()
        await settle()
    assert completions(app) == [complete("E", 3, TRUE)]
    home.events(9, 30)
    app.transport.thaw()
    await settle()
    assert errors(app) == ["expired"]
    got = app.ids()
    assert got == list(range(1, len(got) + 1))
    assert verdict(bench.app().join({"since_id": str(got[-1]), "epoch": "E"})) == false("expired", got[-1], 20)


# Rule 3: a cold hub.


@virtual_time
async def test_rule_3_a_cursor_on_a_cold_hub_is_judged_once_the_home_has_refilled() -> None:
    bench = Bench()
    app = bench.app()
    reply = app.join({"since_id": "3", "epoch": "E"})
    assert (reply["epoch"], reply["head_id"], verdict(reply)) == (None, None, OPEN)
    home = bench.home()
    assert home.joins("E", 5)["resume_from"] is None
    home.events(1, 4)
    await settle()
    assert order(app) == []
    home.events(5, 7)
    await settle()
    assert order(app) == [4, 5, "replay_complete", 6, 7]
    assert completions(app) == [complete("E", 5, TRUE)]
    assert errors(app) == []


@virtual_time
async def test_rule_3_another_epoch_is_told_in_replay_complete_and_by_phx_error() -> None:
    bench = Bench()
    app, home = bench.app(), bench.home()
    app.join({"since_id": "3", "epoch": "before"})
    home.joins("E", 2)
    home.events(1, 2)
    await settle()
    assert completions(app) == [complete("E", 2, false("epoch_changed", 3, 0))]
    assert errors(app) == ["epoch_changed"]
    assert order(app) == ["replay_complete", "phx_error"]
    # The rejoin carries the verdict in its reply.
    assert verdict(app.join({"since_id": "3", "epoch": "before"})) == false("epoch_changed", 3, 0)


@virtual_time
async def test_rule_3_after_ten_seconds_without_a_home_it_is_hub_reset() -> None:
    bench = Bench()
    app = bench.app()
    app.join({"since_id": "3", "epoch": "E"})
    await asyncio.sleep(9.9)
    assert completions(app) == []
    await asyncio.sleep(0.2)
    assert completions(app) == [complete(None, None, false("hub_reset", 3, None))]
    assert errors(app) == ["hub_reset"]
    # The rejoin gets the verdict at once, and rule 5: an error when the home arrives.
    assert verdict(app.join({"since_id": "3", "epoch": "E"})) == false("hub_reset", 3, None)
    assert completions(app)[-1] == complete(None, None, false("hub_reset", 3, None))
    assert errors(app) == ["hub_reset"]
    home = bench.home()
    home.joins("E", 5)
    assert errors(app) == ["hub_reset", "hub_reset"]
    assert verdict(app.join({"since_id": "3", "epoch": "E"})) == OPEN
    home.events(1, 5)
    await settle()
    assert app.ids() == [4, 5]


@virtual_time
async def test_rule_3_the_ten_seconds_count_from_the_end_of_the_last_link() -> None:
    bench = Bench()
    await asyncio.sleep(100)
    home = bench.home()
    home.joins("E", 5)
    home.event(3, prev=2)
    app = bench.app()
    assert verdict(app.join({"since_id": "4", "epoch": "E"})) == OPEN
    await asyncio.sleep(100)
    assert completions(app) == []  # a home that is there may take its time
    home.drop()
    await asyncio.sleep(6)
    home = bench.home()
    home.joins("E", 5)
    await asyncio.sleep(6)
    home.drop()
    await asyncio.sleep(9.9)
    assert completions(app) == []
    await asyncio.sleep(0.2)
    assert completions(app) == [complete(None, None, false("hub_reset", 4, None))]


@virtual_time
async def test_rule_3_what_a_hub_without_its_home_holds_is_served_at_once() -> None:
    bench = Bench()
    warm(bench).drop()
    await asyncio.sleep(60)
    app = bench.app()
    assert verdict(app.join({"since_id": "2", "epoch": "E"})) == TRUE
    await settle()
    assert order(app) == [3, 4, 5, "replay_complete"]
    assert verdict(bench.app().join({"since_id": "6", "epoch": "E"})) == false("hub_reset", 6, None)
    assert verdict(bench.app().join({"since_id": "2", "epoch": "F"})) == false("hub_reset", 2, None)


@virtual_time
async def test_rule_3_an_app_without_a_cursor_starts_at_the_head_the_home_states() -> None:
    bench = Bench()
    app = bench.app()
    assert verdict(app.join()) == TRUE
    assert completions(app) == [complete(None, None, TRUE)]
    home = bench.home()
    home.joins("E", 5)
    # One batch goes beyond the stated head: what lies behind it is live.
    home.events(1, 3)
    home.events(4, 7)
    await settle()
    assert order(app) == ["replay_complete", 6, 7]


@virtual_time
async def test_rule_3_the_place_of_an_app_without_a_cursor_does_not_move_when_the_home_reconnects() -> None:
    bench = Bench()
    early, home = bench.app(), bench.home()
    early.join()
    home.joins("E", 5)
    late = bench.app()
    late.join()
    assert completions(late) == [complete("E", 5, TRUE)]
    home.events(1, 3)
    home.drop()
    home = bench.home()
    home.joins("E", 8)
    home.events(4, 9)
    await settle()
    assert early.ids() == late.ids() == [6, 7, 8, 9]


@virtual_time
async def test_rule_3_an_app_may_join_a_home_whose_store_is_empty() -> None:
    bench = Bench()
    home, fresh, zero = bench.home(), bench.app(), bench.app()
    home.joins("E", None)
    fresh.join()
    assert verdict(zero.join({"since_id": "0", "epoch": "E"})) == TRUE
    assert completions(fresh) == completions(zero) == [complete("E", 0, TRUE)]
    assert verdict(bench.app().join({"since_id": "1", "epoch": "E"})) == false("ahead", 1, 0)
    home.events(1, 2)
    await settle()
    assert fresh.ids() == zero.ids() == [1, 2]


@virtual_time
async def test_apps_that_were_live_on_an_empty_hub_learn_that_the_history_starts_later() -> None:
    bench = Bench()
    home, fresh, zero = bench.home(), bench.app(), bench.app()
    home.joins("E", None)
    fresh.join()
    zero.join({"since_id": "0", "epoch": "E"})
    home.drop()
    # Thousands of events later the forwarder sends the latest only.
    home = bench.home()
    home.joins("E", 5001)
    home.event(5000, prev=4999)
    assert errors(fresh) == errors(zero) == ["expired"]
    home.event(5001)
    assert verdict(zero.join({"since_id": "0", "epoch": "E"})) == false("expired", 0, 4999)
    assert fresh.ids() == zero.ids() == []


# Rule 5: the ground moves.


@virtual_time
async def test_rule_5_another_epoch_sends_those_with_a_cursor_back_and_moves_those_without() -> None:
    bench = Bench()
    home = warm(bench)
    cursor, told, fresh = bench.app(), bench.app(), bench.app()
    cursor.join({"since_id": "5", "epoch": "E"})
    told.join({"since_id": "9", "epoch": "E"})
    fresh.join()
    home.events(6, 6)
    home.drop()
    home = bench.home()
    home.joins("F", 3)
    assert errors(cursor) == errors(told) == ["epoch_changed"]
    home.events(1, 4)
    await settle()
    assert cursor.ids() == [6]
    assert fresh.ids() == [6, 4]
    assert errors(fresh) == []
    assert len(completions(fresh)) == 1
    assert verdict(cursor.join({"since_id": "6", "epoch": "E"})) == false("epoch_changed", 6, 0)


@virtual_time
async def test_rule_5_the_same_epoch_moves_nobody() -> None:
    bench = Bench()
    home = warm(bench)
    apps = [bench.app(), bench.app()]
    apps[0].join({"since_id": "5", "epoch": "E"})
    apps[1].join()
    home.drop()
    home = bench.home()
    assert home.joins("E", 8)["resume_from"] == "5"
    home.events(6, 8)
    await settle()
    for app in apps:
        assert app.ids() == [6, 7, 8]
        assert errors(app) == []


@virtual_time
async def test_rule_5_a_replay_under_way_ends_with_its_epoch() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    for number in range(1, 11):
        home.event(number, data="x" * 30_000)
    app.transport.frozen = True
    app.send("phx_join", {"since_id": "0", "epoch": "E"})
    await settle()
    bench.home().joins("F", None)
    app.transport.thaw()
    await settle()
    assert errors(app) == ["epoch_changed"]
    got = app.ids()
    assert got == list(range(1, len(got) + 1))
    assert len(got) < 10
    assert completions(app) == []


@virtual_time
async def test_a_rejoin_on_the_same_socket_replaces_the_old_join() -> None:
    bench = Bench()
    home, app = warm(bench), bench.app()
    app.join()
    app.join({"since_id": "2"})
    home.event(6)
    await settle()
    assert app.ids() == [3, 4, 5, 6]
    closes = [got for got in app.all() if got.event == "phx_close"]
    assert [got.join_ref for got in closes] == ["1"]
    assert len(bench.record().watchers) == 1


@pytest.mark.parametrize("when", ["before the home", "while it refills", "in the replay", "live"])
def test_an_app_that_leaves_is_forgotten_whatever_it_waits_for(when: str) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home, app, fresh = bench.home(), bench.app(), bench.app()
        if when != "before the home":
            home.joins("E", 9)
            home.events(1, 8)
        if when == "in the replay":
            app.transport.frozen = True
        if when == "live":
            home.event(9)
        app.join({"since_id": "8" if when == "live" else "0"}) if when != "in the replay" else app.send(
            "phx_join", {"since_id": "0"}
        )
        fresh.join()
        await settle()
        app.drop()
        fresh.call("phx_leave", {})
        await asyncio.sleep(60)
        record = bench.record()
        assert not record.watchers
        assert not record.waiting
        assert bench.hub.listeners(bench.topic()) == ()

    check()


@virtual_time
async def test_an_emptied_store_is_a_place_so_that_its_first_events_are_no_repeats() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins("E1", 5)
    home.events(1, 5)
    app.join({"since_id": "5", "epoch": "E1"})
    bench.home().joins("E2", None)
    await settle()
    assert app.all()[-1].event == "phx_error"
    again = bench.app()
    assert verdict(again.join({"since_id": "5", "epoch": "E1"})) == false("epoch_changed", 5, 0)
    assert completions(again) == [complete("E2", 0, false("epoch_changed", 5, 0))]


@virtual_time
async def test_who_joined_a_cold_hub_without_a_cursor_learns_its_place_before_its_first_event() -> None:
    bench = Bench()
    app = bench.app()
    app.join()
    assert completions(app) == [complete(None, None, TRUE)]
    bench.home().joins("E", 3)
    await settle()
    told = [got.payload for got in app.all() if got.event == "server_status"][-1]
    assert (told["epoch"], told["head_id"]) == ("E", "3")
