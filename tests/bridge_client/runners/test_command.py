"""The runner for command lines: real programs that replay streams, break off, stall, fail, and do not want to die."""

import asyncio
import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge_client.runners import Message
from bridge_client.runners import process as processes
from bridge_client.runners.command import KNOWN, Command, CommandRunner, stderr_report
from bridge_client.runners.echo import EchoRunner, pieces
from bridge_client.runners.groups import began
from bridge_client.runners.json_lines import JsonLinesTranslator
from bridge_client.runners.process import Limits
from tests.bridge_client.runners import excerpts
from tests.bridge_client.runners.drafts import of_type, said, translate
from tests.bridge_client.runners.running import Answered, answer, asking
from tests.bridge_client.runners.test_recorded import FILES, lines_of
from tests.support.processes import until

ENDS = ("error_occurred", "run_failed", "run_cancelled", "run_completed")
QUICK = Limits(total=60, silence=60, grace=5)


def shell(script: str, *words: str, limits: Limits = QUICK, **more: Any) -> CommandRunner:
    return CommandRunner(Command(("/bin/sh", "-c", script, "agent", *words), **more), limits=limits)


def written(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def failure_of(answered: Answered) -> dict[str, Any]:
    assert answered.error is not None
    assert answered.error.provider_error is not None
    return dict(answered.error.provider_error)


async def gone(pid: int) -> None:
    """Wait until there is no such process, or only what its parent has not fetched."""
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        await asyncio.sleep(0.01)


async def test_A15_claude_code_s_output_becomes_events_and_messages(tmp_path: Path) -> None:
    path = written(tmp_path / "claude.jsonl", excerpts.CLAUDE)
    answered = await answer(shell('cat "$1"', str(path)), asking("look", stream_tools=True))
    assert answered.error is None
    assert answered.types == [
        *("assistant_message", "partial", "assistant_message", "final", "tool_calls", "tool_partial", "tool_results"),
        *("Checkpoint", "assistant_message", "partial", "assistant_message", "final", "token_usage_updated"),
        "Checkpoint",
    ]
    assert answered.text == "I'll look.One file."
    said = [(message.role, message.content) for message in answered.messages]
    assert said == [("assistant", "I'll look."), ("tool", "a.py"), ("assistant", "One file.")]
    assert {message.metadata["provider_session_id"] for message in answered.messages} == {"theirs"}
    (call,) = answered.messages[0].metadata["tool_calls"]
    assert call["function"] == {"name": "ls", "arguments": '{"path":"."}'}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("true", "the command ended without printing anything"),
        ("echo; echo '  '", "the command ended without printing anything"),
        (
            "echo done >&2",
            "the command ended without printing anything but what it said on standard error: done",
        ),
    ],
)
async def test_A54_a_program_that_ends_well_and_prints_nothing_is_said_to_have(script: str, said: str) -> None:
    answered = await answer(shell(script), asking("look"))
    assert answered.error is None
    assert answered.of("final")[-1]["messages"][0]["content"] == said
    assert answered.messages[-1].content == said
    assert answered.types[-1] == "Checkpoint"
    loud = await answer(shell("echo hello; echo done >&2"), asking("look"))
    assert loud.text == "hello\n"
    failed = await answer(shell("exit 3"), asking("look"))
    assert (failed.text, failure_of(failed)["exit_code"]) == ("", 3)


async def test_A65_codex_s_tool_output_is_streamed_on_request(tmp_path: Path) -> None:
    path = written(tmp_path / "codex.jsonl", excerpts.CODEX)
    answered = await answer(shell('cat "$1"', str(path)), asking("look", stream_tools=True))
    phases = [(event["phase"], event["payload"].get("part")) for event in answered.of("tool_partial")]
    assert phases == [("start", ""), ("stream", "a.py\n"), ("end", None)]
    assert answered.of("tool_partial")[-1]["payload"]["result"]["content"] == "a.py\nb.py\n"


async def test_the_message_comes_on_standard_input_or_in_its_place() -> None:
    nasty = "$(id); `id` {session_id}\n'\""
    assert (await answer(shell("cat"), nasty)).text == nasty + "\n"
    assert (await answer(shell("cat /dev/stdin >/dev/stdout"), nasty)).text == nasty + "\n"
    assert (await answer(shell("true"), "x" * 1_000_000)).error is None
    runner = shell('printf "%s|" "$@"', "{text}", "{session_id}/{request_id}", "{other}")
    assert (await answer(runner, nasty)).text == f"{nasty}|s-1/r-1|{{other}}|\n"


