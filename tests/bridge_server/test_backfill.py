"""Backfill on the wire, with a home whose every answer the test decides: verdicts, sharing, bounds, faults."""

import asyncio
from typing import Any

import pytest

from bridge_server.pages import Limits
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import SERVER_ID, Bench, Got, HomeWire, Wire, event

TRUE = {"recovered": True, "gap": None}
OPEN = {"recovered": None, "gap": None}


def expired(from_id: int, resume_after: int) -> dict[str, Any]:
    gap = {"reason": "expired", "from_id": str(from_id), "resume_after": str(resume_after)}
    return {"recovered": False, "gap": gap}


def verdict(payload: dict[str, Any]) -> dict[str, Any]:
    return {"recovered": payload["recovered"], "gap": payload["gap"]}


def completions(app: Wire) -> list[dict[str, Any]]:
    return [got.payload for got in app.all() if got.event == "replay_complete"]


def errors(app: Wire) -> list[str]:
    return [got.payload["reason"] for got in app.all() if got.event == "phx_error"]


def order(app: Wire) -> list[Any]:
    names = ("phx_reply", "server_status")
    return [
        int(got.payload["event"]["event_id"]) if got.event == "session_event" else got.event
        for got in app.all()
        if got.event not in names
    ]


class Store:
    """A home whose store holds events 1 to `last`, behind `floor`; the hub holds the last `held` of them."""

    def __init__(self, last: int = 100, held: int = 10, **settings: Any) -> None:
        self.bench = Bench(history_events=held, **settings)
        self.last = last
        self.floor = 0
        self.answered: list[dict[str, Any]] = []
        self.wire = self.connect()
        first = max(1, last - held + 1)
        for start in range(first, last + 1, 200):
            assert self.wire.events(start, min(start + 199, last))["status"] == "ok"

    def connect(self, epoch: str = "E", *, able: bool = True) -> HomeWire:
        self.wire = self.bench.home()
        self.wire.joins(epoch, self.last, backfill=able)
        return self.wire

    @property
    def limits(self) -> Limits:
        return self.bench.homes.backfills.limits

    def bound(self, **limits: Any) -> None:
        """Choose other bounds than the hub's own. Before the first app joins."""
        shared = self.bench.homes.backfills
        shared.limits = self.bench.record().backfill.limits = shared.limits._replace(**limits)

    def asks(self) -> list[Got]:
        """The pages asked for on the link there is and not answered yet."""
        done = {ask["id"] for ask in self.answered}
        return [got for got in self.wire.all() if got.event == "backfill" and got.payload["id"] not in done]

    def answer(self, most: int = 500, **fields: Any) -> dict[str, Any]:
        """Answer the oldest ask as an honest home does, but for `fields`; returns the reply."""
        ask = self.asks()[0].payload
        self.answered.append(ask)
        after, to = int(ask["after_id"]), int(ask["to_id"])
        start = max(after, self.floor)
        ids = range(start + 1, min(to, start + min(most, ask["limit"])) + 1)
        page = {"id": ask["id"], "events": [event(n) for n in ids], "floor": str(start) if start > after else None}
        return self.wire.call("backfill_page", {**page, **fields})

    async def answer_all(self, most: int = 500) -> None:
        """Answer until nothing is asked any more."""
        await settle()
        while self.asks():
            self.answer(most)
            await settle()

    def app(self, since: int = 0, **more: Any) -> Wire:
        """An app that has joined, with the cursor (E, since)."""
        app = self.bench.app(**more)
        reply = app.join({"since_id": str(since), "epoch": "E"})
        assert verdict(reply) == OPEN, reply
        return app


@virtual_time
async def test_rule_2_what_the_live_tier_no_longer_has_comes_from_the_home() -> None:
    store = Store()
    app = store.app(37)
    await settle()
    assert [ask.payload for ask in store.asks()] == [
        {"id": "1", "epoch": "E", "after_id": "37", "to_id": "90", "limit": 500}
    ]
    assert order(app) == []
    assert store.answer() == {"status": "ok", "response": {}}
    await settle()
    assert order(app) == [*range(38, 101), "replay_complete"]
    assert completions(app) == [{"epoch": "E", "to_id": "100", **TRUE}]
    store.wire.event(101)
    await settle()
    assert app.ids()[-1] == 101
    assert errors(app) == []


