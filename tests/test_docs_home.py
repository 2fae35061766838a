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

from bridge_client import (
    app,
    doctor,
    local_token,
    notification_rules,
    request_execution,
    running_request,
    session_rules,
)
from bridge_client.api import session_events
from bridge_client.api import sessions as api_sessions
from bridge_client.api.events import _NAMES, Events
from bridge_client.api.notifications import NotificationRoutes
from bridge_client.api.server import _EXPLAINED, _REFUSED, Api
from bridge_client.api.sessions import SessionRoutes
from bridge_client.api.status import StatusReport
from bridge_client.cli_parts import INGEST_EXIT_CODES
from bridge_client.clock import SystemClock
from bridge_client.config import Config
from bridge_client.dead_letters import DeadLetters
from bridge_client.keys import write_private
from bridge_client.lag import Lag
from bridge_client.retention import Extent, Rules
from bridge_client.retention_report import Outlook
from bridge_client.sources.store import StoreSource
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_retention import SqliteRetention
from tests.docs_help import every_command, said, shown
from tests.support.running_api import TOKEN
from tests.support.running_home import running_home
from tests.support.scripted_runner import ScriptedRunner, reply
from tests.test_docs import section, table, tables

ROOT = Path(__file__).resolve().parent.parent
CLI = ROOT / "docs" / "cli.md"
API = ROOT / "docs" / "home-api.md"
SESSION_EVENTS = "GET /sessions/{session_id}/events"


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
    assert re.findall(r"(\d) ", said("bridge-client").partition("Exit codes")[2]) == [row["exit code"] for row in rows]


async def test_every_member_of_status_is_explained(tmp_path: Path) -> None:
    facts = await app.status(Config(state_dir=tmp_path / "state", hub_url="http://127.0.0.1:1"))
    assert column(section(CLI, "What status prints"), "member") == set(facts)


async def test_every_check_of_doctor_is_explained(tmp_path: Path) -> None:
    tree = ast.parse(Path(doctor.__file__).read_text("utf-8"))
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding"
    ]
    names = {ast.literal_eval(call.args[0]) for call in calls}
    assert column(section(CLI, "What doctor looks at"), "check") == names


def column(text: str, key: str) -> set[str]:
    return {row[key] for row in next(rows for rows in tables(text) if key in rows[0])}


def test_every_parameter_is_explained() -> None:
    assert column(section(API, "GET /events"), "parameter") == _NAMES


def test_every_parameter_of_a_sessions_events_is_explained() -> None:
    assert column(section(API, SESSION_EVENTS), "parameter") == set(session_events.NAMES)


async def test_every_member_of_an_answer_is_explained(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "home.db")
    explained = column(section(API, "GET /events"), "member")
    assert explained == {"events", "epoch", "latest_event_id", "reset", "expired", "floor"}
    report = StatusReport(
        StoreSource(store), DeadLetters.in_memory(), Lag(SystemClock()), SystemClock(), {"name": "", "source": ""}
    )
    assert column(section(API, "GET /status"), "member") == set(await report.facts())
    stored = Outlook(Extent(0, 0, None, None, 0, 0, 0, True), Rules(), 0).facts()
    told = column(section(API, "GET /status"), "in `stored`")
    assert {name for row in told for name in row.replace("`", "").split(", ")} == set(stored)
    await store.close()


def test_every_error_is_explained() -> None:
    raised: set[tuple[str, str]] = {("403", code) for code in _REFUSED}
    raised |= {(str(status), code) for status, (code, _) in _EXPLAINED.items()}
    for file in (ROOT / "bridge_client" / "api").glob("*.py"):
        raised |= set(re.findall(r'ApiError\(\s*(\d{3}), "(\w+)"', file.read_text("utf-8")))
    assert {(row["status"], row["code"]) for row in table(section(API, "Errors"))} == raised


