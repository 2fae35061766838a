"""doctor: each check with something wrong, and with nothing wrong; it changes nothing."""

import asyncio
import json
import logging
import os
import re
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge_server import cli, doctor, open_files
from bridge_server.app import Hub
from bridge_server.auth import Credentials
from bridge_server.config import Config
from bridge_server.database import VERSION
from bridge_server.doctor import Finding, examine
from tests.support.listening import listening
from tests.support.ports import free_port

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli-hub.md"


def config(folder: Path, **settings: Any) -> Config:
    return Config(**{"port": 0, "state_dir": folder, **settings})


async def finding(check: str, chosen: Config) -> Finding:
    (found,) = [one for one in await examine(chosen) if one.check == check]
    return found


async def test_a_new_hub_is_well_and_nothing_was_made(tmp_path: Path) -> None:
    found = await examine(config(tmp_path / "state"))
    assert {one.status for one in found} == {"ok"} | {one.status for one in found if one.check == "open files"}
    assert list(tmp_path.iterdir()) == []


async def test_a_hub_that_runs_is_known_as_one(hub: Hub) -> None:
    found = await finding("port", hub.config.__class__(port=hub.port, state_dir=hub.config.state_dir))
    assert (found.status, "a hub answers" in found.text) == ("ok", True)


async def test_a_port_of_something_else_is_taken(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]")

    async with listening(answer) as port:
        found = await finding("port", config(tmp_path, port=port))
    assert (found.status, found.remedy) == ("failed", "stop what listens there, or choose another port")


async def test_a_free_port_and_a_foreign_address(tmp_path: Path) -> None:
    assert "free" in (await finding("port", config(tmp_path, port=free_port()))).text
    assert (await finding("port", config(tmp_path, port=4000, host="203.0.113.7"))).status == "failed"


@pytest.mark.parametrize("damage", ["open", "newer", "garbage"])
async def test_a_database_that_is_not_right(tmp_path: Path, damage: str) -> None:
    chosen = config(tmp_path / "state")
    path = chosen.database_path
    Credentials(path).close()
    assert (await finding("database", chosen)).status == "ok"
    if damage == "open":
        path.chmod(0o644)
    elif damage == "newer":
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(f"PRAGMA user_version = {VERSION + 1}")
    else:
        path.write_bytes(b"not a database at all, " * 100)
    before = path.read_bytes()
    found = await finding("database", chosen)
    assert found.status == "failed"
    assert (
        found.remedy
        == {
            "open": f"chmod 600 {path}",
            "newer": "upgrade bridge-server, or restore the backup from before",
            "garbage": "stop the hub and restore a backup",
        }[damage]
    )
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (before, 0o644 if damage == "open" else 0o600)


@pytest.mark.parametrize(("free", "status"), [(99, "failed"), (500, "warning"), (2000, "ok")])
async def test_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: usage._replace(free=free << 20))
    assert (await finding("disk", config(tmp_path))).status == status


@pytest.mark.parametrize(("limit", "status"), [((1024, 1024), "warning"), ((256, 30_000), "ok"), ((-1, -1), "ok")])
async def test_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[int, int], status: str) -> None:
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _what: limit)
    assert (await finding("open files", config(tmp_path))).status == status


@pytest.mark.parametrize(
    ("limit", "connections", "raised", "fit"),
    [
        ((256, 30_000), 20_000, 20_100, 20_000),
        ((256, 1024), 20_000, 1024, 924),
        ((20_000, 20_000), 20_000, None, 19_900),
        ((256, -1), 20_000, 20_100, 20_000),
        ((9000, 9000), 20, None, 20),
        ((50, 50), 20_000, None, 1),
    ],
)
@pytest.mark.parametrize("chosen", [True, False])
def test_serve_raises_its_own_limit_and_warns_only_of_a_number_that_was_chosen_and_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limit: tuple[int, int],
    connections: int,
    raised: int | None,
    fit: int,
    chosen: bool,
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _what: limit)
    monkeypatch.setattr(open_files.resource, "setrlimit", lambda _what, value: set_to.append(value))
    with caplog.at_level(logging.INFO):
        assert open_files.raise_limit(connections, chosen=chosen) == fit
    assert set_to == ([] if raised is None else [(raised, limit[1])])
    silent = fit == connections or (fit == 19_900 and not chosen)
    assert [record.levelname for record in caplog.records] == ([] if silent else ["WARNING" if chosen else "INFO"])
    assert silent or f"max_connections = {fit}" in caplog.text


def test_a_system_that_refuses_a_higher_limit_leaves_what_fits_into_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_what: int, _value: tuple[int, int]) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(open_files.resource, "getrlimit", lambda _what: (256, -1))
    monkeypatch.setattr(open_files.resource, "setrlimit", refuse)
    assert open_files.raise_limit(20_000, chosen=False) == 156


async def test_a_clock_that_went_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(tmp_path / "state")
    database = Credentials(chosen.database_path, clock=lambda: time.time() + 3600)
    database.add_server("Attic")
    database.close()
    assert (await finding("clock", chosen)).status == "failed"
    monkeypatch.setattr(doctor.time, "time", lambda: 0.0)
    assert (await finding("clock", config(tmp_path / "other"))).status == "failed"


async def test_settings_to_weigh(tmp_path: Path) -> None:
    assert (await finding("settings", config(tmp_path, allow_query_credentials=True))).status == "warning"
    assert (await finding("proxy", config(tmp_path, public_url="http://127.0.0.1:9"))).status == "warning"
    trusting = config(tmp_path, public_url="http://127.0.0.1:9", trusted_proxies=("127.0.0.1",))
    assert [one.check for one in await examine(trusting) if one.check == "proxy"] == []
    assert (await finding("public URL", trusting)).status == "failed"
    assert (await finding("public URL", config(tmp_path, host="0.0.0.0"))).status == "warning"


async def test_without_a_proxy_the_hub_answers_for_itself(hub: Hub) -> None:
    """The public URL is the hub's own port: upgrades come through, and nothing is said of a proxy's /metrics."""
    chosen = Config(port=hub.port, state_dir=hub.config.state_dir, public_url=hub.url)
    found = {one.check: one.status for one in await examine(chosen)}
    assert (found["public URL"], found["WebSocket"]) == ("ok", "ok")
    assert "metrics" not in found


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    for name in [name for name in os.environ if name.startswith("SESSION_BRIDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "argv", ["bridge-server", "doctor", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_the_command_says_it_in_lines_in_json_and_in_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ("--state-dir", str(tmp_path), "--port", "0")
    assert run(monkeypatch, *state) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line.split("\t")[:2] for line in lines) == ["ok", "settings"]
    assert run(monkeypatch, *state, "--json", "--public-url", "http://127.0.0.1:9") == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False
    assert {"check": "public URL", "status": "failed"}.items() <= said["checks"][-2].items()
    assert run(monkeypatch, "--json", "--port", "70000") == 1
    (only,) = json.loads(capsys.readouterr().out)["checks"]
    assert (only["check"], only["status"], "--port" in only["text"]) == ("settings", "failed", True)


def test_the_page_names_every_check() -> None:
    named = set(re.findall(r"^\| `([\w ]+)` \|", PAGE.read_text().partition("## doctor")[2], re.MULTILINE))
    assert named == set(re.findall(r'Finding\(\s*"([\w ]+)"', Path(doctor.__file__).read_text()))
