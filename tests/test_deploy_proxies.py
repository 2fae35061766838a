"""The proxies of deploy/, each for real in front of a real hub: what passes, what they log, whom the hub sees."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
from websockets.asyncio.client import connect

from bridge_server.app import Hub
from bridge_server.config import Config
from bridge_server.doctor import examine
from tests.support.proxies import Proxy, caddy, nginx
from tests.support.running_hub import running_hub

PROXIES = [
    pytest.param(nginx, marks=pytest.mark.requires("nginx", "openssl"), id="nginx"),
    pytest.param(caddy, marks=pytest.mark.requires("caddy"), id="caddy"),
]


class Front(NamedTuple):
    hub: Hub
    proxy: Proxy


@asynccontextmanager
async def front(make: object, folder: Path) -> AsyncIterator[Front]:
    """A proxy with a hub behind it that trusts it."""
    async with AsyncExitStack() as stack:
        settings = {"public_url": "https://localhost", "trusted_proxies": ("127.0.0.1",)}
        hub = await stack.enter_async_context(running_hub(folder, **settings))
        proxy = await stack.enter_async_context(make(folder / "front", hub.port))  # type: ignore[operator]
        yield Front(hub, proxy)


@pytest.fixture(params=PROXIES)
async def ways(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Front]:
    async with front(request.param, tmp_path) as made:
        yield made


def session(proxy: Proxy, source: str = "127.0.0.1") -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        ssl=proxy.tls or True, local_addr=(source, 0), family=socket.AF_INET, force_close=True
    )
    return aiohttp.ClientSession(connector=connector)


async def test_frames_flow_and_upgrades_follow_answers(ways: Front) -> None:
    """Over connections that the proxy keeps alive, an upgrade never meets what is left of an HTTP answer."""
    hub, proxy = ways
    server, _ = hub.credentials.add_server("home")
    device, token = hub.credentials.add_device(server.server_id, "phone")
    url = proxy.url.replace("http", "ws", 1) + "/socket/websocket?vsn=2.0.0"
    async with session(proxy) as http:
        for _ in range(10):
            async with http.get(f"{proxy.url}/ready") as answer:
                assert (answer.status, await answer.json()) == (200, {"status": "ready"})
            async with connect(url, ssl=proxy.tls, additional_headers={"X-API-Key": token}, proxy=None) as socket:
                await socket.send(json.dumps(["1", "1", f"app:{device.server_id}", "phx_join", {}]))
                reply = json.loads(await socket.recv())
                assert (reply[1], reply[3], reply[4]["status"]) == ("1", "phx_reply", "ok")


async def test_a_browser_of_the_same_site_is_let_in_and_others_are_not(ways: Front) -> None:
    hub, proxy = ways
    server, _ = hub.credentials.add_server("home")
    _, token = hub.credentials.add_device(server.server_id, "phone")
    url = proxy.url.replace("http", "ws", 1) + "/socket/websocket?vsn=2.0.0"
    headers = {"X-API-Key": token, "Origin": "https://localhost"}
    async with connect(url, ssl=proxy.tls, additional_headers=headers, proxy=None):
        pass
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", **headers, "Origin": "https://elsewhere.example"}
    async with session(proxy) as http, http.get(proxy.url + "/socket/websocket?vsn=2.0.0", headers=upgrade) as answer:
        assert (answer.status, await answer.json(content_type=None)) == (403, {"reason": "bad_origin"})


async def test_no_credential_and_no_query_is_logged(ways: Front) -> None:
    """Nor when the hub refuses, nor when it is away: that is when proxies log most."""
    hub, proxy = ways
    headers = {
        "Authorization": "Bearer in-the-bearer",
        "X-API-Key": "in-the-key",
        "Sec-WebSocket-Protocol": "phoenix, base64url.bearer.phx.in-the-protocol",
        "Cookie": "session=in-the-cookie",
    }
    path = "/socket/websocket?vsn=2.0.0&token=in-the-query"
    async with session(proxy) as http:
        for expected in ({403, 400}, {502}):
            for upgrade in ({}, {"Connection": "Upgrade", "Upgrade": "websocket"}):
                async with http.get(proxy.url + path, headers=headers | upgrade) as answer:
                    assert answer.status in expected
            await hub.close()
    assert "/socket/websocket" in proxy.logged
    for secret in ("in-the-", "?", "vsn="):
        assert secret not in proxy.logged


async def test_metrics_are_closed_to_whoever_comes_through(ways: Front) -> None:
    hub, proxy = ways
    _, token = hub.credentials.add_operator("prometheus")
    async with session(proxy) as http:
        for headers in ({}, {"X-Forwarded-For": "127.0.0.1"}, {"X-Forwarded-For": ""}):
            async with http.get(f"{proxy.url}/metrics", headers=headers) as answer:
                assert answer.status == 403
        async with http.get(f"{proxy.url}/metrics", headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status == 200
            assert "bridge_connections" in await answer.text()
        async with http.get(f"{hub.url}/metrics") as answer:  # this machine, past the proxy
            assert answer.status == 200


async def test_the_hub_counts_clients_and_not_what_they_say_they_are(ways: Front) -> None:
    """Guessed pairing codes count for the address the proxy saw, whatever the client wrote into X-Forwarded-For."""
    proxy = ways.proxy
    guess = {"code": "BCDF-GHJK-LMNP", "name": "guesser"}
    answers = []
    async with session(proxy, "127.0.0.2") as one, session(proxy, "127.0.0.3") as other:
        for number in range(21):
            headers = {"X-Forwarded-For": f"198.51.100.{number}"}
            async with one.post(f"{proxy.url}/api/pairing/redeem", json=guess, headers=headers) as answer:
                answers.append(answer.status)
        async with other.post(f"{proxy.url}/api/pairing/redeem", json=guess) as answer:
            answers.append(answer.status)
    assert answers == [403] * 20 + [429, 403]


@pytest.mark.requires("nginx", "openssl")
@pytest.mark.parametrize(
    ("without", "failed"), [("", set()), ("X-Forwarded-", {"metrics"}), ("header Upgrade", {"WebSocket"})]
)
async def test_doctor_sees_what_is_wrong_with_a_proxy(tmp_path: Path, without: str, failed: set[str]) -> None:
    async with running_hub(tmp_path) as hub, nginx(tmp_path / "front", hub.port, without=without, tls=False) as proxy:
        findings = await examine(
            Config(port=hub.port, state_dir=hub.config.state_dir, public_url=proxy.url, trusted_proxies=("127.0.0.1",))
        )
    outside = {finding.check: finding.status for finding in findings}
    assert {check for check in ("public URL", "WebSocket", "metrics") if outside[check] == "failed"} == failed


@pytest.mark.requires("nginx", "openssl")
async def test_doctor_distrusts_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub, nginx(tmp_path / "front", hub.port) as proxy:
        findings = await examine(Config(port=hub.port, state_dir=hub.config.state_dir, public_url=proxy.url))
    (tls,) = [finding for finding in findings if finding.check == "TLS"]
    assert (tls.status, "SSL_CERT_FILE" in (tls.remedy or "")) == ("failed", True)
