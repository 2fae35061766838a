"""`bridge-client notify`: from a shell into the home's store, whether the home runs or not (rows A128, A141, A144)."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bridge_client.cli import cli
from bridge_client.clock import SystemClock
from bridge_client.notifications import ApplicationNotifications, SessionNotifications
from bridge_client.sessions import Sessions
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_notifications import SqliteNotifications
from bridge_client.store.sqlite_sessions import SqliteSessions
from tests.support import home_commands


async def notify(folder: Path, *words: str) -> Any:
    """The record that a process of its own made."""
    code, out, err = await home_commands.run("notify", *words, "--json", "--state-dir", str(folder))
    assert (code, err) == (0, "")
    return json.loads(out)


async def test_A128_a_script_tells_and_takes_back_beside_a_home_that_runs(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "home.db")
    application = ApplicationNotifications(SqliteNotifications(store), SystemClock())
    words = ("Backup failed", "--body", "full", "--severity", "error", "--key", "backup", "--presentation", "modal")
    made = await notify(tmp_path, *words, "--ttl", "60")
    assert await application.list() == [made]
    assert made["source"] == {"kind": "command", "name": "bridge-client notify"}
    assert made["display"] == {"presentation": "modal", "ttl_seconds": 60.0, "owner": "connection"}
    resolved = await notify(tmp_path, "--resolve", "backup")
    assert (resolved["id"], resolved["status"]) == (made["id"], "resolved")
    assert await application.list() == []
    sessions = Sessions(SqliteSessions(store), SystemClock())
    await sessions.create(session_id="garden")
    told = await notify(tmp_path, "Look", "--session", "garden")
    assert await SessionNotifications(sessions, SystemClock()).of("garden").list() == [told]
    await store.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resolve", "backup"], "no active notification of the key 'backup'"),
        (["x", "--presentation", "inline"], "an application notification is banner or modal"),
        (["x", "--session", "none"], "there is no session 'none'"),
        (["x", "--ttl", "0"], "ttl_seconds: a number above 0"),
        ([""], "length >= 1"),
        ([], "give a TITLE, or --resolve KEY"),
        (["x", "--resolve", "k"], "give a TITLE, or --resolve KEY"),
        (["--resolve", "\udcff"], "no active notification"),
    ],
)
def test_what_can_not_be_done_is_said_in_one_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, ["notify", *words, "--state-dir", str(tmp_path)])
    assert result.exit_code in (1, 2)
    assert said in result.output
    assert "Traceback" not in result.output


def test_A144_a_key_updates_and_the_line_says_so(tmp_path: Path) -> None:
    lines = [
        CliRunner().invoke(cli, ["notify", "Disk\x1b[31m full", "--key", "disk", "--state-dir", str(tmp_path)]).output
        for _ in range(2)
    ]
    ids = {line.split(" ")[0] for line in lines}
    assert len(ids) == 1
    assert [line.split(" ")[1] for line in lines] == ["created:", "updated:"]
    assert "\x1b" not in "".join(lines)
