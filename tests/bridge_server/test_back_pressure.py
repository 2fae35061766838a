"""Slow apps and merged partials through real peers: order, cursors, windows, and what the others notice."""

import asyncio
import random
from typing import Any

import pytest

from bridge_server.outbox import Outbox
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import Bench, HomeWire, Wire, event

SMALL = {
    "queue_merge_bytes": 2_000,
    "queue_hold_bytes": 6_000,
    "queue_cut_bytes": 200_000,
    "queue_handover_bytes": 1_000,
}
"""Marks that a few events reach."""

Json = dict[str, Any]


def part(number: int, text: str, request: str = "r") -> Json:
    return event(number, request_id=request, message={"role": "assistant", "content": text})


def final(number: int, text: str, request: str = "r") -> Json:
    return event(number, "final", request_id=request, messages=[{"role": "assistant", "content": text}])


def publish(home: HomeWire, *events: Json) -> None:
    first = int(events[0]["event_id"])
    reply = home.call("session_events", {"events": events, "prev_id": str(first - 1) if first > 1 else None})
    assert reply["status"] == "ok", reply


def got(app: Wire) -> list[Json]:
    return [message.payload["event"] for message in app.all() if message.event == "session_event"]


def texts(events: list[Json]) -> list[tuple[int, Any]]:
    return [(int(one["event_id"]), one.get("message", {}).get("content")) for one in events]


# Apps that ask for it.


@virtual_time
async def test_merged_parts_come_once_in_a_window_and_at_once_with_what_follows_them() -> None:
    bench = Bench(merge_window=0.25)
    home, app, plain = bench.home(), bench.app(), bench.app()
    home.joins()
    app.join({"partials": "merged"})
    plain.join()
    publish(home, part(1, "a"))
    await settle()
    publish(home, part(2, "b"))
    await asyncio.sleep(0.2)
    assert (app.ids(), plain.ids()) == ([], [1, 2])
    await asyncio.sleep(0.1)
    assert texts(got(app)) == [(2, "ab")]
    publish(home, part(3, "c"), part(4, "d"), final(5, "abcd"), part(6, "e"))
    await settle()
    assert texts(got(app)) == [(2, "ab"), (4, "cd"), (5, None)], "who waits for the end has it at once"
    await asyncio.sleep(0.3)
    assert texts(got(app))[-1] == (6, "e")
    assert plain.ids() == [1, 2, 3, 4, 5, 6]


@virtual_time
async def test_a_window_holds_no_more_than_one_handover() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join({"partials": "merged"})
    for number in range(1, 80):
        publish(home, part(number, "x" * 1_000))
        await settle()
    assert app.ids(), "it did not wait for its end"
    await asyncio.sleep(0.3)
    assert "".join(one["message"]["content"] for one in got(app)) == "x" * 79_000


@virtual_time
async def test_who_joins_within_a_window_gets_every_part_once() -> None:
    """A replay that ends where a window is open, and one that reads what is merged itself."""
    bench = Bench()
    home, first = bench.home(), bench.app()
    home.joins()
    first.join({"partials": "merged"})
    publish(home, part(1, "a"), part(2, "b"))
    await settle()
    second = bench.app()
    second.join({"partials": "merged", "since_id": "0", "epoch": "E"})
    publish(home, part(3, "c"))
    await asyncio.sleep(0.3)
    assert texts(got(first)) == [(2, "ab"), (3, "c")]
    assert texts(got(second)) == [(2, "ab"), (3, "c")]


@virtual_time
async def test_a_status_comes_after_the_parts_before_it_and_an_answer_too() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join({"partials": "merged"})
    publish(home, part(1, "a"), part(2, "b"))
    await settle()
    app.send("no such message", {})
    assert [message.event for message in app.all()][-2:] == ["session_event", "phx_reply"]
    assert texts(got(app)) == [(2, "ab")]
    publish(home, part(3, "c"))
    await settle()
    home.drop()
    bench.home().joins(epoch="F")
    await settle()
    events = [message.event for message in app.all()]
    assert texts(got(app))[-1] == (3, "c"), "what the old store said last is not lost"
    assert events.index("server_status") > events.index("session_event")


