"""The documentation, held to the code: its conversations are played, and what can be chosen or said is explained."""

import ast
import asyncio
import dataclasses
import inspect
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

import bridge_client.cli
import bridge_client.config
import bridge_server.cli
import bridge_server.config
from bridge_client.store.sqlite import SqliteStore
from bridge_server.app import Hub
from protocol.errors import CLOSE_CODES, REFUSALS
from protocol.requests import ROUTES
from protocol.topics import events_topic
from tests.docs_scenes import Scene, answer, matches, scenes, stage, steps
from tests.support.programs import missing, require
from tests.support.scripted_home import scripted_home
from tests.support.source_tree import Tree

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
WIRE = DOCS / "wire.md"
OPERATIONS = DOCS / "operations.md"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

Row = dict[str, str]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def section(page: Path, heading: str) -> str:
    """The text under a heading, up to the next of the same or a higher level."""
    text = page.read_text("utf-8")
    start = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert start, f"{page.name} has no heading {heading!r}"
    end = re.search(rf"^#{{1,{len(start[1])}}} ", text[start.end() :], re.MULTILINE)
    return text[start.end() : start.end() + end.start()] if end else text[start.end() :]


def tables(text: str) -> list[list[Row]]:
    """The tables in a text: of each its rows, by column. A cell that is one piece of code loses its backticks."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = [
            [re.sub(r"^`([^`]+)`$", r"\1", cell.strip()) for cell in line[1:-1].split("|")]
            for line in block.splitlines()
        ]
        found.append([dict(zip(lines[0], cells, strict=True)) for cells in lines[2:]])
    return found


def table(text: str) -> list[Row]:
    """The rows of the first table in a text."""
    return tables(text)[0]


# What happens on the wire.


@pytest.mark.parametrize("scene", scenes(WIRE), ids=lambda scene: scene.place)
async def test_the_hub_talks_as_wire_md_shows(scene: Scene, tmp_path: Path) -> None:
    async with stage(tmp_path, scene.settings) as playing:
        await playing.play(scene.text)


@pytest.mark.parametrize("scene", scenes(WIRE, "upgrade"), ids=lambda scene: scene.place)
async def test_the_hub_answers_an_upgrade_as_wire_md_shows(scene: Scene, hub: Hub) -> None:
    server, _ = hub.credentials.add_server("home")
    _, token = hub.credentials.add_device(server.server_id, "phone")
    *request, shown = scene.text.strip().splitlines()
    status, body = await answer(hub, "\n".join(line.removeprefix("> ") for line in request), token)
    expected, _, content = shown.removeprefix("< ").partition(" ")
    assert (str(status), body) == (expected, ast.literal_eval(content) if content else None)


MESSAGES = (
    *("heartbeat", "phx_join", "phx_leave", "phx_reply", "phx_close", "phx_error"),
    *("session_event", "session_events", "replay_complete", "server_status", "replaced"),
    *("presence_state", "presence_diff", "cursor", "backfill", "backfill_page"),
    *("request", "response", "body_part"),
)


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_has_an_example_that_is_played(message: str) -> None:
    assert any(f'"{message}"' in scene.text for scene in scenes(WIRE))


def test_every_gap_reason_has_advice_and_an_example() -> None:
    played = {reason for scene in scenes(WIRE) for reason in re.findall(r'"gap":\{"reason":"(\w+)"', scene.text)}
    advised = {row["gap.reason"] for row in tables(section(WIRE, "The verdict"))[1]}
    assert advised == played == {"expired", "epoch_changed", "ahead", "hub_reset"}


async def test_a_scene_that_shows_something_else_fails(tmp_path: Path) -> None:
    """The player can fail: on a wrong value, on a frame that is not shown, and on a line of no kind."""
    heartbeat = '> [null,"1","phoenix","heartbeat",{}]\n'
    reply = '< [null,"%s","phoenix","phx_reply",{"status":"ok","response":{}}]\n'
    async with stage(tmp_path, {}) as playing:
        await playing.play("= the app connects\n" + heartbeat + reply % "1")
        with pytest.raises(AssertionError, match="this came instead"):
            await playing.play(heartbeat + reply % "2")
        with pytest.raises(AssertionError, match="does not show this frame"):
            await playing.play(heartbeat)
        with pytest.raises(AssertionError, match="nothing happens like this"):
            await playing.play("= the moon rises")
    with pytest.raises(ValueError, match="none of its kinds"):
        steps("what is this")


def test_placeholders_bind() -> None:
    bound: dict[str, str] = {}
    assert matches(["<hub epoch>", "<time>"], ["abc", "2026-01-02T03:04:05.678Z"], bound)
    assert matches("<hub epoch>", "abc", bound)
    assert not matches("<hub epoch>", "abd", bound)
    assert not matches("<time>", "yesterday", bound)
    assert not matches(1, True, bound)
    assert not matches({"a": 1}, {"a": 1, "b": 2}, bound)


# What can be said: close codes and refusals.


def test_the_close_codes_are_those_of_the_code() -> None:
    shown = {(row["code"], row["name"], row["come back"]) for row in table(section(WIRE, "Close codes"))}
    assert shown == {(str(row.code), row.name, "yes" if row.come_back else "no") for row in CLOSE_CODES.values()}


@pytest.mark.parametrize(
    ("heading", "places"),
    [("Before the upgrade", {"upgrade"}), ("On a topic", {"join", "push", "topic"}), ("No answer", {"request"})],
)
def test_the_refusals_are_those_of_the_code(heading: str, places: set[str]) -> None:
    rows = table(section(WIRE, heading))
    told = [row for row in REFUSALS.values() if row.where in places]
    assert {(row["reason"], row["come back"]) for row in rows} == {
        (row.reason, "yes" if row.come_back else "no") for row in told
    }
    if "status" in rows[0]:
        assert {row["reason"]: row["status"] for row in rows} == {row.reason: str(row.status) for row in told}


def test_the_routes_of_apps_are_those_of_the_code() -> None:
    shown = [(row["method"], row["path"], row["scope"]) for row in table(section(WIRE, "The routes"))]
    assert shown == list(ROUTES)


# What can be chosen: settings, environment, commands, metrics.


def shown_default(value: Any) -> str:
    if value is None or value == () or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value >= 1 << 20:
        return f"{value >> 20} MiB"
    if isinstance(value, int) and value >= 1 << 16 and value % 1024 == 0:
        return f"{value >> 10} KiB"
    return f"{value:g}" if isinstance(value, float) and value < 1e6 else str(value)


@pytest.mark.parametrize(
    ("module", "heading"),
    [(bridge_server.config, "Settings of the hub"), (bridge_client.config, "Settings of a home")],
    ids=["hub", "home"],
)
def test_every_setting_is_documented_with_its_default(module: ModuleType, heading: str) -> None:
    rows = {row["setting"]: row for row in table(section(OPERATIONS, heading))}
    fields = {field.name: field for field in dataclasses.fields(module.Config)}
    assert list(rows) == list(fields)
    for name, field in fields.items():
        assert rows[name]["variable"] == module.PREFIX + name.upper()
        if field.default is not dataclasses.MISSING:
            assert rows[name]["default"] == shown_default(field.default), name


@pytest.mark.parametrize("module", [bridge_server.config, bridge_client.config], ids=["hub", "home"])
def test_every_other_environment_variable_is_documented(module: ModuleType) -> None:
    read = re.findall(r'environ\.get\((PREFIX \+ )?"(\w+)"', inspect.getsource(module))
    names = {(module.PREFIX if prefixed else "") + name for prefixed, name in read}
    assert names
    assert {name for name in names if f"`{name}`" not in OPERATIONS.read_text("utf-8")} == set()


def commands(command: click.Command, path: str) -> Iterator[tuple[str, set[str]]]:
    """Every command line with its arguments, and its flags."""
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, f"{path} {name}")
    else:
        arguments = [param.human_readable_name for param in command.params if isinstance(param, click.Argument)]
        flags = {flag for param in command.params if isinstance(param, click.Option) for flag in param.opts}
        yield " ".join([path, *arguments]), flags


COMMANDS = {
    **dict(commands(bridge_server.cli.cli, "bridge-server")),
    **dict(commands(bridge_client.cli.cli, "bridge-client")),
}


def test_every_command_and_flag_is_documented() -> None:
    rows = table(section(OPERATIONS, "Commands"))
    assert {row["command"]: set(re.findall(r"--[\w-]+", row["options"])) for row in rows} == COMMANDS


def test_every_metric_is_documented_with_its_kind(hub: Hub) -> None:
    exposed = re.findall(r"^# TYPE (\w+) (\w+)$", hub.metrics.text().decode(), re.MULTILINE)
    assert len(exposed) > 5
    rows = table(section(OPERATIONS, "Metrics"))
    assert {(row["metric"].partition("{")[0], row["kind"]) for row in rows} == set(exposed)


# The pages among themselves.


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_no_relative_link_is_dead(page: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        found = page.parent / path if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            dead.append(target)
    assert dead == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, todo = set(), [README]
    while todo:
        page = todo.pop().resolve()
        if page not in seen and page.suffix == ".md" and page.exists():
            seen.add(page)
            links = re.findall(r"\]\(([^)\s:]+)\)", page.read_text("utf-8"))
            todo += [page.parent / link.partition("#")[0] for link in links]
    assert {page_id(page) for page in PAGES if page.resolve() not in seen} == set()


def test_the_map_names_every_module_and_no_other() -> None:
    real = {
        module.path
        for module in Tree(ROOT).modules.values()
        if len(module.tree.body) > 1 or not module.path.endswith("__init__.py")
    }
    assert {row["file"] for rows in tables((DOCS / "architecture.md").read_text("utf-8")) for row in rows} == real


@pytest.mark.parametrize("page", sorted((DOCS / "decisions").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_says_what_it_costs_and_what_would_prove_it_wrong(page: Path) -> None:
    text = page.read_text("utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Context", "Choice", "Price", "How we would know we were wrong"]
    assert len(text.splitlines()) <= 80, "a decision is one page"


# The README.


def test_the_readme_runs_what_the_makefile_has() -> None:
    text = README.read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:\$ |`)make\s([a-z-]+)", text))
    assert {"run", "test", "check"} <= named <= targets
    shown = re.findall(r"^\$ (bridge-\w+ .*)$", text, re.MULTILINE)
    real = [re.match(r"[a-z -]+\b(?! *[a-z])", command) for command in COMMANDS]
    assert len(shown) >= 6
    assert [line for line in shown if not any(name and line.startswith(name[0].strip()) for name in real)] == []


def test_the_readme_names_every_program_that_a_test_may_lack() -> None:
    everywhere = {"sh", "true"}
    used = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for words in re.findall(r"\brequires?\(((?:\"[\w-]+\"(?:, )?)+)\)", path.read_text("utf-8"))
        for name in re.findall(r"[\w-]+", words)
    }
    cells = re.findall(r"^\| (.*?) \|", section(README, "Two commands"), re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}
    assert used - everywhere - {"no-such-program"} == listed - {"npm"}


def snippet(language: str, title: str = "Connect your own app", **values: str) -> str:
    """The README's example for a language below a title, its made-up values replaced."""
    _, _, text = README.read_text("utf-8").partition(f"\n### {title}\n")
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, f"the README has no {language} example there"
    code = found[1]
    for shown, real in values.items():
        assert shown in code, f"the {language} example does not name {shown}"
        code = code.replace(shown, real)
    return code


