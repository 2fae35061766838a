"""Bring what other programs wrote into an event store: JSON lines, one JSON document, or server-sent events.

Each value becomes one event, each object of an array of objects too. One of the home's own vocabulary goes through as
it is (`ingest_events.py`). Any other is wrapped, `{type, session_id, data}`: `data` is the value's own text, byte for
byte (numbers, order and duplicates of keys as written); `type` is the value's own `type` if it is an object with a
non-empty string there, else `provider_event`. Nobody says which format it is: the first lines do (`ValueReader`).

What is broken is reported with its line number and skipped; the rest goes through, in order.
"""

import asyncio
import os
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from bridge_client.ingest_events import elements, event_of
from bridge_client.lines import Line, Lines
from bridge_client.store import EventStore, Stored
from protocol.codec import MAX_EVENT_DEPTH, open_json
from protocol.errors import InvalidEvent, ProtocolError

MAX_LINE: Final = 8 << 20
"""Default limit in bytes of one line, one document, or the data of one server-sent event."""

DEFAULT_TYPE: Final = "provider_event"

MAX_PROBLEMS: Final = 10_000
"""How many problems a report lists; it counts all of them."""

_IN_FLIGHT: Final = 256
_IN_FLIGHT_BYTES: Final = 4 << 20
_CHUNK: Final = 1 << 18
_WHITE: Final = b" \t\r\n"
_SSE_START = re.compile(rb"(?:data|event|id|retry)(?::|$)|:")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class Problem(NamedTuple):
    """One thing that was skipped."""

    line: int
    """Counted from 1; of something that spans lines, the first."""
    reason: str


class Value(NamedTuple):
    """One JSON value found in the input."""

    line: int
    type: bytes
    """The JSON string to publish it under."""
    data: bytes


class Report:
    """What became of the input so far."""

    def __init__(self) -> None:
        self.published = 0
        self.broken = 0
        self.problems: list[Problem] = []
        """The first MAX_PROBLEMS of those counted in `broken`, by line."""

    def add(self, problem: Problem) -> None:
        """Count one problem, and keep it while there is room."""
        self.broken += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


class IngestStopped(Exception):
    """The store failed (`__cause__`), or the input could not be read on. `report` says how far it got.

    Values after the last one counted may have been stored too: up to 256 are on their way at once.
    """

    def __init__(self, report: Report, error: Exception) -> None:
        super().__init__(f"stopped after {report.published} published values: {error}")
        self.report = report


async def ingest(
    store: EventStore,
    chunks: AsyncIterator[bytes],
    *,
    session_id: str | None = None,
    max_line: int = MAX_LINE,
) -> Report:
    """Publish every value of `chunks` (any cut of the input into pieces) in order, as soon as its line is complete.

    Memory is bounded by a few times `max_line`. Raises IngestStopped when the store or the input fails.
    """
    reader = ValueReader(max_line)
    report = Report()
    window: deque[tuple[Value, asyncio.Task[Stored]]] = deque()
    window_bytes = 0

    async def settle_oldest() -> None:
        nonlocal window_bytes
        value, publishing = window[0]
        try:
            await publishing
            report.published += 1
        except InvalidEvent as error:
            report.add(Problem(value.line, str(error)))
        window.popleft()
        window_bytes -= len(value.data)

    async def publish(one: Value | Problem) -> None:
        nonlocal window_bytes
        if isinstance(one, Problem):
            report.add(one)
            return
        try:
            event = event_of(one.type, one.data, session_id)
        except InvalidEvent as error:
            report.add(Problem(one.line, str(error)))
            return
        while window and (len(window) >= _IN_FLIGHT or window_bytes + len(one.data) > _IN_FLIGHT_BYTES):
            await settle_oldest()
        window.append((one, asyncio.ensure_future(_publish(store, event))))
        window_bytes += len(one.data)

    async def take(found: Iterator[Value | Problem]) -> None:
        for one in found:
            if isinstance(one, Problem):
                report.add(one)
                continue
            texts = elements(one.data)
            for value in [one] if len(texts) == 1 and texts[0] is one.data else [_value(one.line, t) for t in texts]:
                await publish(value)
        while window and window[0][1].done():
            await settle_oldest()

    try:
        async for chunk in chunks:
            await take(reader.feed(chunk))
        await take(reader.end())
        while window:
            await settle_oldest()
    except Exception as error:
        raise IngestStopped(report, error) from error
    finally:
        left = [publishing for _, publishing in window]
        for publishing in left:
            publishing.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        report.problems.sort()
    return report


async def _publish(store: EventStore, event: bytes) -> Stored:
    return await store.publish(event)


