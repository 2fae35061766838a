"""Our programs as real processes: to be killed, frozen and measured."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]

PATIENCE = 60.0
"""Seconds to wait for what must happen: a program's start is a second of computing, on a machine that others fill."""

# A client that backs off as it does outside would be away for up to a minute after a few faults: only the length of
# its waits is changed, nothing of what it does.
IMPATIENT = "import random; random.SystemRandom.uniform = lambda self, low, high: min(high, 0.2) * self.random()\n"


async def until(true: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
    """Wait until `true()`; fails saying `what` did not happen."""
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, f"not within {patience:.0f} s: {what}"
        await asyncio.sleep(0.01)


class Program:
    """One process of ours. Its standard output and error go into one file. Ends with the context."""

    def __init__(self, code: str, *args: str, output: Path, environment: Mapping[str, str]) -> None:
        self._command = [sys.executable, "-c", code, *args]
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SESSION_BRIDGE_")
        } | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment}
        self.output = output
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:  # half started, it would run on beside other tests
            await self._end()
            raise
        return self

    async def __aexit__(self, *ending: object) -> None:
        await self._end()

    async def _end(self) -> None:
        if self.running:
            self.send(signal.SIGCONT)
            await self.kill()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.returncode

    @property
    def text(self) -> str:
        """All it has written."""
        return self.output.read_text(errors="replace")

    async def start(self) -> None:
        """Start it; what it writes is appended to the file of the run before."""
        assert not self.running, "it runs already"
        with self.output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self.output.parent,
                limit=1 << 20,
            )

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> None:
        """End it as a power cut would."""
        self.send(signal.SIGKILL)
        await self.ended()

    async def ended(self, patience: float = PATIENCE) -> int:
        """Wait for its end; the exit code."""
        assert self._process is not None
        async with asyncio.timeout(patience):
            return await self._process.wait()

    async def feed(self, data: bytes) -> None:
        """Write to its standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        await self._process.stdin.drain()

    def feed_end(self) -> None:
        """Close its standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()

    def resident(self) -> int:
        """Bytes of memory it occupies."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return 1024 * sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


class HubProgram(Program):
    """`bridge-server serve` on one port of 127.0.0.1, state in `folder`. Listens when `start` returns."""

    def __init__(self, folder: Path, port: int, *, code: str = "", **settings: object) -> None:
        super().__init__(
            code + "from bridge_server.cli import main; main()",
            *("serve", "--json", "--port", str(port), "--state-dir", str(folder)),
            output=folder.parent / f"{folder.name}.log",
            environment=_environment(settings),
        )
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    async def start(self) -> None:
        said = len(self.text) if self.output.exists() else 0
        await super().start()
        # Its port answers before everything else stands: the key of local enrolment is written after it.
        listens = f'{{"url": "{self.url}"'
        await until(lambda: not self.running or listens in self.text[said:], "the hub listens")
        assert self.running, f"the hub ended: {self.text[-2000:]}"


class HomeProgram(Program):
    """`bridge-client serve` over the store and with the credential in `folder`; impatient."""

    def __init__(self, folder: Path, name: str = "home", *, code: str = "", **settings: object) -> None:
        super().__init__(
            IMPATIENT + code + "from bridge_client.cli import main; main()",
            *("serve", "--json", "--api-port", "0", "--state-dir", str(folder)),
            output=folder.parent / f"{folder.name}-{name}.log",
            environment=_environment({"instance": name, "heartbeat": 1.0, **settings}),
        )


class IngestProgram(Program):
    """`bridge-client ingest -`: publishes each line of its standard input."""

    def __init__(self, folder: Path, name: str = "ingest") -> None:
        super().__init__(
            "from bridge_client.cli import main; main()",
            *("ingest", "-", "--session", name, "--state-dir", str(folder), "--json"),
            output=folder.parent / f"{folder.name}-{name}.log",
            environment={},
        )


def cursor_on_disk(folder: Path) -> int | None:
    """The cursor that a home with its state in `folder` would start with."""
    try:
        return int(json.loads((folder / "home.db.cursor").read_text())["event_id"])
    except FileNotFoundError:
        return None


def _environment(settings: Mapping[str, object]) -> dict[str, str]:
    return {f"SESSION_BRIDGE_{name.upper()}": str(value) for name, value in settings.items()}
