"""A program that answers: started in a process group of its own, told something, read line by line, and ended whole.

    async with started(["claude", "-p"], b"hello", limits) as program:
        async for line in program.lines():
            ...
        code = await program.exit_code()

However the block is left before the program has ended by itself, its process group is ended: first by SIGTERM, then,
`Limits.grace` seconds later, by SIGKILL. A program that has ended leaves behind what it wants to.
"""

import asyncio
import os
import signal
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from bridge_client.lines import Line, Lines
from bridge_client.runners.groups import ProcessGroups

MAX_LINE: Final = 8 << 20
"""Bytes of one line of output; of a longer one only its length is known."""

MAX_STDERR: Final = 64 << 10
"""Bytes of diagnostics that are kept: the last ones, which say why it ended."""

_CHUNK: Final = 64 << 10
_LOOK: Final = 0.5  # seconds of silence before looking whether the program is still there
_REAP: Final = 20.0  # seconds that a killed program is waited for: longer than a loaded machine takes to end it


Heard = Callable[[bytes], Awaitable[None]]


class Limits(NamedTuple):
    """Times in seconds."""

    total: float = 3_600.0
    """A program that has not ended by then took too long."""
    silence: float = 900.0
    """So long it may print nothing."""
    grace: float = 5.0
    """Between asking it to end and killing it."""


class TookTooLong(Exception):
    """The program ran, or was silent, for longer than it may; the text says which."""


class Program:
    """One running program. `lines` until it ends, then `exit_code`."""

    def __init__(
        self, process: Process, out: "_Output", err: "_Output", limits: Limits, own_group: bool, on_stderr: Heard | None
    ) -> None:
        self._process = process
        self._out = out
        self._err = err
        self._own_group = own_group
        self._on_stderr = on_stderr
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + limits.total
        self._stderr = bytearray()
        self.silent = True
        """Whether it has printed nothing but white space on standard output."""
        self.stderr_cut = False
        """Whether the start of its diagnostics was dropped."""

    @property
    def stderr(self) -> str:
        """The end of what it has said on standard error."""
        return self._stderr.decode("utf-8", "replace")

    async def lines(self) -> AsyncIterator[Line]:
        """The lines of standard output, as they come. Raises TookTooLong."""
        lines = Lines(MAX_LINE)
        async for chunk in self.chunks():
            for line in lines.feed(chunk):
                yield line
        for line in lines.end():
            yield line

    async def chunks(self) -> AsyncIterator[bytes]:
        """Standard output as it comes. Raises TookTooLong."""
        heard = self._loop.time()
        while True:
            try:
                async with asyncio.timeout(_LOOK):
                    chunk = await self._out.reader.read(_CHUNK)
            except TimeoutError:
                # Another process may hold the pipe open when the program itself is long gone.
                if self._process.returncode is not None:
                    return
                self._check(heard)
                continue
            if not chunk:
                return
            heard = self._loop.time()
            self.silent = self.silent and not chunk.strip()
            yield chunk
            self._check(heard)

    async def exit_code(self) -> int:
        """How it ended, as a shell would say it: 128 and the number of the signal that ended it. Raises TookTooLong."""
        closed = self._loop.time()
        while self._process.returncode is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK):
                    await self._process.wait()
            if self._process.returncode is None:
                self._check(closed)
        code = self._process.returncode
        return 128 - code if code < 0 else code

    def _check(self, heard: float) -> None:
        now = self._loop.time()
        if now > self._deadline:
            raise TookTooLong(f"it ran for more than {self._limits.total:g} s")
        if now > heard + self._limits.silence:
            raise TookTooLong(f"it printed nothing for {self._limits.silence:g} s")

    async def keep_stderr(self) -> None:
        """Read standard error until it is closed."""
        while chunk := await self._err.reader.read(_CHUNK):
            if self._on_stderr is not None:
                await self._on_stderr(chunk)
            self._stderr += chunk
            if len(self._stderr) > MAX_STDERR:
                self.stderr_cut = True
                del self._stderr[:-MAX_STDERR]

    def close_stdout(self) -> None:
        """Read no more of its output: it is told so when it writes."""
        self._out.close()

    async def end(self) -> None:
        """End its process group, unless the program has ended."""
        if self._process.returncode is not None:
            return
        self.send(signal.SIGTERM)
        # Not `asyncio.timeout`: in a task that is being cancelled it raises CancelledError under Python 3.11.2.
        ended = asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait([ended], timeout=self._limits.grace)
        finally:
            ended.cancel()
            self.send(signal.SIGKILL)  # also what outlived the program, or a second cancellation
            # A task of its own: a loop that ends has cancelled the first one too, and the program is still there.
            dead = asyncio.create_task(self._process.wait())
            await asyncio.wait([dead], timeout=_REAP)
            dead.cancel()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to its process group, to the program alone if it shares ours; to nobody if that is gone."""
        with suppress(ProcessLookupError, PermissionError):
            if self._own_group:
                os.killpg(self._process.pid, number)
            elif self._process.returncode is None:
                # Not `Process.send_signal`: of a program that has just ended it takes the exit code away from the loop.
                os.kill(self._process.pid, number)


@asynccontextmanager
async def started(
    command: Sequence[str],
    text: bytes | None,
    limits: Limits,
    cwd: Path | None = None,
    *,
    own_group: bool = True,
    on_stderr: Heard | None = None,
    groups: ProcessGroups | None = None,
) -> AsyncIterator[Program]:
    """Start `command` and give it `text` as its standard input; None: ours. Raises OSError, ValueError: no start.

    Without `own_group` it stays in ours, so that the terminal's keys reach it. Its own group is remembered in `groups`,
    for whoever comes after us if we are killed.
    """
    async with AsyncExitStack() as stack:
        out, err = _Output(), _Output()
        stack.callback(out.close)
        stack.callback(err.close)
        await out.open()
        await err.open()
        given = None if text is None else stack.enter_context(_holding(text))
        process = await asyncio.create_subprocess_exec(
            *command, stdin=given, stdout=out.far_end, stderr=err.far_end, cwd=cwd, start_new_session=own_group
        )
        if groups is not None and own_group:
            stack.enter_context(groups.hold(process.pid))
        out.let_go()
        err.let_go()
        program = Program(process, out, err, limits, own_group, on_stderr)
        listening = asyncio.create_task(program.keep_stderr())
        try:
            yield program
            await asyncio.wait([listening], timeout=_LOOK)  # what it said last
        finally:
            try:
                await program.end()
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


@contextmanager
def _holding(text: bytes) -> Iterator[BinaryIO]:
    """A file without a name that holds it."""
    with tempfile.TemporaryFile() as file:
        file.write(text)
        file.seek(0)
        yield file


class _Output:
    """A pipe to read a program's output from: a real one, which unlike a socket can be opened again by its name."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(_CHUNK)
        self.far_end = -1
        self._transport: asyncio.BaseTransport | None = None

    async def open(self) -> None:
        near, self.far_end = os.pipe()
        file = os.fdopen(near, "rb", buffering=0)
        try:
            loop = asyncio.get_running_loop()
            reading = asyncio.StreamReaderProtocol(self.reader)
            self._transport, _ = await loop.connect_read_pipe(lambda: reading, file)
        except BaseException:
            file.close()
            raise

    def let_go(self) -> None:
        """The program has its end: when it closes that, nobody holds it open."""
        if self.far_end >= 0:
            os.close(self.far_end)
            self.far_end = -1

    def close(self) -> None:
        self.let_go()
        if self._transport is not None:
            self._transport.close()
