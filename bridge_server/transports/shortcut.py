"""A short cut past the library's parser for the frame that nearly every message is.

Whole, unfragmented, uncompressed, masked and within the limit: such a frame costs the library's parser a fifth of all
that taking in an event costs (docs/decisions/0001). Everything else, the faulty included, goes to it as it came; it
sees a stream of whole frames from which some are missing, so its own state stays true.
"""

from typing import Final, NamedTuple

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiled part of the library for this platform
    from websockets.utils import apply_mask

_TEXT, _BINARY = 0x81, 0x82  # FIN, no reserved bit
_MASKED: Final = 0x80
_RESERVED: Final = frozenset({3, 4, 5, 6, 7, 11, 12, 13, 14, 15})
_LONG: Final = {126: 2, 127: 8}
"""Lengths that stand for a longer one, in so many bytes."""
_FOR_EVER: Final = 1 << 63


class Piece(NamedTuple):
    """A message (`opcode` 1 or 2, `data` unmasked), or what the library has to read (`opcode` 0)."""

    opcode: int
    data: bytes


class Shortcut:
    """Cuts one connection's stream, from behind the handshake on. Keeps 13 bytes of an unfinished head at most."""

    __slots__ = ("_fragmented", "_head", "_limit", "_missing")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head = b""
        self._missing = 0  # bytes to come of a frame that is the library's
        self._fragmented = False

    def cut(self, data: bytes) -> list[Piece]:
        """What is in the next bytes of the stream, in order."""
        if self._head:
            data, self._head = self._head + data, b""
        pieces: list[Piece] = []
        size = len(data)
        start = 0  # of what is the library's
        at = min(self._missing, size)
        self._missing -= at
        while at + 2 <= size:
            first, second = data[at], data[at + 1]
            length = second & 0x7F
            body = at + 6
            masked = second & _MASKED
            if length >= 126 and masked and first & 0x0F not in _RESERVED:
                more = _LONG[length]
                if at + 2 + more > size:
                    break
                length = int.from_bytes(data[at + 2 : at + 2 + more])
                body += more
            if length > self._limit or not masked or first & 0x0F in _RESERVED:
                self._missing = _FOR_EVER  # the library refuses it, and ends the connection
                at = size
                break
            if body > size:
                break
            end = body + length
            if end <= size and not self._fragmented and (first in (_TEXT, _BINARY)):
                if start < at:
                    pieces.append(Piece(0, data[start:at]))
                pieces.append(Piece(first & 0x0F, apply_mask(data[body:end], data[body - 4 : body])))
                start = end
            elif not first & 0x08:  # no control frame: those may stand between fragments
                self._fragmented = not first & 0x80
            self._missing = max(0, end - size)
            at = min(end, size)
        if at < size:
            self._head, size = data[at:], at
        if start < size:
            pieces.append(Piece(0, data[start:size]))
        return pieces
