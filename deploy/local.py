"""`make run`: a hub with its viewer, a home, a sample agent and an app on this machine, over loopback, until Ctrl-C.

Hub, home and agent are processes of their own, started by their command lines as anybody would. The app runs in this
process, because its way to the hub has to be cut: once in each turn of the sample session it loses its connection for a
few seconds, and the lines after that show that nothing is missing.

    python -m deploy.local [--port N] [--once] [--fast]

Everything is kept in a fresh directory below `.run/`, which is removed at the end unless something went wrong.
"""

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from bridge_client import app, keys, logs, pairing
from bridge_client.app_client import AppClient, CaughtUp, Event, Gap, Item, Place
from bridge_client.config import Config
from bridge_client.dial import WebSocketDialler, Wire
from bridge_client.keys import Credential
from bridge_client.render import harmless, render

ROOT = Path(__file__).resolve().parent.parent

START_SECONDS = 20.0
STOP_SECONDS = 8.0
TUNNEL_SECONDS = 4.0


class Failed(Exception):
    """The demonstration can't go on; the text says why and where to look."""


class Child:
    """One of our processes, in a session of its own: Ctrl-C reaches only the parent, which stops them in order."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @classmethod
    async def start(cls, name: str, run: Path, *command: str) -> "Child":
        log = run / f"{name}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *command,
                cwd=ROOT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        return cls(name, process, log)

    async def first_line(self) -> dict[str, Any]:
        """The JSON object the process prints once it is ready. Raises Failed when it ends or takes too long instead."""
        assert self.process.stdout is not None, "started with a pipe"
        try:
            async with asyncio.timeout(START_SECONDS):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise Failed(f"the {self.name} is not ready after {START_SECONDS:.0f} s; see {self.log}") from None
        if not line:
            await self.process.wait()
            raise Failed(f"the {self.name} ended at once: {self.last_words()}")
        value: dict[str, Any] = json.loads(line)
        return value

    async def failure(self) -> None:
        """Wait for the process to end although nobody stopped it. Raises Failed."""
        code = await self.process.wait()
        raise Failed(f"the {self.name} ended with exit code {code}: {self.last_words()}")

    async def stop(self) -> None:
        """Ask the process to end, wait for it, and end it by force if it does not."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            # Not `asyncio.timeout`: in a task that is being cancelled it raises CancelledError under Python 3.11.2.
            ended = asyncio.create_task(self.process.wait())
            await asyncio.wait([ended], timeout=STOP_SECONDS)
            if not ended.done():
                self.process.kill()
            await ended

    def last_words(self) -> str:
        lines = self.log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else f"it said nothing in {self.log}"


class Tunnel:
    """A way to the hub that can be lost: while the phone is in the tunnel nothing gets through, a new dial included."""

    def __init__(self) -> None:
        self._dial = WebSocketDialler()
        self._light = asyncio.Event()
        self._light.set()
        self._wire: Wire | None = None

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Wire:
        await self._light.wait()
        self._wire = await self._dial(url, headers)
        return self._wire

    def enter(self, seconds: float) -> None:
        """Lose the connection now, without a goodbye, and get none for that long."""
        self._light.clear()
        if self._wire is not None:
            self._wire.abort()
        asyncio.get_running_loop().call_later(seconds, self._light.set)


class Impatient(random.Random):
    """Waits no longer than a second: the back-off of a socket lost every few seconds would soon outlast the show."""

    def uniform(self, a: float, b: float) -> float:
        return super().uniform(a, min(b, 1.0))


