"""What strangers write can be shown on a terminal, and does nothing there."""

import json
import unicodedata

import pytest

from bridge_client.app_client import CaughtUp, Event, Gap, ServerStatus
from bridge_client.render import harmless, render


def event(kind: str = "partial", session: str | None = "s-1", **more: object) -> Event:
    data = json.dumps({"event_id": "7", "type": kind, "session_id": session, **more}).encode()
    return Event(7, kind, session, data)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"text": "hello there"}, "hello there"),
        ({"data": {"content": "from inside"}}, "from inside"),
        ({"data": "a plain value"}, "a plain value"),
        ({"message": {"content": [{"type": "text", "text": "in parts"}]}}, "in parts"),
        ({"display": {"type": "text", "content": "shown"}, "data": {"content": "not shown"}}, "shown"),
        ({"data": {"number": 7}}, ""),
    ],
)
def test_a_line_says_what_the_event_says(more: dict[str, object], said: str) -> None:
    line = render(event(**more), 0.0)
    assert line[8:] == f" {'partial':<22} {'s-1':<12} {said}".rstrip()


@pytest.mark.parametrize("where", ["type", "session", "text"])
def test_no_character_of_a_stranger_drives_the_terminal(where: str) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202egnp.exe\u2066\u200f\u061c\ufeff\U000e0041\x00\x7f\u2028"
    hostile = {"type": event(kind=evil), "session": event(session=evil), "text": event(text=evil)}[where]
    line = render(hostile, 0.0, width=1000)
    assert [c for c in line if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp", "Cs", "Cn", "Co"}] == []
    assert "\\e]0;owned\\u{7}" in line
    assert "\\u{202e}gnp.exe" in line


def test_every_control_and_format_character_is_shown_as_its_code_except_emoji_joiners() -> None:
    kept = {"\u200c", "\u200d"}
    for code in range(0x110000):
        char = chr(code)
        # Signs of scripts that have a shape of their own, and characters without a meaning, may stay.
        if unicodedata.category(char) in {"Cc", "Zl", "Zp", "Cs"} or unicodedata.bidirectional(char) in {
            *("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"),
        }:
            assert char not in kept
            assert harmless(char).startswith("\\"), hex(code)


def test_ordinary_text_of_every_script_is_left_alone() -> None:
    for text in ("Grüße", "日本語", "שלום", "العربية", "हिन्दी", "👩‍👩‍👧 ❤️", "a\u0301"):
        assert harmless(text) == text


def test_stacked_marks_are_cut() -> None:
    assert harmless("a" + "\u0301" * 500 + "b") == "a" + "\u0301" * 4 + "b"


def test_a_line_is_never_longer_than_asked() -> None:
    line = render(event(text="x" * 100_000), 0.0, width=80)
    assert len(line) == 80
    assert line.endswith("…")


def test_an_event_that_cannot_be_decoded_still_has_a_line() -> None:
    assert "odd" in render(Event(1, "odd", None, b'{"a": ' + b"[" * 5000), 0.0)


def test_gaps_and_status_have_lines_of_their_own() -> None:
    assert render(Gap("expired", 4, 9), 0.0)[9:] == ("-- gap: expired; missing behind 4, held behind 9")
    assert render(ServerStatus(False, "2024-01-01T00:00:00Z"), 0.0)[9:] == "-- home offline since 2024-01-01T00:00:00Z"
    assert render(CaughtUp(None), 0.0)[9:] == "-- live from here on"
