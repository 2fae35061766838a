"""docs/cli.md and docs/home-api.md, held to the code: help word for word, each member, parameter and error."""

import ast
import asyncio
import json
import re
import subprocess
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge_client import app, doctor, local_token
from bridge_client.api.events import _NAMES, Events
from bridge_client.api.server import _EXPLAINED, _REFUSED, Api
from bridge_client.api.status import StatusReport
from bridge_client.cli_parts import INGEST_EXIT_CODES
from bridge_client.clock import SystemClock
from bridge_client.config import Config
from bridge_client.dead_letters import DeadLetters
from bridge_client.lag import Lag
from bridge_client.sources.store import StoreSource
from bridge_client.store.sqlite import SqliteStore
from tests.docs_help import every_command, said, shown
from tests.test_docs import section, table, tables

ROOT = Path(__file__).resolve().parent.parent
CLI = ROOT / "docs" / "cli.md"
API = ROOT / "docs" / "home-api.md"


@pytest.mark.parametrize("path", every_command())
def test_the_help_of_every_command_is_shown_word_for_word(path: str) -> None:
    assert shown().get(path) == said(path), "renew docs/cli.md: python -m tests.docs_help"


def test_no_help_is_shown_of_a_command_that_is_none() -> None:
    assert set(shown()) == set(every_command())


def test_every_command_names_the_exit_codes_and_the_page_explains_them() -> None:
    rows = table(CLI.read_text("utf-8"))
    assert [row["exit code"] for row in rows] == re.findall(r"(\d) ", INGEST_EXIT_CODES)
    assert [row["exit code"] for row in rows] == ["0", "1", "2", "3", "4"]
    for path in every_command():
        assert "Exit codes" in said(path), path


async def test_every_member_of_status_is_explained(tmp_path: Path) -> None:
    facts = await app.status(Config(state_dir=tmp_path / "state", hub_url="http://127.0.0.1:1"))
    assert column(section(CLI, "What status prints"), "member") == set(facts)


async def test_every_check_of_doctor_is_explained(tmp_path: Path) -> None:
    tree = ast.parse(Path(doctor.__file__).read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Check"]
    names = {ast.literal_eval(call.args[0]) for call in calls}
    assert column(section(CLI, "What doctor looks at"), "check") == names


def column(text: str, key: str) -> set[str]:
    return {row[key] for row in next(rows for rows in tables(text) if key in rows[0])}


def test_every_parameter_is_explained() -> None:
    assert column(section(API, "GET /events"), "parameter") == _NAMES


async def test_every_member_of_an_answer_is_explained(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "home.db")
    assert column(section(API, "GET /events"), "member") == {"events", "epoch", "latest_event_id", "reset"}
    report = StatusReport(
        StoreSource(store), DeadLetters.in_memory(), Lag(SystemClock()), SystemClock(), {"name": "", "source": ""}
    )
    assert column(section(API, "GET /status"), "member") == set(await report.facts())
    await store.close()


def test_every_error_is_explained() -> None:
    raised: set[tuple[str, str]] = {("403", code) for code in _REFUSED}
    raised |= {(str(status), code) for status, (code, _) in _EXPLAINED.items()}
    for file in (ROOT / "bridge_client" / "api").glob("*.py"):
        raised |= set(re.findall(r'ApiError\(\s*(\d{3}), "(\w+)"', file.read_text("utf-8")))
    assert {(row["status"], row["code"]) for row in table(section(API, "Errors"))} == raised


def code(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", API.read_text("utf-8"), re.MULTILINE | re.DOTALL)


async def running(folder: Path) -> tuple[Any, Any]:
    store = await SqliteStore.open(folder / "home.db")
    for number in range(3):
        await store.publish({"type": "note", "session_id": "s", "n": number})
    report = StatusReport(
        StoreSource(store), DeadLetters.in_memory(), Lag(SystemClock()), SystemClock(), {"name": "", "source": ""}
    )
    routes = [web.get("/events", Events(store).get), web.get("/status", report.get)]
    return store, Api(routes, local_token.obtain(folder), host="127.0.0.1", port=0)


@pytest.mark.requires("curl")
async def test_the_shell_examples_work(tmp_path: Path) -> None:
    store, api = await running(tmp_path)
    async with api:
        (script,) = code("sh")
        for was, now in (("~/.local/state/session-bridge", str(tmp_path)), ("http://127.0.0.1:4100", api.url)):
            assert was in script
            script = script.replace(was, now)
        script = script.replace("curl -s ", "curl -sS --fail -w '\\n' ")
        done = await asyncio.to_thread(
            subprocess.run, ["bash", "-eu", "-c", script], capture_output=True, text=True, check=False, timeout=30
        )
    await store.close()
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [len(answer["events"]) for answer in answers[:3]] == [0, 2, 3]
    assert answers[3]["pid"]
    assert answers[4] == {"status": "ok", "program": "bridge-client"}


async def test_the_python_example_works(tmp_path: Path) -> None:
    store, api = await running(tmp_path)
    (example,) = code("python")
    names: dict[str, Any] = {}
    exec(compile(example, "docs/home-api.md", "exec"), names)
    async with api, asyncio.timeout(30):
        reading = asyncio.create_task(
            asyncio.to_thread(lambda: list(islice(names["follow"](api.url, local_token.obtain(tmp_path)), 4)))
        )
        await store.publish({"type": "last"})
        assert [event["event_id"] for event in await reading] == ["1", "2", "3", "4"]
    await store.close()
