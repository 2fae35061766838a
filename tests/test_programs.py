"""A test that lacks its program says so, and in CI it fails: a suite must not shrink in silence. How ours start."""

import asyncio
import os
import pty
import signal
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.support.programs import missing, require

ROOT = Path(__file__).resolve().parents[1]


def test_a_missing_program_skips_on_somebodys_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        require("no-such-program")


@pytest.mark.parametrize("value", ["true", "1", "True"])
def test_a_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CI", value)
    with pytest.raises(pytest.fail.Exception, match="a browser is not built"):
        missing("a browser is not built")


def test_a_program_is_found_by_its_path() -> None:
    assert require("sh").endswith("/sh")


@pytest.mark.parametrize("package", ["bridge_server", "bridge_client"])
async def test_ctrl_c_while_a_program_is_imported_ends_it_without_a_traceback(tmp_path: Path, package: str) -> None:
    # A library that never ends to be imported stands for the slow start of a cold machine.
    (tmp_path / "click.py").write_text("import signal\nprint('importing', flush=True)\nsignal.pause()\n")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", package, "serve"),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONSAFEPATH": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"importing\n"
    process.send_signal(signal.SIGINT)
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (-signal.SIGINT, b"")


@pytest.mark.parametrize("name", ["bridge-server", "bridge-client"])
def test_the_programs_start_where_ctrl_c_is_quiet(name: str) -> None:
    (script,) = (one for one in entry_points(group="console_scripts") if one.name == name)
    assert script.value == f"{name.replace('-', '_')}.__main__:main"


@pytest.mark.parametrize("package", ["bridge_server", "bridge_client"])
@pytest.mark.parametrize("columns", ["30", "200"])
def test_what_doctor_found_is_whole_on_a_narrow_terminal_and_in_a_pipe(
    tmp_path: Path, package: str, columns: str
) -> None:
    """A path that was found can be copied: no line of ours is broken to fit."""
    state = tmp_path / "a state directory whose name is longer than a narrow terminal is wide" / "state"
    state.mkdir(parents=True, mode=0o700)
    words = (sys.executable, "-m", package, "doctor", "--state-dir", str(state))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": columns,
        "SESSION_BRIDGE_HUB_URL": "http://127.0.0.1:1",
    }
    piped = subprocess.run(
        words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    rows = [line.split("\t") for line in piped.stdout.splitlines()]
    assert {row[0] for row in rows} <= {"ok", "warning", "failed"}
    assert any(str(state) in row[2] for row in rows)
    ours, theirs = pty.openpty()
    shown = subprocess.run(words, cwd=ROOT, env=environment, stdout=theirs, stderr=subprocess.DEVNULL)
    assert shown.returncode == piped.returncode
    os.write(theirs, b"the end\n")
    with open(ours, encoding="utf-8") as terminal:
        lines = list(iter(lambda: terminal.readline().rstrip(), "the end"))
    os.close(theirs)
    assert any(str(state) in line for line in lines)
    assert len(lines) > len(rows) or columns == "200"
