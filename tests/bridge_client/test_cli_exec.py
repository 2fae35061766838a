"""`bridge-client exec`: a command is what it is without it, and its events are in the store."""

import asyncio
import json
import os
import pty
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge_client.clock import SystemClock
from bridge_client.runners import one_off
from bridge_client.runners.one_off import OneOff, Place, joined
from bridge_client.store import StoreError
from protocol.events import agent_app
from protocol.events.session_manager import Draft
from tests.bridge_client.runners import excerpts
from tests.support.processes import until

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]


def words(state: Path, *command: str, session: str | None = None) -> list[str]:
    options = ["--state-dir", str(state), *(["--session", session] if session else [])]
    return [sys.executable, "-m", "bridge_client", "exec", *options, "--", *command]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SESSION_BRIDGE_")}


async def start(state: Path, *command: str, **more: Any) -> asyncio.subprocess.Process:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE)
    session = more.pop("session", None)
    arguments = words(state, *command, session=session)
    return await asyncio.create_subprocess_exec(*arguments, cwd=ROOT, env=environment(), **{**pipes, **more})


def stored(state: Path) -> list[Json]:
    with sqlite3.connect(state / "home.db") as file:
        return [json.loads(data) for (data,) in file.execute("SELECT data FROM events ORDER BY id")]


async def test_a_command_is_what_it_is_without_us_and_its_events_are_stored(tmp_path: Path) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in excerpts.CLAUDE)
    process = await start(tmp_path, "sh", "-c", "cat; printf 'no\\0end \\377' >&2; exit 7")
    out, err = await process.communicate(lines.encode())
    assert (out, err, process.returncode) == (lines.encode(), b"no\0end \xff", 7)
    events = stored(tmp_path)
    types = [event["type"] for event in events]
    assert types[:2] == ["session_created", "request_started"]
    assert types[-2:] == ["error", "request_completed"]
    for event in events:
        agent_app.VOCABULARY.read(event)
    assert [m["content"] for e in events if e["type"] == "final" for m in e["messages"]] == ["I'll look.", "One file."]
    assert "tool_calls" in types
    assert "tool_results" in types
    error = events[-2]["provider_error"]
    assert (error["exit_code"], error["stderr"]) == (7, "no\0end �")
    assert len({event["session_id"] for event in events}) == 1
    assert len({event["request_id"] for event in events[1:]}) == 1


async def test_plain_output_of_a_session_that_is_named(tmp_path: Path) -> None:
    process = await start(tmp_path, "sh", "-c", 'echo "$1" >/dev/stdout', "sh", "--help", session="s-1")
    out, err = await process.communicate()
    assert (out, err, process.returncode) == (b"--help\n", b"", 0)
    assert [(event["type"], event["session_id"]) for event in stored(tmp_path)] == [
        (type, "s-1")
        for type in (
            *("request_started", "assistant_message", "partial", "assistant_message", "final"),
            "request_completed",
        )
    ]


async def test_signals_reach_the_command_and_it_decides(tmp_path: Path) -> None:
    script = "trap 'echo got it; exit 5' TERM; echo ready; while :; do sleep 0.02; done"
    process = await start(tmp_path, "sh", "-c", script)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert (await process.communicate())[0] == b"got it\n"
    assert process.returncode == 5


async def test_ctrl_c_of_a_terminal_cancels_the_request(tmp_path: Path) -> None:
    """The keys of the terminal reach the command, once; its standard input is the terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        script = "test -t 0 && echo a terminal; exec sleep 600"
        os.execve(sys.executable, words(tmp_path, "sh", "-c", script), environment())
    seen = bytearray()

    def read() -> None:
        try:
            seen.extend(os.read(terminal, 4096))
        except OSError:  # nobody has the other side open any more
            asyncio.get_running_loop().remove_reader(terminal)

    asyncio.get_running_loop().add_reader(terminal, read)
    try:
        await until(lambda: b"a terminal" in seen, "the command runs")
        os.write(terminal, b"\x03")
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    finally:
        asyncio.get_running_loop().remove_reader(terminal)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 130
    assert [event["type"] for event in stored(tmp_path)][-2:] == ["request_cancelled", "request_completed"]
    assert b"Traceback" not in seen


async def test_a_reader_that_goes_away_ends_the_command_as_always(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    process = await start(tmp_path, "yes", stdout=writing)
    os.close(writing)
    assert (await asyncio.to_thread(os.read, reading, 4)) == b"y\ny\n"
    os.close(reading)
    _, err = await process.communicate()
    assert (err, process.returncode) == (b"", 128 + signal.SIGPIPE)


async def test_what_can_not_be_run_says_so(tmp_path: Path) -> None:
    for command, code, said in (("no-such-program", 127, b"there is no program"), ("/", 126, b"can't be started")):
        process = await start(tmp_path, command)
        out, err = await process.communicate()
        assert (out, process.returncode) == (b"", code)
        assert said in err
    assert stored(tmp_path) == []


async def test_a_store_that_fails_costs_its_events_and_nothing_else() -> None:
    told: list[str] = []

    async def publish(event: Json) -> None:
        if len(told) == 2:
            raise StoreError("the disk is full")
        told.append(event["type"])

    out: list[bytes] = []
    run = OneOff(("seq", "30000"), Place("s", "r", True), publish, SystemClock())
    assert await run.run(out.append, out.append) == 0
    assert b"".join(out).endswith(b"29999\n30000\n")
    assert (str(run.problem), told) == ("the disk is full", ["session_created", "request_started"])


async def test_a_slow_store_slows_the_command_instead_of_filling_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_off, "MAX_WAITING", 3)
    gate, most = asyncio.Event(), 0
    events: list[Json] = []
    out: list[bytes] = []

    async def publish(event: Json) -> None:
        await gate.wait()
        events.append(event)

    script = 'for i in 1 2 3 4 5 6 7 8 9; do echo \'{"type":"tool_use","tool_name":"t"}\'; done'
    run = OneOff(("sh", "-c", script), Place("s", "r", False), publish, SystemClock())
    running = asyncio.create_task(run.run(out.append, out.append))
    await until(lambda: run.waiting == 3, "the queue is full")
    most = run.waiting
    gate.set()
    assert await running == 0
    assert most == 3
    assert [event["type"] for event in events].count("tool_calls") == 9


def drafts(*texts: str, **more: Any) -> Sequence[Draft]:
    return [Draft("message_streamed", {"delta": text, **more}) for text in texts]


def test_pieces_that_came_at_once_are_told_at_once() -> None:
    end = Draft("message_received", {"content": "abc"})
    assert joined([*drafts("a", "b"), end, *drafts("c")]) == [*drafts("ab"), end, *drafts("c")]
    thought = drafts("a", "b", thinking="hm")
    assert joined(thought) == list(thought)
    assert joined(drafts("x" * 100_000, "y" * 100_000)) == list(drafts("x" * 100_000, "y" * 100_000))
