"""A home with a runner answers what is sent to it: a process of its own, asked over HTTP; an agent that is a program."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bridge_client import local_token
from bridge_client.api import address
from tests.bridge_client.runners import excerpts
from tests.bridge_client.runners.test_command import written
from tests.support.home_commands import ROOT
from tests.support.processes import until

Json = dict[str, Any]


class Asked:
    """The API of the home, asked as a program on its machine does."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url

    async def __call__(self, method: str, path: str, body: Json | None = None) -> Json:
        async with self._http.request(method, self._url + path, json=body) as response:
            answer: Json = await response.json()
            assert response.status < 300, answer
            return answer

    async def say(self, session_id: str, text: str) -> list[Json]:
        """Send a message; all events of its request."""
        request_id = (await self("POST", f"/sessions/{session_id}/send", {"content": text}))["request_id"]
        path = f"/events?since_id=0&compact=false&request_id={request_id}&limit=1000"
        events: list[Json] = []
        while not events or events[-1]["type"] != "request_completed":
            events = (await self("GET", path))["events"]
            await asyncio.sleep(0.02)
        return events

    async def messages(self, session_id: str) -> list[tuple[str, Any]]:
        found = await self("GET", f"/sessions/{session_id}/messages")
        return [(message["role"], message["content"]) for message in found["messages"]]


@asynccontextmanager
async def home(folder: Path, **settings: str) -> AsyncIterator[Asked]:
    """A home that no hub has ever heard of."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SESSION_BRIDGE_")}
    chosen = {"STATE_DIR": str(folder), "API_PORT": "0", "LOG_LEVEL": "ERROR", "HUB_URL": "http://127.0.0.1:9"}
    chosen |= {name.upper(): value for name, value in settings.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge_client", "serve"),
        cwd=ROOT,
        env=environment | {f"SESSION_BRIDGE_{name}": value for name, value in chosen.items()},
    )
    try:
        await until(lambda: address.find(folder / "home.db.api"), "the home answers")
        url, token = address.find(folder / "home.db.api"), local_token.load(folder)
        assert url is not None
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http:
            yield Asked(http, url)
    finally:
        process.terminate()
        await process.wait()


async def test_A15_A40_A45_an_agent_that_is_a_program_answers_and_is_resumed(tmp_path: Path) -> None:
    stream = written(tmp_path / "claude.jsonl", excerpts.CLAUDE)
    settings = {
        "runner": "command",
        "runner_command": f"cat {shlex.quote(str(stream))}",
        "runner_resume": "sh -c 'echo \"$1 heard: $(cat)\"; exit 3' sh {provider_session_id}",
    }
    async with home(tmp_path, **settings) as ask:
        session_id = (await ask("POST", "/sessions", {}))["session"]["session_id"]
        events = await ask.say(session_id, "look")
        assert events[0]["type"] == "request_started"
        assert [event["type"] for event in events].count("request_started") == 1
        told = [("assistant", "I'll look."), ("tool", "a.py"), ("assistant", "One file.")]
        assert await ask.messages(session_id) == [("user", "look"), *told]

        events = await ask.say(session_id, "go on")
        assert [event["type"] for event in events][-2:] == ["error", "request_completed"]
        assert events[-2]["detail"] == "sh exited with status 3"
        said = ("assistant", "theirs heard: go on\n")
        assert await ask.messages(session_id) == [("user", "look"), *told, ("user", "go on"), said]


async def test_A16_A44_a_request_that_is_cancelled_ends_its_program(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    command = f"sh -c {shlex.quote(f'echo $$ >{pid}; echo begun; sleep 600')}"
    async with home(tmp_path, runner="command", runner_command=command) as ask:
        session_id = (await ask("POST", "/sessions", {}))["session"]["session_id"]
        saying = asyncio.create_task(ask.say(session_id, "hi"))
        await until(lambda: pid.exists() and pid.read_text().strip(), "the program runs")
        request = (await ask("GET", f"/sessions/{session_id}/messages"))["request"]
        request_id = request["request_id"] if isinstance(request, dict) else request
        await ask("POST", f"/sessions/{session_id}/requests/{request_id}/cancel", {})
        assert [event["type"] for event in await saying][-2:] == ["request_cancelled", "request_completed"]
        await until(lambda: not _runs(int(pid.read_text())), "the program is gone")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_echo_answers_without_a_hub(tmp_path: Path) -> None:
    async with home(tmp_path, runner="echo") as ask:
        session_id = (await ask("POST", "/sessions", {}))["session"]["session_id"]
        events = await ask.say(session_id, "hello there, how are you?")
        assert "".join(e["message"]["content"] for e in events if e["type"] == "partial") == "hello there, how are you?"
        assert json.dumps(await ask.messages(session_id)).count("hello there") == 2
