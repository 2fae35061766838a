"""Starts the programs of `systems/`, the floor among them, each pinned to the server's core."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks import dialects
from benchmarks.generator import Dialect

ROOT: Final = Path(__file__).parent.parent
START_SECONDS: Final = 20.0

CORES: Final = sorted(os.sched_getaffinity(0))
SERVER_CORE: Final = CORES[0]
GENERATOR_CORE: Final = CORES[-1]


class System(NamedTuple):
    """One thing to measure: what to run (the number of groups is appended), and how to speak to it."""

    name: str
    title: str
    command: tuple[str, ...]
    dialect: Callable[[Mapping[str, Any]], Dialect]


def program(name: str) -> tuple[str, ...]:
    """The command of one of the programs in `systems/`."""
    return (sys.executable, "-m", f"benchmarks.systems.{name}")


HUB: Final = System("hub", "Session Bridge hub", program("hub"), dialects.hub)
OTHERS: Final = (
    System("websockets", "websockets, broadcast()", program("websockets_hub"), dialects.plain),
    System("socketio", "python-socketio, rooms", program("socketio_hub"), dialects.socketio),
    System("channels", "Django Channels, in-memory layer", program("channels_hub"), dialects.plain),
)


def build_floor(directory: Path) -> Path:
    """Compile floor.c. Raises RuntimeError when there is no C compiler, or it fails."""
    built = directory / "floor"
    source = Path(__file__).with_name("floor.c")
    try:
        subprocess.run(["cc", "-O2", "-Wall", "-o", built, source], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError("the floor needs a C compiler named cc (Debian: apt install gcc)") from None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"floor.c does not compile: {error.stderr}") from None
    return built


def floor(built: Path, mode: str) -> System:
    """The floor in one of its modes: send, writev, join."""
    return System("floor", f"floor ({mode})", (str(built), mode), dialects.floor)


class Running(NamedTuple):
    """A server at work: `ready` is what it printed."""

    port: int
    pid: int
    dialect: Dialect
    ready: Mapping[str, Any]


@asynccontextmanager
async def running(system: System, groups: int = 1) -> AsyncIterator[Running]:
    """Run a system on the server's core; ended at the end. Raises RuntimeError when it does not start."""
    process = await start((*system.command, str(groups)), cores=[SERVER_CORE])
    try:
        ready: dict[str, Any] = {}
        while "port" not in ready:
            ready |= await line_of(process, START_SECONDS)
        yield Running(ready["port"], process.pid, system.dialect(ready), ready)
    finally:
        await end(process)


async def start(command: tuple[str, ...], *, cores: Collection[int]) -> asyncio.subprocess.Process:
    """Start one program in the repository, on these cores."""
    return await asyncio.create_subprocess_exec(
        *command,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


async def line_of(process: asyncio.subprocess.Process, seconds: float) -> Any:
    """The next line of JSON a program prints. Raises RuntimeError when none comes."""
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), seconds)
    if not line:
        raise RuntimeError(f"a program under test ended at once (status {await process.wait()}); it says why above")
    return json.loads(line)


async def end(process: asyncio.subprocess.Process) -> None:
    """End a program, in order if it can, and wait for it."""
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 3)
        except TimeoutError:
            process.kill()
    await process.wait()
