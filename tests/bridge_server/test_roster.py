"""The presences of one topic, by themselves (Phoenix rules 63 to 68): no clock, no channel."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge_server.channels.presence import Roster
from tests.support.phoenix_presence import State, sync_diff, sync_state

GRACE = 15.0


def roster(grace: float = GRACE, limit: int = 10) -> Roster:
    numbers = count(1)
    return Roster(lambda: f"r{next(numbers)}", grace=grace, limit=limit)


def diff(of: Roster) -> Any:
    told = of.take_diff()
    return None if told is None else json.loads(told)


def metas(*found: dict[str, Any]) -> dict[str, Any]:
    return {"metas": list(found)}


# The roster.


def test_rule63_state_and_diff_have_phoenix_s_shape() -> None:
    of = roster()
    assert of.enter("one", "k", {"name": "phone", "n": 1})
    assert of.enter("two", "k", {"name": "phone"})
    assert of.enter("three", "é\N{SNOWMAN}", {})
    first = {"name": "phone", "n": 1, "phx_ref": "r1"}
    everybody = {"k": metas(first, {"name": "phone", "phx_ref": "r2"}), "é\N{SNOWMAN}": metas({"phx_ref": "r3"})}
    assert diff(of) == {"joins": everybody, "leaves": {}}
    assert diff(of) is None
    assert json.loads(of.state()) == everybody
    of.leave("one", 0, at_once=True)
    assert diff(of) == {"joins": {}, "leaves": {"k": metas(first)}}
    assert "r1" not in of.state().decode()


def test_case71_one_of_two_connections_goes_and_the_key_stays_with_one_meta() -> None:
    of = roster(grace=0)
    of.enter("one", "k", {})
    of.enter("two", "k", {})
    of.take_diff()
    of.leave("one", 0, at_once=False)
    assert json.loads(of.state()) == {"k": metas({"phx_ref": "r2"})}
    assert diff(of) == {"joins": {}, "leaves": {"k": metas({"phx_ref": "r1"})}}


def test_rule65_an_update_is_a_join_and_a_leave_in_one_diff() -> None:
    of = roster()
    of.enter("one", "k", {"n": 1})
    of.take_diff()
    assert of.update("one", {"n": 2})
    old, new = {"n": 1, "phx_ref": "r1"}, {"n": 2, "phx_ref": "r2", "phx_ref_prev": "r1"}
    assert diff(of) == {"joins": {"k": metas(new)}, "leaves": {"k": metas(old)}}
    assert json.loads(of.state()) == {"k": metas(new)}


def test_rule65_two_updates_in_one_diff_name_the_meta_that_was_told() -> None:
    of = roster()
    of.enter("one", "k", {"n": 1})
    of.take_diff()
    of.update("one", {"n": 2})
    of.update("one", {"n": 3})
    new = {"n": 3, "phx_ref": "r3", "phx_ref_prev": "r1"}
    assert diff(of) == {"joins": {"k": metas(new)}, "leaves": {"k": metas({"n": 1, "phx_ref": "r1"})}}


def test_who_came_and_went_between_two_diffs_is_in_neither() -> None:
    of = roster()
    of.enter("one", "k", {})
    of.update("one", {"n": 2})
    of.leave("one", 0, at_once=True)
    assert diff(of) is None
    assert len(of) == 0


def test_case110_who_returns_within_the_grace_period_was_never_away() -> None:
    of = roster()
    of.enter("one", "k", {"n": 1})
    of.take_diff()
    of.leave("one", 100, at_once=False)
    assert diff(of) is None
    assert of.deadline == 100 + GRACE
    of.enter("again", "k", {"n": 2})
    new = {"n": 2, "phx_ref": "r2", "phx_ref_prev": "r1"}
    assert diff(of) == {"joins": {"k": metas(new)}, "leaves": {"k": metas({"n": 1, "phx_ref": "r1"})}}
    of.expire(1000)
    assert diff(of) is None
    assert of.deadline is None


def test_case110_who_does_not_return_leaves_once_when_the_grace_period_ends() -> None:
    of = roster()
    for number in range(3):
        of.enter(number, f"k{number}", {})
        of.leave(number, 100 + number, at_once=False)
    of.take_diff()
    of.expire(100 + GRACE - 0.001)
    assert diff(of) is None
    of.expire(100 + GRACE + 1)
    told = diff(of)
    assert (told["joins"], list(told["leaves"])) == ({}, ["k0", "k1"])
    of.expire(100 + GRACE + 2)
    assert list(diff(of)["leaves"]) == ["k2"]
    assert len(of) == 0


def test_rule66_leaving_twice_or_without_having_come_is_harmless() -> None:
    of = roster()
    of.leave("nobody", 0, at_once=True)
    assert not of.update("nobody", {})
    of.enter("one", "k", {})
    of.leave("one", 0, at_once=True)
    of.leave("one", 0, at_once=True)
    assert diff(of) is None


def test_one_owner_is_present_once() -> None:
    of = roster()
    of.enter("one", "k", {})
    with pytest.raises(ValueError, match="update"):
        of.enter("one", "other", {})


def test_who_is_expelled_goes_with_all_metas_and_without_grace() -> None:
    of = roster()
    for owner, key in (("one", "k"), ("two", "k"), ("gone", "k"), ("other", "o")):
        of.enter(owner, key, {})
    of.leave("gone", 0, at_once=False)
    of.take_diff()
    of.expel("k")
    assert list(diff(of)["leaves"]) == ["k"]
    assert list(json.loads(of.state())) == ["o"]
    assert of.deadline is None
    of.leave("one", 0, at_once=False)
    assert of.deadline is None


def test_a_full_roster_lists_no_more_but_who_comes_back_and_who_is_always_listed() -> None:
    of = roster(limit=2)
    assert of.enter("one", "a", {})
    assert of.enter("two", "b", {})
    assert not of.enter("three", "c", {})
    assert of.enter("home", "home", {}, always=True)
    of.leave("one", 0, at_once=False)
    assert not of.enter("three", "c", {})
    assert of.enter("one again", "a", {})
    assert len(of) == 3
    of.leave("two", 0, at_once=True)
    of.leave("home", 0, at_once=True)
    assert of.enter("three", "c", {})


@pytest.mark.parametrize(
    "key", ["__proto__", "constructor", "hasOwnProperty", "toString", "", "a,b", '"', "\\", "\0", "é"]
)
def test_case68_any_text_is_a_key(key: str) -> None:
    of = roster()
    of.enter("one", key, {"__proto__": {"polluted": True}})
    meta = {"__proto__": {"polluted": True}, "phx_ref": "r1"}
    assert json.loads(of.state()) == {key: metas(meta)}
    of.leave("one", 0, at_once=True)
    assert key not in json.loads(of.state())


def test_what_is_no_json_is_refused_and_leaves_nothing() -> None:
    of = roster()
    with pytest.raises(TypeError):
        of.enter("one", "k", {"x": object()})
    with pytest.raises(TypeError, match="text"):
        of.enter("one", 5, {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="surrogate"):
        of.enter("one", "\ud800", {})
    assert len(of) == 0
    assert diff(of) is None
    assert of.enter("one", "k", {})
    with pytest.raises(TypeError):
        of.update("one", {"x": object()})
    told = diff(of)
    assert list(told["joins"]["k"]["metas"][0]) == ["phx_ref"]
    assert (told["leaves"], len(of)) == ({}, 1)


class Clients(RuleBasedStateMachine):
    """Whatever happens, a client that takes the state once and every diff after it has what the roster has.

    And no key that is present before and after a diff is absent, or joins or leaves, for a client that digests it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.roster = roster(limit=6)
        self.now = 0.0
        self.owners: Iterator[int] = count()
        self.here: list[int] = []
        self.clients: list[State] = []

    @rule(key=st.sampled_from(["a", "b", "__proto__"]), n=st.integers(0, 3))
    def enters(self, key: str, n: int) -> None:
        owner = next(self.owners)
        if self.roster.enter(owner, key, {"n": n}):
            self.here.append(owner)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), at_once=st.booleans())
    def leaves(self, data: st.DataObject, at_once: bool) -> None:
        owner = data.draw(st.sampled_from(self.here))
        self.here.remove(owner)
        self.roster.leave(owner, self.now, at_once=at_once)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), n=st.integers(0, 3))
    def updates(self, data: st.DataObject, n: int) -> None:
        self.roster.update(data.draw(st.sampled_from(self.here)), {"n": n})

    @rule(seconds=st.sampled_from([1.0, GRACE / 2, GRACE]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.roster.expire(self.now)

    @rule()
    def a_client_comes(self) -> None:
        self.told()
        self.clients.append({})
        self.clients[-1] = sync_state({}, json.loads(self.roster.state()))[0]

    @rule()
    def told(self) -> None:
        payload = diff(self.roster)
        after = json.loads(self.roster.state())
        for index, before in enumerate(self.clients):
            if payload is None:
                assert before == after
                continue
            state, came, went = sync_diff(before, payload)
            assert state == after
            assert came == [key for key in payload["joins"] if key not in before]
            assert sorted(went) == sorted(key for key in before if key not in after)
            self.clients[index] = state

    @invariant()
    def it_stays_within_its_limit(self) -> None:
        assert len(self.here) <= len(self.roster) <= 6


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
