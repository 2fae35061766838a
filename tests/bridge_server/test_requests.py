"""Requests of apps through the hub: checked, handed on once, answered once, and never kept for a home that is away."""

import asyncio
from typing import Any

import pytest

from bridge_server.requests import RETRY_MS
from protocol.requests import MAX_ANSWER_BYTES, MAX_BODY_BYTES, MAX_IN_FLIGHT, MAX_PART_BYTES, TIMEOUT_SECONDS
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import OTHER_ID, Bench, HomeWire, Wire

ALL = ("view", "approve", "control")
ANSWER = {"status": 200, "headers": {"content-type": "application/json"}, "body": {"sessions": []}}


def asked(request_id: str = "request-1", method: str = "GET", path: str = "/sessions", **more: Any) -> dict[str, Any]:
    return {"id": request_id, "method": method, "path": path, **more}


def a_home(bench: Bench) -> HomeWire:
    home = bench.home()
    home.joins(requests=True)
    return home


def an_app(bench: Bench, scopes: tuple[str, ...] = ALL, **more: Any) -> Wire:
    app = bench.app(scopes=scopes, **more)
    app.join()
    return app


def requests(home: HomeWire) -> list[dict[str, Any]]:
    return [got.payload for got in home.new() if got.event == "request"]


def refused(app: Wire, payload: Any) -> dict[str, Any]:
    reply = app.call("request", payload)
    assert reply["status"] == "error", reply
    response: dict[str, Any] = reply["response"]
    return response


def unanswered(wire: Wire, ref: str) -> bool:
    return not [got for got in wire.all() if got.event == "phx_reply" and got.ref == ref]


@virtual_time
async def test_a_request_goes_to_the_home_with_who_asks_and_its_answer_comes_back() -> None:
    bench = Bench()
    home, app = a_home(bench), an_app(bench, device_id="phone-1")
    ref = app.send("request", asked(method="POST", path="/sessions/s/send", body={"content": "hi", "n": 1.50}))
    [request] = requests(home)
    assert request == {
        "id": "request-1",
        "call": 1,
        "device_id": "phone-1",
        "scopes": ["approve", "control", "view"],
        "method": "POST",
        "path": "/sessions/s/send",
        "body": {"content": "hi", "n": 1.5},
        "expires_in": TIMEOUT_SECONDS,
    }
    assert unanswered(app, ref)
    assert home.call("response", {"call": 1, **ANSWER, "status": 202}) == {"status": "ok", "response": {}}
    assert app.answer(ref) == {"status": "ok", "response": {**ANSWER, "status": 202}}
    assert home.call("response", {"call": 1, **ANSWER})["response"] == {"reason": "gone"}
    assert not bench.record().requests


@pytest.mark.parametrize(
    ("scopes", "payload", "reason"),
    [
        (("view",), asked(method="POST", path="/sessions"), "forbidden"),
        (("view", "approve"), asked(method="POST", path="/sessions/s/send"), "forbidden"),
        (("control",), asked(), "forbidden"),
        (ALL, asked(path="/status"), "forbidden"),
        (ALL, asked(path="/sessions/../status"), "bad_push"),
        (ALL, asked(path="/sessions/%2e%2e/status"), "bad_push"),
        (ALL, asked(path="//sessions"), "bad_push"),
        (ALL, asked("short"), "bad_push"),
        (ALL, asked(body={}), "bad_push"),
        (ALL, {"id": "request-1"}, "bad_push"),
        (ALL, {}, "bad_push"),
        (ALL, [], "bad_push"),
        (ALL, asked(method="POST", body="x" * MAX_BODY_BYTES), "too_large"),
    ],
)
def test_what_may_not_be_asked_never_reaches_the_home(scopes: tuple[str, ...], payload: Any, reason: str) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home, app = a_home(bench), an_app(bench, scopes)
        assert refused(app, payload)["reason"] == reason
        assert requests(home) == []

    check()


@virtual_time
async def test_nothing_is_kept_for_a_home_that_is_away() -> None:
    bench = Bench()
    app = an_app(bench)
    assert refused(app, asked()) == {"reason": "server_offline", "sent": False}
    home = a_home(bench)
    assert requests(home) == []
    ref = app.send("request", asked("request-2"))
    home.drop()
    assert app.answer(ref)["response"] == {"reason": "server_offline", "sent": True}
    assert refused(app, asked("request-3")) == {"reason": "server_offline", "sent": False}
    assert requests(a_home(bench)) == []


@virtual_time
async def test_a_takeover_ends_what_the_old_link_was_asked() -> None:
    bench = Bench()
    old, app = a_home(bench), an_app(bench)
    ref = app.send("request", asked())
    new = a_home(bench)
    assert app.answer(ref)["response"] == {"reason": "server_offline", "sent": True}
    again = app.send("request", asked())
    [request] = requests(new)
    assert len(requests(old)) == 1
    new.call("response", {"call": request["call"], **ANSWER})
    assert app.answer(again)["status"] == "ok"


@virtual_time
async def test_a_home_that_does_not_say_that_it_answers_is_not_asked() -> None:
    bench = Bench()
    home, app = bench.home(), an_app(bench)
    home.join({})
    assert refused(app, asked()) == {"reason": "unsupported"}
    assert requests(home) == []


@virtual_time
async def test_a_home_that_does_not_answer_is_waited_for_only_so_long() -> None:
    bench = Bench()
    home, app = a_home(bench), an_app(bench)
    ref = app.send("request", asked())
    await asyncio.sleep(TIMEOUT_SECONDS - 1)
    assert unanswered(app, ref)
    await asyncio.sleep(2)
    assert app.answer(ref)["response"] == {"reason": "timeout"}
    assert home.call("response", {"call": 1, **ANSWER})["response"] == {"reason": "gone"}


