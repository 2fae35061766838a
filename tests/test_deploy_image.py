"""The image of deploy/Dockerfile, as far as there is no Docker: its parts exist, and what can be run of it is run."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from bridge_server.app import Hub
from tests.support.deployed import (
    DEPLOY,
    PROGRAMS,
    SECRET,
    checked_command,
    checked_settings,
    environment,
    instructions,
    sources,
    stages,
)
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.programs import missing


def test_the_image_runs_as_a_user_of_its_own_and_holds_no_secret() -> None:
    final = dict(stages()[-1])
    user, _, group = final["USER"].partition(":")
    assert int(user) >= 1000
    assert int(group) >= 1000
    names = [name for name, _ in stages()[-1]]
    assert "COPY --from=build" in f"COPY {final['COPY']}"
    assert names.index("RUN") < names.index("USER") < names.index("ENTRYPOINT")
    variables = environment()
    assert [name for name in variables if SECRET.search(name)] == []
    assert not [rest for name, rest in instructions() if name == "ARG" and SECRET.search(rest)]
    config = checked_settings("bridge-server", variables)
    assert config.host == "0.0.0.0"
    assert not config.local_enrolment
    assert str(config.state_dir) == final["VOLUME"]
    assert str(config.port) == final["EXPOSE"]


def test_the_image_starts_the_hub() -> None:
    final = dict(stages()[-1])
    checked_command(json.loads(final["ENTRYPOINT"]) + json.loads(final["CMD"]))
    assert getattr(signal, final["STOPSIGNAL"]) == signal.SIGTERM


def test_the_build_sees_what_it_copies_and_nothing_else() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert {line[1:] for line in rules if line.startswith("!")} == set(sources())
    assert [source for source in sources() if not (ROOT / source).exists()] == []


async def health(port: int) -> int:
    (rest,) = [rest for name, rest in stages()[-1] if name == "HEALTHCHECK"]
    command = json.loads(rest.partition("CMD ")[2])
    assert command[0] == "python"
    assert ":4000/ready" in command[-1]
    command = [sys.executable, *command[1:-1], command[-1].replace(":4000/", f":{port}/")]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    await process.communicate()
    return int(process.returncode or 0)


async def test_the_health_check_knows_a_hub_that_is_well_from_one_that_is_not(hub: Hub) -> None:
    assert await health(hub.port) == 0
    assert await health(free_port()) != 0


# The wheel: what `pip install .` makes of the files that the build stage has.


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs in a fresh environment, into which the wheel was installed.

    The wheel is built from what the Dockerfile copies. What it depends on is not downloaded again: the environment
    finds it where this one has it.
    """
    if shutil.which("hatchling", path=str(Path(sys.executable).parent)) is None:
        missing("hatchling is not installed: `make test` builds an environment that has it")
    folder = tmp_path_factory.mktemp("wheel")
    tree = folder / "src"
    tree.mkdir()
    for source in sources():
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        (tree / source).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / source, tree / source)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, tree)
    run(sys.executable, "-m", "venv", folder / "env")
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    (wheel,) = folder.glob("*.whl")
    run(folder / "env" / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "env" / "bin"


def run(*command: str | Path, **options: Any) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, stdout=PIPE, stderr=STDOUT, text=True, timeout=110, env=clean, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_wheel_has_the_programs(installed: Path, program: str, tmp_path: Path) -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert run(installed / program, "--version", cwd=tmp_path).split()[-1] == version[1]
    assert f"Usage: {program}" in run(installed / program, "--help", cwd=tmp_path)


def test_the_wheel_holds_every_file_of_the_packages(installed: Path, tmp_path: Path) -> None:
    code = "import bridge_server, pathlib; print(pathlib.Path(bridge_server.__file__).parent.parent)"
    site = Path(run(installed / "python", "-c", code, cwd=tmp_path).strip())
    assert site.is_relative_to(installed.parent)
    for package in ("protocol", "bridge_server", "bridge_client"):
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (site / path.relative_to(ROOT)).read_bytes() == path.read_bytes()


def test_the_image_pins_everything_that_the_wheel_needs() -> None:
    """By hash (tests/test_hygiene.py), each at the version that the suite runs on."""

    def pins(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / name).read_text()
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))

    run_pins = pins("run.txt")
    assert run_pins.items() <= pins("dev.txt").items()
    text = (ROOT / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert listed
    todo = [Requirement(line) for line in re.findall(r'^    "(.*)",$', listed[1], re.MULTILINE)]
    oldest = {"extra": "", "python_version": "3.11", "python_full_version": "3.11.0"}  # later ones need no more
    seen = set()
    while todo:
        requirement = todo.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if (requirement.marker is None or requirement.marker.evaluate(oldest)) and name not in seen:
            seen.add(name)
            assert name in run_pins
            assert requirement.specifier.contains(run_pins[name])
            todo += [Requirement(text) for text in metadata.requires(name) or ()]
    assert seen == run_pins.keys()
    lines = [rest for name, rest in stages()[0] if name == "RUN"]
    assert "--require-hashes --no-deps -r requirements/run.txt" in lines[0]
    assert "pip install --no-cache-dir --no-deps ." in lines[1]


@pytest.mark.requires("unshare", "setpriv", "mount")
async def test_the_hub_needs_no_writable_system_and_no_rights(installed: Path, tmp_path: Path) -> None:
    """Read-only root, no capabilities, no new privileges, as deploy/compose.yaml has it: only its state is written."""
    if os.geteuid() != 0:
        missing("a read-only root is made by root only")
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    port = free_port()
    script = f"""set -e
mount --bind {state} {state}
mount -o remount,bind,ro /
if touch /var/read-only-or-not; then exit 9; fi
cd {state}
exec setpriv --no-new-privs --bounding-set=-all --inh-caps=-all \\
    {installed}/bridge-server serve --port {port} --state-dir {state}"""
    variables = environment() | {"PATH": os.environ["PATH"], "SESSION_BRIDGE_HOST": "127.0.0.1"}
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", script),
        env=variables,
        stdout=PIPE,
        stderr=STDOUT,
    )
    try:
        assert process.stdout is not None
        said = b""
        while b"listens on" not in said:
            line = await asyncio.wait_for(process.stdout.readline(), 60)
            said += line
            if not line:
                if b"not permitted" in said or b"denied" in said:
                    pytest.skip(f"this process may not make namespaces: {said.decode().strip()}")
                raise AssertionError(said.decode())
        assert await health(port) == 0
        process.terminate()
        await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (state / "hub.db").exists()
