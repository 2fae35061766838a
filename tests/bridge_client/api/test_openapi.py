"""The home's OpenAPI description: it is valid, it is all there is, and what the home answers is as it says."""

import json
import zlib
from collections.abc import AsyncIterator, Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from openapi_spec_validator import validate
from yarl import URL

from bridge_client import app, local_token
from bridge_client.api.openapi import CODES, OPERATIONS, PATH
from bridge_client.api.server import MAX_BODY, Api
from bridge_client.config import Config
from bridge_client.runners import Checkpoint, Context
from tests.support.described import Described, filled, odd_queries
from tests.support.running_api import TOKEN
from tests.support.running_home import running_home
from tests.support.scripted_runner import ScriptedRunner, gate, said
from tests.test_docs import DOCS, section, table

NOTES = ("/application/notifications", "/sessions/s/notifications")


class Asking:
    """A client of one home that holds each answer to the description."""

    def __init__(self, url: str, token: str, session: aiohttp.ClientSession, routes: Iterable[web.RouteDef]) -> None:
        self.routes = routes
        self.url = url
        self.token = token
        self.session = session
        self.described = Described({"paths": {}})

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        status: int | None = None,
        token: str | None = "",
        **headers: str,
    ) -> Any:
        sent = {} if token is None else {"Authorization": f"Bearer {token or self.token}"}
        if body is not None or method != "GET":
            sent["Content-Type"] = "application/json"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        data = body if isinstance(body, bytes | BytesIO | None) else json.dumps(body).encode()
        url = URL(self.url + path, encoded=True)
        async with self.session.request(
            method, url, data=data, headers=sent, skip_auto_headers=("Content-Type",)
        ) as answer:
            read = await answer.read()
            self.described.check(
                method, path, answer.status, answer.content_type, read, data if isinstance(data, bytes) else None
            )
            assert status in (None, answer.status), read
            return json.loads(read)

    async def describe(self) -> Described:
        async with self.session.get(self.url + PATH, headers={"Authorization": f"Bearer {self.token}"}) as answer:
            assert (answer.status, answer.content_type) == (200, "application/json")
            return Described(await answer.json())


@pytest.fixture
def runner() -> ScriptedRunner:
    return ScriptedRunner()


@pytest.fixture
async def asking(tmp_path: Path, runner: ScriptedRunner, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asking]:
    """The program's own composition, on a free port."""
    kept: list[Api] = []

    class Kept(Api):
        async def __aenter__(self) -> Api:
            kept.append(self)
            return await super().__aenter__()

    monkeypatch.setattr(app, "Api", Kept)
    config = Config(state_dir=tmp_path / "home", api_port=0, name="Home")
    async with (
        app.open_source(config) as opened,
        app.answering(config, opened, runner) as report,
        aiohttp.ClientSession() as session,
    ):
        assert report.url is not None
        client = Asking(report.url, local_token.obtain(config.state_dir), session, kept[0]._routes)
        client.described = await client.describe()
        yield client


async def test_the_table_is_the_routers_and_all_of_it_is_described(asking: Asking) -> None:
    validate(asking.described.document)
    assert asking.described.document["servers"] == [{"url": "/"}], "wherever it was read"
    table = [(one.method, one.path) for one in OPERATIONS]
    assert len(set(table)) == len(table)
    assert {(route.method, route.path) for route in asking.routes} == set(table)
    assert {(method, path) for method, path, _ in asking.described.operations} == set(table)


async def test_a_home_that_only_forwards_describes_what_it_has() -> None:
    async with Api([], "x" * 43, host="127.0.0.1", port=0) as api, aiohttp.ClientSession() as session:
        found = await Asking(api.url, "x" * 43, session, ()).describe()
    assert list(found.document["paths"]) == ["/health", PATH]


def test_the_codes_are_those_of_the_documentation() -> None:
    explained = {(row["status"], row["code"]) for row in table(section(DOCS / "home-api.md", "Errors"))}
    never_of_a_route = {("404", "not_found"), ("405", "method_not_allowed")}
    unreadable = {("400", "bad_request")}
    assert {(str(status), code) for status, codes in CODES.items() for code in codes.split()} == (
        explained - never_of_a_route | unreadable
    )