@virtual_time
async def test_leaving_within_a_window_leaves_nothing_behind() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join({"partials": "merged"})
    publish(home, part(1, "a"))
    await settle()
    app.drop()
    publish(home, part(2, "b"))
    await asyncio.sleep(1)
    assert bench.hub._topics == {}


# Slow apps.


@virtual_time
async def test_a_slow_app_gets_its_parts_merged_by_bytes_and_loses_no_end() -> None:
    bench = Bench(**SMALL)
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    app.transport.frozen = True
    for number in range(1, 60):
        publish(home, part(number, f"{number:03} "))
        await settle()
    publish(home, final(60, "x"))
    await settle()
    assert app.peer.outbox.queued < SMALL["queue_merge_bytes"]
    app.transport.thaw()
    await settle()
    events = got(app)
    assert "".join(one["message"]["content"] for one in events[:-1]) == "".join(f"{n:03} " for n in range(1, 60))
    assert len(events) < 12
    assert events[-1]["type"] == "final"
    assert bench.budget.merged_parts == 60 - len(events)
    assert bench.budget.used == 0


@virtual_time
async def test_a_slow_app_gets_its_parts_merged_by_age() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    app.transport.frozen = True
    for number in range(1, 10):
        publish(home, part(number, f"{number}"))
        await settle()
    await asyncio.sleep(1.1)
    app.transport.thaw()
    await settle()
    assert texts(got(app)) == [(1, "1"), (9, "23456789")], "the first one was in the transport's hands"


@virtual_time
async def test_a_fast_app_never_gets_a_merged_part() -> None:
    bench = Bench(**SMALL)
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    for number in range(1, 200):
        publish(home, part(number, "x" * 100))
        if number % 10 == 0:
            await settle()
    await settle()
    assert app.ids() == list(range(1, 200))
    assert bench.budget.merged_parts == 0


def stream(chance: random.Random, count: int) -> list[Json]:
    """Events of three requests in any interleaving, whose finals repeat what their parts said, or do not."""
    said: dict[str, str] = {}
    events = []
    for number in range(1, count + 1):
        request = chance.choice("aaaabc")
        kind = chance.random()
        if kind < 0.85:
            text = f"{request}{number} "
            said[request] = said.get(request, "") + text
            events.append(part(number, text, request))
        elif kind < 0.95:
            events.append(event(number, "tool_call", request_id=request))
        else:
            whole = said.pop(request, "") if chance.random() < 0.7 else "something else"
            events.append(final(number, whole, request))
    return events


def covers(events: list[Json], received: list[Json], *, since: int = 0, until: int | None = None) -> None:
    """What was received says everything in `(since, until]` once and in order, parts that a later final repeats aside.

    `until` by default: the last id received.
    """
    ids = [int(one["event_id"]) for one in received]
    assert ids == sorted(set(ids)), "ids rise strictly"
    until = (ids[-1] if ids else since) if until is None else until
    wanted = [one for one in events if since < int(one["event_id"]) <= until]
    whole = {one["event_id"]: one for one in received if one["type"] != "partial"}
    assert list(whole.values()) == [one for one in wanted if one["type"] != "partial"]
    assert all(one in events for one in whole.values())
    for request in "abc":
        parts = [one for one in received if one["type"] == "partial" and one["request_id"] == request]
        said = "".join(one["message"]["content"] for one in parts)
        missing = []
        for one in wanted:
            if one["type"] == "partial" and one["request_id"] == request:
                text = one["message"]["content"]
                if said.startswith(text):
                    said = said.removeprefix(text)
                else:
                    missing.append(one)
        assert said == "", "nothing but the parts, in their order"
        for one in missing:
            later = [other for other in events if other["type"] == "final" and other["request_id"] == request]
            following = [other for other in later if int(other["event_id"]) > int(one["event_id"])]
            assert following, f"{one} is nowhere"
            assert one["message"]["content"] in following[0]["messages"][0]["content"], f"{one} is lost"


