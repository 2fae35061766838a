"""An app asks its home through the hub: real sockets, store and API, the same answers as at home."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client.app_client import QUEUE_LIMIT, AppClient
from bridge_client.app_requests import RequestFailed
from bridge_client.dial import CredentialRefused
from bridge_server.app import Hub
from protocol.requests import MAX_PART_BYTES
from tests.bridge_client.scripted_hub import NoWait
from tests.support.cable import Cable
from tests.support.remote_home import RemoteHome, remote_home
from tests.support.scripted_runner import ScriptedRunner, reply

DEADLINE = 60.0
REQUEST = "request-0001"


@pytest.fixture
async def remote(hub: Hub, tmp_path: Path) -> AsyncIterator[RemoteHome]:
    async with asyncio.timeout(DEADLINE), remote_home(hub, tmp_path, ScriptedRunner(*reply("wa", "ter"))) as remote:
        yield remote


async def refused(client: AppClient, method: str, path: str, body: Any = None, **more: Any) -> RequestFailed:
    with pytest.raises(RequestFailed) as failed:
        await client.request(method, path, body, **more)
    return failed.value


async def test_a_message_sent_from_afar_is_answered_at_home(remote: RemoteHome) -> None:
    device_id, credential = remote.device()
    async with remote.connected(), remote.app(credential) as client:
        made = await client.request("POST", "/sessions", {"session_id": "garden"})
        assert (made.status, made.json()["session"]["session_id"]) == (201, "garden")
        sent = await client.request("POST", "/sessions/garden/send", {"content": "roses?"})
        assert sent.status == 202
        await remote.home.until("request_completed", request_id=sent.json()["request_id"])
        messages = (await client.request("GET", "/sessions/garden/messages")).json()["messages"]
        assert [message["content"] for message in messages] == ["roses?", "water"]
    lines = [line[1:] for line in await remote.answers.audited(10)]
    assert lines == [
        (device_id, "POST", "/sessions/garden/send", "202"),
        (device_id, "POST", "/sessions", "201"),
    ]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/sessions/nowhere", None),
        ("GET", "/sessions?limit=many", None),
        ("GET", "/events?since_id=x", None),
        ("POST", "/sessions", {"unknown": 1}),
        ("POST", "/sessions/nowhere/send", {"content": "x"}),
        ("POST", "/sessions", {"session_id": "no/id"}),
        ("GET", "/sessions/s/events?after=0&limit=2", None),
        ("GET", "/events", None),
    ],
)
async def test_an_answer_is_the_one_that_home_gives(remote: RemoteHome, method: str, path: str, body: Any) -> None:
    _, credential = remote.device()
    more = {} if body is None else {"json": body}
    at_home = await remote.home.ask(path, method=method, **more)
    async with remote.connected(), remote.app(credential) as client:
        answer = await client.request(method, path, body)
    assert (answer.status, answer.body) == (at_home.status, at_home.body)
    assert answer.headers["content-type"] == at_home.headers["Content-Type"]


async def test_what_needs_no_body_is_asked_without_one(remote: RemoteHome) -> None:
    _, credential = remote.device()
    await remote.home.create("garden")
    async with remote.connected(), remote.app(credential) as client:
        assert (await client.request("POST", "/sessions/garden/fork")).status == 201
        assert (await client.request("POST", "/sessions/garden/requests/none/cancel")).status == 404


async def test_a_device_may_do_what_its_scopes_say(remote: RemoteHome) -> None:
    _, credential = remote.device(("view",))
    async with remote.connected(), remote.app(credential) as client:
        assert (await client.request("GET", "/sessions")).ok
        failed = await refused(client, "POST", "/sessions", {})
        assert (failed.reason, failed.sent) == ("forbidden", False)
        assert (await refused(client, "GET", "/status")).reason == "forbidden"
        assert (await refused(client, "GET", "/sessions/../status")).reason == "bad_push"


async def test_a_retry_gets_the_first_answer_and_runs_nothing(remote: RemoteHome) -> None:
    _, credential = remote.device()
    _, other = remote.device()
    async with remote.connected():
        async with remote.app(credential) as client:
            first = await client.request("POST", "/sessions", {}, request_id=REQUEST)
        async with remote.app(credential) as client:  # as after a reconnect
            again = await client.request("POST", "/sessions", {}, request_id=REQUEST)
            assert (again.status, again.body) == (201, first.body)
            failed = await refused(client, "POST", "/sessions", {"metadata": {"n": 1}}, request_id=REQUEST)
            assert failed.reason == "idempotency_mismatch"
        async with remote.app(other) as client:  # another device's ids are its own
            assert (await client.request("POST", "/sessions", {}, request_id=REQUEST)).body != first.body
    assert len((await remote.home.do("GET", "/sessions"))["sessions"]) == 2


async def test_a_line_that_breaks_in_the_middle_costs_neither_answer_nor_a_second_run(remote: RemoteHome) -> None:
    _, credential = remote.device()
    async with Cable() as cable, remote.connected():
        cable.lead_to(remote.hub.port)
        url = f"http://127.0.0.1:{cable.port}"
        async with AppClient(url, credential, remote.server_id, rng=NoWait()) as client:
            remote.may.clear()
            asked = asyncio.create_task(client.request("POST", "/sessions", {}))
            while not remote.asked:
                await asyncio.sleep(0.005)
            cable.cut()
            while remote.hub.homes.get(remote.server_id).requests:
                await asyncio.sleep(0.005)
            remote.may.set()  # it is done while nobody waits
            await remote.home.until("session_created")
            cable.mend()
            assert (await asked).status == 201
    assert remote.asked == 1
    assert len((await remote.home.do("GET", "/sessions"))["sessions"]) == 1


async def test_a_hundred_retries_at_once_run_it_once(remote: RemoteHome) -> None:
    _, credential = remote.device()
    async with remote.connected():
        clients = [remote.app(credential) for _ in range(5)]
        for client in clients:
            await client.__aenter__()
        try:
            for _ in range(20):
                asked = [client.request("POST", "/sessions", {}, request_id=REQUEST) for client in clients]
                answers = await asyncio.gather(*asked)
                assert len({answer.body for answer in answers}) == 1
        finally:
            for client in clients:
                await client.__aexit__(None, None, None)
    assert len((await remote.home.do("GET", "/sessions"))["sessions"]) == 1


async def test_nothing_is_queued_for_a_home_that_is_away(remote: RemoteHome) -> None:
    _, credential = remote.device()
    async with remote.app(credential) as client:
        failed = await refused(client, "POST", "/sessions", {})
        assert (failed.reason, failed.sent) == ("server_offline", False)
        async with remote.connected():
            assert (await client.request("GET", "/sessions")).json()["sessions"] == []


async def test_a_home_without_an_api_says_so(remote: RemoteHome) -> None:
    _, credential = remote.device()
    async with remote.connected(requests=False), remote.app(credential) as client:
        assert (await refused(client, "GET", "/sessions")).reason == "unsupported"


async def test_a_large_answer_comes_in_parts_and_whole(remote: RemoteHome) -> None:
    _, credential = remote.device()
    await remote.home.create("s")
    for n in range(4):
        await remote.home.append('é"\\' * 20_000 + str(n))
    at_home = await remote.home.ask("/sessions/s/messages")
    assert len(at_home.body) > 2 * MAX_PART_BYTES
    async with remote.connected(), remote.app(credential) as client:
        answer = await client.request("GET", "/sessions/s/messages")
    assert json.loads(answer.body) == json.loads(at_home.body)
    assert answer.body == at_home.body


async def test_an_app_may_ask_while_it_takes_no_events(remote: RemoteHome) -> None:
    """Who waits for an answer is who takes the events: the answer must not wait behind them."""
    _, credential = remote.device()
    async with remote.connected(), remote.app(credential, cursor=(None, 0)) as client:
        for n in range(3 * QUEUE_LIMIT):
            await remote.home.store.publish({"type": "note", "session_id": "s", "n": n})
        assert (await client.request("GET", "/sessions")).ok


async def test_a_revoked_device_asks_no_more(remote: RemoteHome) -> None:
    device_id, credential = remote.device()
    async with remote.connected(), remote.app(credential) as client:
        assert (await client.request("GET", "/sessions")).ok
        under_way = asyncio.create_task(client.request("GET", "/events?since_id=0&wait_timeout_ms=30000"))
        while not remote.hub.homes.get(remote.server_id).requests:
            await asyncio.sleep(0.005)
        remote.hub.credentials.revoke_device(device_id)
        with pytest.raises(RequestFailed):
            await under_way
        assert not remote.hub.homes.get(remote.server_id).requests
        with pytest.raises(CredentialRefused):
            await client.request("GET", "/sessions")
