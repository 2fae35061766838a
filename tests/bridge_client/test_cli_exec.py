"""`bridge-client exec`: a command is what it is without it, and its events are in the store."""

import asyncio
import json
import os
import pty
import signal
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from bridge_client.clock import SystemClock
from bridge_client.one_off_session import OneOffSession, agent_of
from bridge_client.request_execution import GONE, RECOVER_SECONDS
from bridge_client.request_locks import RequestLocks
from bridge_client.runners import Message, one_off
from bridge_client.runners.command import Command, CommandRunner
from bridge_client.runners.one_off import OneOff, joined
from bridge_client.session_rules import SessionFull
from bridge_client.store import StoreError
from protocol.events import agent_app
from protocol.events.session_manager import Draft
from tests.bridge_client.runners import excerpts
from tests.bridge_client.scripted_hub import VirtualClock
from tests.support.processes import until
from tests.support.running_home import running_home

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
    with closing(sqlite3.connect(state / "home.db")) as file:
        return [json.loads(data) for (data,) in file.execute("SELECT data FROM events ORDER BY id")]


async def test_a_command_is_what_it_is_without_us_and_its_events_are_stored(tmp_path: Path) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in excerpts.CLAUDE)
    process = await start(tmp_path, "sh", "-c", "cat; printf 'no\\0end \\377' >&2; exit 7")
    out, err = await process.communicate(lines.encode())
    assert (out, err, process.returncode) == (lines.encode(), b"no\0end \xff", 7)
    events = stored(tmp_path)
    types = [event["type"] for event in events]
    assert types[:5] == ["session_created", "checkpoint", "message_appended", "checkpoint", "request_started"]
    assert types[-2:] == ["error", "request_completed"]
    for event in events:
        agent_app.VOCABULARY.read(event)
    assert [m["content"] for e in events if e["type"] == "final" for m in e["messages"]] == ["I'll look.", "One file."]
    assert "tool_calls" in types
    assert "tool_results" in types
    error = events[-2]["provider_error"]
    assert (error["exit_code"], error["stderr"]) == (7, "no\0end �")
    assert len({event["session_id"] for event in events}) == 1
    assert len({event["request_id"] for event in events[4:]}) == 1


async def test_plain_output_of_a_session_that_is_named(tmp_path: Path) -> None:
    process = await start(tmp_path, "sh", "-c", 'echo "$1" >/dev/stdout', "sh", "--help", session="s-1")
    out, err = await process.communicate()
    assert (out, err, process.returncode) == (b"--help\n", b"", 0)
    assert [(event["type"], event["session_id"]) for event in stored(tmp_path)] == [
        (type, "s-1")
        for type in (
            *("session_created", "checkpoint", "message_appended", "checkpoint", "request_started"),
            *("assistant_message", "partial", "assistant_message", "final", "checkpoint", "request_completed"),
        )
    ]


async def test_a_command_that_prints_nothing_is_said_to_have_and_nothing_is_printed_for_it(tmp_path: Path) -> None:
    process = await start(tmp_path, "true")
    assert (*await process.communicate(), process.returncode) == (b"", b"", 0)
    (final,) = [event for event in stored(tmp_path) if event["type"] == "final"]
    assert final["messages"][0]["content"] == "the command ended without printing anything"


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


class Recorded:
    """A session that writes down what it is told, with a store behind it that may fail or be slow."""

    session_id, request_id = "s", "r"

    def __init__(self, fails_at: str = "", gate: asyncio.Event | None = None) -> None:
        self.told: list[str] = []
        self.kept: list[Message] = []
        self.closed = False
        self._fails_at = fails_at
        self._gate = gate

    async def _tell(self, what: str) -> None:
        if self._gate is not None:
            await self._gate.wait()
        if what == self._fails_at:
            raise SessionFull("it is full") if what == "checkpoint" else StoreError("the disk is full")
        self.told.append(what)

    async def begin(self) -> None:
        await self._tell("begin")

    async def tell(self, event: Json) -> None:
        await self._tell(event["type"])

    async def checkpoint(self, messages: Sequence[Message]) -> None:
        await self._tell("checkpoint")
        self.kept += messages

    async def end(self, events: Sequence[Json]) -> None:
        for event in events:
            await self._tell(event["type"])

    def close(self) -> None:
        self.closed = True


def one_off_of(session: Recorded, *command: str) -> OneOff:
    return OneOff(command, cast("OneOffSession", session), SystemClock())


@pytest.mark.parametrize(("fails_at", "told"), [("begin", []), ("assistant_message", ["begin"])])
async def test_a_store_that_fails_costs_its_events_and_nothing_else(fails_at: str, told: list[str]) -> None:
    out: list[bytes] = []
    session = Recorded(fails_at)
    run = one_off_of(session, "seq", "30000")
    assert await run.run(out.append, out.append) == 0
    assert b"".join(out).endswith(b"29999\n30000\n")
    assert str(run.problem) == "the disk is full"
    assert [type for type in session.told if type != "partial"] == told
    assert session.closed


async def test_a_full_history_costs_the_history_and_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_off, "MAX_UNKEPT_CHARS", 0)
    session = Recorded("checkpoint")
    run = one_off_of(session, "sh", "-c", "echo a")
    assert await run.run(lambda data: None, lambda data: None) == 0
    assert (str(run.unkept), run.problem) == ("it is full", None)
    assert session.told[-2:] == ["final", "request_completed"]


async def test_what_a_program_says_for_days_is_not_kept_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_off, "MAX_UNKEPT_CHARS", 1000)
    said = json.dumps({"type": "assistant", "message": {"content": "x" * 600}})
    session = Recorded()
    await one_off_of(session, "sh", "-c", f"for i in 1 2 3 4 5; do echo '{said}'; done").run(len, len)
    assert [len(message.content) for message in session.kept] == [600] * 5
    assert [what for what in session.told if what in ("final", "checkpoint")] == [
        *("final", "final", "checkpoint", "final", "final", "checkpoint", "final", "checkpoint")
    ]