async def read_chunks(file: int) -> AsyncIterator[bytes]:
    """The bytes of an open file descriptor (a file, a pipe, a terminal), as they come. Raises OSError.

    Each read has a daemon thread of its own: no way of waiting serves all kinds of files, and a read that never ends
    (an idle terminal) must not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    while True:
        arrived: asyncio.Future[bytes] = loop.create_future()
        threading.Thread(target=_read, args=(file, loop, arrived), name="ingest-reader", daemon=True).start()
        chunk = await arrived
        if not chunk:
            return
        yield chunk


def _read(file: int, loop: asyncio.AbstractEventLoop, arrived: asyncio.Future[bytes]) -> None:
    chunk: bytes | OSError
    try:
        chunk = os.read(file, _CHUNK)
    except OSError as error:
        chunk = error

    def deliver() -> None:
        if arrived.done():
            return
        if isinstance(chunk, OSError):
            arrived.set_exception(chunk)
        else:
            arrived.set_result(chunk)

    with suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(deliver)


class ValueReader:
    """Finds the JSON values in the bytes of a file, in whichever of three formats it is.

    - Server-sent events: the first line that is not blank begins with a field's name or a colon.
    - JSON lines: it is a JSON value; or it is not, and the text up to some later line can't be the beginning of one.
    - One JSON document: the first lines are the beginning of one value, and at the end of the input it is complete.

    No I/O, no clock: `feed` it chunks, then call `end` once. A byte order mark is dropped.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max = max_line
        self._lines = Lines(max_line)
        self._take = self._take_first
        self._held: list[Line] = []  # the beginning of a document, perhaps
        self._held_bytes = 0
        self._next_check = 2
        self._sse_line = 0
        self._event: list[bytes] = []
        self._event_line = 0
        self._event_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[Value | Problem]:
        """What the chunk completes."""
        for line in self._lines.feed(chunk):
            yield from self._take(line)

    def end(self) -> Iterator[Value | Problem]:
        """What the end of the input completes."""
        for line in self._lines.end():
            yield from self._take(line)
        if self._held:
            yield from self._end_document()
        yield from self._end_event()

    def _take_first(self, line: Line) -> Iterator[Value | Problem]:
        if line.number == 1:
            line = line._replace(text=line.text.removeprefix(b"\xef\xbb\xbf"))
        text = line.text.strip(_WHITE)
        if not text and not line.excess:
            return
        if _SSE_START.match(line.text.rstrip(_WHITE)):
            self._take = self._take_sse
            self._sse_line = line.number - 1
        elif line.excess or not _may_continue(text):
            self._take = self._take_json
        else:
            self._take = self._take_held
        yield from self._take(line)

    def _take_json(self, line: Line) -> Iterator[Value | Problem]:
        text = line.text.strip(_WHITE)
        if line.excess:
            yield self._too_long(line.number, line.excess)
        elif text:
            yield _value(line.number, text)

    def _take_held(self, line: Line) -> Iterator[Value | Problem]:
        self._held.append(line)
        self._held_bytes += len(line.text) + 1
        hopeless = bool(line.excess) or self._held_bytes > self._max
        if not hopeless and len(self._held) >= self._next_check:
            self._next_check *= 2  # so that all checks together cost twice the text
            hopeless = not _may_continue(self._document()) and not isinstance(self._whole(), Value)
        if hopeless:
            yield from self._release()

    def _end_document(self) -> Iterator[Value | Problem]:
        whole = self._whole()
        if isinstance(whole, Value):
            self._held = []
            yield whole
        else:
            yield from self._release()

    def _release(self) -> Iterator[Value | Problem]:
        """Not a document: the lines held were JSON lines."""
        held, self._held = self._held, []
        self._take = self._take_json
        for line in held:
            yield from self._take(line)

    def _document(self) -> bytes:
        return b"\n".join(line.text for line in self._held).strip(_WHITE)

    def _whole(self) -> Value | Problem:
        return _value(self._held[0].number, self._document())

    def _take_sse(self, line: Line) -> Iterator[Value | Problem]:
        if line.excess:
            self._sse_line += 1
            yield self._too_long(self._sse_line, line.excess)
            self._event_line = self._event_line or self._sse_line
            self._event_bytes = self._max + 1  # the event it was part of is skipped
            return
        for field in _LINE_END.split(line.text.removesuffix(b"\r")):
            self._sse_line += 1
            if not field:
                yield from self._end_event()
                continue
            name, _, data = field.partition(b":")
            if name == b"data" and self._event_bytes <= self._max:
                data = data.removeprefix(b" ")
                self._event_line = self._event_line or self._sse_line
                self._event_bytes += len(data) + 1
                self._event.append(data)
                if self._event_bytes > self._max:
                    yield self._too_long(self._event_line, self._event_bytes)

    def _end_event(self) -> Iterator[Value | Problem]:
        """Also at the end of the input: a recorder that left out the last blank line lost nothing."""
        data = b"\n".join(self._event).strip(_WHITE)
        if data and data != b"[DONE]" and self._event_bytes <= self._max:
            yield _value(self._event_line, data)
        self._event, self._event_line, self._event_bytes = [], 0, 0

    def _too_long(self, line: int, length: int) -> Problem:
        return Problem(line, f"too long: {length} bytes; at most {self._max} are read")


class _Typed(Struct):
    type: Raw | UnsetType = UNSET


_TYPED: Final = Decoder(_Typed)
_ANY: Final = Decoder(Raw)
_DEFAULT_TYPE: Final = msgspec.json.encode(DEFAULT_TYPE)


def _value(line: int, text: bytes) -> Value | Problem:
    try:
        if not text.startswith(b"{"):
            open_json(_ANY, text, MAX_EVENT_DEPTH)
            return Value(line, _DEFAULT_TYPE, text)
        own = open_json(_TYPED, text, MAX_EVENT_DEPTH).type
    except ProtocolError as error:
        return Problem(line, error.reason)
    named = b"" if own is UNSET else bytes(own)
    return Value(line, named if named.startswith(b'"') and named != b'""' else _DEFAULT_TYPE, text)


def _may_continue(text: bytes) -> bool:
    """Whether `text` is the beginning of a JSON value, but not yet one."""
    try:
        open_json(_ANY, text, MAX_EVENT_DEPTH)
    except ProtocolError as error:
        return error.reason == _TRUNCATED
    return False


_TRUNCATED: Final = "Input data was truncated"  # what msgspec says when nothing but the end is wrong