@pytest.mark.parametrize("wish", ["all", "merged"])
@pytest.mark.parametrize("seed", range(12))
def test_however_slow_an_app_is_it_can_resume_from_any_event_it_got(seed: int, wish: str) -> None:
    """Cut after any event, merged or not, it joins with that id and has everything once and in order."""

    @virtual_time
    async def check() -> None:
        chance = random.Random(seed)
        bench = Bench(**SMALL)
        home, app = bench.home(), bench.app()
        home.joins()
        app.join({"partials": wish})
        events = stream(chance, 250)
        for one in events:
            publish(home, one)
            match chance.randrange(12):
                case 0:
                    app.transport.frozen = True
                case 1:
                    app.transport.thaw()
                case 2 | 3:
                    app.transport.take()
                case 4:
                    await asyncio.sleep(chance.choice((0.1, 0.5, 1.2, 6.0)))
                case _:
                    await settle()
        app.transport.thaw()
        await asyncio.sleep(1)
        received = got(app)
        covers(events, received)
        assert int(received[-1]["event_id"]) == 250
        assert len(received) < 250, "something was merged"
        for index in chance.sample(range(len(received)), 8):
            before = received[: index + 1]
            covers(events, before)
            back = bench.app()
            place = before[-1]["event_id"]
            back.join({"since_id": place, "epoch": "E", "partials": wish})
            await settle()
            covers(events, got(back), since=int(place), until=250)
            back.drop()

    check()


@virtual_time
async def test_a_frozen_app_among_many_leaves_their_write_path_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One buffer goes to every app that reads, without touching it; only the frozen one is touched by itself."""
    bench = Bench()
    home = bench.home()
    home.joins()
    apps = [bench.app() for _ in range(50)]
    for app in apps:
        app.join()
    frozen, *others = apps
    frozen.transport.frozen = True
    publish(home, part(1, "a"))
    await settle()
    touched: list[Outbox] = []
    put = Outbox.put_message
    monkeypatch.setattr(Outbox, "put_message", lambda box, *more: (touched.append(box), put(box, *more))[1])
    for number in range(2, 102):
        publish(home, part(number, "x" * 100))
        await settle()
    assert touched == [frozen.peer.outbox] * 100
    written = [app.transport.writes[-1] for app in others]
    assert all(data is written[0] for data in written), "the same object for everybody"
    [group] = bench.hub._topics[bench.topic()]._groups.values()
    assert (len(group.idle), len(group.busy)) == (49, 1)
    assert all(app.ids() == list(range(1, 102)) for app in others)


@virtual_time
async def test_what_was_done_about_slow_apps_is_counted_by_mark_and_reason() -> None:
    """# case 55: caps are settings, and every one that was passed is counted."""
    bench = Bench(**SMALL | {"queue_cut_bytes": 20_000})
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    app.transport.frozen = True
    for number in range(1, 200):
        publish(home, event(number, "note", text="x" * 100))
        await settle()
    assert app.transport.closed == (1013, "slow")
    assert bench.budget.passed == {1: 1, 2: 1}
    assert {reason: count for reason, count in bench.budget.cuts.items() if count} == {"queue": 1}


@virtual_time
async def test_answers_are_not_dropped_before_events() -> None:
    """# case 55: a slow app still gets the reply to each of its messages, and its heartbeats first."""
    bench = Bench(**SMALL)
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    app.transport.frozen = True
    for number in range(1, 100):
        publish(home, part(number, "x" * 50))
        await settle()
    ref = app.send("no such message", {})
    beat = app.send("heartbeat", {}, topic="phoenix")
    publish(home, final(100, "y"))
    await asyncio.sleep(6)
    app.transport.thaw()
    await settle()
    assert app.answer(ref)["status"] == "error"
    order = [(message.event, message.ref) for message in app.all() if message.event != "replay_complete"]
    assert order.index(("phx_reply", beat)) < order.index(("phx_reply", ref)), "overtakes what is queued"
    assert app.ids()[-1] == 100
