"""A stream of bytes, cut into lines without holding more of it than the longest line there may be."""

from collections.abc import Iterator
from typing import NamedTuple


class Line(NamedTuple):
    """One line of a stream, its end left out."""

    number: int
    text: bytes
    """Without its end; empty if it was too long."""
    excess: int = 0
    """The length of a line that was too long."""


class Lines:
    """Cuts chunks into lines ended by LF, of which it keeps at most `max_line` bytes at a time."""

    def __init__(self, max_line: int) -> None:
        self._max = max_line
        self._number = 0
        self._pieces: list[bytes] = []
        self._length = 0

    @property
    def overlong(self) -> bool:
        """Whether the line that has begun is too long already."""
        return self._length > self._max

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines that the chunk completes."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._keep(chunk[start:end])
            yield self._cut()
            start = end + 1
        self._keep(chunk[start:])

    def end(self) -> Iterator[Line]:
        """A last line that nothing ended."""
        if self._length:
            yield self._cut()

    def _keep(self, piece: bytes) -> None:
        self._length += len(piece)
        if self.overlong:
            self._pieces.clear()
        elif piece:
            self._pieces.append(piece)

    def _cut(self) -> Line:
        self._number += 1
        excess = self._length if self._length > self._max else 0
        line = Line(self._number, b"".join(self._pieces), excess)
        self._pieces.clear()
        self._length = 0
        return line
