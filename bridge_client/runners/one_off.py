"""One command, run for who started it: its output goes where it always went, and its events into a session.

The command has the terminal's keys and standard input as usual; only its two outputs go through here, unchanged. It
ends as it ends: a store that fails costs its events and nothing else.
"""

import asyncio
import math
import signal
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bridge_client.clock import Clock
from bridge_client.lines import Lines
from bridge_client.one_off_session import OneOffSession
from bridge_client.runners import Checkpoint, Json, Request
from bridge_client.runners.command import drafts_of, provider_of, report_exit
from bridge_client.runners.json_lines import JsonLinesTranslator
from bridge_client.runners.process import MAX_LINE, Limits, Program, started
from bridge_client.runners.telling import Telling
from bridge_client.runners.turn import MAX_TEXT_CHARS
from bridge_client.session_rules import SessionError
from protocol.events.agent_app import text_of
from protocol.events.session_manager import Draft

MAX_WAITING: Final = 2_000
"""Events that wait for the store; then the command waits too."""

MAX_UNKEPT_CHARS: Final = 1 << 20
"""Of text that is told and stands in no history yet."""

_AT_ONCE: Final = 256
_BROKEN_OFF: Final[Json] = {"type": "error", "detail": "bridge-client was stopped while the command ran"}

Write = Callable[[bytes], object]
"""Writes all of it, and may take its time: called in a thread. Raises BrokenPipeError when nobody reads any more."""


class OneOff:
    """`run` the command; `signal` passes one on to it meanwhile."""

    def __init__(self, command: Sequence[str], session: OneOffSession, clock: Clock) -> None:
        self.problem: Exception | None = None
        """Why not all events were stored, if they were not."""
        self.unkept: SessionError | None = None
        """Why the session's history does not hold all of it, if it does not."""
        self._command = command
        self._session = session
        request = Request(session.session_id, session.request_id, self._name, (), stream=True, stream_tools=True)
        self._telling = Telling(request, provider_of(command[0], None), clock=clock)
        self._waiting: asyncio.Queue[Json | Checkpoint | None] = asyncio.Queue(MAX_WAITING)
        self._uncaptured = 0
        self._end: list[Json] = [_BROKEN_OFF, {"type": "request_completed"}]
        self._program: Program | None = None

    @property
    def _name(self) -> str:
        return Path(self._command[0]).name

    @property
    def waiting(self) -> int:
        """Events that the store has not taken yet."""
        return self._waiting.qsize()

    def signal(self, number: signal.Signals) -> None:
        """Pass it on."""
        if self._program is not None:
            self._program.send(number)

    async def run(self, out: Write, err: Write) -> int:
        """The command's exit code, 128 and the number of a signal that ended it. Raises OSError, ValueError: no start.

        Returns once its events are stored, or `problem` says why they are not.
        """

        async def on_stderr(chunk: bytes) -> None:
            with suppress(BrokenPipeError):
                await asyncio.to_thread(err, chunk)

        limits = Limits(total=math.inf, silence=math.inf)
        storing = None
        try:
            async with started(self._command, None, limits, own_group=False, on_stderr=on_stderr) as program:
                self._program = program
                storing = asyncio.create_task(self._store())
                await self._pass_on(program, out)
                code = await program.exit_code()
            await self._put(report_exit(self._telling, self._name, program, code))
            await self._put(self._telling.checkpoint())
            self._end = self._ending(code)
        finally:
            if storing is not None:
                await self._waiting.put(None)
                await storing
        return code

    async def _pass_on(self, program: Program, out: Write) -> None:
        translator, lines = JsonLinesTranslator(), Lines(MAX_LINE)
        async for chunk in program.chunks():
            try:
                await asyncio.to_thread(out, chunk)
            except BrokenPipeError:
                program.close_stdout()  # it learns of it as it always would
                break
            drafts = [draft for line in lines.feed(chunk) for draft in drafts_of(translator, line)]
            await self._put(self._telling.tell(joined(drafts)))
        for line in lines.end():
            await self._put(self._telling.tell(drafts_of(translator, line)))
        await self._put(self._telling.tell(translator.finish()))

    def _ending(self, code: int) -> list[Json]:
        failure = self._telling.outcome()
        told: list[Json] = []
        if code == 128 + signal.SIGINT:
            told.append({"type": "request_cancelled"})
        elif failure is not None:
            members = {"provider_error": failure.provider_error, "details": failure.details}
            told.append({"type": "error", "detail": str(failure), **{k: v for k, v in members.items() if v}})
        return [*told, {"type": "request_completed"}]

    async def _put(self, items: Iterable[Json | Checkpoint]) -> None:
        for item in items:
            if isinstance(item, Checkpoint):
                self._uncaptured = 0
            elif item["type"] == "final":
                self._uncaptured += sum(len(text_of(message["content"])) for message in item["messages"])
            await self._waiting.put(item)
            if self._uncaptured > MAX_UNKEPT_CHARS:  # a program may talk for days
                await self._put(self._telling.checkpoint())

    async def _store(self) -> None:
        await self._keep(self._session.begin())
        last = False
        while not last:
            batch = [await self._waiting.get()]
            while len(batch) < _AT_ONCE and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            last = batch[-1] is None
            events: list[Json] = []
            for item in batch:
                if isinstance(item, dict):
                    events.append(item)
                    continue
                await self._tell(events)
                events = []
                if item is not None and self.unkept is None:
                    await self._keep(self._session.checkpoint(item.messages), history=True)
            await self._tell(events)
        await self._keep(self._session.end(self._end))
        self._session.close()

    async def _tell(self, events: Sequence[Json]) -> None:
        if events and self.problem is None:
            # Begun in their order, which is the order they are stored in.
            done = await asyncio.gather(*map(self._session.tell, events), return_exceptions=True)
            self.problem = next((error for error in done if isinstance(error, Exception)), None)

    async def _keep(self, change: Coroutine[Any, Any, None], *, history: bool = False) -> None:
        if self.problem is not None:
            change.close()
            return
        try:
            await change
        except SessionError as error:
            if history:
                self.unkept = error
            else:
                self.problem = error
        except Exception as error:
            self.problem = error


def joined(drafts: Sequence[Draft]) -> list[Draft]:
    """The drafts, with pieces of text that follow each other made one: what came at once is told at once."""
    found: list[Draft] = []
    for draft in drafts:
        last = found[-1] if found else None
        if last is not None and _plain(last) and _plain(draft) and last.metadata == draft.metadata:
            text = last.data["delta"] + draft.data["delta"]
            if len(text) <= MAX_TEXT_CHARS:
                found[-1] = Draft(draft.type, {"delta": text}, draft.metadata)
                continue
        found.append(draft)
    return found


def _plain(draft: Draft) -> bool:
    return draft.type == "message_streamed" and draft.data.keys() == {"delta"}
