"""Text caps that never split a character: rows B22, C43, C53, C214."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.events.truncation import (
    LLM_OUTPUT_CHARS,
    LLM_PROMPT_CHARS,
    MAX_CHARACTER,
    THINKING_CHARS,
    TOOL_OBSERVATION_CHARS,
    boundary,
    cut_bytes,
    cut_chars,
    cut_error_text,
    cut_lines,
)

FAMILY = "👨\u200d👩\u200d👧"
CHARACTERS = [
    *("a", "é", "字", "😀", "e\u0301", "n\u0303\u0323", FAMILY, "👍🏽", "❤\ufe0f", "🇩🇪", "\ud83d\ude00", "\r\n"),
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "क्षि"[:2],
]


def test_C43_C53_the_documents_caps() -> None:
    assert (LLM_OUTPUT_CHARS, LLM_PROMPT_CHARS, THINKING_CHARS, TOOL_OBSERVATION_CHARS) == (10_000, 5_000, 200, 2_000)


@pytest.mark.parametrize("character", CHARACTERS, ids=ascii)
def test_C214_no_cut_splits_a_character(character: str) -> None:
    text = "x" + character + "y"
    for place in range(len(text) + 1):
        found = boundary(text, place)
        assert found in (0, 1, 1 + len(character), len(text)), ascii(text[:found])
        assert found <= place


def test_C53_exactly_the_limit_with_its_ending_unless_a_character_would_be_split() -> None:
    assert cut_chars("x" * 10, 10) == "x" * 10
    assert cut_chars("x" * 11, 10) == "x" * 7 + "..."
    assert cut_chars("字" * 11, 10) == "字" * 7 + "..."
    assert cut_chars("x" * 6 + FAMILY + "x" * 9, 10) == "x" * 6 + "..."
    assert cut_chars("abc", 2, "") == "ab"
    with pytest.raises(ValueError, match="no room"):
        cut_chars("abc", 2)


def test_flags_are_pairs_of_letters() -> None:
    flags = "🇩🇪🇫🇷🇮🇹"
    assert [boundary(flags, place) for place in range(7)] == [0, 0, 2, 2, 4, 4, 6]


def test_a_run_that_is_no_character_of_any_script_is_cut_where_it_has_to_be() -> None:
    zalgo = "a" + "\u0301" * 500
    assert boundary(zalgo, 400) == 400
    assert boundary(zalgo, MAX_CHARACTER - 1) == 0
    assert boundary("a" + "\ud83d\ude00" + "\u200d\ud83d\ude00" * 50, 101) == 100, "and never within a pair"


@given(st.lists(st.sampled_from(CHARACTERS), max_size=12).map("".join), st.integers(0, 60))
@settings(max_examples=100)
def test_B22_bytes_are_counted_and_no_character_is_split(text: str, limit: int) -> None:
    kept, truncated = cut_bytes(text, limit)
    size = len(kept.encode("utf-8", "surrogatepass"))
    assert text.startswith(kept)
    assert size <= limit
    assert truncated is (kept != text)
    assert boundary(text, len(kept)) == len(kept)
    longest = max((len(c.encode("utf-8", "surrogatepass")) for c in CHARACTERS), default=0)
    assert not truncated or size > limit - 2 * longest, "and not more is cut than must be"


def test_B22_lines() -> None:
    assert cut_lines("a\nb\nc", 2) == ("a\nb", True)
    assert cut_lines("a\nb\n", 2) == ("a\nb\n", False)
    assert cut_lines("a\nb\n\n", 2) == ("a\nb", True)
    assert cut_lines("", 1) == ("", False)
    assert cut_error_text("a\nb\nc", 3, 2) == ("a\nb", True)
    assert cut_error_text("abc", 3, 2) == ("abc", False)
    for wrong in (lambda: cut_lines("", 0), lambda: cut_bytes("", -1)):
        with pytest.raises(ValueError, match="limit"):
            wrong()
