"""Who may ask the home's API: this machine, with the token, and no page of anybody else's."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from io import BytesIO

import aiohttp
import pytest
from aiohttp import web

from bridge_client.api.events import Events
from bridge_client.api.server import MAX_BODY, Api
from bridge_client.store.memory import MemoryStore
from tests.support.running_api import TOKEN, ApiClient, running_api

APP = "https://app.example"


@pytest.fixture
async def client() -> AsyncIterator[ApiClient]:
    async with running_api(MemoryStore(), origins=[APP]) as client:
        yield client


async def test_health_needs_no_token_and_says_nothing(client: ApiClient) -> None:
    answer = await client.ask("/health", token=None)
    assert (answer.status, answer.json()) == (200, {"status": "ok", "program": "bridge-client"})


@pytest.mark.parametrize("token", [None, "", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "é"])
@pytest.mark.parametrize("path", ["/events", "/events?since_id=0", "/nothing/here"])
async def test_everything_else_needs_the_token(client: ApiClient, token: str | None, path: str) -> None:
    answer = await client.ask(path, token=token)
    assert (answer.status, answer.json()["error"]["code"]) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert TOKEN not in answer.body.decode()


@pytest.mark.parametrize("value", [f"Basic {TOKEN}", TOKEN, f"Bearer{TOKEN}", "Bearer", f"Bearer {TOKEN} x"])
async def test_the_token_goes_as_bearer(client: ApiClient, value: str) -> None:
    assert (await client.ask("/events", token=None, headers={"Authorization": value})).status == 401
    assert (await client.ask("/events", token=None, headers={"Authorization": f"bearer  {TOKEN} "})).status == 200


async def test_the_token_is_taken_from_no_query(client: ApiClient) -> None:
    assert (await client.ask(f"/events?token={TOKEN}", token=None)).status == 401


async def test_the_token_given_twice_is_refused(client: ApiClient) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.api.port)
    line = f"Authorization: Bearer {TOKEN}\r\n"
    writer.write(f"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n{line}{line}Connection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 20)
    assert answer.startswith(b"HTTP/1.1 401 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("path", ["/health", "/events", "/nothing/here"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "x@localhost"])
async def test_a_rebound_name_gets_nothing(client: ApiClient, path: str, host: str) -> None:
    answer = await client.ask(path, headers={"Host": host})
    assert (answer.status, answer.json()["error"]["code"]) == (403, "bad_host")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1", "[::1]:4100", "LOCALHOST"])
async def test_the_names_of_this_machine_are_served(client: ApiClient, host: str) -> None:
    assert (await client.ask("/events", headers={"Host": host})).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://app.example.evil.example", "Sec-Fetch-Site": "cross-site"},
    ],
)
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
async def test_pages_of_other_sites_get_nothing(client: ApiClient, headers: dict[str, str], method: str) -> None:
    answer = await client.ask("/health", method=method, headers=headers)
    assert (answer.status, answer.json()["error"]["code"]) == (403, "bad_origin")
    assert "Access-Control-Allow-Origin" not in answer.headers


async def test_a_listed_origin_may_ask_and_read(client: ApiClient) -> None:
    headers = {"Origin": APP, "Sec-Fetch-Site": "cross-site"}
    asked = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "authorization"}
    preflight = await client.ask("/events", method="OPTIONS", token=None, headers=headers | asked)
    assert preflight.status == 204
    assert preflight.headers["Access-Control-Allow-Origin"] == APP
    assert "Authorization" in preflight.headers["Access-Control-Allow-Headers"]
    answer = await client.ask("/events", headers=headers)
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, APP)
    assert "Access-Control-Allow-Credentials" not in answer.headers
    assert (await client.ask("/events", token=None, headers=headers)).status == 401


async def test_a_page_of_the_api_itself_may_ask_but_needs_no_permission_to_read(client: ApiClient) -> None:
    answer = await client.ask("/events", headers={"Origin": f"http://localhost:{client.api.port}"})
    assert answer.status == 200
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
async def test_a_body_is_json(client: ApiClient, kind: str) -> None:
    for body in (b"", b"a=b"):
        answer = await client.ask("/events", method="POST", headers={"Content-Type": kind}, data=body)
        assert (answer.status, answer.json()["error"]["code"]) == (415, "bad_content_type")


async def test_a_type_that_no_form_can_have_is_fine_where_there_is_no_body(client: ApiClient) -> None:
    for kind in ("application/octet-stream", "application/xml"):
        answer = await client.ask("/nothing/here", method="POST", headers={"Content-Type": kind}, data=b"")
        assert answer.status == 404
        answer = await client.ask("/nothing/here", method="POST", headers={"Content-Type": kind}, data=b"{}")
        assert (answer.status, answer.json()["error"]["code"]) == (415, "bad_content_type")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "identity, gzip", "x"])
async def test_a_body_is_not_encoded(client: ApiClient, encoding: str, caplog: pytest.LogCaptureFixture) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    for path in ("/events", "/nothing/here"):
        answer = await client.ask(path, method="POST", headers=headers, data=b"{}")
        assert (answer.status, answer.json()["error"]["code"]) == (415, "unsupported_encoding")
    answer = await client.ask("/nothing/here", method="POST", headers={**headers, "Content-Encoding": "Identity"})
    assert answer.status == 404
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_request_that_stops_in_its_head_is_let_go_and_no_other() -> None:
    begun = [b"", b"GET /eve", b"GET /events HTTP/1.1\r\nHost: localhost\r\n"]
    asked = "GET /events?since_id=0&wait_timeout_ms=300"
    whole = f"{asked} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    async with running_api(MemoryStore(), head_seconds=0.1) as client, asyncio.timeout(20):
        for text in begun:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.api.port)
            writer.write(text)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", client.api.port)
        for _ in range(2):  # an answer may take longer than a head
            writer.write(whole.encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            await reader.readuntil(b'"latest_event_id":"0"}')
        writer.write(begun[1])
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_every_error_looks_alike(client: ApiClient) -> None:
    answer = await client.ask("/nothing/here")
    assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")
    answer = await client.ask("/events", method="DELETE")
    assert (answer.status, answer.json()["error"]["code"]) == (405, "method_not_allowed")
    assert "GET" in answer.headers["Allow"]
    for each in (answer, await client.ask("/health")):
        assert each.headers["Cache-Control"] == "no-store"
        assert each.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_handler_that_fails_tells_its_log_and_not_the_client(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: web.Request) -> web.Response:
        raise RuntimeError("secret detail")

    async def swallow(request: web.Request) -> web.Response:
        await request.read()
        return web.Response()

    routes = [web.get("/fails", fail), web.post("/reads", swallow)]
    async with Api(routes, TOKEN, host="127.0.0.1", port=0) as api, aiohttp.ClientSession() as session:
        client = ApiClient(api, session)
        answer = await client.ask("/fails")
        large = await client.ask(
            "/reads", method="POST", data=BytesIO(b" " * (MAX_BODY + 1)), headers={"Content-Type": "application/json"}
        )
    assert (answer.status, answer.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in answer.body.decode()
    assert "secret detail" in caplog.text
    assert large.status == 413


class Watched(MemoryStore):
    """A store that tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_for = asyncio.Event()

    async def wait(self, after: int) -> None:
        self.waited_for.set()
        await super().wait(after)