@virtual_time
async def test_events_that_come_meanwhile_are_neither_lost_nor_doubled_nor_early() -> None:
    """Eviction goes on during the backfill: what was appended since the join has to be fetched as well."""
    store = Store()
    app = store.app(0)
    for number in range(101, 161):
        await settle()
        assert store.wire.event(number)["status"] == "ok"
        if number % 3 == 0 and store.asks():
            store.answer(most=7)
    store.last = 160
    await store.answer_all(most=7)
    assert order(app) == [*range(1, 101), "replay_complete", *range(101, 161)]
    assert completions(app) == [{"epoch": "E", "to_id": "100", **TRUE}]
    store.wire.event(161)
    await settle()
    assert app.ids() == list(range(1, 162))


@virtual_time
async def test_a_replay_overtaken_by_eviction_goes_on_at_the_home() -> None:
    """The join was answered `true`: what the live tier then drops is fetched, and the word is kept."""
    store = Store(last=10)
    app = store.bench.app()
    app.transport.frozen = True
    app.send("phx_join", {"since_id": "0", "epoch": "E"})
    store.wire.events(11, 40)
    app.transport.thaw()
    await store.answer_all()
    assert verdict(app.answer("1")["response"]) == TRUE
    assert order(app) == [*range(1, 11), "replay_complete", *range(11, 41)]


@virtual_time
async def test_filters_are_applied_and_the_cursor_moves_over_what_they_hide() -> None:
    store = Store()
    app = store.bench.app()
    assert verdict(app.join({"since_id": "0", "types": ["final"]})) == OPEN
    await settle()
    store.answer(events=[event(n, "final" if n == 5 else "partial") for n in range(1, 91)])
    await settle()
    assert order(app) == [5, "replay_complete"]
    assert completions(app)[0]["to_id"] == "100"


@virtual_time
async def test_a_thousand_apps_that_want_the_same_cost_the_home_one_page() -> None:
    store = Store(last=20)
    apps = [store.app(n % 5, device_id=f"d{n % 200}") for n in range(1000)]
    await store.answer_all()
    await asyncio.sleep(1)
    assert len(store.answered) <= 2
    for n, app in enumerate(apps):
        assert order(app) == [*range(n % 5 + 1, 21), "replay_complete"]
    assert store.bench.homes.backfills.started == 1000


@virtual_time
async def test_pages_are_shared_by_apps_at_different_places_and_dropped_when_nobody_reads() -> None:
    store = Store(last=3000)
    first = store.app(0, device_id="a")
    await settle()
    store.answer()
    await settle()
    second = store.app(100, device_id="b")
    await settle()
    assert second.ids()[:1] == [101], "the page that the other app had fetched"
    assert store.bench.homes.backfills.cached > 0
    await store.answer_all()
    assert first.ids() == list(range(1, 3001))
    assert second.ids() == list(range(101, 3001))
    assert len(store.answered) == 6, "2,990 events in pages of 500, each once"
    assert store.bench.homes.backfills.cached == 0
    assert store.bench.record().backfill.readers == 0


@virtual_time
async def test_a_slow_app_holds_no_pages_and_the_cache_is_bounded() -> None:
    store = Store(last=3000)
    store.bound(cache_bytes=200_000, part_bytes=1_000)
    slow = store.bench.app(device_id="slow")
    slow.transport.frozen = True
    slow.send("phx_join", {"since_id": "0", "epoch": "E"})
    fast = [store.app(0, device_id=f"d{n}") for n in range(3)]
    most = 0
    for _ in range(40):
        await settle()
        if store.asks():
            store.answer()
        most = max(most, store.bench.homes.backfills.cached)
        assert slow.peer.outbox.queued < 5_000
    slow.transport.thaw()
    await store.answer_all()
    assert 0 < most <= 200_000 + 250
    for app in [*fast, slow]:
        assert app.ids() == list(range(1, 3001))