class Phone:
    """The app: prints a line per event, drives into the tunnel once in each request, and keeps count."""

    def __init__(self, credential: Credential, tunnel_seconds: float) -> None:
        self._tunnel = Tunnel()
        self._tunnel_seconds = tunnel_seconds
        self._client = AppClient(
            credential.hub_url, credential.credential, credential.server_id, dial=self._tunnel, rng=Impatient()
        )
        self._left_at: Place | None = None
        self._missed = 0
        self._drops = 0
        self.received: list[tuple[int, bytes]] = []
        self.gaps = 0
        self.joined = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Receive until cancelled."""
        async with self._client as client:
            async for item in client:
                print(render(item, time.time(), width=shutil.get_terminal_size((120, 24)).columns), flush=True)
                self._note(item)
                self._news.set()

    async def reached(self, event_id: int) -> None:
        """Wait until the event `event_id`, or a later one, has come, and the app is told that it has caught up."""
        while not self.received or self.received[-1][0] < event_id or self._left_at is not None:
            self._news.clear()
            await self._news.wait()

    def _note(self, item: Item) -> None:
        match item:
            case Event(event_id, kind, _, data):
                self.received.append((event_id, data))
                if self._left_at is not None:
                    self._missed += 1
                elif kind == "tool_calls":
                    self._left_at, self._missed, self._drops = self._client.cursor, 0, self._drops + 1
                    assert self._left_at is not None, "an event was received"
                    say("app", f"connection lost after event {event_id}, none for {self._tunnel_seconds:g} s")
                    self._tunnel.enter(self._tunnel_seconds)
            case Gap():
                self.gaps += 1
            case CaughtUp(to_id):
                self.joined.set()
                if self._left_at is not None:
                    verdict = "nothing is missing" if self.gaps == 0 else "EVENTS ARE MISSING (see the gap above)"
                    left = self._left_at.event_id
                    say("app", f"back: resumed behind event {left}, caught up {self._missed} to {to_id}; {verdict}")
                    self._left_at = None

    def judge(self, stored: list[tuple[int, bytes]]) -> str:
        """Compare with what the store holds. Raises Failed unless each event came once, in order, byte for byte."""
        if self.received != stored or self.gaps:
            ids, there = [row[0] for row in self.received], [row[0] for row in stored]
            raise Failed(f"{self.gaps} gaps; the store holds events {there}, the app received {ids}")
        drops = f"{self._drops} drop{'s' if self._drops != 1 else ''}"
        return f"{len(stored)} of {len(stored)} events, each once, in order, byte for byte, over {drops}"


def say(who: str, text: str) -> None:
    print(f"{who:>6} | {text}", flush=True)


def choose_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else 0: any free one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            say("hub", f"port {wanted} is taken by another program, so the hub takes a free one")
            return 0
    return wanted


@contextlib.asynccontextmanager
async def started(children: list[Child], name: str, run: Path, *command: str) -> AsyncIterator[Child]:
    child = await Child.start(name, run, *command)
    children.append(child)
    try:
        yield child
    finally:
        await child.stop()


async def demonstrate(run: Path, port: int, once: bool, fast: bool) -> None:
    """Start everything, show it, stop it in the order in which it depends on each other."""
    state, children = str(run), list[Child]()
    async with contextlib.AsyncExitStack() as stack:
        serve_hub = ("bridge_server.cli", "serve", "--port", str(choose_port(port)), "--state-dir", state, "--json")
        hub = await stack.enter_async_context(started(children, "hub", run, *serve_hub))
        url = (await hub.first_line())["url"]
        say("hub", f"listens on {url} (pid {hub.process.pid})")

        serve_home = ("bridge_client.cli", "serve", "--hub-url", url, "--state-dir", state, "--name", "Sample home")
        home = await stack.enter_async_context(started(children, "home", run, *serve_home, "--api-port", "0", "--json"))
        about = await home.first_line()
        say("home", f"{about['server_id']} enrolled by key file, forwards {about['store']} (pid {home.process.pid})")

        first_code = asyncio.Event()
        inviting = asyncio.create_task(invite(Config(state_dir=run), first_code))
        stack.push_async_callback(cancelled, inviting)
        await first_of(first_code.wait(), inviting, *(child.failure() for child in children))

        credential = await make_app(run, url, about["server_id"])
        phone = Phone(credential, TUNNEL_SECONDS / (8 if fast else 1))
        receiving = asyncio.create_task(phone.run())
        stack.push_async_callback(cancelled, receiving)
        await first_of(phone.joined.wait(), receiving, *(child.failure() for child in children))
        say("app", f"{credential.device_id} has joined; one line per event from here on")

        store = Path(about["store"])
        options = [*(["--once"] if once else []), *(["--fast"] if fast else [])]
        agent_command = ("deploy.sample_session", "--store", str(store), *options)
        agent = await stack.enter_async_context(started(children, "agent", run, *agent_command))
        say("agent", f"publishes a sample session (pid {agent.process.pid}); Ctrl-C ends all of it")
        await first_of(all_received(agent, phone), receiving, hub.failure(), home.failure())
        async with app.open_store(Config(store=store)) as events:
            stored = [(event.event_id, event.data) for event in await events.list(limit=1_000_000)]
        say("app", phone.judge(stored))


async def invite(config: Config, shown: asyncio.Event) -> None:
    """Show a pairing code of the home, and another whenever one was used or ended, until nobody came for an hour."""
    kept = keys.load(config.credential_path)
    if kept is None:
        raise Failed(f"the home left no credential in {config.credential_path}")
    async with aiohttp.ClientSession() as session:
        came = True
        while came:
            came = False
            async for news in pairing.invitations(pairing.HomeApi(kept, session)):
                if isinstance(news, pairing.Invitation):
                    say("viewer", f"is at {kept.hub_url}/ and opens with the code {news.code}, or by this link:")
                    say("viewer", news.link)
                    print(news.qr, flush=True)
                    shown.set()
                else:
                    say("viewer", f"paired as {harmless(news.name)}; another may come:")
                    came = True


async def make_app(run: Path, url: str, server_id: str) -> Credential:
    """Make the app's credential by the hub's command line."""
    path = run / "app-credential.json"
    options = ("--hub-url", url, "--state-dir", str(run), "--out", str(path))
    maker = await Child.start("devices", run, "bridge_server.cli", "devices", "add", server_id, "Sample app", *options)
    try:
        await maker.process.communicate()
    finally:
        await maker.stop()
    credential = keys.load(path)
    if credential is None:
        raise Failed(f"no credential for the app was made: {maker.last_words()}")
    return credential


async def all_received(agent: Child, phone: Phone) -> None:
    """Wait for the end of the agent's session, and until the app has its last event."""
    output, _ = await agent.process.communicate()
    if agent.process.returncode != 0:
        await agent.failure()
    await phone.reached(int(output))


