"""The hub's HTTP: health, readiness, metrics, which requests may reach a loopback port, and how every answer ends."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

from bridge_server.app import Hub
from bridge_server.config import Config
from tests.support.raw_socket import RawSocket
from tests.support.running_hub import running_hub

FORWARDING = ["Forwarded: for=1.2.3.4", "X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "Via: 1.1 proxy"]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["content-type"].startswith("application/json"), self
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error in the hub's one shape."""
        error = self.json["error"]
        assert set(error) == {"code", "message"}
        assert error["message"]
        code: str = error["code"]
        return code


async def ask(hub: Hub, path: str, *lines: str, method: str = "GET", host: str | None = "localhost") -> Answer:
    """One request on a connection of its own, which the hub must end by itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    return await _exchange(reader, writer, path, *lines, method=method, host=host)


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    path: str,
    *lines: str,
    method: str = "GET",
    host: str | None = "localhost",
) -> Answer:
    named = () if host is None else (f"Host: {host}",)
    head = "\r\n".join((f"{method} {path} HTTP/1.1", *named, "Connection: keep-alive", *lines, "", ""))
    writer.write(head.encode("latin-1"))
    async with asyncio.timeout(20):
        raw = await reader.read()  # to the end of the stream
    writer.close()
    top, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = top.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
    assert headers.get("connection") == "close" or first.startswith("HTTP/1.0")
    assert b"Traceback" not in raw
    return Answer(int(first.split(" ")[1]), headers, body)


async def upgrade(hub: Hub, *lines: str, host: str = "localhost", path: str = "/socket/websocket") -> tuple[int, Any]:
    async with RawSocket(hub.port) as socket:
        response = await socket.upgrade(path, *lines, host=host)
        return response.status, json.loads(response.body) if response.body else None


async def test_health_and_ready(hub: Hub) -> None:
    assert (await ask(hub, "/health")).json == {"status": "ok"}
    assert (await ask(hub, "/ready")).json == {"status": "ready"}


async def test_ready_is_503_while_draining(hub: Hub) -> None:
    # The port takes no new connection then, so this one is older.
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    upgrading = RawSocket(hub.port)
    async with upgrading:
        await ask(hub, "/health")  # both connections were accepted by now
        await hub.drain()
        answer = await _exchange(reader, writer, "/ready")
        assert (answer.status, answer.json) == (503, {"status": "draining"})
        refusal = await upgrading.upgrade("/socket/websocket?vsn=2.0.0")
    assert (refusal.status, json.loads(refusal.body)) == (503, {"reason": "draining"})
    assert int(refusal.headers["retry-after"]) > 0
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", hub.port)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/health/more", 404, "not_found"),
        ("GET", "/../etc/passwd", 404, "not_found"),
        ("POST", "/health", 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
        ("GET", "/socket", 404, "not_found"),
    ],
)
async def test_every_error_is_json_and_closes_its_connection(
    hub: Hub, method: str, path: str, status: int, code: str
) -> None:
    answer = await ask(hub, path, "Content-Length: 0", method=method)
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers.get("allow") == ("GET,HEAD" if status == 405 else None)  # RFC 9110, 15.5.6


async def test_a_head_answer_closes_too(hub: Hub) -> None:
    answer = await ask(hub, "/health", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize("error", [RuntimeError("secret detail"), KeyError("x"), web.HTTPForbidden(reason="No Way")])
async def test_a_handler_that_raises_shows_no_traceback(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_hub(tmp_path) as hub:

        class Broken:
            def text(self) -> bytes:
                raise error

        hub.metrics = Broken()  # type: ignore[assignment]
        answer = await ask(hub, "/metrics")
    if isinstance(error, web.HTTPException):
        assert (answer.status, answer.code) == (403, "no_way")
    else:
        assert (answer.status, answer.code) == (500, "internal")
        assert b"secret" not in answer.body
        assert "the handler of /metrics failed" in caplog.text


# Metrics.


async def test_metrics_answer_a_loopback_client(hub: Hub) -> None:
    answer = await ask(hub, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert b"bridge_connections" in answer.body


@pytest.mark.parametrize("line", [*FORWARDING, "X-Forwarded-Proto: https"])
async def test_metrics_behind_a_proxy_need_an_operator(hub: Hub, line: str) -> None:
    answer = await ask(hub, "/metrics", line)
    assert (answer.status, answer.code) == (403, "credential_missing")
    _, token = hub.credentials.add_operator("monitoring")
    for credential in (f"Authorization: Bearer {token}", f"X-API-Key: {token}"):
        assert (await ask(hub, "/metrics", line, credential)).status == 200


async def test_metrics_refuse_the_credentials_of_homes_and_apps(hub: Hub) -> None:
    server, server_token = hub.credentials.add_server("home")
    _, device_token = hub.credentials.add_device(server.server_id, "phone")
    operator, operator_token = hub.credentials.add_operator("monitoring")
    for token in (server_token, device_token):
        answer = await ask(hub, "/metrics", FORWARDING[0], f"Authorization: Bearer {token}")
        assert (answer.status, answer.code) == (403, "unauthorized")
    answer = await ask(hub, "/metrics", FORWARDING[0], "Authorization: Bearer nonsense")
    assert (answer.status, answer.code) == (403, "credential_invalid")
    hub.credentials.revoke_credential(operator.credential_id)
    answer = await ask(hub, "/metrics", FORWARDING[0], f"Authorization: Bearer {operator_token}")
    assert (answer.status, answer.code) == (403, "credential_revoked")
    # A credential in the URL opens nothing: it is not even read.
    answer = await ask(hub, f"/metrics?token={hub.credentials.add_operator('other')[1]}", FORWARDING[0])
    assert answer.status == 403


# Which requests may reach a loopback port.

GOOD_HOSTS = ["localhost", "localhost:{port}", "127.0.0.1", "127.0.0.1:{port}", "[::1]:{port}", "LOCALHOST:1"]
BAD_HOSTS = [None, "", "evil.example", "evil.example:{port}", "localhost.evil.example", "user@localhost", "127.0.0.2"]

SITES: list[tuple[tuple[str, ...], str | None, bool]] = [
    ((), None, True),
    (("Origin: http://localhost:{port}",), None, True),
    (("Origin: http://127.0.0.1:{port}",), None, True),
    (("Origin: http://[::1]:{port}",), None, True),
    (("Origin: https://listed.example",), None, True),
    (("Origin: https://listed.example", "Sec-Fetch-Site: cross-site"), None, True),
    (("Sec-Fetch-Site: same-origin",), None, True),
    (("Sec-Fetch-Site: none",), None, True),
    (("Origin: https://evil.example",), "bad_origin", False),
    (("Origin: http://listed.example",), "bad_origin", False),
    (("Origin: https://listed.example:8443",), "bad_origin", False),
    (("Origin: https://listed.example.evil.example",), "bad_origin", False),
    (("Origin: null",), "bad_origin", False),
    (("Origin: file://",), "bad_origin", False),
    (("Origin: https://listed.example", "Origin: https://evil.example"), "bad_origin", False),
    (("Sec-Fetch-Site: cross-site",), "bad_origin", False),
    (("Sec-Fetch-Site: Cross-Site",), "bad_origin", False),
]


@pytest.fixture
async def listing(tmp_path: Path) -> Any:
    """A hub on loopback with one listed origin."""
    async with running_hub(tmp_path, origins=("https://listed.example",)) as hub:
        yield hub


@pytest.mark.parametrize("path", ["/health", "/metrics", "/ready", "/nowhere"])
async def test_the_host_header_must_name_this_machine(hub: Hub, path: str) -> None:
    for host in GOOD_HOSTS:
        answer = await ask(hub, path, host=host.format(port=hub.port))
        assert answer.status == (404 if path == "/nowhere" else 200), host
    for bad in BAD_HOSTS:
        answer = await ask(hub, path, host=bad and bad.format(port=hub.port))
        if bad is None:
            assert answer.status == 400  # no HTTP/1.1 request at all
        else:
            assert (answer.status, answer.code) == (403, "bad_host"), bad
    assert (await ask(hub, path, "Host: localhost")).status == 400  # a second one


@pytest.mark.parametrize(
    "head",
    [
        b"GET /secret-path HTTP/1.1\r\nHost: localhost\r\nno colon secret\r\n\r\n",
        b"GET /secret-path HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: secret\r\n\r\n",
        b"\x16\x03\x01\x02\x00secret\r\n\r\n",
    ],
    ids=["header", "version", "length", "no HTTP"],
)
async def test_what_is_no_request_is_told_so_in_json_and_neither_repeated_nor_logged(
    hub: Hub, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
    writer.write(head)
    async with asyncio.timeout(20):
        raw = await reader.read()
    writer.close()
    top, _, body = raw.partition(b"\r\n\r\n")
    assert top.split(b" ", 2)[1] == b"400", raw
    assert b"content-type: application/json" in top.lower()
    assert json.loads(body)["error"]["code"] == "bad_request"
    assert b"secret" not in raw
    assert "secret" not in caplog.text


async def test_the_host_header_of_an_upgrade_must_name_this_machine(hub: Hub) -> None:
    token = f"Authorization: Bearer {hub.credentials.add_server('home')[1]}"
    for host in GOOD_HOSTS:
        assert (await upgrade(hub, token, host=host.format(port=hub.port)))[0] == 101, host
    for bad in BAD_HOSTS:
        if bad is not None:
            status, body = await upgrade(hub, token, host=bad.format(port=hub.port))
            assert (status, body) == (403, {"reason": "bad_host"}), bad


@pytest.mark.parametrize(("lines", "reason", "passes"), SITES)
async def test_a_foreign_page_reaches_neither_http_nor_the_socket(
    listing: Hub, lines: tuple[str, ...], reason: str | None, passes: bool
) -> None:
    lines = tuple(line.format(port=listing.port) for line in lines)
    answer = await ask(listing, "/health", *lines)
    token = f"Authorization: Bearer {listing.credentials.add_server('home')[1]}"
    status, body = await upgrade(listing, token, *lines)
    if passes:
        assert (answer.status, status) == (200, 101)
    else:
        assert (answer.status, answer.code) == (403, reason)
        assert (status, body) == (403, {"reason": reason})


async def test_the_site_is_checked_before_the_credential_and_the_route(hub: Hub) -> None:
    assert await upgrade(hub, host="evil.example") == (403, {"reason": "bad_host"})
    assert (await ask(hub, "/nowhere", "Origin: https://evil.example")).code == "bad_origin"


# Start and end.


async def test_a_hub_that_can_not_listen_lets_go_of_everything(tmp_path: Path, hub: Hub) -> None:
    other = Hub(Config(port=hub.port, state_dir=tmp_path / "other"))
    with pytest.raises(OSError):
        async with other:
            raise AssertionError("two hubs on one port")
    with pytest.raises(Exception, match="closed"):
        other.credentials.servers()
    assert (await ask(hub, "/health")).status == 200


async def test_closing_twice_is_harmless_and_wakes_who_waits(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        waiter = asyncio.ensure_future(hub.wait_closed())
        await hub.close()
        await waiter
        await hub.close()