# Who may have how much.


@virtual_time
async def test_one_device_has_one_page_under_way_and_a_home_two() -> None:
    store = Store(last=5000)
    greedy = [store.app(n * 600, device_id="greedy") for n in range(6)]
    await settle()
    assert [ask.payload["after_id"] for ask in store.asks()] == ["0"]
    modest = store.app(4300, device_id="modest")
    other = store.app(4900, device_id="other")
    await settle()
    assert [ask.payload["after_id"] for ask in store.asks()] == ["0", "4300"]
    store.answer()
    await settle()
    # The next turn is that of the device that waits, not of the one that has more wishes.
    assert [ask.payload["after_id"] for ask in store.asks()] == ["4300", "4900"]
    await store.answer_all()
    for app, since in [(modest, 4300), (other, 4900), *((app, n * 600) for n, app in enumerate(greedy))]:
        assert app.ids() == list(range(since + 1, 5001))


@virtual_time
async def test_a_device_over_its_allowance_is_served_slower_and_loses_nothing() -> None:
    store = Store(last=2000)
    store.bound(device_burst=10_000, device_rate=1_000, part_bytes=2_000)
    app = store.app(0, device_id="greedy")
    for _ in range(20):
        await settle()
        if store.asks():
            store.answer()
    behind = app.ids()[-1]
    assert behind < 500
    other = store.app(1900, device_id="modest")
    await store.answer_all()
    assert other.ids() == list(range(1901, 2001)), "the allowance is each device's own"
    for _ in range(400):
        await asyncio.sleep(1)
        if store.asks():
            store.answer()
    assert app.ids() == list(range(1, 2001))


@virtual_time
async def test_an_app_that_leaves_costs_the_home_no_further_page() -> None:
    store = Store(last=5000)
    stays = store.app(4600, device_id="stays")
    leaves = [store.app(n * 600, device_id=f"d{n}") for n in range(6)]
    await settle()
    assert len(store.asks()) == 2
    for app in leaves[:3]:
        app.call("phx_leave", {})
    for app in leaves[3:]:
        app.drop()
    await store.answer_all()
    assert len(store.answered) == 2, "what was under way, and nothing more"
    assert stays.ids() == list(range(4601, 5001))
    record = store.bench.record().backfill
    assert (record.readers, store.bench.homes.backfills.cached) == (0, 0)


# The home is away, or comes back, or is another.


@virtual_time
async def test_a_home_that_is_away_for_the_grace_period_leaves_an_honest_gap() -> None:
    store = Store()
    store.wire.drop()
    await asyncio.sleep(4)
    app = store.app(37)
    await asyncio.sleep(5)
    assert completions(app) == []
    await asyncio.sleep(2)
    assert completions(app) == [{"epoch": "E", "to_id": "100", **expired(37, 90)}]
    assert errors(app) == ["expired"]
    # The rejoin, of a client that reads replies only, is told at once.
    assert verdict(app.join({"since_id": "37", "epoch": "E"})) == expired(37, 90)
    again = store.bench.app()
    assert verdict(again.join({"since_id": "90", "epoch": "E"})) == TRUE
    assert store.bench.homes.backfills.failures == {"offline": 1}


@virtual_time
async def test_a_home_that_comes_back_in_time_is_asked_again() -> None:
    store = Store()
    app = store.app(37)
    await settle()
    assert len(store.asks()) == 1
    store.wire.drop()
    await asyncio.sleep(6)
    store.connect()
    await store.answer_all()
    assert order(app) == [*range(38, 101), "replay_complete"]
    await asyncio.sleep(60)
    assert errors(app) == []


@virtual_time
async def test_the_patience_counts_from_the_last_time_the_home_left() -> None:
    store = Store()
    app = store.app(37)
    await settle()
    store.wire.drop()
    await asyncio.sleep(5)
    store.connect()
    await asyncio.sleep(4)
    store.wire.drop()
    await asyncio.sleep(9)
    assert completions(app) == []
    await asyncio.sleep(2)
    assert verdict(completions(app)[0]) == expired(37, 90)


