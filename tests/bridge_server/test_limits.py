"""Limits on connections and messages: what each kind of client may ask, what is remembered, and what the wire says."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bridge_server.limits
from bridge_server.app import Hub
from bridge_server.auth import Device, Identity, Operator, Server
from bridge_server.config import Config
from bridge_server.limits import DEFAULTS, Admission, Allowance, Limits, Rate, TooMany
from tests.support.raw_socket import RawSocket, Response
from tests.support.running_hub import running_hub
from tests.support.scripted_home import scripted_home

HOME = Server(1, "h" * 26, "home")
FAR, OTHER = "192.0.2.1", "192.0.2.2"


def phone(number: int = 2) -> Device:
    return Device(number, f"d{number}", "h" * 26, "phone", frozenset({"view"}))


def limits(**settings: Any) -> Limits:
    return Limits(Config(**settings))


def admitted(found: Admission | TooMany | None) -> Admission:
    assert isinstance(found, Admission), found
    return found


# The allowance.


@given(
    amount=st.integers(1, 50),
    burst=st.integers(1, 50),
    steps=st.lists(st.floats(0, 2, allow_nan=False), min_size=1, max_size=200),
)
def test_no_interval_sees_more_than_the_burst_and_what_the_rate_adds(
    amount: int, burst: int, steps: list[float]
) -> None:
    allowance = Allowance(Rate(amount, 1.0, burst))
    now, taken = 0.0, []
    for step in steps:
        now += step
        if allowance.wait(now) == 0:
            allowance.take(now)
            taken.append(now)
    for first, start in enumerate(taken):
        for last, end in enumerate(taken[first:], first):
            assert last - first + 1 <= burst + amount * (end - start) + 1e-6


def test_what_is_refused_may_come_when_it_was_told_to() -> None:
    allowance = Allowance(Rate(2, 1.0, 3))
    for _ in range(3):
        assert allowance.wait(10.0) == 0
        allowance.take(10.0)
    wait = allowance.wait(10.0)
    assert wait == pytest.approx(0.5)
    assert allowance.wait(10.0 + wait) == 0
    assert not allowance.whole(10.0 + wait)
    assert allowance.whole(11.5)


# Who is counted how.


def test_an_address_may_hold_so_many_connections_and_gets_them_back() -> None:
    some = limits(address_connections=2)
    held = [admitted(some.admit(phone(number), FAR, 0.0)) for number in (2, 3)]
    assert some.admit(phone(4), FAR, 0.0) == TooMany("too_many_connections", 5)
    admitted(some.admit(phone(4), OTHER, 0.0))
    held[0].release()
    held[0].release()
    admitted(some.admit(phone(4), FAR, 0.0))
    assert some.admit(phone(5), FAR, 0.0) == TooMany("too_many_connections", 5), "released twice counts once"


def test_a_network_of_ipv6_is_one_address() -> None:
    some = limits(address_connections=1)
    admitted(some.admit(phone(2), "2001:db8::1", 0.0))
    assert some.admit(phone(3), "2001:db8::ffff:2", 0.0) == TooMany("too_many_connections", 5)
    admitted(some.admit(phone(3), "2001:db8:0:1::1", 0.0))


def test_a_credential_is_counted_wherever_it_comes_from() -> None:
    some = limits(credential_connections=1)
    admitted(some.admit(phone(), FAR, 0.0))
    assert some.admit(phone(), OTHER, 0.0) == TooMany("too_many_connections", 5)


def test_an_address_may_ask_so_often_a_minute_whether_it_is_let_in_or_not() -> None:
    some = limits(address_attempts=3)
    admitted(some.admit(phone(), FAR, 0.0)).release()
    assert some.refused(FAR, 0.0) is None
    assert some.refused(FAR, 0.0) is None
    assert some.refused(FAR, 0.0) == TooMany("too_many_attempts", 20)
    assert some.admit(phone(), FAR, 5.0) == TooMany("too_many_attempts", 15)
    assert some.refused(OTHER, 0.0) is None
    admitted(some.admit(phone(), FAR, 20.0))


def test_a_home_is_counted_by_its_credential_alone_and_has_its_own_limits() -> None:
    some = limits(address_connections=1, address_attempts=1, credential_connections=1, home_connections=2)
    admitted(some.admit(phone(), FAR, 0.0))
    assert isinstance(some.admit(phone(), FAR, 0.0), TooMany)
    admitted(some.admit(HOME, FAR, 0.0))
    admitted(some.admit(HOME, OTHER, 0.0))
    assert some.admit(HOME, FAR, 0.0) == TooMany("too_many_connections", 5)
    assert DEFAULTS["home_messages"] >= 50 * DEFAULTS["credential_messages"]


def test_messages_are_counted_by_address_and_by_credential_and_a_refused_one_costs_nothing() -> None:
    some = limits(credential_messages=1, address_messages=2)  # 10 at once, and 20
    first, second, third = (admitted(some.admit(phone(number), FAR, 0.0)) for number in (2, 3, 4))
    for one in (first, second):
        assert [one.message(0.0) for _ in range(11)] == [0] * 10 + [1000]
    assert third.message(0.0) == 500, "its address has used up what it may"
    assert third.message(0.5) == 0
    assert some.messages_refused == 3


def test_what_was_not_chosen_holds_for_other_machines_and_what_was_for_all() -> None:
    default = limits()
    for local in ("127.0.0.1", "::1", "local"):
        assert default.admit(phone(), local, 0.0) is None
        assert default.admit(HOME, local, 0.0) is None
        assert default.refused(local, 0.0) is None
    assert len(default) == 0
    for number in range(DEFAULTS["credential_connections"]):
        admitted(default.admit(phone(), f"192.0.2.{number}", 0.0))
    assert isinstance(default.admit(phone(), FAR, 0.0), TooMany)
    chosen = limits(credential_connections=1)
    admitted(chosen.admit(phone(), "127.0.0.1", 0.0))
    assert isinstance(chosen.admit(phone(), "127.0.0.1", 0.0), TooMany)
    assert chosen.refused("127.0.0.1", 0.0) is None


@pytest.mark.parametrize("identity", [None, Operator(7, "ops"), phone()])
def test_somebody_without_a_credential_counts_by_address(identity: Identity | None) -> None:
    some = limits(address_connections=1)
    admitted(some.admit(identity, FAR, 0.0))
    assert some.admit(identity, FAR, 0.0) == TooMany("too_many_connections", 5)


def test_who_does_nothing_any_more_is_forgotten_and_the_others_are_not() -> None:
    some = limits(address_attempts=2, address_connections=1)
    admitted(some.admit(phone(), FAR, 0.0))
    now = 0.0
    for number in range(20_000):
        now += 0.1
        some.refused(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", now)
    assert len(some) < 3_000, "about a minute's worth at a time, and as many again before they are looked through"
    assert some.admit(phone(3), FAR, now) == TooMany("too_many_connections", 5)


def test_what_is_remembered_is_bounded_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_server.limits, "MAX_CLIENTS", 2_000)
    some = limits(address_attempts=1, address_connections=1)
    for number in range(5_000):
        address = f"10.0.{number >> 8}.{number & 255}"
        if number < 500:
            admitted(some.admit(None, address, 0.0))
        else:
            some.refused(address, 0.0)
        assert len(some) <= 2_000
    for number in range(500):
        held = some.admit(None, f"10.0.{number >> 8}.{number & 255}", 60.0)
        assert held == TooMany("too_many_connections", 5), "who is connected is not forgotten"


# On the wire.


PATH = "/socket/websocket?vsn=2.0.0"


class Door:
    """A hub behind a proxy that it trusts, so that a test may come from any address."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.server, self.home_token = hub.credentials.add_server("home")
        self.device, self.token = hub.credentials.add_device(self.server.server_id, "phone")
        self.topic = f"app:{self.server.server_id}"

    @asynccontextmanager
    async def ask(self, token: str | None = None, address: str = FAR) -> AsyncIterator[tuple[Response, RawSocket]]:
        async with RawSocket(self.hub.port) as socket:
            lines = (f"Authorization: Bearer {token or self.token}", f"X-Forwarded-For: 10.9.9.9, {address}")
            yield await socket.upgrade(PATH, *lines), socket


