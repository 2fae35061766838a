"""An agent's command line: Claude Code, Codex, or any program that prints JSON lines, or just text.

The program gets the user's message, does its work, prints events, and ends; what they look like is found out from what
it prints (`json_lines.py`). It keeps the conversation itself: what it calls it is left in the messages' metadata
(`provider_session_id`), and the next message of the session is given to `resume`, if there is such a command.
"""

import errno
import logging
import os
import re
import shutil
import signal
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from bridge_client.clock import Clock
from bridge_client.lines import Line
from bridge_client.runners import Checkpoint, Context, EventCallback, Json, Message, Request
from bridge_client.runners.groups import ProcessGroups
from bridge_client.runners.json_lines import JsonLinesTranslator
from bridge_client.runners.process import MAX_LINE, Limits, Program, TookTooLong, started
from bridge_client.runners.telling import Telling
from bridge_client.runners.turn import Turn
from protocol.events.agent_app import text_of
from protocol.events.provider_error import PROVIDERS
from protocol.events.session_manager import Draft
from protocol.events.truncation import ERROR_TEXT_BYTES, ERROR_TEXT_LINES

log = logging.getLogger(__name__)

PLACES: Final = ("{text}", "{session_id}", "{request_id}", "{provider_session_id}")
"""What stands for something in a command's words. Without `{text}` the message comes on standard input."""


SILENT: Final = "the command ended without printing anything"
SILENT_BUT: Final = "the command ended without printing anything but what it said on standard error:"

_PLACE: Final = re.compile("|".join(map(re.escape, PLACES)))


class Command(NamedTuple):
    """What is run, word by word; no shell reads it."""

    start: Sequence[str]
    resume: Sequence[str] = ()
    """What is run instead where the session has a `provider_session_id`."""
    format: str | None = None
    """One of `json_lines.FORMATS`; None: found out."""
    cwd: Path | None = None
    known: bool = False
    """Whether it is one of KNOWN: its owner has not written these words."""


_CLAUDE: Final = ("claude", "-p", "--output-format", "stream-json", "--verbose", "--include-partial-messages")
KNOWN: Final[dict[str, Command]] = {
    "claude": Command(_CLAUDE, (*_CLAUDE, "--resume", "{provider_session_id}"), "claude", known=True),
    "codex": Command(
        ("codex", "exec", "--json", "-"),
        ("codex", "exec", "--json", "resume", "{provider_session_id}", "-"),
        "codex",
        known=True,
    ),
}
"""Command lines that are known by one word."""


