"""The hub's OpenAPI description: it is valid, it is all there is, and what the hub answers is as it says."""

import json
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openapi_spec_validator import validate
from yarl import URL

from bridge_server.app import Hub
from bridge_server.openapi import OPERATIONS, PATH, UNROUTED
from bridge_server.web import routes as viewer
from protocol import pairing
from protocol.pairing import home_proof, local_key_name
from tests.support.described import Described, filled, odd_queries
from tests.support.running_hub import running_hub

CODES, REDEEM, DEVICES = pairing.PAIRING_CODES_PATH, pairing.PAIRING_REDEEM_PATH, pairing.SERVERS_PATH
POLL = "/socket/longpoll"


class Asking:
    """A client of one hub that holds each answer to the description."""

    def __init__(self, hub: Hub, session: aiohttp.ClientSession, described: Described) -> None:
        self.hub = hub
        self.described = described
        self._session = session

    async def __call__(
        self,
        method: str,
        path: str,
        token: str | None = None,
        body: Any = None,
        status: int | None = None,
        **headers: str,
    ) -> Any:
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            sent["Content-Type"] = "application/json"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        url = URL(self.hub.url + path, encoded=True)
        async with self._session.request(
            method, url, data=data, headers=sent, skip_auto_headers=("Content-Type",)
        ) as answer:
            read = await answer.read()
            asked = None if path.startswith(POLL) else data  # long polling refuses with 200
            self.described.check(method, path, answer.status, answer.content_type, read, asked)
            assert status in (None, answer.status), read
            return json.loads(read) if read and answer.content_type == "application/json" else None


async def description(hub: Hub, session: aiohttp.ClientSession) -> Any:
    async with session.get(hub.url + PATH) as answer:
        assert (answer.status, answer.content_type) == (200, "application/json")
        return await answer.json()


@pytest.fixture
async def asking(hub: Hub) -> AsyncIterator[Asking]:
    async with aiohttp.ClientSession() as session:
        yield Asking(hub, session, Described(await description(hub, session)))


def test_the_table_is_the_routers(hub: Hub) -> None:
    pages = {route.path for route in viewer.routes()}
    assert hub._runner is not None
    routed = {
        ("GET" if route.method == "*" else route.method, route.resource.canonical)
        for route in hub._runner.app.router.routes()
        if route.resource is not None and route.method not in ("HEAD", "OPTIONS")
    }
    table = [(one.method, one.path) for one in OPERATIONS]
    assert len(set(table)) == len(table)
    assert {entry for entry in routed if entry[1] not in pages} == {one for one in table if one[1] not in UNROUTED}


async def test_the_description_is_the_whole_table_and_needs_no_credential(asking: Asking) -> None:
    validate(asking.described.document)
    assert asking.described.document["openapi"].startswith("3.1.")
    assert asking.described.document["servers"] == [{"url": "/"}], "wherever it was read"
    told = {(method, path) for method, path, _ in asking.described.operations}
    assert told == {(one.method, one.path) for one in OPERATIONS}


async def test_a_public_hub_describes_what_it_has(tmp_path: Path) -> None:
    async with (
        running_hub(tmp_path, public_url="https://hub.example/base/") as hub,
        aiohttp.ClientSession() as session,
    ):
        found = Described(await description(hub, session)).document
    assert found["servers"] == [{"url": "https://hub.example/base"}]
    assert not [path for path in found["paths"] if "/local/" in path]