@asynccontextmanager
async def door(folder: Path, **settings: Any) -> AsyncIterator[Door]:
    async with running_hub(folder, trusted_proxies=("127.0.0.1",), **settings) as hub:
        yield Door(hub)


def refused(answer: Response, status: int, reason: str) -> None:
    assert (answer.status, json.loads(answer.body)) == (status, {"reason": reason})
    assert int(answer.headers["retry-after"]) > 0


async def said(socket: RawSocket, *slots: Any) -> Any:
    socket.send_text(json.dumps(slots))
    while (answer := json.loads(await socket.text()))[1] != slots[1]:
        pass
    return answer


async def test_a_full_address_or_credential_is_429_before_the_upgrade_and_others_get_in(tmp_path: Path) -> None:
    async with door(tmp_path, address_connections=1, credential_connections=2) as it:
        other = it.hub.credentials.add_device(it.server.server_id, "tablet")[1]
        async with it.ask() as (first, socket):
            assert first.status == 101
            async with it.ask(other) as (second, _):
                refused(second, 429, "too_many_connections")
            async with it.ask(address=OTHER) as (third, _), it.ask(it.home_token) as (home, _):
                assert (third.status, home.status) == (101, 101)
                async with it.ask(address="192.0.2.3") as (fourth, _):
                    refused(fourth, 429, "too_many_connections")
            socket.abort()
        async with asyncio.timeout(20):
            while it.hub._online():
                await asyncio.sleep(0.01)
        async with it.ask(other) as (again, _):
            assert again.status == 101, "who left makes room"