async def says_what_a_home_publishes(hub: Hub, language: str, *command: str | Path, folder: Path, file: str) -> None:
    """Run the README's example as an app of a home, publish an event, wait until it prints it, press Ctrl-C."""
    server, home_token = hub.credentials.add_server("home")
    _, token = hub.credentials.add_device(server.server_id, "phone")
    code = snippet(language, **{"https://hub.example": hub.url, "SERVER_ID": server.server_id, "CREDENTIAL": token})
    (folder / file).write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(*command, folder / file, stdout=PIPE, stderr=STDOUT, env=environment)
    try:
        assert process.stdout is not None
        async with scripted_home(hub.url, server.server_id, home_token) as home, asyncio.timeout(30):
            while not hub.topics.listeners(events_topic(server.server_id)):
                await asyncio.sleep(0.02)
            await home.publish(text="heard in the README")
            while b"heard in the README" not in (line := await process.stdout.readline()):
                assert line, "the example ended before it printed the event"
            process.send_signal(signal.SIGINT)
            rest, _ = await process.communicate()
            assert b"Traceback" not in rest
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_python_example_of_the_readme_runs(hub: Hub, tmp_path: Path) -> None:
    await says_what_a_home_publishes(hub, "python", sys.executable, folder=tmp_path, file="example.py")


