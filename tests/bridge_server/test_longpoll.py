"""Long polling against a running hub: what Phoenix's own tests assert of it (T44 to T63), and this hub's answers."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.longpoll_client import LongPollClient, longpoll_client
from tests.support.raw_socket import RawSocket
from tests.support.recorded_server import PREFIX, RecordedServer

PATH = f"{PREFIX}/socket/longpoll"


def url(server: RecordedServer) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
async def client(server: RecordedServer) -> AsyncIterator[LongPollClient]:
    async with longpoll_client(url(server), path=PATH) as client:
        yield client


def join(topic: str, ref: str = "1", payload: Any = None) -> list[Any]:
    return [ref, ref, topic, "phx_join", payload or {}]


def ok(topic: str, ref: str, response: Any = None, join_ref: str = "1") -> list[Any]:
    return [join_ref, ref, topic, "phx_reply", {"status": "ok", "response": response or {}}]


async def test_t45_join_reply_and_what_follows_come_in_order(client: LongPollClient) -> None:
    assert await client.post(join("room:after"), kind="application/json") == 200
    assert await client.poll_until(3) == [
        ok("room:after", "1"),
        ["1", None, "room:after", "welcome", {"n": 1}],
        ["1", None, "room:after", "user_entered", {"n": 2}],
    ]


async def test_t46_the_hundred_and_first_topic_is_refused(client: LongPollClient) -> None:
    assert await client.post(*(join(f"room:{number}", str(number)) for number in range(100))) == 200
    assert await client.post(join("room:100", "100")) == 200
    answers = {message[1]: message[4] for message in await client.poll_until(101)}
    assert answers.pop("100") == {"status": "error", "response": {"reason": "too many channels joined"}}
    assert {answer["status"] for answer in answers.values()} == {"ok"}


async def test_t47_t48_an_error_is_fetched_and_a_null_join_ref_is_taken(client: LongPollClient) -> None:
    assert await client.post(["1", "1", "room:1", "ping", {}]) == 200
    assert await client.poll() == [
        ["1", "1", "room:1", "phx_reply", {"status": "error", "response": {"reason": "unmatched topic"}}]
    ]
    assert await client.post(join("room:1"), [None, "2", "room:1", "ping", {"a": 1}]) == 200
    assert await client.poll() == [ok("room:1", "1"), ok("room:1", "2", {"a": 1})]


async def test_t49_a_batch_is_handled_in_order_stale_pushes_dropped_binary_taken(client: LongPollClient) -> None:
    binary = b"\0\1\1\6\x0e" + b"1" + b"4" + b"room:1" + b"binary_to_json" + b"\xca\xfe"
    lines = [
        json.dumps(message).encode()
        for message in (
            join("room:1"),
            ["1", "2", "room:1", "ping", {"n": 2}],
            ["0", "3", "room:1", "ping", {"n": 3}],
        )
    ]
    body = b"\r\n".join([*lines, b64encode(binary), b"", json.dumps(["1", "5", "room:1", "ping", {"n": 5}]).encode()])
    assert await client.post(body=body + b"\r\n", kind="application/x-ndjson; charset=utf-8") == 200
    assert await client.poll_until(4) == [
        ok("room:1", "1"),
        ok("room:1", "2", {"n": 2}),
        ok("room:1", "4", {"hex": "cafe"}),
        ok("room:1", "5", {"n": 5}),
    ]


async def test_t49_an_intercepted_push_carries_the_join_ref(client: LongPollClient) -> None:
    await client.post(join("icpt:1"), ["1", "2", "icpt:1", "shout", {"a": 1}])
    assert await client.poll_until(2) == [
        ok("icpt:1", "1"),
        ["1", None, "icpt:1", "shout", {"a": 1, "intercepted": True}],
    ]


async def test_a_binary_reply_and_a_binary_push_come_as_base64(client: LongPollClient) -> None:
    await client.post(join("room:1"), ["1", "2", "room:1", "binary", {}], ["1", "3", "room:1", "push_binary", {}])
    joined, reply, push = await client.poll_until(3)
    assert joined == ok("room:1", "1")
    assert reply == b64encode(b"\1\1\1\6\2" + b"1" + b"2" + b"room:1" + b"ok" + b"\0\1\2\xff").decode()
    assert push == b64encode(b"\0\1\6\3" + b"1" + b"room:1" + b"bin" + b"\0\1\2\xff").decode()


async def test_t50_a_session_that_is_not_polled_ends_and_its_channels_with_it(
    server: RecordedServer, client: LongPollClient
) -> None:
    await client.post(join("room:1"))
    await client.poll()
    assert server.hub.topics.listeners("room:1")
    server.hands.time += 14.9
    await client.post(["1", "2", "room:1", "ping", {}])  # a POST is no poll
    server.hands.time += 0.1
    async with asyncio.timeout(20):
        while server.hub.topics.listeners("room:1"):
            await asyncio.sleep(0.02)
    assert await client.post(["1", "2", "room:1", "ping", {}]) == 410
    old, found = client.token, await client.ask("GET")
    assert (found["status"], found["messages"]) == (410, [])
    assert found["token"] != old


async def test_t51_a_slow_join_holds_up_the_batch_and_ends_in_408(
    server: RecordedServer, client: LongPollClient
) -> None:
    waits = ["1", "2", "slow:1", "ping", {"after": "the join"}]
    posting = asyncio.create_task(client.post(join("slow:1", payload={"gate": "g"}), waits))
    behind = asyncio.create_task(client.post(["1", "3", "slow:1", "ping", {"and": "behind"}]))
    async with asyncio.timeout(20):
        while "g" not in server.gates:
            await asyncio.sleep(0.01)
    assert not posting.done()
    server.open_gate("g")
    assert (await posting, await behind) == (200, 200)
    assert [message[1] for message in await client.poll_until(3)] == ["1", "2", "3"]


async def test_t51_a_join_that_takes_a_whole_window_is_408(server: RecordedServer) -> None:
    async with longpoll_client(url(server), path=f"{PREFIX}/short/longpoll") as client:
        assert await client.said(join("slow:1", payload={"gate": "shut"}), join("room:1", "2")) == {
            "status": 408,
            "reason": "timeout",
        }
        server.open_gate("shut")
        # The session lives on, and what was refused was not handled.
        assert await client.poll() == [ok("slow:1", "1")]
        await client.post(["2", "3", "room:1", "ping", {}])
        assert (await client.poll())[0][4]["response"] == {"reason": "unmatched topic"}


async def test_t52_line_101_is_refused_with_a_status_that_the_client_retries(client: LongPollClient) -> None:
    lines = [join("room:1"), *(["1", str(number), "room:1", "ping", {}] for number in range(2, 102))]
    assert await client.said(*lines) == {"status": 413, "reason": "too_large"}
    assert [message[1] for message in await client.poll_until(100)] == [str(number) for number in range(1, 101)]


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("name", ["Cookie", "X-Phoenix-AuthToken", "Origin", "Access-Control-Request-Headers"])
@pytest.mark.parametrize("value", ["grün €".encode(), b"\xff\xfe", b"\xed\xa0\x80"])
async def test_any_bytes_in_a_header_are_answered_with_a_status(
    server: RecordedServer, method: str, name: str, value: bytes
) -> None:
    async with RawSocket(server.port) as socket:
        lines = f"{method} {PATH}?vsn=2.0.0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n{name}: ".encode()
        socket.send(lines + value + b"\r\n\r\n")
        answer = await socket.response()
    assert answer.status == 200
    if method == "OPTIONS" and name != "Origin":
        assert "access-control-allow-headers" in answer.headers
    else:
        assert json.loads(answer.body)["status"] in (403, 410)


@pytest.mark.parametrize(
    ("query", "reason"), [("&token=bad", "credential_invalid"), ("&vsn=123.1.1", "bad_vsn"), ("&vsn[]=1", "bad_vsn")]
)
async def test_t53_t58_a_refused_connect_is_403_in_the_body(client: LongPollClient, query: str, reason: str) -> None:
    assert await client.ask("GET", f"{client.url}?vsn=2.0.0{query}") == {"status": 403, "reason": reason}


async def test_t54_a_foreign_origin_is_403_and_no_page_of_it_may_read_the_answer(server: RecordedServer) -> None:
    path = f"{PREFIX}/origin/longpoll"
    async with longpoll_client(url(server), path=path) as client:
        for method in ("GET", "POST", "OPTIONS"):
            headers = {"Origin": "https://evil.example"}
            async with client.http.request(method, client.target, headers=headers) as answer:
                assert await answer.json() == {"status": 403, "reason": "bad_origin"}
                assert "Access-Control-Allow-Origin" not in answer.headers
        headers = {"Origin": "https://example.com"}
        async with client.http.get(f"{client.url}?vsn=2.0.0", headers=headers) as answer:
            assert (await answer.json())["status"] == 410
            assert answer.headers["Access-Control-Allow-Origin"] == "https://example.com"
            assert answer.headers["Vary"] == "Origin"


async def test_rule_51_preflight(server: RecordedServer) -> None:
    headers = {
        "Origin": "https://example.com",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,x-phoenix-authtoken",
    }
    async with (
        longpoll_client(url(server), path=f"{PREFIX}/origin/longpoll") as client,
        client.http.options(client.url, headers=headers) as answer,
    ):
        assert answer.status == 200
        assert await answer.read() == b""
        assert answer.headers["Access-Control-Allow-Origin"] == "https://example.com"
        assert answer.headers["Access-Control-Allow-Headers"] == "content-type,x-phoenix-authtoken"
        assert answer.headers["Access-Control-Allow-Methods"] == "get, post, options"
        assert answer.headers["Access-Control-Max-Age"] == "3600"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "HEAD"])
async def test_rule_31_other_methods_are_400(client: LongPollClient, method: str) -> None:
    async with client.http.request(method, client.target) as answer:
        assert (answer.status, await answer.read()) == (400, b"")


async def test_t55_t56_crash_leave_and_stale_leave(client: LongPollClient) -> None:
    await client.post(join("room:1"), ["1", "2", "room:1", "crash", {}])
    await client.post(
        join("room:1", "3"), ["1", "4", "room:1", "phx_leave", {}], [None, "5", "room:1", "phx_leave", {}]
    )
    assert await client.poll_until(5) == [
        ok("room:1", "1"),
        ["1", "1", "room:1", "phx_error", {"reason": "channel_crash"}],
        ok("room:1", "3", join_ref="3"),
        ok("room:1", "5", join_ref="3"),
        ["3", "3", "room:1", "phx_close", {}],
    ]


@pytest.mark.parametrize("kind", [None, "", "application/json", "APPLICATION/JSON; charset=utf-8"])
async def test_t59_a_message_without_content_type_is_taken(client: LongPollClient, kind: str | None) -> None:
    body = json.dumps(join("room:1")).encode()
    headers = {} if kind is None else {"Content-Type": kind}
    async with client.http.post(
        client.target, data=body, headers=headers, skip_auto_headers=("Content-Type",)
    ) as answer:
        assert await answer.json() == {"status": 200}
    assert await client.poll() == [ok("room:1", "1")]


@pytest.mark.parametrize("headers", [{"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}])
async def test_other_bodies_are_not_taken(client: LongPollClient, headers: dict[str, str]) -> None:
    body = b"" if "Content-Encoding" in headers else b"[]"
    found = await client.ask("POST", data=body, headers={"Content-Type": "application/json"} | headers)
    assert found == {"status": 415, "reason": "unsupported_media_type"}
    assert await client.post(join("room:1")) == 200


async def test_t60_t61_a_token_in_the_header_wins(client: LongPollClient) -> None:
    await client.post(join("room:1"))
    for target in (f"{client.url}?vsn=2.0.0", f"{client.url}?vsn=2.0.0&token=lp1.stale"):
        headers = {"X-Phoenix-LongPoll-Token": str(client.token), "Content-Type": "application/json"}
        found = await client.ask("POST", target, data=json.dumps(["1", "2", "room:1", "ping", {}]), headers=headers)
        assert found == {"status": 200}
    found = await client.ask("GET", f"{client.url}?vsn=2.0.0", headers={"X-Phoenix-LongPoll-Token": str(client.token)})
    assert (found["status"], found["token"], len(found["messages"])) == (200, client.token, 3)
    found = await client.ask("GET", client.target, headers={"X-Phoenix-LongPoll-Token": "stale"})
    assert found["status"] == 410


async def test_rule_53_a_token_serves_on_its_own_mount_only(server: RecordedServer, client: LongPollClient) -> None:
    elsewhere = f"{url(server)}{PREFIX}/noorigin/longpoll?vsn=2.0.0&token={client.token}"
    assert await client.ask("POST", elsewhere, data=b"[]") == {"status": 410}
    assert (await client.ask("GET", elsewhere))["token"] != client.token


@pytest.mark.parametrize("path", [f"{PATH}/", PATH.replace("/socket", "//socket/")])
async def test_rule_3_slashes_do_not_matter(server: RecordedServer, client: LongPollClient, path: str) -> None:
    assert (await client.ask("GET", f"{url(server)}{path}?vsn=2.0.0"))["status"] == 410


async def test_version_1_speaks_over_ndjson_too(server: RecordedServer) -> None:
    async with longpoll_client(url(server), path=PATH, vsn="1.0.0") as client:
        messages = [
            {"topic": "room:nd", "event": event, "payload": payload, "ref": ref, "join_ref": "1"}
            for event, payload, ref in (("phx_join", {}, "1"), ("ping", {"n": 1}, "2"))
        ]
        assert await client.post(*messages) == 200
        assert await client.poll_until(2) == [
            {"topic": "room:nd", "event": "phx_reply", "payload": {"status": "ok", "response": response}, "ref": ref}
            for ref, response in (("1", {}), ("2", {"n": 1}))
        ]


async def test_case_92_a_message_after_an_expired_window_comes_at_once(server: RecordedServer) -> None:
    async with longpoll_client(url(server), path=f"{PREFIX}/short/longpoll") as client:
        await client.post(join("room:1"))
        await client.poll()
        polling = asyncio.create_task(client.poll())
        await until_waiting(server)
        server.hands.time += 1.0
        assert await polling == []
        server.publish("room:1", "news", b"{}")
        async with asyncio.timeout(20):
            assert await client.poll() == [["1", None, "room:1", "news", {}]]


async def test_case_94_250_pushes_in_three_batches_are_answered_in_order(client: LongPollClient) -> None:
    pushes = [["1", str(number), "room:1", "ping", {"n": number}] for number in range(2, 252)]
    await client.post(join("room:1"))
    for start in (0, 100, 200):
        assert await client.post(*pushes[start : start + 100]) == 200
    assert [message[1] for message in await client.poll_until(251)] == [str(number) for number in range(1, 252)]


async def test_two_polls_at_once_the_newer_ends_the_older(server: RecordedServer, client: LongPollClient) -> None:
    await client.post(join("room:1"))
    await client.poll()
    older = asyncio.create_task(client.poll())
    await until_waiting(server)
    newer = asyncio.create_task(client.poll())
    assert await older == []
    await until_waiting(server)
    server.publish("room:1", "news", b"{}")
    assert await newer == [["1", None, "room:1", "news", {}]]


async def test_many_polls_at_once_share_out_every_message_once(server: RecordedServer, client: LongPollClient) -> None:
    await client.post(join("room:1"))
    await client.poll()
    found: list[Any] = []

    async def polls() -> None:
        while len(found) < 200:
            found.extend(await client.poll())

    pollers = [asyncio.create_task(polls()) for _ in range(4)]
    for number in range(200):
        server.publish("room:1", "news", b'{"n":%d}' % number)
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        while len(found) < 200:
            await asyncio.sleep(0.01)
    for poller in pollers:
        poller.cancel()
    await asyncio.gather(*pollers, return_exceptions=True)
    assert sorted(message[4]["n"] for message in found) == list(range(200))


async def until_waiting(server: RecordedServer) -> None:
    """Wait until a poll waits."""
    assert server.hub.longpoll is not None
    async with asyncio.timeout(20):
        while not any(session.waiting for session in server.hub.longpoll.sessions.values()):
            await asyncio.sleep(0.01)
