"""Shortening a text without splitting a character.

A character here is what a reader takes for one: a base with its combining marks and variation selectors, an emoji
sequence held together by joiners, a flag of two letters, a surrogate pair that was never joined. A cut steps back to
the start of the character it would split; if that would be more than MAX_CHARACTER code points, the run is no character
of any script, and the cut falls between two code points. A code point is never split.
"""

import re
import unicodedata
from typing import Final, NamedTuple

LLM_OUTPUT_CHARS: Final = 10_000
LLM_PROMPT_CHARS: Final = 5_000
THINKING_CHARS: Final = 200
TOOL_OBSERVATION_CHARS: Final = 2_000
"""Row C53. These four count code points, as the streaming API's own caps do (rows C43, C52, C214)."""

ERROR_TEXT_BYTES: Final = 16_384
ERROR_TEXT_LINES: Final = 200
"""Row B22: what is kept of a provider's diagnostics."""

MAX_CHARACTER: Final = 32
"""Code points that a cut steps back at most."""

_JOINER: Final = "\u200d"
_LETTERS: Final = re.compile("[\U0001f1e6-\U0001f1ff]*\\Z")


class Cut(NamedTuple):
    """A text, and whether something of it is missing."""

    text: str
    truncated: bool


def cut_chars(text: str, limit: int, ending: str = "...") -> str:
    """`text` if it has at most `limit` code points, else its start and `ending`: exactly `limit` code points, or fewer
    if a character would be split. Raises ValueError for a limit below that of the ending."""
    if limit < len(ending):
        raise ValueError(f"a limit of {limit} leaves no room for {ending!r}")
    if len(text) <= limit:
        return text
    return text[: boundary(text, limit - len(ending))] + ending


def cut_bytes(text: str, limit: int) -> Cut:
    """The start of `text` that is at most `limit` bytes of UTF-8. A lone surrogate counts as the three bytes of U+FFFD,
    which it becomes on the wire. Raises ValueError for a negative limit."""
    if limit < 0:
        raise ValueError(f"a limit of {limit} bytes")
    if len(text) * 4 <= limit or len(data := text.encode("utf-8", "surrogatepass")) <= limit:
        return Cut(text, False)
    at = limit
    while at and data[at] & 0xC0 == 0x80:
        at -= 1
    kept = len(data[:at].decode("utf-8", "surrogatepass"))
    return Cut(text[: boundary(text, kept)], True)


def cut_lines(text: str, limit: int) -> Cut:
    """The first `limit` lines of `text`, which end at `\\n`. Raises ValueError for a limit below 1."""
    if limit < 1:
        raise ValueError(f"a limit of {limit} lines")
    at = -1
    for _ in range(limit):
        at = text.find("\n", at + 1)
        if at < 0:
            return Cut(text, False)
    return Cut(text, False) if at == len(text) - 1 else Cut(text[:at], True)


def cut_error_text(text: str, max_bytes: int = ERROR_TEXT_BYTES, max_lines: int = ERROR_TEXT_LINES) -> Cut:
    """Diagnostics within both limits: first by lines, then by bytes (row B22)."""
    lines, fewer = cut_lines(text, max_lines)
    kept, shorter = cut_bytes(lines, max_bytes)
    return Cut(kept, fewer or shorter)


def boundary(text: str, at: int) -> int:
    """The last place at or before `at` (0 to the text's length) where no character is split."""
    lowest = max(0, at - MAX_CHARACTER)
    place = at
    while 0 < place < len(text) and _joined(text, place):
        place -= 1
        if place < lowest:
            return at - 1 if _pair(text, at) else at
    return place


def _pair(text: str, at: int) -> bool:
    return "\ud800" <= text[at - 1] <= "\udbff" and "\udc00" <= text[at] <= "\udfff"


def _joined(text: str, at: int) -> bool:
    """Whether the code points before and after `at` are of one character."""
    after = text[at]
    if after < "\u0300":  # the bulk of all text: nothing below combines
        return text[at - 1] == "\r" and after == "\n"
    if after == _JOINER or text[at - 1] == _JOINER or _pair(text, at):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff":  # skin tones
        return True
    if "\U000e0020" <= after <= "\U000e007f":  # tags of the flags of regions
        return True
    if "\U0001f1e6" <= after <= "\U0001f1ff":
        letters = _LETTERS.search(text, max(0, at - MAX_CHARACTER), at)
        return letters is not None and len(letters[0]) % 2 == 1
    return unicodedata.category(after).startswith("M")
