"""What is seen of a home is the same through the hub and from its own API; and it is seen on a real terminal."""

import asyncio
import io
import os
import pty
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from rich.console import Console

from bridge_client.app_client import AppClient, CaughtUp, Item
from bridge_client.local_events import LocalEvents
from bridge_client.render import show
from bridge_client.runners import Checkpoint
from bridge_client.runners.command import Command, CommandRunner
from bridge_client.store.memory import MemoryStore
from bridge_client.transcript import Transcript
from bridge_server.app import Hub
from tests.bridge_client.runners import excerpts
from tests.bridge_client.runners.running import Person, asking
from tests.bridge_client.runners.test_command import written
from tests.e2e.test_forward_and_receive import DEADLINE, World
from tests.support.home_commands import ROOT, run
from tests.support.processes import until
from tests.support.running_api import TOKEN, running_api


async def screen(items: AsyncIterator[Item], last_id: int) -> str:
    """All that stays on the screen up to the event, without the lines about the link."""
    console = Console(file=io.StringIO(), width=100)
    transcript, done = Transcript(), False
    async for item in items:
        for block in transcript.take(item):
            if not block.title.startswith("home "):
                console.print(show(block))
        done = done or transcript.standing.last_id == last_id
        if done and (isinstance(item, CaughtUp) or transcript.standing.live):
            break
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("partials", ["all", "merged", "none"])
async def test_A224_A226_the_same_through_the_hub_and_from_the_home(hub: Hub, tmp_path: Path, partials: str) -> None:
    store, world = MemoryStore(), World(hub, tmp_path)
    path = written(tmp_path / "claude.jsonl", [*excerpts.CLAUDE])
    runner = CommandRunner(Command(("cat", str(path))))
    whose = {"session_id": "s", "request_id": "r"}
    await store.publish({"type": "request_started", **whose, "stream": True})
    async for told in runner.run(asking("look", stream_tools=True), Person()):
        if not isinstance(told, Checkpoint):
            await store.publish({"type": told["type"], **whose, **told})
    record = {"title": "Done", "body": "\x1b[2J come and see"}
    await store.publish({"type": "session_notification_created", "session_id": "s", "notification": record})
    await store.publish({"type": "error", **whose, "detail": "no quota"})
    last = await store.publish({"type": "request_completed", **whose})
    async with asyncio.timeout(DEADLINE), world.forwarding(store), running_api(store) as api:
        async with LocalEvents(lambda: api.api.url, TOKEN, cursor=(None, 0)) as events:
            local = await screen(events, last.event_id)
        wishes = {"cursor": (None, 0), "partials": partials}
        async with AppClient(world.url, world.app_token, world.server_id, **wishes) as client:  # type: ignore[arg-type]
            remote = await screen(client, last.event_id)
    assert remote == local
    tool = '✓ [s] ls {"path":"."}'
    for expected in ("I'll look.", tool, "  a.py", "One file.", "Done", "\\e[2J come and see", "! no quota"):
        assert expected in local


async def test_A220_watch_on_a_terminal_and_into_a_pipe(tmp_path: Path) -> None:
    """A home without a hub answers for itself; a command's reply appears while it is still being said."""
    state = ("--state-dir", str(tmp_path))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SESSION_BRIDGE_")}
    home = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge_client", "serve", *state, "--api-port", "0", "--log-level", "ERROR"),
        cwd=ROOT,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        words = [sys.executable, "-m", "bridge_client", "watch", "--local", "--since", "0", *state]
        wait = 'until test -e "$0/home.db.api"; do sleep 0.02; done; exec "$@"'
        os.execve("/bin/sh", ["sh", "-c", wait, str(tmp_path), *words], environment | {"TERM": "xterm"})
    seen = bytearray()

    def read() -> None:
        try:
            seen.extend(os.read(terminal, 65_536))
        except OSError:
            asyncio.get_running_loop().remove_reader(terminal)

    asyncio.get_running_loop().add_reader(terminal, read)
    go = tmp_path / "go"
    try:
        await until(lambda: b"connected" in seen and b"live" in seen, "it is connected")
        script = f"echo growing; until test -e {go}; do sleep 0.02; done; echo finished"
        command = asyncio.create_task(run("exec", *state, "--", "sh", "-c", script))
        await until(lambda: "growing\r\n▌".encode() in re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen), "it grows")
        go.touch()
        assert (await command)[0] == 0
        await until(lambda: b"request completed" in seen, "it ends")
        os.write(terminal, b"\x03")
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert b"finished" in seen
        assert b"Traceback" not in seen
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bridge_client", "watch", "--local", "--since", "0", *state),
            cwd=ROOT,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        assert watching.stdout is not None
        lines = [(await watching.stdout.readline()).decode() for _ in range(6)]
        watching.terminate()
        await watching.communicate()
        assert [line.split()[1] for line in lines[1:]] == [
            *("session_created", "checkpoint", "message_appended", "checkpoint", "request_started")
        ]
    finally:
        asyncio.get_running_loop().remove_reader(terminal)
        os.close(terminal)
        home.terminate()
        await home.wait()


async def test_watch_local_says_what_is_missing(tmp_path: Path) -> None:
    code, _, said = await run("watch", "--local", "--state-dir", str(tmp_path))
    assert (code, "bridge-client serve" in said) == (1, True)
    code, _, said = await run("watch", "--local", "--credential-file", "x", "--state-dir", str(tmp_path))
    assert (code, "--local needs no credential" in said) == (2, True)