async def first_of(*works: Any) -> None:
    """Wait for the first of several to end; the others are cancelled, unless they are tasks already running."""
    tasks = [asyncio.ensure_future(work) for work in works]
    own = [task for task, work in zip(tasks, works, strict=True) if task is not work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
    for task in done:
        task.result()


async def cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until_signal(work: "asyncio.Task[None]") -> None:
    """Let `work` run; SIGINT, SIGTERM or SIGHUP ends it in order, once: a second must not disturb the clearing up."""
    asked = False

    def end() -> None:
        nonlocal asked
        if not asked:
            asked = True
            work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end)
    await work


async def main_async(run: Path, options: argparse.Namespace) -> None:
    await until_signal(asyncio.create_task(demonstrate(run, options.port, options.once, options.fast)))


def main() -> None:
    """Exit code 0 when all went well or Ctrl-C ended it, 1 when something failed."""
    parser = argparse.ArgumentParser(description="A hub, a home, a sample agent and an app on this machine.")
    parser.add_argument("--port", type=int, default=4000, help="the hub's port (default 4000; 0: any free one)")
    parser.add_argument("--once", action="store_true", help="one turn of the sample session, then compare and end")
    parser.add_argument("--fast", action="store_true", help="a tenth of the natural pauses")
    options = parser.parse_args()
    runs = ROOT / ".run"
    runs.mkdir(exist_ok=True)
    run = Path(tempfile.mkdtemp(prefix=f"{time.strftime('%H%M%S')}-", dir=runs))
    try:
        with (run / "app.log").open("w") as log:
            logs.set_up("INFO", log)
            asyncio.run(main_async(run, options))
    except (asyncio.CancelledError, KeyboardInterrupt):
        say("all", "stopped")
    except Failed as failure:
        say("all", f"FAILED: {failure}")
        say("all", f"logs and stores are kept in {run}")
        sys.exit(1)
    shutil.rmtree(run)
    with contextlib.suppress(OSError):  # another run is still using it
        runs.rmdir()


if __name__ == "__main__":
    main()
