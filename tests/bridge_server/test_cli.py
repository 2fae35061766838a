"""The hub's command line: what it prints, what it returns, and that an error is one sentence."""

import asyncio
import errno
import io
import json
import os
import signal
import socket
import stat
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge_server import cli, logs
from bridge_server.app import Hub
from bridge_server.auth import Credentials, Device, Refused, Server
from bridge_server.config import Config

ROOT = Path(__file__).resolve().parents[2]


class Shell:
    """Runs commands of `bridge-server` in this process, on a state directory of its own."""

    def __init__(self, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["bridge-server", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        return int(ended.value.code or 0), out, err

    def json(self, *words: str) -> Any:
        code, out, err = self(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    def credentials(self) -> Credentials:
        return Credentials(self.state / "hub.db")


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    # `serve` sets up logging for its process, which here is the test runner's.
    monkeypatch.setattr(logs, "set_up", lambda *_args, **_options: None)
    for name in [name for name in os.environ if name.startswith("SESSION_BRIDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SESSION_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    return Shell(tmp_path / "state", monkeypatch, capsys)


def test_credentials_are_made_listed_and_revoked(shell: Shell) -> None:
    home = shell.json("servers", "add", "Attic")
    phone = shell.json("devices", "add", home["server_id"], "Phone", "--scopes", "view, control")
    assert home["hub_url"] == phone["hub_url"] == "http://127.0.0.1:4000"
    database = shell.credentials()
    identity = database.authenticate(home["credential"])
    assert isinstance(identity, Server)
    assert identity.server_id == home["server_id"]
    device = database.authenticate(phone["credential"])
    assert isinstance(device, Device)
    assert (device.device_id, device.scopes) == (phone["device_id"], {"view", "control"})

    listed = shell.json("servers", "list")
    assert [(row["server_id"], row["name"], row["revoked"]) for row in listed] == [(home["server_id"], "Attic", None)]
    assert [row["device_id"] for row in shell.json("devices", "list", "--server", home["server_id"])] == [
        phone["device_id"]
    ]
    assert shell.json("revoke", phone["device_id"]) == {"revoked": 1}
    assert not database.is_live(device)
    assert shell.json("revoke", home["server_id"], "--yes") == {"revoked": 1}
    assert shell.json("devices", "list")[0]["revoked"]
    database.close()


def test_a_list_never_shows_a_credential(shell: Shell) -> None:
    home = shell.json("servers", "add", "Attic")
    phone = shell.json("devices", "add", home["server_id"], "Phone")
    for words in (("servers", "list"), ("devices", "list"), ("servers", "list", "--json")):
        code, out, err = shell(*words)
        assert code == 0
        assert home["server_id"] in out
        for secret in (home["credential"], phone["credential"]):
            assert secret not in out + err


def test_out_writes_a_new_private_file_and_prints_no_credential(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "home.json"
    code, out, _ = shell("servers", "add", "Attic", "--out", str(path), "--hub-url", "https://hub.example")
    assert code == 0
    kept = json.loads(path.read_text())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept["hub_url"] == "https://hub.example"
    assert kept["credential"] not in out
    code, _, err = shell("servers", "add", "Attic", "--out", str(path))
    assert code == 1
    assert str(path) in err
    assert json.loads(path.read_text()) == kept


def test_operators_have_their_own_credentials(shell: Shell) -> None:
    made = shell.json("operators", "add", "ops")
    assert made["credential"].startswith("sbo_")
    assert [row["name"] for row in shell.json("operators", "list")] == ["ops"]
    assert shell.json("revoke", str(made["credential_id"])) == {"revoked": 1}


def test_one_credential_of_a_home_is_replaced_and_its_apps_stay(shell: Shell) -> None:
    """Rotation: no question is asked, because nothing ends but the old key."""
    old = shell.json("servers", "add", "Attic")
    phone = shell.json("devices", "add", old["server_id"], "Phone")
    new = shell.json("servers", "add", "Attic", "--server-id", old["server_id"])
    code, out, _ = shell("revoke", str(old["credential_id"]))
    assert (code, out) == (0, f"credential 1 of the home 'Attic' ({old['server_id']}): 1 credential revoked\n")
    database = shell.credentials()
    assert database.authenticate(new["credential"]).credential_id == new["credential_id"]
    assert isinstance(database.authenticate(phone["credential"]), Device)
    with pytest.raises(Refused, match="credential_revoked"):
        database.authenticate(old["credential"])
    database.close()
    code, _, err = shell("revoke", str(old["credential_id"]))
    assert (code, "already" in err) == (1, True)


def test_sockets_are_closed_without_revoking_anything(shell: Shell) -> None:
    """Case 1. That the hub does it, and that clients come back, is tested with a hub."""
    home = shell.json("servers", "add", "Attic")
    phone = shell.json("devices", "add", home["server_id"], "Phone")
    database = shell.credentials()
    assert shell.json("disconnect", phone["device_id"]) == {"disconnected": 1}
    number = database.authenticate(phone["credential"]).credential_id
    assert database.disconnected() == {number}
    assert shell.json("disconnect", home["server_id"]) == {"disconnected": 2}
    assert database.disconnected() == {1, number}
    code, out, _ = shell("disconnect", "1")
    said = f"credential 1 of the home 'Attic' ({home['server_id']}): the sockets of 1 credential are closed\n"
    assert (code, out) == (0, said)
    assert database.disconnected() == {1}
    assert database.disconnected() == frozenset() == database.revoked()
    assert isinstance(database.authenticate(phone["credential"]), Device)
    database.close()
    code, _, err = shell("disconnect", "nobody")
    assert (code, "there is no 'nobody'" in err) == (1, True)
    shell("revoke", phone["device_id"])
    code, _, err = shell("disconnect", phone["device_id"])
    assert (code, "already" in err) == (1, True)


@pytest.mark.parametrize("by", ["server_id", "credential_id"])
def test_nobody_ends_a_home_by_accident(shell: Shell, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    """A home's last credential is the home: without it no other can be made, so a number asks as the id does."""
    home = shell.json("servers", "add", "Attic")
    for name in ("Phone", "Tablet"):
        shell.json("devices", "add", home["server_id"], name)
    ended = shell("revoke", str(home[by]), "--json")
    assert (ended[0], "--yes" in ended[2]) == (2, True)
    for said in ("", "n\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(said))
        code, out, err = shell("revoke", str(home[by]))
        assert (code, out) == (1, "")
        assert "the home 'Attic'" in err
        assert "2 apps" in err
    assert [row["revoked"] for row in shell.json("devices", "list")] == [None, None]
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    code, out, _ = shell("revoke", str(home[by]))
    assert (code, "3 credentials revoked" in out) == (0, True)
    assert all(row["revoked"] for kind in ("devices", "servers") for row in shell.json(kind, "list"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("devices", "add", "a" * 26, "Phone"), 1, "bridge-server servers list"),
        (("devices", "add", "nonsense", "Phone"), 2, "not a server id"),
        (("servers", "add", " "), 2, "visible character"),
        (("revoke", "a" * 26), 1, "bridge-server servers list"),
        (("revoke", "x"), 1, "devices list"),
        (("revoke", "1"), 1, "operators list"),
        (("servers", "add", "x", "--database", "/dev/null/x"), 1, "/dev/null"),
        (("serve", "--port", "70000"), 2, "--port"),
        (("serve", "--log-level", "LOUD"), 2, "LOUD"),
        (("nonsense",), 2, "nonsense"),
        (("serve", "--host", "203.0.113.7", "--port", "0"), 1, "--host"),
    ],
)
def test_an_error_says_what_to_do(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    ended, out, err = shell(*words)
    assert (ended, out) == (code, "")
    assert said in err


def test_a_bad_variable_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESSION_BRIDGE_PORT", "http")
    code, _, err = shell("servers", "list")
    assert code == 2
    assert "SESSION_BRIDGE_PORT = 'http'" in err


def test_a_taken_port_is_one_sentence(shell: Shell) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = shell("serve", "--port", str(port))
    assert (code, out) == (1, "")
    assert f"port {port} on 127.0.0.1 is taken" in err


@pytest.mark.parametrize(
    "words", [(), ("--help",), ("serve", "-h"), ("servers", "--help"), ("servers", "add", "--help"), ("revoke", "-h")]
)
def test_help_teaches_and_names_the_exit_codes(shell: Shell, words: tuple[str, ...]) -> None:
    code, out, err = shell(*words)
    assert code == (0 if words else 2)
    assert "Exit codes" in out + err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_serve_says_where_it_listens_and_stops_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge_server.cli", "serve", "--port", "0", "--state-dir", str(tmp_path / "s")),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        first = (await process.stdout.readline()).decode()
        assert first.startswith("bridge-server listens on http://127.0.0.1:")
        url = first.split()[3]
        async with aiohttp.ClientSession() as session, session.get(f"{url}/ready") as response:
            assert response.status == 200
        assert list((tmp_path / "s").glob("local-*.key"))
    finally:
        process.send_signal(number)
        _, errors = await process.communicate()
    assert process.returncode == 0, errors
    assert b"Traceback" not in errors
    assert not list((tmp_path / "s").glob("local-*.key"))


def test_no_credential_is_made_for_a_file_that_cant_be(shell: Shell, tmp_path: Path) -> None:
    code, out, err = shell("servers", "add", "Attic", "--out", str(tmp_path / "no" / "attic.json"))
    assert (code, out) == (1, "")
    assert "nothing was made" in err
    with closing(shell.credentials()) as database:
        assert not database.servers()


def test_no_file_is_left_for_a_credential_that_cant_be_made(shell: Shell, tmp_path: Path) -> None:
    code, _, _ = shell("devices", "add", "a" * 26, "Phone", "--out", str(tmp_path / "phone.json"))
    assert code == 1
    assert not (tmp_path / "phone.json").exists()


def test_a_credential_that_cant_be_written_is_revoked_and_nothing_else(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = shell.json("servers", "add", "Attic")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bridge_server.cli_parts.os.fsync", full)
    path = tmp_path / "more.json"
    code, out, err = shell("servers", "add", "Attic", "--server-id", home["server_id"], "--out", str(path))
    assert (code, out) == (1, "")
    assert "No space left on device" in err
    assert "is revoked" in err
    assert not path.exists()
    with closing(shell.credentials()) as database:
        first, second = database.servers()
    assert first.revoked_at is None
    assert second.revoked_at is not None


@pytest.mark.parametrize(
    "url", ["garbage", "hub.example", "ftp://hub.example", "http://", "https:///x", "http://a b", ""]
)
@pytest.mark.parametrize("words", [("servers", "add", "Attic"), ("devices", "add", "a" * 26, "Phone")])
def test_a_hub_url_that_is_none_is_refused(shell: Shell, words: tuple[str, ...], url: str) -> None:
    code, out, err = shell(*words, "--hub-url", url)
    assert (code, out) == (2, "")
    assert "--hub-url" in err
    assert not (shell.state / "hub.db").exists()


async def test_a_credential_names_the_hub_that_runs_on_this_database_wherever_it_listens(
    shell: Shell, tmp_path: Path
) -> None:
    async def url(*more: str) -> Any:
        return (await asyncio.to_thread(shell.json, "servers", "add", "Attic", *more))["hub_url"]

    assert await url() == "http://127.0.0.1:4000"
    async with Hub(Config(state_dir=shell.state, port=0)) as hub:
        assert await url() == hub.url
        path = tmp_path / "phone.json"
        assert await url("--out", str(path)) == json.loads(path.read_text())["hub_url"] == hub.url
        assert await url("--hub-url", "https://hub.example") == "https://hub.example"
        assert await url("--database", str(tmp_path / "other.db")) == "http://127.0.0.1:4000"
        async with Hub(Config(state_dir=shell.state, port=0)) as second:
            assert second.url != hub.url
            assert await url() == hub.url
        assert await url() == hub.url
        assert stat.S_IMODE((shell.state / "hub.db.address").stat().st_mode) == 0o600
    assert await url() == "http://127.0.0.1:4000"
    (shell.state / "hub.db.address").write_text("http://127.0.0.1:1\n")  # of a hub that was killed
    assert await url() == "http://127.0.0.1:4000"
    public = Config(state_dir=shell.state, port=0, public_url="https://hub.example", auto_enrol=False)
    async with Hub(public):
        assert await url() == "https://hub.example"


def test_serve_names_a_host_that_is_none(shell: Shell) -> None:
    code, out, err = shell("serve", "--host", "nosuch.invalid", "--port", "0")
    assert (code, out) == (1, "")
    assert "nosuch.invalid" in err
    assert "choose another --host" in err


@pytest.mark.parametrize("what", ["servers", "devices", "operators"])
def test_a_list_of_nothing_makes_no_database(shell: Shell, tmp_path: Path, what: str) -> None:
    code, out, _ = shell(what, "list", "--json", "--database", str(tmp_path / "new" / "hub.db"))
    assert (code, json.loads(out)) == (0, [])
    assert not (tmp_path / "new").exists()
