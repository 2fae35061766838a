"""What strangers write can be shown on a terminal, and does nothing there."""

import io
import json
import re
import unicodedata

import pytest
from rich.console import Console

from bridge_client.app_client import CaughtUp, Event, Gap, ServerStatus
from bridge_client.render import GROWING_LINES, harmless, render, show, status_line
from bridge_client.transcript import Block, Kind, Standing


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


def test_into_a_pipe_a_tab_stands_between_columns_however_long_a_type_is_and_nowhere_else() -> None:
    for kind in ("note", "application_notification_dismissed"):
        line = render(event(kind=kind, text="one\ttwo"), 0.0, tabs=True)
        assert line.split("\t")[1:] == [kind, "s-1", "one\\ttwo"]


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
    for deep in (5_000, 500_000):  # how deep is too deep depends on the Python
        assert "odd" in render(Event(1, "odd", None, b'{"a": ' + b"[" * deep), 0.0)


def test_gaps_and_status_have_lines_of_their_own() -> None:
    told = "-- gap: expired: the hub no longer has all of what followed 4; what it holds begins behind 9"
    assert render(Gap("expired", 4, 9), 0.0)[9:] == told
    told = "-- gap: hub_reset: the hub was restarted and the home is not back yet; what followed 2 comes when it is"
    assert render(Gap("hub_reset", 2, None), 0.0)[9:] == told
    assert render(ServerStatus(False, "2024-01-01T00:00:00Z"), 0.0)[9:] == "-- home offline since 2024-01-01T00:00:00Z"
    assert render(CaughtUp(None), 0.0)[9:] == "-- live from here on"


def drawn(block: Block, **options: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="truecolor")
    console.print(show(block, **options))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


KINDS: tuple[Kind, ...] = ("reply", "user", "tool", "question", "notice", "line", "warning", "error")


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_text_of_a_block_drives_the_terminal_or_is_read_as_markup(kind: Kind, growing: bool) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\u200f\ufeff\x00\x7f\r[bold red]x[/] [link=evil]"
    block = Block(kind, evil, evil, session_id=evil)
    block.grow(evil)
    text = re.sub(r"\x1b\[[0-9;]*m", "", drawn(block, growing=growing))  # colours are rich's own
    assert [c for c in text if unicodedata.category(c) in {"Cc", "Cf", "Zl", "Zp", "Cs"} and c != "\n"] == []
    assert "owned" in text
    assert "[bold red]x[/]" in text.replace("\n", "")


def test_A220_tools_are_folded_and_unfolded() -> None:
    block = Block("tool", "seq", "".join(f"{number}\n" for number in range(1, 11)))
    assert plain(drawn(block)) == ["✓ seq", "1", "2", "3", "… 7 more lines"]
    assert plain(drawn(block, unfold=True)) == ["✓ seq", *map(str, range(1, 11))]
    block.failed = True
    assert plain(drawn(block))[0] == "✗ seq"
    growing = Block("tool", "seq")
    growing.grow("1\n2\n3\n4")
    assert plain(drawn(growing, growing=True)) == ["▸ seq", "2", "3", "4"]


def test_A220_a_question_stands_out() -> None:
    asked = Block("question", "asks to use rm", "it waits", session_id="s")
    assert plain(drawn(asked)) == ["? [s] asks to use rm", "it waits"]


def test_A220_a_growing_reply_shows_its_end_and_a_broken_one_says_so() -> None:
    block = Block("reply", "assistant", session_id="s")
    block.grow("".join(f"line {number}\n" for number in range(100)) + "now")
    shown = plain(drawn(block, growing=True))
    assert (shown[0], shown[-1], len(shown)) == ("[s] assistant", "now▌", GROWING_LINES + 1)
    broken = Block("reply", "assistant", "half", broken_off=True)
    assert plain(drawn(broken)) == ["assistant", "half", "… broke off here"]


def test_the_status_line_says_link_home_and_lag() -> None:
    assert status_line(Standing(), 0.0, link=None).plain == "○ connecting · catching up"
    here = Standing(home=True, live=True, last_id=7, last_time=90.0)
    said = "● connected · home online · event 7 · live · last dated event 10.0 s ago"
    assert status_line(here, 100.0, link=True).plain == said
    behind = status_line(here, 90.0 + 3 * 3600, link=True, behind=12).plain
    assert behind.endswith("event 7 · 12 events behind · last dated event 3 h ago")
    assert status_line(Standing(home=False), 0.0, link=True).plain.startswith("○ connected · home offline")


def plain(text: str) -> list[str]:
    return [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