class CommandRunner:
    """Runs one program for each request."""

    name = "command"

    def __init__(
        self,
        command: Command,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        on_event: EventCallback | None = None,
        groups: ProcessGroups | None = None,
    ) -> None:
        """`groups` remembers what runs. Raises ValueError for a command without a word."""
        if not command.start:
            raise ValueError("the command is empty")
        self._command = command
        self._limits = limits or Limits()
        self._clock = clock
        self._groups = groups
        self._on_event = on_event
        self._provider = provider_of(command.start[0], command.format)

    def problem(self) -> str | None:
        """Why the program can't be started, and what to do; None: it is there, or its name depends on the request."""
        word, folder = self._command.start[0], self._command.cwd
        if folder is not None and not folder.is_dir():
            return f"there is no folder {folder}: make it, or correct the setting runner_dir"
        if _PLACE.search(word):
            return None
        if "/" in word:  # then it is looked for in the folder it would work in
            word = str((folder or Path()) / word)
        return None if shutil.which(word) is not None else self._absent(self._command.start[0])

    def _absent(self, word: str) -> str:
        if self._command.known:
            return f"there is no program {word!r}: install it, or put its folder into the PATH of the home"
        return f"there is no program {word!r}: install it, or correct the setting runner_command"

    async def run(self, request: Request, context: Context) -> AsyncGenerator[Mapping[str, Any] | Checkpoint, None]:
        """Raises RunnerError: it can't be started, fails, says that it failed, takes too long."""
        telling = Telling(request, self._provider, on_event=self._on_event, clock=self._clock)
        text = text_of(request.messages[-1].content) if request.messages else ""
        words, on_stdin = self._words(request, text)
        translator = JsonLinesTranslator(self._command.format)
        async with AsyncExitStack() as stack:
            try:
                starting = started(words, on_stdin, self._limits, self._command.cwd, groups=self._groups)
                program = await stack.enter_async_context(starting)
            except (OSError, ValueError) as error:
                ending = self._not_started(telling, words[0], error)
            else:
                code, late = None, ""
                try:
                    async for line in program.lines():
                        for told in telling.tell(drafts_of(translator, line)):
                            yield told
                    code = await program.exit_code()
                except TookTooLong as error:
                    late = str(error)
                await stack.aclose()  # ended, and its diagnostics read
                ending = report_exit(telling, Path(words[0]).name, program, code, late)
        for told in [*telling.tell(translator.finish()), *ending, *telling.checkpoint()]:
            yield told
        if translator.ignored:
            log.debug("lines of %s that say nothing: %s", words[0], dict(translator.ignored))
        if (failure := telling.outcome()) is not None:
            raise failure

    def _words(self, request: Request, text: str) -> tuple[list[str], bytes]:
        theirs = next((known for message in reversed(request.messages) if (known := self._conversation(message))), None)
        command = self._command.resume if theirs is not None and self._command.resume else self._command.start
        meanings = dict(zip(PLACES, (text, request.session_id, request.request_id, theirs or ""), strict=True))
        words = [_filled(word, meanings) for word in command]
        given = any("{text}" in word for word in command)
        return words, b"" if given else text.encode("utf-8", "replace")

    def _conversation(self, message: Message) -> str | None:
        """What the program calls the conversation that this message is of; None: not its own, or not known."""
        theirs, whose = message.metadata.get("provider_session_id"), message.metadata.get("provider")
        other = whose in PROVIDERS and "unknown" not in (whose, self._provider) and whose != self._provider
        return theirs if isinstance(theirs, str) and theirs and not other else None

    def _not_started(self, telling: Telling, word: str, error: OSError | ValueError) -> Iterator[Json | Checkpoint]:
        missing = isinstance(error, FileNotFoundError) and (self._command.cwd is None or self._command.cwd.is_dir())
        if missing:
            why = self._absent(word)
        elif isinstance(error, OSError):
            cause = (
                "the message is too long for an argument"
                if error.errno == errno.E2BIG
                else os.strerror(error.errno or 0)
            )
            where = f" in {self._command.cwd}" if self._command.cwd is not None else ""
            why = f"{word!r} can't be started{where}: {cause}"
        else:
            why = f"{word!r} can't be started: {error}"
        yield from telling.fail(why, kind="cli_not_found" if missing else "process_error")


def report_exit(
    telling: Telling, name: str, program: Program, code: int | None, late: str = ""
) -> Iterator[Json | Checkpoint]:
    """What the end of a program is to those who watch: a failure, or that there is nothing else to see.

    No `code`: it was ended, `late` says why.
    """
    diagnostics = stderr_report(program.stderr, program.stderr_cut)
    if code is None:
        yield from telling.fail(f"{name} was stopped: {late}", kind="timeout", **diagnostics)
    elif code:
        yield from telling.fail(f"{name} {_ended(code)}", kind="transport_exit", exit_code=code, **diagnostics)
    elif program.silent and not telling.failed:
        turn = Turn("unknown")
        turn.say(SILENT if "stderr" not in diagnostics else f"{SILENT_BUT} {diagnostics['stderr'].strip()}")
        turn.end()
        yield from telling.tell(turn.drain())


def drafts_of(translator: JsonLinesTranslator, line: Line) -> list[Draft]:
    """What a line is, also one that was too long to be kept."""
    if not line.excess:
        return translator.feed(line.text)
    said = f"a line of {line.excess} bytes was left out; at most {MAX_LINE} are read"
    return [Draft("error_occurred", {"error_message": said, "fatal": False})]


def provider_of(word: str, format: str | None) -> str:
    """Whose program this is, by its format or its name; one of PROVIDERS."""
    name = Path(word).name
    return next((known for known in sorted(PROVIDERS) if known in (format, name)), "unknown")


def stderr_report(text: str, cut: bool) -> dict[str, Any]:
    """A program's diagnostics for a provider error: their end, which says why it ended, within the limits (row B22)."""
    lines = text.splitlines()[-ERROR_TEXT_LINES:]
    kept = "\n".join(lines).encode("utf-8", "replace")[-ERROR_TEXT_BYTES:].decode("utf-8", "ignore")
    if not kept.strip():
        return {}
    return {"stderr": kept, **({"truncated?": True} if cut or len(kept) < len(text.rstrip("\n")) else {})}


def _filled(word: str, meanings: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda match: meanings[match[0]], word)


def _ended(code: int) -> str:
    if code > 128:
        try:
            return f"was ended by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exited with status {code}"
