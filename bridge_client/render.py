"""What is seen of a home on a terminal: one event as one line, for a pipe; for a person, blocks, and where it stands.

Events are written by others. Nothing shown can drive the terminal: every control character, every character that
changes the direction of writing and every invisible one is shown as its code.
"""

import re
import time
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from bridge_client.app_client import CaughtUp, Event, Gap, Item, ServerStatus
from bridge_client.transcript import Block, Standing, gap_words
from bridge_client.transcript import said as said_in

WIDTH: Final = 120
"""Longest line by default, in characters."""

# C0, DEL and C1; the marks, embeddings, overrides and isolates of the bidirectional algorithm; line and paragraph
# separators; invisible characters, tags and variation selectors of the supplement; half surrogates; what is no
# character. The joiners and variation selectors that build emoji stay.
_DANGEROUS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufdd0-\ufdef\ufeff\uffa0\ufff0-\uffff\U000e0000-\U000e0fff\U000f0000-\U0010ffff]"
)
# More marks than any script stacks on one letter paint over the lines above and below.
_MARKS = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_STACKED: Final = re.compile(f"({_MARKS}{{4}}){_MARKS}+")
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e"}


def harmless(text: str) -> str:
    """`text` with every character that could drive a terminal or hide shown as `\\n` or `\\u{202e}`."""
    return _STACKED.sub(r"\1", _DANGEROUS.sub(_shown, text))


def render(item: Item, at: float, width: int = WIDTH, *, tabs: bool = False) -> str:
    """One line without its newline, at most `width` characters. `at` (seconds since 1970) is shown as local time.

    Time, type, session and text of an event stand in columns; `tabs` are for a program: one between two of them.
    """
    between = "\t" if tabs else " "
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    if isinstance(item, Event):
        said = " ".join(said_in(_value(item)))[: 4 * width]  # more can't be shown: don't clean it
        cells = [harmless(cell) for cell in (clock, item.type[:width], (item.session_id or "-")[:width], said)]
        if not tabs:
            cells[1], cells[2] = f"{cells[1]:<22}", f"{cells[2]:<12}"
        return _within(between.join(cells), width)
    match item:
        case Gap():
            line = f"-- {gap_words(item)}"
        case ServerStatus(online, since, _):
            line = f"-- home {'online' if online else 'offline'}{f' since {since}' if since else ''}"
        case CaughtUp(None):
            line = "-- live from here on"
        case _:
            line = f"-- caught up to {item.to_id}, live from here on"
    return _within(f"{clock}{between}{harmless(line)}", width)


def _within(line: str, width: int) -> str:
    line = line.rstrip()
    return line if len(line) <= width else line[: width - 1] + "…"


def _shown(match: re.Match[str]) -> str:
    return _SHORT.get(match[0]) or f"\\u{{{ord(match[0]):x}}}"


def _value(event: Event) -> Any:
    try:
        return event.value
    except (ValueError, RecursionError):
        return {}


# For a person: rich renderables. Their texts are `Text`, in which rich reads no markup.

FOLDED_LINES: Final = 3
"""Of what a tool gave back, until somebody asks for all of it."""

GROWING_LINES: Final = 12
"""Of a reply that is not finished: its last ones."""

_COLOURS: Final = {"reply": "cyan", "user": "green", "tool": "magenta", "notice": "yellow", "line": "dim"}
_COLOURS_OF_TROUBLE: Final = {"warning": "yellow", "error": "red"}
_MORE: Final = 4_000  # characters of a block's end that are looked at for its last lines


def show(block: Block, *, growing: bool = False, unfold: bool = False) -> RenderableType:
    """A block as it stays on the screen, or, while it grows, its end."""
    match block.kind:
        case "line":
            return Text(harmless(f"{_session(block)}{block.title}"), style="dim")
        case "question":
            head = Text(f"? {harmless(_session(block) + block.title)}", style="bold yellow")
            return Group(head, Text("\n".join(f"  {line}" for line in lines_of(block.text)), style="yellow"))
        case "warning" | "error":
            style = _COLOURS_OF_TROUBLE[block.kind]
            body = lines_of(block.title) + ([*lines_of(block.text)] if block.text else [])
            return Text("\n".join(f"{'!' if at == 0 else ' '} {line}" for at, line in enumerate(body)), style=style)
        case "notice":
            title = Text(harmless(block.title), style="bold")
            return Panel(Text("\n".join(lines_of(block.text))), title=title, title_align="left", border_style="yellow")
        case "tool":
            return _tool(block, growing, unfold)
        case _:
            head = Text(harmless(f"{_session(block)}{block.title}"), style=f"bold {_COLOURS[block.kind]}")
            if growing:
                body = lines_of(f"{block.grown[-_MORE:]}▌")[-GROWING_LINES:]
            else:
                body = lines_of(block.text.rstrip("\n"))
            end = [Text("… broke off here", style="yellow")] if block.broken_off else []
            return Group(head, Text("\n".join(body)), *end)


def _tool(block: Block, growing: bool, unfold: bool) -> RenderableType:
    mark = "✗" if block.failed else "▸" if growing else "✓"
    head = Text(f"{mark} {harmless(_session(block) + block.title)}", style="red" if block.failed else "magenta")
    head.truncate(4 * WIDTH, overflow="ellipsis")
    body = lines_of(block.grown[-_MORE:] if growing else block.text.rstrip("\n"))
    if growing:
        body = body[-FOLDED_LINES:]
    elif not unfold and len(body) > FOLDED_LINES:
        body = [*body[:FOLDED_LINES], f"… {len(body) - FOLDED_LINES} more lines"]
    if not any(body):
        return head
    return Group(head, Text("\n".join(f"  {line}" for line in body), style="dim"))


def status_line(standing: Standing, at: float, *, link: bool | None, behind: int | None = None) -> Text:
    """Link, home and lag. `link` is whether the events' source is connected, `behind` how many events it has ahead."""
    parts = {None: "connecting", True: "connected", False: "not connected"}[link]
    home = {None: "", True: " · home online", False: " · home offline"}[standing.home]
    place = "" if standing.last_id is None else f" · event {standing.last_id}"
    lag = f" · {behind} events behind" if behind else " · live" if standing.live else " · catching up"
    if standing.last_time is not None:
        lag += f" · last dated event {age(at - standing.last_time)} ago"
    good = link and standing.home is not False
    return Text(f"{'●' if good else '○'} {parts}{home}{place}{lag}", style="green" if good else "yellow", no_wrap=True)


def age(seconds: float) -> str:
    """A duration, as short as it can be told."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0.0, seconds):.1f} s"


def lines_of(text: str) -> list[str]:
    """The lines of a text, each harmless; a tab is four blanks. What else ends a line is shown as its code."""
    return [harmless(line.replace("\t", "    ")) for line in text.replace("\r\n", "\n").split("\n")]


def _session(block: Block) -> str:
    return f"[{block.session_id}] " if block.session_id else ""