@virtual_time
async def test_a_home_that_leaves_in_the_middle_leaves_a_gap_behind_the_last_event_sent() -> None:
    store = Store()
    app = store.app(0)
    await settle()
    store.answer(most=20)
    await settle()
    store.wire.drop()
    await asyncio.sleep(11)
    assert order(app) == [*range(1, 21), "replay_complete", "phx_error"]
    assert verdict(completions(app)[0]) == expired(20, 90)


@virtual_time
async def test_a_gap_begins_behind_the_last_event_the_app_was_shown() -> None:
    """And not behind those that its filter hid: its rejoin is told the very same gap."""
    store = Store()
    app = store.bench.app()
    wishes = {"since_id": "0", "epoch": "E", "types": ["final"]}
    app.join(wishes)
    await settle()
    store.answer(events=[event(n, "final" if n == 5 else "partial") for n in range(1, 21)])
    await settle()
    store.wire.drop()
    await asyncio.sleep(11)
    assert order(app) == [5, "replay_complete", "phx_error"]
    assert verdict(completions(app)[0]) == expired(5, 90)
    assert verdict(app.join(wishes | {"since_id": "5"})) == expired(5, 90)


@virtual_time
async def test_a_takeover_in_the_middle_asks_the_new_link_and_forgets_the_old() -> None:
    store = Store()
    app = store.app(0)
    await settle()
    old, ask = store.wire, store.asks()[0].payload
    store.connect()
    late = old.send("backfill_page", {"id": ask["id"], "events": [event(1)], "floor": None})
    assert [got for got in old.all() if got.ref == late and got.payload.get("status") == "ok"] == []
    await store.answer_all()
    assert order(app) == [*range(1, 101), "replay_complete"]


@virtual_time
async def test_rule_5_another_epoch_ends_the_backfill_and_nothing_is_mixed() -> None:
    store = Store()
    app = store.app(0)
    await settle()
    store.answer(most=20)
    await settle()
    ask = store.asks()[0].payload
    new = store.bench.home()
    new.joins("F", 5, backfill=True)
    new.events(1, 5)
    reply = new.call("backfill_page", {"id": ask["id"], "events": [event(21)], "floor": None})
    assert reply["status"] == "ok", "an answer that nobody waits for is ignored"
    await settle()
    assert order(app) == [*range(1, 21), "phx_error"]
    assert errors(app) == ["epoch_changed"]
    assert app.join({"since_id": "20", "epoch": "E"})["gap"]["reason"] == "epoch_changed"


@virtual_time
async def test_rule_3_a_cold_hub_fetches_what_the_refill_does_not_reach() -> None:
    bench = Bench()
    app = bench.app()
    assert verdict(app.join({"since_id": "3", "epoch": "E"})) == OPEN
    home = bench.home()
    home.joins("E", 100, backfill=True)
    home.events(91, 100)
    await settle()
    (ask,) = [got.payload for got in home.all() if got.event == "backfill"]
    assert (ask["after_id"], ask["to_id"]) == ("3", "90")
    home.call("backfill_page", {"id": ask["id"], "events": [event(n) for n in range(4, 91)], "floor": None})
    await settle()
    assert order(app) == [*range(4, 101), "replay_complete"]


@virtual_time
async def test_a_home_that_does_not_offer_it_is_not_asked() -> None:
    store = Store()
    store.connect(able=False)
    app = store.bench.app()
    assert verdict(app.join({"since_id": "37", "epoch": "E"})) == expired(37, 90)
    await settle()
    assert store.asks() == []


@virtual_time
async def test_who_waits_for_a_home_that_comes_back_without_it_is_told() -> None:
    store = Store()
    app = store.app(37)
    await settle()
    store.wire.drop()
    store.connect(able=False)
    await settle()
    assert verdict(completions(app)[0]) == expired(37, 90)