async def test_a_slow_store_slows_the_command_instead_of_filling_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_off, "MAX_WAITING", 3)
    gate = asyncio.Event()
    session = Recorded(gate=gate)
    script = 'for i in 1 2 3 4 5 6 7 8 9; do echo \'{"type":"tool_use","tool_name":"t"}\'; done'
    run = one_off_of(session, "sh", "-c", script)
    running = asyncio.create_task(run.run(len, len))
    await until(lambda: run.waiting == 3, "the queue is full")
    gate.set()
    assert await running == 0
    assert session.told.count("tool_calls") == 9


async def test_its_session_is_listed_loads_and_can_be_gone_on_with(tmp_path: Path) -> None:
    """Rows A91, A100, A104: by the home that runs on the same store, whose runner knows the agent's conversation."""
    lines = "".join(json.dumps(line) + "\n" for line in excerpts.CLAUDE)
    resume = CommandRunner(Command(("/bin/echo", "new"), ("/bin/echo", "goes on with", "{provider_session_id}")))
    async with running_home(tmp_path, resume) as home, asyncio.timeout(40):
        process = await start(tmp_path, "sh", "-c", "cat")
        await process.communicate(lines.encode())
        (session,) = (await home.do("GET", "/sessions"))["sessions"]
        assert (session["agent_id"], session["request"]) == ("sh", None)
        loaded = await home.do("GET", f"/sessions/{session['session_id']}/messages")
        assert [(message["role"], message["content"]) for message in loaded["messages"]] == [
            *(("user", "sh -c cat"), ("assistant", "I'll look."), ("tool", "a.py"), ("assistant", "One file."))
        ]
        request = await home.send("and now?", session["session_id"])
        await home.until("request_completed", request_id=request)
        (final,) = [event for event in await home.told(request) if event["type"] == "final"]
        assert final["messages"][0]["content"] == "goes on with theirs\n"


async def test_a_request_of_exec_is_its_own_and_ends_also_if_it_is_killed(tmp_path: Path) -> None:
    """Rows A45, A46: a home that starts meanwhile leaves it alone; killed, it is ended as a home's own would be."""
    process = await start(tmp_path, "sh", "-c", "echo $$; exec sleep 600", session="s")
    assert process.stdout is not None
    child = int(await process.stdout.readline())
    held = RequestLocks(tmp_path / "home.db.requests").held
    async with running_home(tmp_path, elsewhere=held) as home, asyncio.timeout(40):
        await home.until("partial")
        assert (await home.do("GET", "/sessions/s"))["session"]["request"] is not None
        busy = await start(tmp_path, "echo", "no", session="s")
        out, err = await busy.communicate()
        assert (out, busy.returncode) == (b"", 1)
        assert b"runs in session s" in err
        assert await home.requests.recover() == 0
        process.kill()
        await process.wait()
        os.kill(child, signal.SIGKILL)
        assert await home.requests.recover(GONE) == 1
        assert [event["type"] for event in await home.told()][-2:] == ["error", "request_completed"]
        assert (await home.do("GET", "/sessions/s"))["session"]["request"] is None
        await home.append("free again")
    assert list((tmp_path / "home.db.requests").iterdir()) == []


async def test_a_request_that_nobody_runs_any_more_is_found_while_the_home_runs(tmp_path: Path) -> None:
    """Row A45: looked for again and again, and what another program runs is left to it."""
    alive = {"r"}
    clock = VirtualClock()
    async with running_home(tmp_path, elsewhere=alive.__contains__, clock=clock) as home, asyncio.timeout(40):
        for name in ("r", "gone"):
            await home.create(name)
            await home.sessions.begin(name, name, Message(role="user", content="hi"), stream=True)
        looking = asyncio.create_task(home.requests.keep_recovering())
        while (await home.sessions.get("gone")).request_id is not None:
            await clock.advance(RECOVER_SECONDS)
        assert (await home.sessions.get("r")).request_id == "r"
        alive.clear()
        while (await home.sessions.get("r")).request_id is not None:
            await clock.advance(RECOVER_SECONDS)
        ends = [event for event in await home.told() if event["type"] in ("error", "request_completed")]
        assert [(event["request_id"], event.get("detail")) for event in ends] == [
            *(("gone", GONE), ("gone", None), ("r", GONE), ("r", None))
        ]
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def test_a_session_of_no_possible_name_is_refused(tmp_path: Path) -> None:
    process = await start(tmp_path, "true", session="no/name")
    _, err = await process.communicate()
    assert (process.returncode, b"--session: session_id is 'no/name'" in err) == (2, True)


@pytest.mark.parametrize(("word", "agent"), [("/usr/bin/g++", "g-"), (".hidden", "hidden"), ("ü", "command")])
def test_an_agent_is_called_as_its_program(word: str, agent: str) -> None:
    assert agent_of(word) == agent


def drafts(*texts: str, **more: Any) -> Sequence[Draft]:
    return [Draft("message_streamed", {"delta": text, **more}) for text in texts]


def test_pieces_that_came_at_once_are_told_at_once() -> None:
    end = Draft("message_received", {"content": "abc"})
    assert joined([*drafts("a", "b"), end, *drafts("c")]) == [*drafts("ab"), end, *drafts("c")]
    thought = drafts("a", "b", thinking="hm")
    assert joined(thought) == list(thought)
    assert joined(drafts("x" * 100_000, "y" * 100_000)) == list(drafts("x" * 100_000, "y" * 100_000))
