"""A long-poll client as plain as the protocol: GET, POST, and what they said. Shares no code with the hub."""

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.support.processes import PATIENCE


class LongPollClient:
    """One session, or none yet. Every answer is checked for what all of them have in common."""

    def __init__(self, http: aiohttp.ClientSession, url: str, headers: dict[str, str], vsn: str) -> None:
        self.url = url
        self.headers = headers
        self.vsn = vsn
        self.token: str | None = None
        self.http = http

    @property
    def target(self) -> str:
        """Where phoenix.js goes: without a token the query ends in `&`."""
        return f"{self.url}?vsn={self.vsn}&" + (f"token={self.token}" if self.token else "")

    async def ask(self, method: str, url: str | None = None, **options: Any) -> dict[str, Any]:
        """One request and the JSON of its answer."""
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with self.http.request(method, url or self.target, timeout=timeout, **options) as answer:
            assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
            assert answer.headers["Cache-Control"] == "no-store"
            found: dict[str, Any] = json.loads(await answer.read())
        assert isinstance(found["status"], int)
        return found

    async def open(self) -> None:
        """Begin a session."""
        self.token = None
        found = await self.ask("GET", headers=self.headers)
        assert (found["status"], found["messages"]) == (410, []), found
        self.token = found["token"]

    async def poll(self) -> list[Any]:
        """The messages of one poll, parsed; those in base64 as they are."""
        found = await self.ask("GET", headers=self.headers)
        assert found["status"] in (200, 204), found
        assert found["token"] == self.token
        assert bool(found["messages"]) == (found["status"] == 200)
        return [json.loads(text) if text[:1] in "[{" else text for text in found["messages"]]

    async def poll_until(self, count: int) -> list[Any]:
        """Poll until that many messages have come; more is an error."""
        found: list[Any] = []
        while len(found) < count:
            found += await self.poll()
        assert len(found) == count, found
        return found

    async def post(self, *messages: Any, kind: str | None = "application/x-ndjson", body: bytes | None = None) -> int:
        """Send messages in one batch, or a body as it is; the status."""
        found = await self.said(*messages, kind=kind, body=body)
        return int(found["status"])

    async def said(
        self, *messages: Any, kind: str | None = "application/x-ndjson", body: bytes | None = None
    ) -> dict[str, Any]:
        """`post`, with all that is answered."""
        data = "\n".join(json.dumps(message) for message in messages).encode() if body is None else body
        skip = () if kind else ("Content-Type",)
        headers = {"Content-Type": kind} if kind else {}
        return await self.ask("POST", data=io.BytesIO(data), headers=headers, skip_auto_headers=skip)


@asynccontextmanager
async def longpoll_client(
    url: str, credential: str | None = None, *, path: str = "/socket/longpoll", vsn: str = "2.0.0"
) -> AsyncIterator[LongPollClient]:
    """A client of the hub at `url`, with its first poll done."""
    headers = {} if credential is None else {"X-Phoenix-AuthToken": credential}
    async with aiohttp.ClientSession() as http:
        client = LongPollClient(http, url + path, headers, vsn)
        await client.open()
        yield client