async def test_the_javascript_example_of_the_readme_runs(hub: Hub, tmp_path: Path) -> None:
    node, modules = require("node"), ROOT / "tests" / "conformance" / "js" / "node_modules"
    if not (modules / "phoenix").is_dir():
        missing("tests/conformance/js/node_modules is not built: `make test` builds it, with npm")
    (tmp_path / "node_modules").symlink_to(modules)
    await says_what_a_home_publishes(hub, "js", node, folder=tmp_path, file="app.mjs")


@pytest.mark.parametrize(
    ("language", "wrong", "said"),
    [
        ("js", "CREDENTIAL", "403"),
        ("js", "SERVER_ID", "refused: unauthorized"),
        ("python", "CREDENTIAL", "stopped: the credential is not known to the hub (credential_invalid)"),
        ("python", "SERVER_ID", "stopped: "),
    ],
)
async def test_an_example_of_the_readme_says_what_is_wrong(
    hub: Hub, tmp_path: Path, language: str, wrong: str, said: str
) -> None:
    command, file = ([sys.executable], "example.py") if language == "python" else ([require("node")], "app.mjs")
    modules = ROOT / "tests" / "conformance" / "js" / "node_modules"
    if language == "js":
        if not (modules / "phoenix").is_dir():
            missing("tests/conformance/js/node_modules is not built: `make test` builds it, with npm")
        (tmp_path / "node_modules").symlink_to(modules)
    server, _ = hub.credentials.add_server("home")
    _, token = hub.credentials.add_device(server.server_id, "phone")
    values = {"https://hub.example": hub.url, "SERVER_ID": server.server_id, "CREDENTIAL": token}
    (tmp_path / file).write_text(snippet(language, **(values | {wrong: "a" * 26})))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = await asyncio.create_subprocess_exec(
        *command, tmp_path / file, stdout=PIPE, stderr=STDOUT, env=environment
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            while said.encode() not in (line := await process.stdout.readline()):
                assert line, "the example ended and did not say it"
                assert b"Traceback" not in line
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_the_publishing_example_of_the_readme_runs(tmp_path: Path) -> None:
    code = snippet("python", "Publish from your own program")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SESSION_BRIDGE_STORE": str(tmp_path / "home.db")}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=environment)
    async with asyncio.timeout(30):
        assert await process.wait() == 0
    store = await SqliteStore.open(tmp_path / "home.db")
    try:
        events = [json.loads(event.data) for event in await store.list()]
    finally:
        await store.close()
    assert [(event["type"], event["session_id"]) for event in events] == [("message_appended", "garden")]