async def test_too_many_attempts_are_429_also_when_they_would_be_refused(tmp_path: Path) -> None:
    async with door(tmp_path, address_attempts=3) as it:
        for _ in range(3):
            async with it.ask("sbd_wrong") as (answer, _):
                assert (answer.status, json.loads(answer.body)) == (403, {"reason": "credential_invalid"})
        for token in ("sbd_wrong", it.token):
            async with it.ask(token) as (answer, _):
                refused(answer, 429, "too_many_attempts")
        async with it.ask(address=OTHER) as (other, _), it.ask(it.home_token) as (home, _):
            assert (other.status, home.status) == (101, 101)


async def test_an_address_that_nobody_vouches_for_is_not_believed(tmp_path: Path) -> None:
    async with running_hub(tmp_path, address_connections=1) as hub:
        it = Door(hub)
        async with it.ask(address=FAR) as (first, _), it.ask(address=OTHER) as (second, _):
            assert first.status == 101
            refused(second, 429, "too_many_connections")


async def test_joins_and_pushes_over_the_limit_are_told_when_to_come_back(tmp_path: Path) -> None:
    async with door(tmp_path, credential_messages=1) as it, it.ask() as (answer, socket):
        assert answer.status == 101
        assert (await said(socket, "1", "1", it.topic, "phx_join", {}))[4]["status"] == "ok"
        for ref in range(2, 11):
            assert (await said(socket, "1", f"{ref}", it.topic, "x", {}))[4]["response"] == {"reason": "unknown event"}
        for slots in (
            ("1", "11", it.topic, "x", {}),
            ("9", "12", "elsewhere", "x", {}),
            ("13", "13", "elsewhere", "phx_join", {}),
            ("14", "14", it.topic, "phx_join", {}),
        ):
            join_ref, ref, topic, event, reply = await said(socket, *slots)
            assert [join_ref, ref, topic, event] == [*slots[:3], "phx_reply"]
            assert reply["status"] == "error"
            assert reply["response"].keys() == {"reason", "retry_after_ms"}
            assert reply["response"]["reason"] == "rate_limited"
            assert 0 < reply["response"]["retry_after_ms"] <= 1000
        beat = await said(socket, None, "15", "phoenix", "heartbeat", {})
        assert beat == [None, "15", "phoenix", "phx_reply", {"status": "ok", "response": {}}]
        assert (await said(socket, "1", "16", it.topic, "phx_leave", {}))[4]["status"] == "ok"
        assert f"bridge_refused_messages_total {it.hub.limits.messages_refused}.0".encode() in it.hub.metrics.text()
        assert it.hub.limits.messages_refused >= 4


