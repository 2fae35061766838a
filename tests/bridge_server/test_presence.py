"""Presence on the app topic of a home (Phoenix rules 24 and 63 to 68), on virtual time; and for channels of others."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from bridge_server.channels import Channel, Handled, Refuse, Reply, Socket
from bridge_server.channels.app import HOME_KEY
from bridge_server.channels.presence import LIMIT, NEWCOMERS, WINDOW_SECONDS
from protocol.codec import V1, V2, Codec
from tests.support.phoenix_presence import State, of
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import OTHER_ID, Bench, Got, Wire

GRACE = 15.0
WATCH = {"presence": True}


def told(wire: Wire) -> list[Got]:
    """What of presence came since the last look, in order."""
    return [got for got in wire.new() if got.event.startswith("presence_")]


def here(state: State) -> dict[str, int]:
    """How many connections each key has."""
    return {key: len(presence["metas"]) for key, presence in state.items()}


async def window() -> None:
    """Let the next diff come."""
    await asyncio.sleep(WINDOW_SECONDS + 0.01)


async def watching(bench: Bench, codec: Codec = V2) -> Wire:
    """An app that has its state and waits for diffs, out of the quiet time."""
    wire = bench.app(codec=codec, device_id="watcher", name="tablet")
    wire.join(WATCH)
    await window()
    assert [got.event for got in told(wire)] == ["presence_state"]
    return wire


@virtual_time
async def test_the_state_comes_after_the_join_s_reply_with_the_home_and_oneself() -> None:
    bench = Bench()
    bench.home().joins(name="the den")
    since = bench.clock.shown(bench.clock.now())
    app = bench.app(device_id="d1", name="phone")
    app.join(WATCH)
    online_at = bench.clock.shown(bench.clock.now())
    await settle()
    reply, *rest = app.all()
    assert (reply.event, [got.event for got in rest]) == ("phx_reply", ["replay_complete", "presence_state"])
    state = rest[-1]
    assert (state.ref, state.join_ref) == (None, "1")
    refs = [presence["metas"][0].pop("phx_ref") for presence in state.payload.values()]
    assert len(set(refs)) == 2
    assert all(isinstance(ref, str) and ref for ref in refs)
    assert state.payload == {
        HOME_KEY: {"metas": [{"name": "the den", "since": since}]},
        "d1": {"metas": [{"name": "phone", "online_at": online_at}]},
    }


@virtual_time
async def test_who_does_not_ask_is_seen_and_told_nothing() -> None:
    bench = Bench()
    watcher = await watching(bench)
    silent = bench.app(device_id="d1")
    silent.join({"presence": False})
    await window()
    assert told(silent) == []
    (diff,) = told(watcher)
    assert (diff.join_ref, list(diff.payload["joins"]), diff.payload["leaves"]) == ("1", ["d1"], {})


@virtual_time
@pytest.mark.parametrize("asked", [1, "true", None, {}])
async def test_presence_is_asked_for_with_a_boolean(asked: Any) -> None:
    assert Bench().app().refused({"presence": asked}) == {"reason": "bad_join", "field": "presence"}


@virtual_time
async def test_version_1_gets_the_same_without_join_ref() -> None:
    bench = Bench()
    watcher, other = await watching(bench, V1), bench.app(device_id="d1")
    other.join()
    await settle()
    (diff,) = told(watcher)
    assert (diff.event, list(diff.payload["joins"]), diff.ref) == ("presence_diff", ["d1"], None)


@virtual_time
async def test_case71_case103_two_connections_of_a_device_are_two_metas_and_go_one_by_one() -> None:
    """# case 71, 103"""
    bench = Bench()
    watcher = await watching(bench)
    wires = [bench.app(device_id="d1") for _ in range(2)]
    for wire in wires:
        wire.join()
    await settle()
    state = of(watcher.all())
    assert here(state) == {"watcher": 1, "d1": 2}
    assert len({meta["phx_ref"] for meta in state["d1"]["metas"]}) == 2
    wires[0].drop()
    await asyncio.sleep(GRACE + WINDOW_SECONDS + 0.1)
    assert here(of(watcher.all())) == {"watcher": 1, "d1": 1}
    wires[1].drop()
    await asyncio.sleep(GRACE + WINDOW_SECONDS + 0.1)
    assert here(of(watcher.all())) == {"watcher": 1}


