"""Somebody else's agent server with a `GET /events`, as plain or as clever as a test wants it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class ForeignServer:
    """Events in a list. What it can do are plain attributes, to be changed at any time."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.epoch: str | None = None
        self.says_latest = True
        self.says_reset = False
        self.waits = False
        self.knows = {"since_id", "session_id", "request_id"}
        """Parameters it takes; others are passed over unless it is `strict`."""
        self.strict = False
        self.shuffles = False
        self.token: str | None = None
        self.failure: web.Response | None = None
        self.asked: list[dict[str, str]] = []
        self.url = ""
        self._changed = asyncio.Event()
        self._asked = asyncio.Event()

    def add(self, event_id: Any, **members: Any) -> None:
        """An event with this id, as it is written here."""
        self.events.append({"event_id": event_id, "type": "note", **members})
        self.wake()

    def wake(self) -> None:
        """Let those who wait look again."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def asked_more(self, times: int = 1) -> None:
        """Return once it was asked so many times again."""
        until = len(self.asked) + times
        while len(self.asked) < until:
            self._asked.clear()
            await self._asked.wait()

    async def get(self, request: web.Request) -> web.Response:
        self.asked.append(dict(request.query))
        self._asked.set()
        if self.failure is not None:
            return web.Response(status=self.failure.status, headers=self.failure.headers, body=self.failure.body)
        if self.token is not None and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401)
        if self.strict and set(request.query) - self.knows:
            return web.Response(status=422)
        if "since_id" not in request.query:
            return self._answer([])
        since = int(request.query["since_id"])
        wait = int(request.query.get("wait_timeout_ms", 0)) / 1000 if self.waits else 0
        deadline = asyncio.get_running_loop().time() + wait
        while not (found := [event for event in self.events if self._id(event) > since]):
            if since > self._latest or asyncio.get_running_loop().time() >= deadline:
                break
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                pass
        if self.says_reset and since > self._latest:
            return self._answer(self.events, reset=True)
        if self.shuffles:
            found = found[::-1]
        if "limit" in self.knows:
            found = found[: int(request.query.get("limit", 500))]
        return self._answer(found)

    @staticmethod
    def _id(event: dict[str, Any]) -> int:
        return int(event["event_id"])

    @property
    def _latest(self) -> int:
        return max(map(self._id, self.events), default=0)

    def _answer(self, events: list[dict[str, Any]], **members: Any) -> web.Response:
        answer: dict[str, Any] = {"events": events, **members}
        if self.says_latest:
            answer["latest_event_id"] = self._latest if self.events else None
        if self.epoch is not None:
            answer["epoch"] = self.epoch
        return web.Response(body=json.dumps(answer).encode(), content_type="application/json")


@asynccontextmanager
async def foreign_server(server: ForeignServer | None = None) -> AsyncIterator[ForeignServer]:
    """Runs it on a free port until the end."""
    server = server or ForeignServer()
    app = web.Application()
    app.router.add_get("/events", server.get)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(server.url.rsplit(":")[-1].split("/")[0]) if server.url else 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/events"
    try:
        yield server
    finally:
        server.wake()
        await runner.cleanup()
