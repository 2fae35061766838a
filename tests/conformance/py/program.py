"""What the drivers of the Python clients share: their orders, what they say, and the cursor of a client.

They run in .venv-clients, each as a program of its own. Standard input: first a line of JSON {"clients": [{name, url,
token, topic, ...}]}, then one command a line, for every client: leave, quit. Standard output: one line of JSON for each
thing seen, {"client": name, "saw": ...} with more keys by kind.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Order = dict[str, Any]

_out = sys.stdout
sys.stdout = sys.stderr  # a client that prints must not end up between our lines


class Client:
    """What one client says, and what its next join sends to resume."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cursor: dict[str, Any] = {}

    def say(self, saw: str, **more: Any) -> None:
        """Tell of one thing."""
        _out.write(json.dumps({"client": self.name, "saw": saw, **more}) + "\n")
        _out.flush()

    def event(self, event: str, payload: Any) -> None:
        """Tell of one event of the channel, and move the cursor."""
        if event == "session_event":
            self.cursor["since_id"] = payload["event"]["event_id"]
        elif event == "replay_complete":
            if payload["epoch"] is not None:
                self.cursor["epoch"] = payload["epoch"]
            if payload["to_id"] is not None:
                self.cursor["since_id"] = payload["to_id"]
        self.say("event", event=event, payload=payload)


class Commands:
    """Standard input, a line at a time."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self._heard: dict[str, asyncio.Event] = {}

    def heard(self, word: str) -> asyncio.Event:
        """Set once this command has come."""
        return self._heard.setdefault(word, asyncio.Event())

    async def read(self) -> None:
        """Take in commands until quit, or the end of the input."""
        while word := (await self._lines.readline()).decode().strip():
            self.heard(word).set()
            if word == "quit":
                break
        self.heard("quit").set()


async def _main(drive: Callable[[Client, Order, Commands], Awaitable[None]]) -> None:
    lines = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    orders = json.loads(await lines.readline())["clients"]
    commands = Commands(lines)
    reading = asyncio.create_task(commands.read())
    await asyncio.gather(*(drive(Client(order["name"]), order, commands) for order in orders))
    await reading


def run(drive: Callable[[Client, Order, Commands], Awaitable[None]]) -> None:
    """Drive every client that was ordered, side by side; `drive` ends after quit."""
    asyncio.run(_main(drive))