@virtual_time
async def test_case110_a_tunnel_is_a_change_of_the_meta_and_nobody_is_missing() -> None:
    """# case 110: within the grace period"""
    bench = Bench()
    watcher = await watching(bench)
    app = bench.app(device_id="d1")
    app.join()
    await window()
    first = of(watcher.all())["d1"]["metas"]
    told(watcher)
    app.drop()
    await asyncio.sleep(GRACE - 1)
    assert told(watcher) == []
    back = bench.app(device_id="d1", name="renamed")
    back.join()
    await asyncio.sleep(3 * GRACE)
    (diff,) = told(watcher)
    (new,) = diff.payload["joins"]["d1"]["metas"]
    assert diff.payload["leaves"] == {"d1": {"metas": first}}
    assert (new["phx_ref_prev"], new["name"]) == (first[0]["phx_ref"], "renamed")
    assert new["phx_ref"] != first[0]["phx_ref"]


@virtual_time
async def test_case110_who_stays_away_leaves_once_after_the_grace_period() -> None:
    """# case 110: after the grace period"""
    bench = Bench()
    watcher = await watching(bench)
    app = bench.app(device_id="d1")
    app.join()
    await window()
    told(watcher)
    app.drop()
    await asyncio.sleep(GRACE - 0.1)
    assert told(watcher) == []
    await asyncio.sleep(0.2)
    assert [list(got.payload["leaves"]) for got in told(watcher)] == [["d1"]]
    await asyncio.sleep(10 * GRACE)
    assert told(watcher) == []


def leaves(wire: Wire) -> None:
    wire.call("phx_leave", {})


def falls_silent(wire: Wire) -> None:
    wire.peer.gone("idle")


@pytest.mark.parametrize("ends", [leaves, falls_silent])
def test_case103_who_left_or_fell_silent_is_gone_at_once(ends: Any) -> None:
    """# case 103: the ghost is gone no later than the idle timeout"""

    @virtual_time
    async def check() -> None:
        bench = Bench()
        watcher = await watching(bench)
        app = bench.app(device_id="d1")
        app.join()
        await window()
        told(watcher)
        ends(app)
        await settle()
        assert [list(got.payload["leaves"]) for got in told(watcher)] == [["d1"]]

    check()


@virtual_time
async def test_rule11_a_replaced_join_leaves_no_ghost() -> None:
    bench = Bench()
    watcher = await watching(bench)
    app = bench.app(device_id="d1")
    for _ in range(3):
        app.join()
    await asyncio.sleep(3 * GRACE)
    assert here(of(watcher.all())) == {"watcher": 1, "d1": 1}
    assert app.refused({"types": 1})["reason"] == "bad_join"
    await asyncio.sleep(3 * GRACE)
    assert here(of(watcher.all())) == {"watcher": 1}


@virtual_time
async def test_rule66_a_crashed_channel_leaves_no_ghost_and_a_rejoin_in_time_keeps_its_place() -> None:
    bench = Bench()
    watcher, home = await watching(bench), bench.home()
    home.joins("E")
    app = bench.app(device_id="d1")
    app.join({"since_id": "0", "epoch": "E"})
    await window()
    told(watcher)
    bench.home().joins("F")  # phx_error epoch_changed
    assert app.all()[-1].event == "phx_error"
    await asyncio.sleep(1)
    app.join({"since_id": "0", "epoch": "E"})
    await window()
    assert [list(got.payload["joins"]) for got in told(watcher)] == [["d1"]]
    app.drop()
    await asyncio.sleep(2 * GRACE)
    assert here(of(watcher.all())) == {"watcher": 1, HOME_KEY: 1}


@virtual_time
async def test_the_home_s_presence_follows_what_apps_are_told_of_it() -> None:
    bench = Bench(status_grace=5.0)
    watcher, home = await watching(bench), bench.home()
    home.joins(name="attic")
    await window()
    (came,) = told(watcher)
    assert came.payload["joins"][HOME_KEY]["metas"][0]["name"] == "attic"
    home.drop()
    await asyncio.sleep(4)
    again = bench.home()
    again.joins(name="attic")
    await asyncio.sleep(10)
    assert told(watcher) == []
    third = bench.home()
    third.joins(name="cellar")
    await window()
    (renamed,) = told(watcher)
    (new,) = renamed.payload["joins"][HOME_KEY]["metas"]
    assert (new["name"], new["since"]) == ("cellar", came.payload["joins"][HOME_KEY]["metas"][0]["since"])
    third.drop()
    await asyncio.sleep(6)
    assert [list(got.payload["leaves"]) for got in told(watcher)] == [[HOME_KEY]]


