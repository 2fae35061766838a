"""The home's command line: what it prints, what it returns, and that an error is one sentence."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_client import cli, keys, logs
from bridge_client.keys import Credential

ROOT = Path(__file__).resolve().parents[2]
SERVER_ID = "abcdefghijklmnopqrstuvwx23"
SECRET = "sbs_" + "s" * 43
NOWHERE = "http://127.0.0.1:1"


class Shell:
    """Runs commands of `bridge-client` in this process, on a state directory of its own."""

    def __init__(self, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.state = state
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["bridge-client", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        assert SECRET not in out + err
        return int(ended.value.code or 0), out, err


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    # `serve` and `watch` set up logging for their process, which here is the test runner's.
    monkeypatch.setattr(logs, "set_up", lambda *_args, **_options: None)
    for name in [name for name in os.environ if name.startswith("SESSION_BRIDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SESSION_BRIDGE_API_PORT", "0")
    monkeypatch.setenv("SESSION_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    return Shell(tmp_path / "state", monkeypatch, capsys)


def test_ingest_reports_each_file_and_each_broken_line(shell: Shell, tmp_path: Path) -> None:
    lines, document = tmp_path / "lines.jsonl", tmp_path / "document.json"
    lines.write_text('{"type":"a"}\n{"broken\n[1]\n')
    document.write_text('{\n  "type": "b"\n}\n')
    code, out, err = shell("ingest", str(lines), str(document), "--session", "s")
    assert code == 4, "what was skipped must not look like success"
    assert out.splitlines() == [f"{lines}: 2 published, 1 skipped", f"{document}: 1 published, 0 skipped"]
    assert err.startswith(f"{lines}:2: ")
    code, out, _ = shell("ingest", str(document), "--json")
    assert (code, json.loads(out)) == (0, {"file": str(document), "published": 1, "skipped": 0})
    code, out, _ = shell("status", "--json")
    facts = json.loads(out)
    assert (code, facts["head_id"], facts["acked_id"], facts["waiting"]) == (0, "4", None, 4)


def test_ingest_reads_standard_input(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "input").write_text('data: {"type":"a"}\n\ndata: [DONE]\n\n')
    with (tmp_path / "input").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        code, out, _ = shell("ingest", "-")
    assert (code, out) == (0, "-: 1 published, 0 skipped\n")


def test_status_of_a_home_that_never_ran(shell: Shell) -> None:
    code, out, _ = shell("status", "--hub-url", NOWHERE)
    assert code == 0
    for said in ("no store yet", "no event yet", "not enrolled", "can't be reached"):
        assert said in out
    assert not shell.state.exists(), "looking makes nothing"


def test_a_credential_goes_to_its_own_hub_only(shell: Shell) -> None:
    keys.save(shell.state / "home-credential.json", Credential("https://hub.example", SERVER_ID, SECRET))
    for command in ("serve", "status"):
        code, out, err = shell(command, "--hub-url", NOWHERE)
        assert (code, out) == (1, "")
        assert f"is for the hub at https://hub.example, not for {NOWHERE}" in err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("serve", "--hub-url", "https://hub.example"), 1, "not on this machine"),
        (("serve", "--hub-url", "hub.example"), 2, "--hub-url"),
        (("serve", "--store", "/dev/null/x"), 1, "/dev/null/x"),
        (
            ("ingest", "/nowhere/at/all"),
            1,
            "/nowhere/at/all can't be read (No such file or directory); nothing was published",
        ),
        (("ingest", str(ROOT / "README.md"), "/nowhere"), 1, "nothing was published: correct the name"),
        (("ingest",), 2, "FILES"),
        (("watch", "--since", "007"), 2, "--since"),
        (("watch", "--epoch", "e"), 2, "--epoch goes with --since"),
        (("watch",), 1, "bridge-server devices add"),
        (("watch",), 1, "At home `bridge-client pair` shows a link; then, here: bridge-client redeem LINK"),
        (("status", "--store", f"{ROOT}/README.md/x"), 1, "README.md/x"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_an_error_says_what_to_do(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    ended, out, err = shell(*words)
    assert (ended, out) == (code, "")
    assert said in err


@pytest.mark.parametrize(
    ("flag", "variable", "level"), [(None, None, "WARNING"), (None, "DEBUG", "DEBUG"), ("ERROR", "DEBUG", "ERROR")]
)
def test_watch_logs_from_warning_on_unless_somebody_chose_a_level(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, flag: str | None, variable: str | None, level: str
) -> None:
    levels: list[str] = []
    monkeypatch.setattr(logs, "set_up", lambda chosen, *_args, **_options: levels.append(chosen))
    if variable:
        monkeypatch.setenv("SESSION_BRIDGE_LOG_LEVEL", variable)
    shell("watch", *(("--log-level", flag) if flag else ()))
    assert levels == [level]


def test_an_app_needs_a_credential_of_its_own(shell: Shell) -> None:
    path = shell.state / "home.json"
    keys.save(path, Credential(NOWHERE, SERVER_ID, SECRET))
    code, _, err = shell("watch", "--credential-file", str(path))
    assert code == 1
    assert "bridge-server devices add" in err
    path.chmod(0o644)
    code, _, err = shell("watch", "--credential-file", str(path))
    assert code == 1
    assert f"chmod 600 {path}" in err


@pytest.mark.parametrize(
    "words", [(), ("--help",), ("serve", "-h"), ("ingest", "-h"), ("watch", "-h"), ("status", "-h")]
)
def test_help_teaches_and_names_the_exit_codes(shell: Shell, words: tuple[str, ...]) -> None:
    code, out, err = shell(*words)
    assert code == (0 if words else 2)
    assert "Exit codes" in out + err


@asynccontextmanager
async def running(module: str, *words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *words),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()  # to the end of its pipes, also where it ended by itself


async def line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    text = await process.stdout.readline()
    assert text, await process.communicate()
    return text


async def done(module: str, *words: str) -> bytes:
    async with running(module, *words) as process:
        output, errors = await process.communicate()
        assert process.returncode == 0, errors
        return output


async def test_serve_ingest_and_watch_carry_a_file_to_an_app_and_revocation_ends_it(tmp_path: Path) -> None:
    state, source, app_file = str(tmp_path / "state"), tmp_path / "in.jsonl", str(tmp_path / "app.json")
    values = ['{"type":"a","n":1.0}', '{"type":"b","text":"é\\u2028"}', "[1, 2]"]
    source.write_text("\n".join(values))
    hub_words = ("serve", "--port", "0", "--state-dir", state, "--json")
    async with running("bridge_server.cli", *hub_words) as hub:
        url = json.loads(await line(hub))["url"]
        home_words = ("serve", "--hub-url", url, "--state-dir", state, "--api-port", "0", "--json")
        async with running("bridge_client.cli", *home_words) as home:
            about: dict[str, Any] = json.loads(await line(home))
            await done("bridge_client.cli", "ingest", str(source), "--state-dir", state, "--session", "s")
            made = ("devices", "add", about["server_id"], "Phone", "--hub-url", url, "--out", app_file)
            await done("bridge_server.cli", *made, "--state-dir", state)
            watching = ("watch", "--credential-file", app_file, "--since", "0", "--json", "--state-dir", state)
            async with running("bridge_client.cli", *watching) as watch:
                received = [await line(watch) for _ in values]
                watch.send_signal(signal.SIGINT)
                await watch.communicate()
                assert watch.returncode == 0
            for number, (got, value) in enumerate(zip(received, values, strict=True), 1):
                assert got.startswith(b'{"event_id":"%d",' % number)
                assert got.endswith(b'"data":%b}\n' % value.encode())

            await done("bridge_server.cli", "revoke", about["server_id"], "--yes", "--state-dir", state)
            _, errors = await home.communicate()
            assert home.returncode == 3
            assert errors.decode().splitlines()[-1].startswith("Error: the credential is revoked")


def test_help_costs_no_library_that_only_commands_need() -> None:
    code = (
        "import sys; from bridge_client import cli; cli.cli.main(['serve', '--help'], standalone_mode=False);"
        " cli.cli.main(['--help'], standalone_mode=False); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "bridge_client.cli_home" in loaded
    assert loaded.isdisjoint({"aiohttp.client", "websockets.asyncio", "tenacity", "bridge_client.forwarder", "segno"})
