"""A client that runs as a program of its own and tells, line by line, what it sees."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

WAIT_SECONDS = 30.0
QUIT_SECONDS = 10.0

Sight = dict[str, Any]


class Driver:
    """What one client has seen so far, in order, and the commands it takes."""

    def __init__(self, process: Process) -> None:
        self.seen: list[Sight] = []
        self._process = process
        self._news = asyncio.Condition()
        self._ended = False

    def of(self, saw: str) -> list[Sight]:
        """Everything seen of one kind."""
        return [sight for sight in self.seen if sight["saw"] == saw]

    def payloads(self, event: str) -> list[dict[str, Any]]:
        """The payloads of the channel events with this name."""
        return [sight["payload"] for sight in self.of("event") if sight["event"] == event]

    def event_ids(self) -> list[str]:
        """The ids of the session events delivered so far, as delivered: in order, repeats included."""
        return [payload["event"]["event_id"] for payload in self.payloads("session_event")]

    async def until(self, done: Callable[["Driver"], object], what: str) -> None:
        """Wait until `done(self)` holds; if that takes too long or the client ends, fail and show what was seen."""
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._news:
                await self._news.wait_for(lambda: done(self) or self._ended)
        except TimeoutError:
            pass
        assert done(self), f"the client never saw {what}; it saw:\n" + "\n".join(map(str, self.seen))

    async def command(self, word: str) -> None:
        """Send one command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        await self._process.stdin.drain()

    async def read(self) -> None:
        """Take in what the client says, until it ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._news:
                self.seen.append(json.loads(line))
                self._news.notify_all()
        async with self._news:
            self._ended = True
            self._news.notify_all()


@asynccontextmanager
async def driver(*argv: str | Path, log: Path, **order: str) -> AsyncIterator[Driver]:
    """Run a client until the end, when it must quit; `order` is the first line it reads, `log` its standard error."""
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=errors, env=environment, limit=1 << 24
        )
    client = Driver(process)
    reader = asyncio.create_task(client.read())
    try:
        await client.command(json.dumps(order))
        yield client
        await client.command("quit")
        async with asyncio.timeout(QUIT_SECONDS):
            code = await process.wait()
        assert code == 0, f"the client ended with {code}; its standard error: {log.read_text()}"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await reader