async def test_a_session_is_resumed_where_the_program_knows_it() -> None:
    runner = shell("echo new", resume=("/bin/echo", "resume", "{provider_session_id}"))
    before = Message(role="assistant", content="", metadata={"provider_session_id": "theirs"})
    assert (await answer(runner, asking("go on", before))).text == "resume theirs\n"
    assert (await answer(runner, asking("go on"))).text == "new\n"
    others = Message(role="assistant", content="", metadata={"provider_session_id": "theirs", "provider": "codex"})
    assert (await answer(runner, asking("go on", others))).text == "resume theirs\n", "who else knows"
    claude = shell("echo new", resume=("/bin/echo", "resume", "{provider_session_id}"), format="claude")
    assert "new" in str((await answer(claude, asking("go on", others))).events), "it is another agent's conversation"
    for known in KNOWN.values():
        assert "{provider_session_id}" in known.resume
        assert "{text}" not in known.start


async def test_B16_to_B22_an_exit_code_is_an_error_with_the_end_of_stderr(tmp_path: Path) -> None:
    path = written(tmp_path / "claude.jsonl", excerpts.CLAUDE[:2])
    script = 'cat "$1"; seq 1 100000 >&2; echo "the disk is full" >&2; exit 3'
    answered = await answer(shell(script, str(path)), "look")
    assert answered.text == "I'll look."
    assert [message.content for message in answered.messages] == ["I'll look."]
    assert str(answered.error) == "sh exited with status 3"
    error = failure_of(answered)
    assert (error["kind"], error["exit_code"], error["truncated?"]) == ("transport_exit", 3, True)
    assert error["stderr"].endswith("99999\n100000\nthe disk is full")
    assert len(error["stderr"]) <= 16_384