@virtual_time
async def test_what_the_home_itself_no_longer_has_is_expired_with_its_floor() -> None:
    store = Store()
    store.floor = 60
    app = store.app(37)
    await settle()
    store.answer()
    await settle()
    assert completions(app) == [{"epoch": "E", "to_id": "100", **expired(37, 60)}]
    assert errors(app) == ["expired"]
    # A client that sends the same cursor for ever is told in the reply, and the home is left in peace.
    assert verdict(app.join({"since_id": "37", "epoch": "E"})) == expired(37, 60)
    rest = store.app(60)
    await store.answer_all()
    assert order(rest) == [*range(61, 101), "replay_complete"]
    assert len(store.answered) <= 2


@virtual_time
async def test_a_floor_above_what_the_live_tier_holds_names_the_live_tier() -> None:
    store = Store()
    app = store.app(37)
    await settle()
    store.answer(events=[], floor="95")
    await settle()
    assert verdict(completions(app)[0]) == expired(37, 90)


@virtual_time
async def test_ids_that_the_home_skips_are_no_gap() -> None:
    store = Store()
    app = store.app(0)
    await settle()
    store.answer(events=[event(3), event(50)])
    await settle()
    store.answer(events=[])
    await settle()
    assert order(app) == [3, 50, *range(91, 101), "replay_complete"]


# A home that does not keep to it.


@pytest.mark.parametrize(
    "answer",
    [
        {"events": [event(37)]},
        {"events": [event(91)]},
        {"events": [event(40), event(40)]},
        {"events": [event(41), event(40)]},
        {"events": [event(40), {"event_id": "x", "type": "t"}]},
        {"events": [{"event_id": "40"}]},
        {"events": [7]},
        {"events": [event(n) for n in range(38, 88)], "floor": "nonsense"},
        {"events": [event(n, text="x" * 9_000) for n in range(38, 75)]},
        {"events": [event(38, text="x" * 1_200_000)]},
        {"events": [{"event_id": "38", "type": "t"}] * 501},
    ],
    ids=[
        *("at the place", "above the end", "twice", "falling", "a bad id", "no type", "no object", "a bad floor"),
        *("too many bytes", "too large an event", "too many"),
    ],
)
def test_a_page_that_was_not_asked_for_is_a_gap_and_the_home_is_left_alone(answer: dict[str, Any]) -> None:
    @virtual_time
    async def check() -> None:
        store = Store()
        app = store.app(37)
        await settle()
        reply = store.answer(**answer)
        assert (reply["status"], reply["response"]["reason"]) == ("error", "bad_push")
        await settle()
        assert order(app) == ["replay_complete", "phx_error"]
        assert verdict(completions(app)[0]) == expired(37, 90)
        assert verdict(app.join({"since_id": "37", "epoch": "E"})) == expired(37, 90)
        assert store.asks() == []
        assert store.bench.homes.backfills.failures == {"bad_page": 1}
        await asyncio.sleep(store.limits.mute_seconds)
        later = store.app(37)
        await store.answer_all()
        assert order(later) == [*range(38, 101), "replay_complete"]

    check()


@virtual_time
async def test_a_home_that_never_answers_is_a_gap_after_ten_seconds() -> None:
    store = Store()
    app, behind = store.app(37), store.app(5, device_id="other")
    await asyncio.sleep(9)
    assert completions(app) == completions(behind) == []
    await asyncio.sleep(2)
    assert verdict(completions(app)[0]) == expired(37, 90)
    assert verdict(completions(behind)[0]) == expired(5, 90)
    asked = len(store.asks())
    assert verdict(app.join({"since_id": "37", "epoch": "E"})) == expired(37, 90)
    assert len(store.asks()) == asked
    assert store.answer() == {"status": "ok", "response": {}}, "too late: ignored"
    await settle()
    assert app.ids() == []


@virtual_time
async def test_a_home_that_says_it_can_not_is_a_gap_at_once() -> None:
    store = Store()
    app = store.app(37)
    await settle()
    store.answer(events=[], error="unavailable")
    await settle()
    assert verdict(completions(app)[0]) == expired(37, 90)


@virtual_time
async def test_an_answer_of_another_shape_is_refused() -> None:
    store = Store()
    store.app(37)
    await settle()
    assert store.wire.call("backfill_page", {"events": []})["response"]["reason"] == "bad_push"
    assert store.bench.home(SERVER_ID).call("backfill_page", {"id": "1"})["status"] == "error"