async def test_waiting_requests_do_not_hold_up_the_end() -> None:
    store = Watched()
    async with asyncio.timeout(20), aiohttp.ClientSession() as session:
        async with Api([web.get("/events", Events(store).get)], TOKEN, host="127.0.0.1", port=0) as api:
            client = ApiClient(api, session)
            waiting = asyncio.create_task(client.ask("/events?since_id=0&wait_timeout_ms=30000"))
            await store.waited_for.wait()
        with pytest.raises(aiohttp.ClientError):
            await waiting


async def test_a_taken_port_is_an_error_at_once() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(OSError, match="in use"):
            async with Api([], TOKEN, host="127.0.0.1", port=other.getsockname()[1]):
                raise AssertionError("it listens where another does")


@pytest.mark.parametrize("head", [b"GET /secret HTTP/1.1\r\nsecret\r\n\r\n", b"secret\r\n\r\n"])
async def test_what_is_no_request_is_told_so_in_json_and_neither_repeated_nor_logged(
    client: ApiClient, head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    reader, writer = await asyncio.open_connection("127.0.0.1", client.api.port)
    writer.write(head)
    raw = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    top, _, body = raw.partition(b"\r\n\r\n")
    assert top.split(b" ", 2)[1] == b"400", raw
    assert json.loads(body)["error"]["code"] == "bad_request"
    assert b"secret" not in raw
    assert "secret" not in caplog.text
