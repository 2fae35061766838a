"""The apps' end of a run: reads all their sockets, checks and times every delivery, as cheaply as it can.

The sockets lie in an epoll set of their own, which the event loop watches as one file. The next mark an app expects is
usually known from another app already, so that one comparison of bytes checks both the number and the order; often all
that an app gets is what the app before it got, byte for byte.
"""

import asyncio
import os
import re
import select
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

MARK: Final = re.compile(rb"lg\.(\d+)\.(\d+)\.")
"""What an event carries: its number in its group, and the monotonic clock in nanoseconds when it was published."""

_BEGIN: Final = b"lg."
_LONGEST_MARK: Final = 64
_READ: Final = 1 << 16
_SOCKETS: Final = 1024
"""Sockets read in one turn of the loop at most."""


class _App:
    """One app: which events it gets, and what is next."""

    __slots__ = ("expected", "group", "rest")

    def __init__(self, group: int) -> None:
        self.group = group
        self.expected = 1
        self.rest = b""


class _Seen(NamedTuple):
    """What the last app got, and the events in it."""

    group: int
    expected: int
    data: bytes
    found: Sequence[tuple[int, int]]


class Receiver:
    """Reads what is added. Belongs to the running loop, until `close`."""

    def __init__(self, *, warm_up: int, on_delivery: Callable[[int, int], None] | None) -> None:
        """Events up to `warm_up` are not timed. `on_delivery(group, number)` is called for each, if given."""
        self.deliveries = 0
        self.wrong = 0
        """Deliveries with another number than was next."""
        self.numbers: list[int] = []
        self.latencies: list[int] = []
        """Of each timed delivery: its event's number, and the nanoseconds since its mark was made."""
        self.last_arrival = 0
        self._warm_up = warm_up
        self._on_delivery = on_delivery
        self._seen = _Seen(-1, 0, b"", ())
        self._apps: dict[int, _App] = {}
        self._marks: dict[int, dict[int, tuple[bytes, int]]] = {}  # by group and number: the mark, and when it was made
        self._loop = asyncio.get_running_loop()
        self._sockets = select.epoll()
        self._loop.add_reader(self._sockets.fileno(), self._read)

    def add(self, file: int, group: int) -> None:
        """Read the non-blocking socket `file`, an app of `group`, from now on."""
        self._apps[file] = _App(group)
        self._marks.setdefault(group, {})
        self._sockets.register(file, select.EPOLLIN)

    def close(self) -> None:
        """Read no more. The sockets are whoever opened them's to close, afterwards."""
        self._loop.remove_reader(self._sockets.fileno())
        self._sockets.close()

    def _read(self) -> None:
        for file, _ in self._sockets.poll(0, _SOCKETS):
            try:
                data = os.read(file, _READ)
            except BlockingIOError:
                continue
            except OSError:
                data = b""
            if data:
                self.taken(self._apps[file], data, time.monotonic_ns())
            else:
                self._sockets.unregister(file)  # what it does not get any more is missing in the end

    def taken(self, app: _App, data: bytes, now: int) -> None:
        """An app got `data` at `now`."""
        seen = self._seen
        if seen.expected == app.expected and seen.group == app.group and not app.rest and seen.data == data:
            found = seen.found
        else:
            expected, whole = app.expected, not app.rest
            found = self._read_marks(app, data)
            if whole and not app.rest:
                self._seen = _Seen(app.group, expected, data, found)
        for number, made in found:
            self.wrong += number != app.expected
            app.expected = number + 1
            self.deliveries += 1
            if number > self._warm_up:
                self.numbers.append(number)
                self.latencies.append(now - made)
            if self._on_delivery is not None:
                self._on_delivery(app.group, number)
        if found:
            self.last_arrival = now

    def _read_marks(self, app: _App, data: bytes) -> list[tuple[int, int]]:
        """The events in `data`: their numbers, and when they were published."""
        if app.rest:
            data, app.rest = app.rest + data, b""
        marks, expected = self._marks[app.group], app.expected
        found: list[tuple[int, int]] = []
        at = data.find(_BEGIN)
        while at >= 0:
            known = marks.get(expected)
            if known is None or not data.startswith(known[0], at):
                mark = MARK.match(data, at)
                if mark is None:
                    if len(data) - at < _LONGEST_MARK:
                        app.rest = data[at:]
                        return found
                    at = data.find(_BEGIN, at + len(_BEGIN))
                    continue
                expected = int(mark[1])
                known = marks[expected] = (mark[0], int(mark[2]))
            found.append((expected, known[1]))
            expected += 1
            at = data.find(_BEGIN, at + len(known[0]))
        if data.endswith((b"l", b"lg")):
            app.rest = data[-2:]
        return found