@virtual_time
async def test_a_device_has_ten_in_flight_on_all_its_sockets() -> None:
    bench = Bench()
    home = a_home(bench)
    one, two, other = an_app(bench), an_app(bench), an_app(bench, device_id="other")
    for number in range(MAX_IN_FLIGHT):
        (one if number % 2 else two).send("request", asked(f"request-{number}"))
    assert refused(one, asked("one-more")) == {"reason": "rate_limited", "retry_after_ms": RETRY_MS}
    other.send("request", asked("mine-too"))
    assert len(requests(home)) == MAX_IN_FLIGHT + 1
    home.call("response", {"call": 1, **ANSWER})
    one.send("request", asked("one-more"))
    assert len(requests(home)) == 1


@virtual_time
async def test_an_id_is_asked_once_at_a_time_on_a_channel() -> None:
    bench = Bench()
    a_home(bench)
    app = an_app(bench)
    app.send("request", asked())
    assert refused(app, asked()) == {"reason": "in_flight"}


@virtual_time
async def test_an_app_that_leaves_is_owed_nothing() -> None:
    """So ends a revoked device too: its sockets are closed."""
    bench = Bench()
    home, app = a_home(bench), an_app(bench)
    app.send("request", asked())
    assert len(bench.record().requests) == 1
    app.drop()
    await settle()
    assert not bench.record().requests
    assert home.call("response", {"call": 1, **ANSWER})["response"] == {"reason": "gone"}


@virtual_time
async def test_another_home_answers_nothing_of_this_one() -> None:
    bench = Bench()
    a_home(bench)
    app, stranger = an_app(bench), bench.home(OTHER_ID)
    stranger.joins(requests=True)
    ref = app.send("request", asked())
    assert stranger.call("response", {"call": 1, **ANSWER})["response"] == {"reason": "gone"}
    assert unanswered(app, ref)


@pytest.mark.parametrize(
    "error",
    [
        {"error": "idempotency_mismatch", "message": "m"},
        {"error": "forbidden", "message": "m", "scope": "control"},
        {"error": "rate_limited", "retry_after_ms": 5},
        {"error": "too_large", "limit": 7},
        {"error": "timeout"},
    ],
)
def test_what_the_home_refuses_is_told(error: dict[str, Any]) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home, app = a_home(bench), an_app(bench)
        ref = app.send("request", asked())
        home.call("response", {"call": 1, **error})
        reason = {"reason": error["error"]}
        assert app.answer(ref)["response"] == {k: v for k, v in error.items() if k != "error"} | reason

    check()


@pytest.mark.parametrize("answer", [{"parts": 2}, {"error": "whatever it likes"}])
def test_an_answer_that_makes_no_sense_ends_the_request(answer: dict[str, Any]) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home, app = a_home(bench), an_app(bench)
        ref = app.send("request", asked())
        assert home.call("response", {"call": 1, **answer})["response"] == {"reason": "bad_push"}
        assert app.answer(ref)["response"] == {"reason": "bad_answer"}

    check()


# In parts.


@virtual_time
async def test_parts_pass_one_by_one_as_the_app_takes_them() -> None:
    bench = Bench()
    home, app = a_home(bench), an_app(bench)
    ref = app.send("request", asked())
    for index, text in enumerate(("[1,", "2]")):
        told = home.send("body_part", {"call": 1, "index": index, "text": text})
        await settle()
        assert home.answer(told) == {"status": "ok", "response": {}}
    home.call("response", {"call": 1, "status": 200, "headers": {}, "parts": 2})
    parts = [got.payload for got in app.new() if got.event == "body_part"]
    assert parts == [
        {"id": "request-1", "index": 0, "text": "[1,"},
        {"id": "request-1", "index": 1, "text": "2]"},
    ]
    assert app.answer(ref) == {"status": "ok", "response": {"status": 200, "headers": {}, "parts": 2}}


@virtual_time
async def test_a_home_hears_of_a_part_only_when_the_app_has_room_and_when_it_left() -> None:
    bench = Bench()
    home, app = a_home(bench), an_app(bench)
    app.send("request", asked())
    app.transport.frozen = True
    for number in range(1, 4):  # the transport now holds enough
        home.event(number, text="x" * 200_000)
    await settle()
    told = home.send("body_part", {"call": 1, "index": 0, "text": "x" * 100_000})
    await asyncio.sleep(5)
    assert unanswered(home, told)
    app.drop()
    await settle()
    assert home.answer(told)["response"] == {"reason": "gone"}


@pytest.mark.parametrize(
    "parts",
    [
        [{"index": 1, "text": "x"}],
        [{"index": 0, "text": "x" * (MAX_PART_BYTES + 1)}],
        [{"index": n, "text": "x" * MAX_PART_BYTES} for n in range(MAX_ANSWER_BYTES // MAX_PART_BYTES + 1)],
    ],
    ids=["out of order", "too long", "too many"],
)
def test_parts_are_in_order_and_bounded(parts: list[dict[str, Any]]) -> None:
    @virtual_time
    async def check() -> None:
        bench = Bench()
        home, app = a_home(bench), an_app(bench)
        ref = app.send("request", asked())
        replies = []
        for part in parts:
            told = home.send("body_part", {"call": 1, **part})
            await settle()
            replies.append(home.answer(told)["status"])
        assert replies == ["ok"] * (len(parts) - 1) + ["error"]
        assert app.answer(ref)["response"] == {"reason": "bad_answer"}

    check()