def code(language: str, text: str | None = None) -> list[str]:
    text = API.read_text("utf-8") if text is None else text
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_every_route_of_sessions_is_explained_with_the_members_of_its_body() -> None:
    rows = {row["route"]: row for row in table(section(API, "Sessions"))}
    sessions: Any = None
    routes = {f"{route.method} {route.path}" for route in SessionRoutes(sessions, sessions, str, None).routes()}
    assert set(rows) == routes
    bodies = {kind.__doc__: kind for kind in vars(api_sessions).values() if isinstance(kind, type)}
    for route, row in rows.items():
        members = set(bodies[route].__struct_fields__) if route in bodies else set()
        shown = re.findall(r"`(\w+)`", row["body"].partition(":")[0])
        assert set(shown) == members, route


def test_the_limits_of_sessions_are_those_of_the_code() -> None:
    shown = {row["what"]: row["at most"] for row in table(section(API, "Limits"))}
    assert shown == {
        "sessions": f"{session_rules.MAX_SESSIONS:,}",
        "messages in a session": f"{session_rules.MAX_MESSAGES:,}",
        "bytes of all messages of a session": f"{session_rules.MAX_SESSION_BYTES >> 20} MiB",
        "bytes of one message": f"{session_rules.MAX_MESSAGE_BYTES >> 10} KiB",
        "bytes of a session's metadata": f"{session_rules.MAX_METADATA_BYTES >> 10} KiB",
        "requests under way": str(request_execution.MAX_RUNNING),
        "open approvals of a request": str(running_request.MAX_APPROVALS),
    }


def test_every_route_of_notifications_is_explained_with_the_members_of_its_body_and_its_record() -> None:
    found = tables(section(API, "Notifications"))
    rows = {row["route"]: row for row in found[0]}
    nothing: Any = None
    routes = NotificationRoutes(nothing, nothing).routes()
    assert list(rows) == [f"{route.method} {route.path}" for route in routes]
    for path, kind in (("", notification_rules.Draft), ("/{notification_id}/dismiss", notification_rules.Ending)):
        shown = re.findall(r"`(\w+)`", rows[f"POST /application/notifications{path}"]["body"])
        assert tuple(shown) == kind.__struct_fields__
    draft = notification_rules.draft({"title": "t"})
    record = notification_rules.create(draft, None, session_id="s", now="", new_id=lambda: "n").record
    ending = notification_rules.Ending(reason="seen")
    assert {row["member"] for row in found[1]} == set(notification_rules.end(record, "dismissed", ending, "").record)
    assert {row["member of `display`"] for row in found[2]} == {*record["display"], "ttl_seconds"}


def test_the_limits_of_notifications_are_those_of_the_code() -> None:
    rules = notification_rules
    assert {row["what"]: row["at most"] for row in table(section(API, "Limits of notifications"))} == {
        "active application notifications": str(rules.MAX_ACTIVE),
        "terminal application notifications that are kept": str(rules.MAX_ENDED),
        "active notifications of a session": str(rules.MAX_SESSION_ACTIVE),
        "terminal notifications of a session that are kept": str(rules.MAX_SESSION_ENDED),
        "bytes of a notification as JSON": f"{rules.MAX_RECORD_BYTES >> 10} KiB",
        "characters of `title`": str(rules.MAX_TITLE),
        "characters of `body`": f"{rules.MAX_BODY:,}",
        "characters of `key`": str(rules.MAX_KEY),
        "characters of `reason`": str(rules.MAX_REASON),
        "nesting of `source` and `display`": str(rules.MAX_DEPTH),
    }


@pytest.mark.requires("curl")
async def test_the_shell_examples_of_notifications_work(tmp_path: Path) -> None:
    (script,) = code("sh", section(API, "Notifications"))
    async with running_home(tmp_path) as home:
        write_private(tmp_path / local_token.NAME, TOKEN.encode())
        made, updated, active, dismissed, everything, _, told = await answers_of(
            localised(script, tmp_path, home.api.url)
        )
    assert made["notification"]["display"] == {"presentation": "modal", "owner": "connection"}
    assert (updated["notification"]["id"], updated["notification"]["revision"]) == (made["notification"]["id"], 2)
    assert active["notifications"] == [updated["notification"]]
    assert (dismissed["notification"]["status"], dismissed["notification"]["reason"]) == ("dismissed", "seen")
    assert everything["notifications"] == [dismissed["notification"]]
    assert told["notification"]["display"]["session_id"] == "roses"