async def test_what_is_answered_is_described(asking: Asking, tmp_path: Path) -> None:
    hub = asking.hub
    home, token = hub.credentials.add_server("Attic")
    _, operator = hub.credentials.add_operator("Ops")

    issued = await asking("POST", CODES, token, {"scopes": ["view"]}, 201)
    await asking("GET", f"{CODES}/{issued['pairing_id']}", token, status=200)
    await asking("POST", REDEEM, None, {"code": "BCDF-GHJK-LMNP", "name": "x"}, 403)
    await asking("POST", REDEEM, None, {"code": "hello", "name": "x"}, 400)
    await asking("POST", REDEEM, None, {"code": issued["code"], "name": " "}, 400)
    made = await asking("POST", REDEEM, None, {"code": issued["code"], "name": "Phone"}, 201)
    await asking("POST", REDEEM, None, {"code": issued["code"], "name": "Phone"}, 410)
    await asking("GET", f"{CODES}/{issued['pairing_id']}", token, status=200)
    await asking("DELETE", f"{CODES}/{issued['pairing_id']}", token, status=204)
    await asking("DELETE", f"{CODES}/{(closed := await asking('POST', CODES, token))['pairing_id']}", token, status=204)
    await asking("POST", REDEEM, None, {"code": closed["code"], "name": "Phone"}, 410)
    app = made["credential"]
    for one in (token, app, operator):
        await asking("GET", pairing.ME_PATH, one, status=200)
    await asking("POST", CODES, app, {}, 403)
    await asking("GET", pairing.ME_PATH, "sbd_" + "x" * 43, status=403)
    devices = f"{DEVICES}/{home.server_id}/devices"
    await asking("GET", devices, token, status=200)
    await asking("DELETE", f"{devices}/{made['device_id']}", token, status=204)
    await asking("GET", devices, token, status=200)
    await asking("GET", pairing.ME_PATH, app, status=403)
    for method, path in (("GET", f"{DEVICES}/other/devices"), ("DELETE", f"{devices}/other"), ("GET", f"{CODES}/none")):
        await asking(method, path, token, status=404)

    key = bytes.fromhex((hub.config.state_dir / local_key_name(hub.port)).read_text())
    nonce = "ab" * 32
    for right in (True, False):
        said = await asking("POST", pairing.LOCAL_CHALLENGE_PATH, None, {"nonce": nonce}, 200)
        proof = home_proof(key, nonce, said["nonce"], "Cellar" if right else "Attic")
        body = {"nonce": said["nonce"], "proof": proof, "name": "Cellar"}
        await asking("POST", pairing.LOCAL_ENROL_PATH, None, body, 200 if right else 403)
    await asking("POST", pairing.LOCAL_CHALLENGE_PATH, None, {"nonce": nonce}, 403, X_Forwarded_For="192.0.2.1")

    for path in (PATH, "/health", "/ready", "/metrics"):
        await asking("GET", path, status=200)
    await asking("GET", "/metrics", status=403, X_Forwarded_For="192.0.2.1")
    await asking("GET", "/metrics", operator, status=200, X_Forwarded_For="192.0.2.1")

    began = await asking("GET", POLL + "?vsn=2.0.0", None, status=200, X_Phoenix_AuthToken=token)
    session = {"X_Phoenix_LongPoll_Token": began["token"]}
    await asking("POST", POLL + "?vsn=2.0.0", None, [None, "1", "phoenix", "heartbeat", {}], 200, **session)
    assert (await asking("GET", POLL + "?vsn=2.0.0", None, status=200, **session))["messages"]
    for path in (POLL, POLL + "?vsn=3.0.0", POLL + "?token=long-lived"):
        assert (await asking("GET", path, status=200))["status"] == 403
    assert asking.described.unseen == {("GET", "/socket/websocket")}  # whose success is 101


async def test_a_guesser_is_refused_as_described(asking: Asking) -> None:
    for _ in range(100):
        said = await asking("POST", REDEEM, None, {"code": "BCDF-GHJK-LMNP", "name": "x"})
        if said["error"]["code"] == "rate_limited":
            break
    else:
        pytest.fail("nobody was refused")


async def test_the_upgrade_is_described(asking: Asking) -> None:
    _, token = asking.hub.credentials.add_server("Attic")
    url, checked = asking.hub.url + "/socket/websocket", asking.described
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    async with aiohttp.ClientSession() as session:
        for query, sent, status in (
            ("?vsn=2.0.0", {"X-API-Key": token}, 101),
            ("?vsn=2.0.0", {}, 403),
            ("?vsn=3.0.0", {"X-API-Key": token}, 403),
            ("", {"X-API-Key": token, "Sec-WebSocket-Version": "12"}, 400),
        ):
            async with session.get(url + query, headers={**upgrade, **sent}) as answer:
                body = b"" if answer.status == 101 else await answer.read()
                checked.check("GET", "/socket/websocket", answer.status, answer.content_type, body)
                assert answer.status == status
                answer.close()


async def test_what_any_route_refuses_is_described(asking: Asking) -> None:
    _, token = asking.hub.credentials.add_server("Attic")
    for method, path, operation in asking.described.operations:
        where = filled(path)
        await asking(method, where, token, Host="evil.example")
        await asking(method, where, token, Origin="https://evil.example")
        await asking(method, where, token, Content_Encoding="gzip")
        await asking(method, where)
        if "requestBody" in operation:
            for body in (b"", b"[", b'"\xff"', b"{}", b"x" * 5_000):
                await asking(method, where, token, body)
            await asking(method, where, token, b"{}", Content_Type="text/plain")
    refused = {(method, path) for method, path, status in asking.described.seen if status >= 400}
    assert refused == {(one.method, one.path) for one in OPERATIONS if one.path not in UNROUTED}


async def test_no_query_is_answered_in_another_way(asking: Asking) -> None:
    _, token = asking.hub.credentials.add_server("Attic")
    for method, path, operation in asking.described.operations:
        if method == "GET":
            for query in odd_queries(operation, zlib.crc32(path.encode()), 12):
                await asking(method, f"{filled(path)}?{query}", token)