async def test_a_home_over_its_limit_waits_and_loses_no_event(tmp_path: Path) -> None:
    """Every error to a home says how far it came, so that it can go on behind that."""
    async with door(tmp_path, home_messages=1) as it:
        async with scripted_home(it.hub.url, it.server.server_id, it.home_token) as home:
            ids = await home.publish(9)  # and the join: ten at once
            with pytest.raises(AssertionError) as refusal:
                await home.publish()
        assert "'reason': 'rate_limited'" in str(refusal.value)
        assert f"'acked_id': '{ids[-1]}'" in str(refusal.value)


async def test_a_hub_that_is_full_is_503_whoever_asks(tmp_path: Path) -> None:
    async with door(tmp_path, max_connections=1) as it, it.ask() as (first, _), it.ask(it.home_token) as (second, _):
        assert first.status == 101
        refused(second, 503, "overloaded")


async def test_a_long_poll_session_counts_like_a_socket(tmp_path: Path) -> None:
    async with door(tmp_path, credential_connections=1, credential_messages=1) as it:
        headers = {"X-Phoenix-AuthToken": it.token, "X-Forwarded-For": FAR}
        url = f"{it.hub.url}/socket/longpoll?vsn=2.0.0"
        async with aiohttp.ClientSession(headers=headers) as http:
            async with http.get(url) as answer:
                session = f"{url}&token={(await answer.json())['token']}"
            async with http.get(url) as answer:
                assert (answer.status, int(answer.headers["Retry-After"])) == (429, 5)
                assert (await answer.json())["reason"] == "too_many_connections"
            async with it.ask() as (socket, _):
                refused(socket, 429, "too_many_connections")
            lines = [json.dumps(["1", f"{ref}", it.topic, "x", {}]) for ref in range(11)]
            await http.post(session, data="\n".join(lines), headers={"Content-Type": "application/x-ndjson"})
            async with http.get(session) as answer:
                replies = [json.loads(message)[4]["response"] for message in (await answer.json())["messages"]]
            assert [reply["reason"] for reply in replies] == ["unmatched topic"] * 10 + ["rate_limited"]


async def test_who_says_nothing_takes_no_more_than_a_share_of_the_connections(tmp_path: Path) -> None:
    """Unfinished heads and requests whose body never comes count alike, and give their place back when they end."""
    stuck = b"POST /api/pairing/redeem HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n"
    async with running_hub(tmp_path, address_connections=2) as hub, AsyncExitStack() as stack:
        listener = hub._listener
        assert listener is not None
        silent = [await stack.enter_async_context(RawSocket(hub.port)) for _ in range(4)]
        silent[0].send(stuck)
        silent[1].send(b"GET /")
        while len(listener.strangers) < 4:
            await asyncio.sleep(0.01)
        async with RawSocket(hub.port) as one_more:
            answer = await one_more.response()
            assert answer.status == 429
            assert json.loads(answer.body) == {"reason": "too_many_connections"}
        await silent[0].__aexit__(None, None, None)
        while len(listener.strangers) == 4:
            await asyncio.sleep(0.01)
        async with RawSocket(hub.port) as next_one:
            next_one.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await next_one.response()).status == 200


@pytest.mark.parametrize(("most", "allowed"), [(20_000, 2_000), (156, 78), (1, 1)])
def test_no_address_alone_takes_more_than_half_of_a_small_hub(tmp_path: Path, most: int, allowed: int) -> None:
    limits = Limits(Config(state_dir=tmp_path, max_connections=most))
    assert limits.strangers("203.0.113.5", ()) == allowed
    assert limits.strangers("127.0.0.1", ()) is None
    assert limits.strangers("203.0.113.5", ("203.0.113.0/24",)) is None