def localised(script: str, folder: Path, url: str) -> str:
    """A shell example for this token and address, each answer on a line."""
    for was, now in (("~/.local/state/session-bridge", str(folder)), ("http://127.0.0.1:4100", url)):
        assert was in script
        script = script.replace(was, now)
    return script.replace("curl -s ", "curl -sS --fail -w '\\n' ")


async def answers_of(script: str) -> list[Any]:
    """What a shell script prints, read as JSON line by line."""
    done = await asyncio.to_thread(
        subprocess.run, ["bash", "-eu", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.requires("curl")
async def test_the_shell_examples_of_sessions_work(tmp_path: Path) -> None:
    (script,) = code("sh", section(API, "Sessions"))
    async with running_home(tmp_path, ScriptedRunner(*reply("In ", "March."))) as home:
        write_private(tmp_path / local_token.NAME, TOKEN.encode())
        made, added, sent, events, loaded, forked, changed, removed, listed = await answers_of(
            localised(script, tmp_path, home.api.url)
        )
    assert (made["session"]["session_id"], added["index"], sent["request_id"]) == ("garden", 0, "prune-1")
    assert events["events"][0]["type"] == "request_started"
    assert loaded["messages"][1]["content"] == "When do I prune?"
    assert forked["session"]["source_session_id"] == "garden"
    assert (changed["message"]["content"], removed["indices"]) == ("You grow tomatoes.", [1])
    assert {session["session_id"] for session in listed["sessions"]} == {"greenhouse", "garden"}


@pytest.mark.requires("curl")
async def test_the_shell_examples_of_a_sessions_events_work(tmp_path: Path) -> None:
    (script,) = code("sh", section(API, SESSION_EVENTS))
    async with running_home(tmp_path) as home:
        write_private(tmp_path / local_token.NAME, TOKEN.encode())
        for type in ("run_started", "tool_call_completed", "tool_call_completed"):
            await home.store.publish({"type": type, "session_id": "s", "run_id": "run-1"})
        answers = await answers_of(localised(script, tmp_path, home.api.url))
        await home.store.publish({"type": "note"})
        stock = SqliteRetention(home.store)
        await stock.mark(1_000_000.0)
        await stock.remove((await stock.marks())[-1], 3)
        reset = (await home.ask("/sessions/s/events?after=9")).json()
    assert [[one["sequence_number"] for one in answer["events"]] for answer in answers] == [[1, 2, 3], [2], [2, 3], []]
    assert answers[0]["events"][0]["event"]["type"] == "run_started"
    assert {answer["latest_sequence"] for answer in answers} == {3}
    assert column(section(API, SESSION_EVENTS), "member") == set(reset)


async def test_the_python_example_of_a_sessions_events_works(tmp_path: Path) -> None:
    (example,) = code("python", section(API, SESSION_EVENTS))
    names: dict[str, Any] = {}
    exec(compile(example, "docs/home-api.md", "exec"), names)
    following = names["append_and_follow"](tmp_path / "home.db")
    number, data = await anext(following)
    assert (number, json.loads(data)["sequence_number"], json.loads(data)["id"]) == (1, 1, "evt_1")
    await following.aclose()


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
        (script,) = code("sh", section(API, "Who may ask"))
        answers = await answers_of(localised(script, tmp_path, api.url))
    await store.close()
    assert [len(answer["events"]) for answer in answers[:3]] == [0, 2, 3]
    assert answers[3]["pid"]
    assert answers[4] == {"status": "ok", "program": "bridge-client"}


async def test_the_python_example_works(tmp_path: Path) -> None:
    store, api = await running(tmp_path)
    (example,) = code("python", section(API, "GET /events"))
    names: dict[str, Any] = {}
    exec(compile(example, "docs/home-api.md", "exec"), names)
    async with api, asyncio.timeout(30):
        reading = asyncio.create_task(
            asyncio.to_thread(lambda: list(islice(names["follow"](api.url, local_token.obtain(tmp_path)), 4)))
        )
        await store.publish({"type": "last"})
        assert [event["event_id"] for event in await reading] == ["1", "2", "3", "4"]
    await store.close()
