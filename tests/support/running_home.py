"""The sessions of a home over its HTTP API, on a free port of 127.0.0.1."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from bridge_client.api.events import Events
from bridge_client.api.notifications import NotificationRoutes
from bridge_client.api.server import Api
from bridge_client.api.session_events import SessionEvents
from bridge_client.api.sessions import SessionRoutes
from bridge_client.clock import Clock, SystemClock
from bridge_client.notifications import ApplicationNotifications, SessionNotifications
from bridge_client.request_execution import RequestExecution
from bridge_client.runners import Runner
from bridge_client.sessions import Sessions
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_log import SqliteSessionLog
from bridge_client.store.sqlite_notifications import SqliteNotifications
from bridge_client.store.sqlite_sessions import SqliteSessions
from tests.support.running_api import TOKEN, Answer, ApiClient
from tests.support.stored import all_events


class Home(ApiClient):
    """A client, and what it talks to."""

    def __init__(
        self,
        api: Api,
        session: aiohttp.ClientSession,
        store: SqliteStore,
        sessions: Sessions,
        requests: RequestExecution,
    ) -> None:
        super().__init__(api, session)
        self.store = store
        self.sessions = sessions
        self.requests = requests

    async def do(self, method: str, path: str, body: Any = None, *, status: int = 200) -> Any:
        """Ask, expect this status, read the answer."""
        answer = await self._ask(method, path, body)
        assert answer.status == status, answer.body
        return answer.json()

    async def _ask(self, method: str, path: str, body: Any) -> Answer:
        if body is None:
            return await self.ask(path, method=method, headers={"Content-Type": "application/json"})
        return await self.ask(path, method=method, json=body)

    async def refused(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        answer = await self._ask(method, path, body)
        error = answer.json()["error"]
        assert error["message"]
        return answer.status, error["code"]

    async def create(self, session_id: str = "s", **more: Any) -> Any:
        return await self.do("POST", "/sessions", {"session_id": session_id, **more}, status=201)

    async def append(self, content: Any, role: str = "user", session_id: str = "s") -> Any:
        body = {"role": role, "content": content}
        return await self.do("POST", f"/sessions/{session_id}/messages", body, status=201)

    async def send(self, content: str, session_id: str = "s", **more: Any) -> str:
        answer = await self.do("POST", f"/sessions/{session_id}/send", {"content": content, **more}, status=202)
        request_id: str = answer["request_id"]
        return request_id

    async def until(self, type: str, **members: Any) -> dict[str, Any]:
        """The first stored event of this type, waited for."""
        since = 0
        async with asyncio.timeout(20):
            while True:
                for stored in await self.store.list(since_id=since):
                    since = stored.event_id
                    event: dict[str, Any] = json.loads(stored.data)
                    if event["type"] == type and members.items() <= event.items():
                        return event
                await self.store.wait(since)

    async def told(self, request_id: str | None = None) -> list[dict[str, Any]]:
        """All stored events, or those of a request."""
        return [json.loads(event.data) for event in await all_events(self.store, request_id)]


@asynccontextmanager
async def running_home(
    folder: Path, runner: Runner | None = None, clock: Clock | None = None, **options: Any
) -> AsyncIterator[Home]:
    """As the program puts it together: what was left behind is ended first, what runs is stopped at the end."""
    store = await SqliteStore.open(folder / "home.db")
    try:
        sessions = Sessions(SqliteSessions(store), SystemClock())
        notes = SessionNotifications(sessions, SystemClock())
        requests = RequestExecution(sessions, store, clock or SystemClock(), **{"notify": notes.tell, **options})
        await requests.recover()
        routes = [web.get("/events", Events(store, sessions.cursor).get)]
        routes += SessionRoutes(sessions, requests, lambda: store.epoch, runner).routes()
        application = ApplicationNotifications(SqliteNotifications(store), SystemClock())
        routes += NotificationRoutes(application, notes).routes()
        routes += SessionEvents(SqliteSessionLog(store), lambda: store.epoch).routes()
        try:
            async with Api(routes, TOKEN, host="127.0.0.1", port=0) as api, aiohttp.ClientSession() as session:
                yield Home(api, session, store, sessions, requests)
        finally:
            await requests.close()
    finally:
        await store.close()