async def test_what_is_answered_is_described(asking: Asking, runner: ScriptedRunner) -> None:
    _, wait = gate()

    async def ask(context: Context) -> Any:
        await context.approve({"id": "c", "function": {"name": "rm"}})
        return Checkpoint([said("done")])

    runner.script = (ask, wait)
    for path in ("/health", "/status", PATH, "/events"):
        await asking("GET", path, status=200)
    await asking("GET", "/health", status=200, token=None)
    await asking("POST", "/sessions", {"session_id": "s", "metadata": {"title": "Roses"}}, 201)
    await asking("POST", "/sessions", {"session_id": "s"}, 409)
    await asking("POST", "/sessions/s/messages", {"role": "user", "content": "hi"}, 201)
    await asking("POST", "/sessions/s/messages", {"role": "system", "content": [{"type": "text"}]}, 201)
    await asking("POST", "/sessions/s/messages", {"role": "user", "content": "x" * 300_000}, 413)
    await asking("PATCH", "/sessions/s/messages/0", {"content": "ho"}, 200)
    await asking("PATCH", "/sessions/s/messages/9", {"content": "ho"}, 404)
    await asking("PATCH", "/sessions/s/messages/0", {"content": "ho", "expected_cursor_event_id": "1"}, 409)
    await asking("DELETE", "/sessions/s/messages", {"indices": [0], "expected_cursor_event_id": "01"}, 400)
    await asking("DELETE", "/sessions/s/messages", {"indices": [0]}, 200)
    await asking("POST", "/sessions/s/fork", {"session_id": "t"}, 201)
    for path in ("/sessions", "/sessions?limit=1", "/sessions/s", "/sessions/t", "/sessions/s/messages?limit=1"):
        await asking("GET", path, status=200)
    await asking("GET", "/sessions/s/messages?expected_cursor_event_id=1", status=409)

    sent = await asking("POST", "/sessions/s/send", {"content": "go", "request_id": "one"}, 202)
    await asking("POST", "/sessions/s/send", {"content": "go"}, 409)
    await asking("POST", "/sessions/t/send", {"content": "go", "request_id": "one"}, 409)
    request = f"/sessions/s/requests/{sent['request_id']}"
    told = "/sessions/s/events?type=tool_approval_requested&wait_timeout_ms=20000"
    (asked,) = (await asking("GET", told, status=200))["events"]
    assert (await asking("GET", "/sessions/s", status=200))["session"]["request"]["approvals"]
    assert (await asking("GET", "/sessions/s/messages", status=200))["request"]
    assert (await asking("GET", "/sessions", status=200))["sessions"][0]["request"]
    approvals = f"{request}/approvals"
    await asking("POST", f"{approvals}/none", {"decision": "allow"}, 404)
    await asking("POST", f"{approvals}/{asked['event']['approval_id']}", {"decision": "allow"}, 200)
    await asking("POST", f"{approvals}/{asked['event']['approval_id']}", {"decision": "deny"}, 409)
    await asking("POST", f"{request}/cancel", status=202)
    await asking("GET", "/sessions/s/events?type=request_completed&wait_timeout_ms=20000", status=200)
    await asking("POST", f"{request}/cancel", status=404)

    for path in NOTES:
        one = await asking("POST", path, {"title": "Backup failed", "key": "backup"}, 201)
        await asking("POST", path, {"title": "Backup failed twice", "key": "backup"}, 200)
        await asking("GET", path, status=200)
        ending = f"{path}/{one['notification']['id']}"
        await asking("POST", f"{ending}/dismiss", {"expected_revision": 1}, 409)
        await asking("POST", f"{ending}/dismiss", {"expected_revision": 2, "reason": "seen"}, 200)
        await asking("POST", f"{ending}/resolve", status=409)
        for verb in ("resolve", "expire"):
            other = await asking("POST", path, {"title": verb, "display": {"ttl_seconds": 5}}, 201)
            await asking("POST", f"{path}/{other['notification']['id']}/{verb}", status=200)
        await asking("GET", f"{path}?include_terminal=true", status=200)

    for path in ("/events?since_id=0", "/events?since_id=999", "/events?session_id=s", "/sessions/s/events?after=999"):
        await asking("GET", path, status=200)
    assert asking.described.unseen == set()


async def test_a_home_that_answers_nobody_says_so_as_described(tmp_path: Path) -> None:
    async with running_home(tmp_path) as home, aiohttp.ClientSession() as session:
        asking = Asking(home.api.url, TOKEN, session, ())
        asking.described = await asking.describe()
        await home.create()
        said = await asking("POST", "/sessions/s/send", {"content": "hi"}, 503)
        assert said["error"]["code"] == "no_runner"


async def test_what_any_route_refuses_is_described(asking: Asking) -> None:
    for method, path, operation in asking.described.operations:
        where = filled(path)
        await asking(method, where, status=403, Host="evil.example")
        await asking(method, where, status=403, Origin="https://evil.example")
        await asking(method, where, Content_Encoding="gzip")
        await asking(method, where, token=None)
        if method != "GET":
            await asking(method, where, b"", 415, Content_Type="text/plain")
        if "requestBody" in operation:
            for body in (b"", b"[", b'"\xff"', b"{}", b'{"content": 1}', b"[" * 200):
                await asking(method, where, body)
            await asking(method, where, BytesIO(b"x" * (MAX_BODY + 1)), 413)


async def test_no_query_is_answered_in_another_way(asking: Asking) -> None:
    await asking("POST", "/sessions", {"session_id": "0"}, 201)
    for method, path, operation in asking.described.operations:
        if method == "GET":
            for query in odd_queries(operation, zlib.crc32(path.encode()), 12):
                await asking(method, f"{filled(path)}?{query}")


async def test_the_bounds_of_parameters_are_those_described(asking: Asking) -> None:
    await asking("POST", "/sessions", {"session_id": "0"}, 201)
    tried = 0
    for method, path, operation in asking.described.operations:
        for entry in operation["parameters"]:
            if entry["in"] != "query" or entry["schema"].get("type") != "integer":
                continue
            least = entry["schema"]["minimum"]
            below = entry["schema"].get("exclusiveMaximum")
            most = entry["schema"]["maximum"] if below is None else below - 1
            query = f"{filled(path)}?{entry['name']}="
            await asking(method, f"{query}{least}", status=200)
            if entry["name"] != "wait_timeout_ms":  # it would
                await asking(method, f"{query}{most}", status=200)
            for beyond in (least - 1, most + 1):
                await asking(method, f"{query}{beyond}", status=400)
            tried += 1
    assert tried >= 8