async def test_B19_a_program_that_is_not_there_or_can_not_be_started(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    kinds = {}
    for word in ("no-such-program-at-all", str(plain)):
        answered = await answer(CommandRunner(Command((word,))), "hi")
        kinds[word] = failure_of(answered)["kind"]
        assert word in str(answered.error)
    assert kinds == {"no-such-program-at-all": "cli_not_found", str(plain): "process_error"}
    long = await answer(shell("cat", "{text}"), "x" * 3_000_000)
    assert "too long for an argument" in str(long.error)
    null = await answer(shell("cat", "{text}"), "a\0b")
    assert "can't be started" in str(null.error)
    nowhere = await answer(shell("cat", cwd=tmp_path / "nowhere"), "hi")
    assert "nowhere" in str(nowhere.error)
    with pytest.raises(ValueError, match="empty"):
        CommandRunner(Command(()))


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(silence=60, grace=20), "it printed nothing for 60 s"),
        (Limits(total=60, grace=20), "it ran for more than 60 s"),
    ],
)
async def test_B19_a_program_that_takes_too_long_is_ended_and_what_it_said_stays(
    tmp_path: Path, limits: Limits, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute passes once it has said something, however long its start took."""
    loop, passed = asyncio.get_running_loop(), 0.0
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + passed)

    def a_minute_passes(event: dict[str, Any]) -> None:
        nonlocal passed
        passed = 61.0

    pid = tmp_path / "pid"
    runner = shell(f'echo $$ > {pid}; echo "Just a moment"; exec sleep 600', limits=limits)
    answered = await answer(runner, "hi", seen=a_minute_passes)
    assert str(answered.error) == f"sh was stopped: {said}"
    assert failure_of(answered)["kind"] == "timeout"
    assert answered.text == "Just a moment\n"
    await gone(int(pid.read_text()))


async def test_A16_cancelling_ends_the_whole_process_group_even_if_it_does_not_want_to(tmp_path: Path) -> None:
    program, child = tmp_path / "program", tmp_path / "child"
    script = (
        f'trap "" TERM; echo $$ > {program}; (trap "" TERM; echo $$;'
        f" exec sh -c 'echo $$ > {child}; echo ready; sleep 600; sleep 600')"
    )
    began = asyncio.Event()
    runner = shell(script, limits=Limits(grace=0.05))
    running = asyncio.create_task(answer(runner, "hi", seen=lambda event: child.exists() and began.set()))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ProcessLookupError):  # it has ended, and its end was waited for
        os.kill(int(program.read_text()), 0)
    await gone(int(child.read_text()))


def test_A16_a_loop_that_ends_while_a_program_is_asked_to_end_waits_for_its_end(tmp_path: Path) -> None:
    """Whatever else the loop cancels then: nobody is left running, or unfetched."""
    program, asked = tmp_path / "program", tmp_path / "asked"
    script = f'trap "touch {asked}" TERM; echo $$ > {program}; echo ready; while :; do sleep 0.01; done'

    async def cut_short() -> None:
        began = asyncio.Event()
        runner = shell(script, limits=Limits(grace=600))
        running = asyncio.create_task(answer(runner, "hi", seen=lambda event: began.set()))
        await began.wait()
        running.cancel()
        await until(asked.exists, "it is asked to end")

    asyncio.run(cut_short())
    gc.collect()  # what was left unfetched warns now, in this test
    with pytest.raises(ProcessLookupError):
        os.kill(int(program.read_text()), 0)


async def test_a_program_that_leaves_a_child_with_the_pipe_is_not_waited_for(tmp_path: Path) -> None:
    left = tmp_path / "left"
    answered = await answer(shell(f"echo done; sleep 600 & echo $! > {left}"), "hi")
    assert (answered.text, answered.error) == ("done\n", None)
    os.kill(int(left.read_text()), signal.SIGKILL)  # what it meant to leave behind was left


async def test_a_program_that_is_killed_says_by_what() -> None:
    answered = await answer(shell("echo hm; kill -KILL $$"), "hi")
    assert str(answered.error) == "sh was ended by SIGKILL"
    assert failure_of(answered)["exit_code"] == 137


async def test_a_signal_that_comes_as_a_program_ends_leaves_its_exit_code() -> None:
    for _ in range(20):
        async with processes.started(("/bin/sh", "-c", "exit 7"), b"", QUICK, own_group=False) as program:
            while began(program._process.pid):
                program.send(signal.SIGWINCH)  # which does nothing
            program.send(signal.SIGWINCH)
            assert await program.exit_code() == 7


async def test_an_endless_line_is_left_out_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "MAX_LINE", 10_000)
    answered = await answer(shell("echo a; head -c 300000 /dev/zero; echo; echo b"), "hi")
    assert answered.text == "a\nb\n"
    (warning,) = answered.of("error_occurred")
    assert "a line of 300000 bytes was left out" in warning["data"]["error_message"]
    assert answered.error is None


async def test_a_failure_that_the_program_reports_counts_also_with_exit_code_0(tmp_path: Path) -> None:
    result = {"type": "result", "subtype": "error_during_execution", "is_error": True, "errors": ["no quota left"]}
    path = written(tmp_path / "claude.jsonl", [*excerpts.CLAUDE[:2], result])
    assert str((await answer(shell('cat "$1"', str(path)), "hi")).error) == "no quota left"
    answered = await answer(shell('cat "$1"; echo oops >&2; exit 1', str(path)), "hi")
    assert str(answered.error) == "no quota left"
    assert failure_of(answered)["stderr"] == "oops"


async def test_an_error_after_which_the_run_ends_well_is_a_warning(tmp_path: Path) -> None:
    lines = [*excerpts.CODEX[:-1], {"type": "error", "message": "a hiccup"}, excerpts.CODEX[-1]]
    answered = await answer(shell('cat "$1"', str(written(tmp_path / "codex.jsonl", lines))), "hi")
    assert answered.error is None
    assert answered.of("error_occurred")[0]["data"]["error_message"] == "a hiccup"


async def test_B117_plain_output_is_the_reply(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text("import sys\nprint('you said', sys.stdin.read())\n")
    runner = CommandRunner(Command((sys.executable, "-S", str(script))))
    assert (await answer(runner, "hi")).text == "you said hi\n"


def test_the_end_of_stderr_is_what_is_kept() -> None:
    assert stderr_report(" \n", False) == {}
    assert stderr_report("why\n", False) == {"stderr": "why"}
    assert stderr_report("why", True) == {"stderr": "why", "truncated?": True}
    long = stderr_report("ä" * 20_000, False)
    assert (set(long["stderr"]), len(long["stderr"].encode())) == ({"ä"}, 16_384)


@pytest.mark.parametrize("path", [path for path in FILES if path.stat().st_size < 300_000], ids=lambda path: path.name)
async def test_recorded_streams_come_through_a_real_program(path: Path, tmp_path: Path) -> None:
    """Whole, and cut somewhere: as much text as its lines hold, and deltas that add up (`running.check`)."""
    data = "".join(line + "\n" for line in lines_of(path)).encode()
    for number, part in enumerate((data, data[: len(data) * 2 // 3])):
        lines = tmp_path / str(number)
        lines.write_bytes(part)
        answered = await answer(shell('cat "$1"', str(lines)), asking("hi", stream_tools=True))
        drafts = translate(JsonLinesTranslator(), part.splitlines())
        assert answered.text == said(drafts)
        calls = [call for event in answered.of("tool_calls") for call in event["tool_calls"]]
        assert len(calls) == len(of_type(drafts, "tool_call_started"))
        ends = [draft.type for draft in drafts if draft.type in ENDS and draft.data.get("fatal") is not False]
        assert (answered.error is not None) == (bool(ends) and ends[-1] != "run_completed")


@pytest.mark.parametrize("text", ["", "hi", "Grüße 👩‍👩‍👧 " * 30, "x" * 100_000])
async def test_A15_echo_says_back_what_it_is_told_in_pieces(text: str) -> None:
    answered = await answer(EchoRunner(pause=0), text)
    assert answered.text == (text or "(nothing was said)")
    assert len(answered.of("partial")) == len(pieces(answered.text)) <= 401
    assert "".join(pieces(text)) == text
    assert (answered.types[-2:], answered.error) == (["final", "Checkpoint"], None)
