"""What `make run` starts: every event of the sample session through a drop, and an end that leaves nothing behind."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from deploy.sample_session import turn
from tests.support.listening import listening

ROOT = Path(__file__).resolve().parents[2]
EVENT = re.compile(r"\d\d:\d\d:\d\d ([a-z_]+) +session-balcony\b")


@asynccontextmanager
async def running(*options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "deploy.local",
        "--fast",
        "--port",
        "0",
        *options,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await process.wait()


async def read_until(process: asyncio.subprocess.Process, text: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or text not in lines[-1]:
        line = await process.stdout.readline()
        assert line, "\n".join(lines)
        lines.append(line.decode().rstrip("\n"))
    return lines


def pids(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.search(r"\(pid (\d+)\)", line))]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def run_directory(lines: list[str]) -> Path:
    found = re.search(r"forwards (\S+)/home\.db", "\n".join(lines))
    assert found
    return Path(found[1])


async def test_every_event_comes_once_in_order_through_the_drop() -> None:
    async with running("--once") as process:
        output, _ = await process.communicate()
    lines = output.decode().splitlines()
    assert process.returncode == 0, output.decode()

    expected = [event["type"] for _, event in turn(1)]
    shown = [found[1] for line in lines if (found := EVENT.match(line))]
    assert shown == expected

    lost = next(i for i, line in enumerate(lines) if "connection lost" in line)
    back = next(i for i, line in enumerate(lines) if "back: resumed behind" in line)
    assert lines[lost - 1].split()[1] == "tool_calls"
    before = sum(bool(EVENT.match(line)) for line in lines[:lost])
    caught_up = sum(bool(EVENT.match(line)) for line in lines[lost:back])
    assert caught_up > 0, "nothing happened while the app was away: the drop proves nothing"
    numbers = f"resumed behind event {before}, caught up {caught_up} to {before + caught_up}; nothing is missing"
    assert numbers in lines[back]
    assert f"{len(expected)} of {len(expected)} events, each once, in order" in lines[-1]

    assert len(pids(lines)) == 3
    assert not any(map(alive, pids(lines)))
    assert not run_directory(lines).exists()


@pytest.mark.parametrize(
    ("signals", "moment"),
    [
        ([signal.SIGINT], "listens on"),
        ([signal.SIGINT, signal.SIGINT], "connection lost"),
        ([signal.SIGTERM], "caught up"),
    ],
)
async def test_ctrl_c_leaves_no_process_no_file_and_no_traceback(signals: list[signal.Signals], moment: str) -> None:
    async with running() as process:
        lines = await read_until(process, moment)
        for number in signals:
            with suppress(ProcessLookupError):  # it may have ended before the second one
                os.killpg(process.pid, number)  # as a terminal does: the whole foreground group
        output, _ = await process.communicate()
    rest = output.decode().splitlines()
    assert process.returncode == 0, rest
    assert rest[-1].endswith("| stopped")
    assert "Traceback" not in output.decode()
    started = pids(lines + rest)
    assert started
    assert not any(map(alive, started))
    if moment != "listens on":
        assert not run_directory(lines).exists()


async def test_a_taken_port_is_said_and_gone_around() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(say_nothing) as port, running("--port", str(port)) as process:
        lines = await read_until(process, "listens on")
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert f"port {port} is taken" in lines[0]
    assert f":{port} " not in lines[1]
    assert process.returncode == 0