@virtual_time
async def test_A206_presence_stays_with_its_home() -> None:
    bench = Bench()
    watcher = await watching(bench)
    bench.home(OTHER_ID).joins()
    bench.app(OTHER_ID, device_id="d1").join(WATCH)
    await window()
    assert told(watcher) == []


@virtual_time
async def test_a_watcher_gets_the_state_once_and_then_every_change_once() -> None:
    """Whoever joins when: state before diffs, no change twice, and in the end all agree."""
    bench = Bench()
    wires: list[Wire] = []
    for number in range(40):
        wire = bench.app(device_id=f"d{number % 25}")
        wire.join(WATCH if number % 2 else {})
        wires.append(wire)
        await asyncio.sleep(0.13)
        if number % 3 == 0:
            wires.pop(number // 4).drop()
    await asyncio.sleep(2 * GRACE)
    watchers = [wire for wire in wires if any(got.event == "presence_state" for got in wire.all())]
    assert len(watchers) > 10
    states = [of(wire.all()) for wire in watchers]
    assert all(state == states[0] for state in states)
    assert sum(here(states[0]).values()) == len(wires)
    for wire in watchers:
        presence = [got for got in wire.all() if got.event.startswith("presence_")]
        assert [got.event for got in presence[:2]] in (["presence_state", "presence_diff"], ["presence_state"])
        seen = Counter(
            meta["phx_ref"]
            for got in presence
            for key in (got.payload if got.event == "presence_state" else got.payload["joins"]).values()
            for meta in key["metas"]
        )
        assert max(seen.values()) == 1


@virtual_time
async def test_however_many_come_and_go_there_is_one_diff_a_second() -> None:
    bench = Bench()
    watcher = await watching(bench)
    started = bench.clock.now()
    for number in range(500):
        app = bench.app(device_id=f"d{number}")
        app.join()
        await asyncio.sleep(0.01)
        app.call("phx_leave", {})
    await window()
    seconds = bench.clock.now() - started
    assert 1 < len(told(watcher)) <= seconds / WINDOW_SECONDS + 1


@virtual_time
async def test_a_crowd_costs_each_of_them_little() -> None:
    """All of them watch: the list ends, so do the bytes, and they are told by and by."""
    bench = Bench()
    bench.home().joins()
    wires = [bench.app(device_id=f"d{number}") for number in range(NEWCOMERS + 200)]
    for wire in wires:
        wire.join(WATCH)
    await settle()
    assert sum(bool(told(wire)) for wire in wires) == NEWCOMERS
    await window()
    for wire in (wires[0], wires[NEWCOMERS], wires[-1]):
        assert here(of(wire.all())) == {HOME_KEY: 1, **{f"d{number}": 1 for number in range(LIMIT - 1)}}
        assert sum(map(len, wire.transport.writes)) < 100 * 1024
    for wire in wires[1:]:
        wire.drop()
    await asyncio.sleep(2 * GRACE)
    assert here(of(wires[0].all())) == {HOME_KEY: 1, "d0": 1}


@virtual_time
async def test_who_joins_again_and_again_takes_nobodys_turn() -> None:
    bench = Bench()
    await watching(bench)
    restless, other = bench.app(device_id="restless"), bench.app(device_id="other")
    restless.join(WATCH)
    await settle()
    for _ in range(2 * NEWCOMERS):  # within one window
        restless.join(WATCH)
    other.join(WATCH)
    await window()
    assert [got.event for got in told(other)] == ["presence_state"]


@virtual_time
async def test_a_diff_that_many_watch_is_encoded_once() -> None:
    bench = Bench()
    wires = [bench.app(device_id=f"d{number}") for number in range(20)]
    for wire in wires:
        wire.join(WATCH)
    await window()
    bench.app(device_id="late").join()
    await settle()
    last = [wire.transport.writes[-1] for wire in wires]
    assert b"presence_diff" in last[0]
    assert all(write is last[0] for write in last)


@virtual_time
async def test_nothing_is_left_when_everybody_has_gone() -> None:
    bench = Bench()
    for number in range(50):
        home, app = bench.home(), bench.app(device_id=f"d{number}")
        home.joins()
        app.join(WATCH)
        await asyncio.sleep(0.01)
        app.drop()
        home.drop()
    await asyncio.sleep(2 * GRACE)
    assert len(bench.presence) == 0
    assert not bench.hub.heard(f"phx_presence:app:{'a' * 26}")


@virtual_time
async def test_a_slow_watcher_gets_its_presence_in_order_with_its_events() -> None:
    bench = Bench()
    home, watcher = bench.home(), await watching(bench)
    home.joins()
    await window()
    watcher.transport.frozen = True
    home.events(1, 3)
    await settle()
    bench.app(device_id="d1").join()
    await settle()
    home.events(4, 5)
    await settle()
    told(watcher)
    watcher.transport.thaw()
    events = [got.event for got in watcher.new()]
    assert events == ["session_event"] * 3 + ["presence_diff"] + ["session_event"] * 2
    assert "d1" in of(watcher.all())


# For channels of an embedder.


class Room(Channel):
    """Shows itself under whatever key it is told to."""

    def __init__(self, socket: Socket, bench: Bench) -> None:
        super().__init__(socket)
        self._presence = bench.presence

    def joined(self) -> None:
        self._presence.watch(self.socket)

    def handle_in(self, event: str, payload: Any, ref: Any) -> Handled:
        fields = msgspec.json.decode(payload)
        match event:
            case "track":
                return Reply("ok" if self._presence.track(self.socket, fields.pop("key"), fields) else "full")
            case "update":
                return Reply("ok" if self._presence.update(self.socket, fields) else "absent")
            case "untrack":
                self._presence.untrack(self.socket)
                return Reply()
            case "stop":
                self.socket.close()
                self._presence.track(self.socket, "ghost", {})
                self._presence.watch(self.socket)
        raise RuntimeError("crashes on purpose")

    def terminate(self, reason: str) -> None:
        raise RuntimeError("a terminate that crashes on purpose")


def rooms() -> tuple[Bench, Wire, Wire]:
    bench = Bench()
    bench.router.add("room:*", lambda socket: Room(socket, bench))
    one, two = bench.stranger(None), bench.stranger(None)
    one.topic = two.topic = "room:1"
    one.join()
    two.join()
    return bench, one, two


@pytest.mark.lint_allows("status")
@virtual_time
async def test_rule65_rule66_a_channel_of_an_embedder_tracks_updates_and_untracks_itself() -> None:
    _, one, two = rooms()
    assert two.call("update", {"n": 1})["status"] == "absent"
    two.call("untrack", {})
    assert two.call("track", {"key": "__proto__", "n": 1})["status"] == "ok"
    await window()
    assert of(one.all()) == of(two.all())
    assert list(of(one.all())) == ["__proto__"]
    assert two.call("update", {"n": 2})["status"] == "ok"
    await window()
    assert of(one.all())["__proto__"]["metas"][0]["n"] == 2
    two.call("untrack", {})
    await window()
    assert of(one.all()) == {}


@virtual_time
async def test_a_presence_ends_with_its_channel_whatever_the_channel_does() -> None:
    """It crashes, and its terminate too; it ends and tracks itself then: neither leaves a ghost."""
    bench, one, two = rooms()
    two.call("track", {"key": "two"})
    await window()
    assert list(of(one.all())) == ["two"]
    two.send("crash", {})
    await asyncio.sleep(2 * GRACE)
    assert of(one.all()) == {}
    two.join()
    two.send("stop", {})
    await asyncio.sleep(2 * GRACE)
    assert of(one.all()) == {}
    one.drop()
    await asyncio.sleep(2 * GRACE)
    assert len(bench.presence) == 0


@virtual_time
async def test_a_refused_join_is_not_present() -> None:
    class Closed(Channel):
        def join(self, payload: Any) -> Refuse:
            bench.presence.track(self.socket, "k", {})
            return Refuse({"reason": "no"})

    bench = Bench()
    bench.router.add("closed:*", Closed)
    wire = bench.stranger(None)
    assert wire.call("phx_join", {}, "closed:1")["status"] == "error"
    await settle()
    assert len(bench.presence) == 0
