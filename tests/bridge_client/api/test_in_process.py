"""The home's API asked from within: the same gate and errors, also where it listens nowhere."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from bridge_client.api import ApiError
from bridge_client.api.in_process import InProcess
from bridge_client.api.server import Api
from tests.support.running_api import TOKEN


class Routes:
    """What is asked here."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.cancelled = asyncio.Event()

    def all(self) -> list[web.RouteDef]:
        return [web.post("/echo", self.echo), web.get("/wait", self.wait), web.get("/no", self.refuse)]

    async def echo(self, request: web.Request) -> web.Response:
        return web.json_response({"got": await request.json(), "host": request.host}, status=201)

    async def wait(self, request: web.Request) -> web.Response:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        raise AssertionError("nobody sets it")

    async def refuse(self, request: web.Request) -> web.Response:
        raise ApiError(409, "no", "not now", more=1)


@pytest.fixture
def routes() -> Routes:
    return Routes()


@pytest.fixture
async def ask(routes: Routes) -> AsyncIterator[InProcess]:
    async with asyncio.timeout(20), Api(routes.all(), TOKEN, host="127.0.0.1", port=None) as api:
        assert (api.port, api.url) == (0, "")
        async with InProcess(api, TOKEN) as ask:
            yield ask


async def test_it_answers_without_listening(ask: InProcess) -> None:
    answer = await ask("POST", "/echo", b'{"a":[1.50]}')
    assert (answer.status, json.loads(answer.body)) == (201, {"got": {"a": [1.5]}, "host": "localhost"})
    assert answer.headers == {"content-type": "application/json; charset=utf-8"}


async def test_errors_are_those_of_the_api(ask: InProcess) -> None:
    for method, path, body, status, code in (
        ("GET", "/no", None, 409, "no"),
        ("GET", "/nowhere", None, 404, "not_found"),
        ("POST", "/no", b"{}", 405, "method_not_allowed"),
    ):
        answer = await ask(method, path, body)
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
    assert (await ask("POST", "/no", b"{}")).headers["allow"] == "GET,HEAD"


async def test_many_at_once(ask: InProcess) -> None:
    answers = await asyncio.gather(*(ask("POST", "/echo", b"%d" % n) for n in range(120)))
    assert [json.loads(answer.body)["got"] for answer in answers] == list(range(120))


async def test_who_gives_up_ends_the_handler(ask: InProcess, routes: Routes) -> None:
    asked = asyncio.create_task(ask("GET", "/wait", None))
    await routes.waiting.wait()
    asked.cancel()
    await routes.cancelled.wait()


async def test_a_token_is_asked_for_here_too(routes: Routes) -> None:
    async with Api(routes.all(), TOKEN, host="127.0.0.1", port=None) as api, InProcess(api, "another") as ask:
        assert (await ask("GET", "/no", None)).status == 401
