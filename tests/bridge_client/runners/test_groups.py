"""Programs that outlive a home that was killed: the next home ends them, and nobody else."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from bridge_client import app
from bridge_client.clock import SystemClock
from bridge_client.config import Config
from bridge_client.runners import groups
from bridge_client.runners.groups import ProcessGroups, began
from tests.bridge_client.runners.running import answer
from tests.bridge_client.runners.test_command import gone

HOME = """
import asyncio, sys
from pathlib import Path
from bridge_client import app
from bridge_client.config import Config
from tests.bridge_client.runners.running import answer
config = Config(state_dir=Path(sys.argv[1]), runner="command", runner_command=sys.argv[2])
asyncio.run(answer(app.runner(config), "hi"))
"""


async def left_behind(folder: Path, script: str, count: int) -> list[int]:
    """The processes that a runner's command is, and has begun, once their home has been killed."""
    told = folder / "pids"
    told.touch()
    command = f"/bin/sh -c '{script}' agent {told}"
    home = await asyncio.create_subprocess_exec(sys.executable, "-c", HOME, str(folder / "state"), command)
    try:
        programs = Config(state_dir=folder / "state").groups_path
        while len(told.read_text().split()) < count or not any(path.read_text() for path in programs.glob("*")):
            assert home.returncode is None
            await asyncio.sleep(0.01)
    finally:
        home.kill()
        await home.wait()
    return [int(pid) for pid in told.read_text().split()]


@pytest.mark.parametrize("first", ["", 'trap "" TERM; '])
async def test_a_killed_home_s_command_is_ended_by_the_next_home(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GRACE", 0.2)
    pids = await left_behind(tmp_path, first + 'sleep 600 & echo $$ $! >> "$1"; while :; do sleep 600; done', 2)
    try:
        assert all(began(pid) for pid in pids)
        config = Config(state_dir=tmp_path / "state", api=False)
        async with app.open_source(config) as opened, app.answering(config, opened):
            async with asyncio.timeout(20):
                await asyncio.gather(*map(gone, pids))
        assert list(config.groups_path.iterdir()) == []
    finally:
        for pid in pids:
            if began(pid):
                os.kill(pid, signal.SIGKILL)


async def test_a_process_that_has_the_number_since_is_let_alone(tmp_path: Path) -> None:
    other = await asyncio.create_subprocess_exec("/bin/sleep", "600", start_new_session=True)
    try:
        (tmp_path / str(other.pid)).write_text("another time")
        for name in ("0", "1", "-1", "x", str(os.getpgrp())):
            (tmp_path / name).write_text(began(os.getpgrp()) or "")
        assert await ProcessGroups(tmp_path).end_left(SystemClock()) == 0
        assert list(tmp_path.iterdir()) == []
        assert began(other.pid)
    finally:
        other.kill()
        await other.wait()


async def test_a_command_that_has_ended_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    command = f"/bin/sh -c 'until ls {folder} | grep .; do sleep 0.01; done'"
    config = Config(state_dir=tmp_path, runner="command", runner_command=command)
    runner = app.runner(config)
    assert runner is not None
    answered = await answer(runner, "hi")
    assert answered.text.strip().isdecimal()  # it was remembered while it ran
    assert list(folder.iterdir()) == []
