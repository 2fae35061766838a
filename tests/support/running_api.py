"""The home's API over a store, on a free port of 127.0.0.1, and a client that knows its token."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from bridge_client.api.events import Events
from bridge_client.api.server import Api
from bridge_client.store import EventStore

TOKEN = "made-up-" * 5 + "abc"


class Answer:
    """One answer, read whole."""

    def __init__(self, status: int, headers: Any, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def json(self) -> Any:
        return json.loads(self.body)


class ApiClient:
    """Asks one running API."""

    def __init__(self, api: Api, session: aiohttp.ClientSession) -> None:
        self.api = api
        self._session = session

    async def ask(
        self,
        path: str,
        *,
        method: str = "GET",
        token: str | None = TOKEN,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> Answer:
        sent = dict(headers or {})
        if token is not None:
            sent["Authorization"] = f"Bearer {token}"
        async with self._session.request(method, self.api.url + path, headers=sent, **more) as response:
            return Answer(response.status, response.headers, await response.read())

    async def events(self, **query: Any) -> Any:
        """GET /events, whose answer must be a success."""
        answer = await self.ask("/events", params={name: str(value) for name, value in query.items()})
        assert answer.status == 200, answer.body
        return answer.json()


@asynccontextmanager
async def running_api(store: EventStore, **options: Any) -> AsyncIterator[ApiClient]:
    routes = [web.get("/events", Events(store).get)]
    async with (
        Api(routes, TOKEN, **{"host": "127.0.0.1", "port": 0, **options}) as api,
        aiohttp.ClientSession() as session,
    ):
        yield ApiClient(api, session)
