"""The home's commands as processes of their own, with what they print."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


async def run(*words: str) -> tuple[int, str, str]:
    """One command to its end: exit code, output, errors."""
    process = await _start(*words)
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@asynccontextmanager
async def serving(*words: str, **settings: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, dict[str, Any]]]:
    """`serve` or `forward`, and the line of JSON it prints once it forwards; ended with SIGTERM if it still runs.

    `settings` are those of its environment, such as `RETAIN_DAYS="7"`.
    """
    process = await _start(*words, "--json", **settings)
    try:
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            assert process.stderr is not None
            raise AssertionError((await process.stderr.read()).decode())
        yield process, json.loads(line)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.communicate()


async def _start(*words: str, **settings: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SESSION_BRIDGE_")}
    environment |= {f"SESSION_BRIDGE_{name}": value for name, value in settings.items()}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge_client.cli", *words),
        cwd=ROOT,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
