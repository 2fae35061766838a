"""Clients that run as a program of their own, one or several in it, and tell, line by line, what they see."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import PATIENCE
from tests.support.programs import missing, require

HERE = Path(__file__).resolve().parent
JS = HERE / "js"
PYTHON = HERE.parent.parent / ".venv-clients" / "bin" / "python"

Sight = dict[str, Any]
Order = dict[str, str]


class Client:
    """What one client has seen so far, in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Sight] = []

    def of(self, saw: str) -> list[Sight]:
        """Everything seen of one kind."""
        return [sight for sight in self.seen if sight["saw"] == saw]

    def payloads(self, event: str) -> list[dict[str, Any]]:
        """The payloads of the channel events with this name."""
        return [sight["payload"] for sight in self.of("event") if sight["event"] == event]

    def event_ids(self) -> list[str]:
        """The ids of the session events delivered so far, as delivered: in order, repeats included."""
        return [payload["event"]["event_id"] for payload in self.payloads("session_event")]


class Driver:
    """A program and its clients."""

    def __init__(self, process: Process, names: Iterable[str]) -> None:
        self.clients = tuple(Client(name) for name in names)
        self._by_name = {client.name: client for client in self.clients}
        self._process = process
        self._news = asyncio.Condition()
        self._ended = False

    async def until(self, done: Callable[[Client], object], what: str) -> None:
        """Wait until `done` holds of every client.

        Fails with what the first that lacks it has seen, once it took too long or the program ended.
        """
        try:
            async with asyncio.timeout(PATIENCE), self._news:
                await self._news.wait_for(lambda: self._ended or all(map(done, self.clients)))
        except TimeoutError:
            pass
        for client in self.clients:
            assert done(client), f"{client.name} never saw {what}; it saw:\n" + "\n".join(map(str, client.seen))

    async def command(self, line: str) -> None:
        """Send one line: the orders first, then commands, each for every client."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def read(self) -> None:
        """Take in what the clients say, until the program ends."""
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            async with self._news:
                sight = json.loads(line)
                self._by_name[sight.pop("client")].seen.append(sight)
                self._news.notify_all()
        async with self._news:
            self._ended = True
            self._news.notify_all()


def javascript(program: str) -> tuple[str | Path, ...]:
    """The command line of a program in js/."""
    node = require("node")
    if not (JS / "node_modules" / "y-phoenix-channel").is_dir():
        missing("tests/conformance/js/node_modules is not built: `make test` builds it, with npm")
    return node, JS / program


def python(program: str) -> tuple[str | Path, ...]:
    """The command line of a program in py/."""
    if not PYTHON.exists():
        missing(".venv-clients is not built: `make test` builds it")
    return PYTHON, HERE / "py" / program


@asynccontextmanager
async def driver(*argv: str | Path, log: Path, orders: Sequence[Order]) -> AsyncIterator[Driver]:
    """Run a program until the end, when it must quit.

    `orders` says which clients, each with a name of its own; `log` takes its standard error.
    """
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=PIPE, stdout=PIPE, stderr=errors, env=environment, limit=1 << 24
        )
    program = Driver(process, (order["name"] for order in orders))
    reader = asyncio.create_task(program.read())
    try:
        await program.command(json.dumps({"clients": list(orders)}))
        yield program
        await program.command("quit")
        async with asyncio.timeout(PATIENCE):
            code = await process.wait()
        assert code == 0, f"the program ended with {code}; its standard error: {log.read_text()}"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await reader
