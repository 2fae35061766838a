"""Reads a walk-through out of a page: which command runs on which machine, and what it is shown to say.

In a block of `console`, a line that starts with `NAME$ ` or `NAME# ` is a command of the machine NAME; it goes on in
the next line after a backslash, and until the end mark of a here-document. What follows it is what it says, where `…`
stands for anything. `^C` is Ctrl-C in the terminal of the last program that was left running there.
"""

import re
from pathlib import Path
from typing import NamedTuple

_PROMPT = re.compile(r"([a-z]+)[$#] (.*)")


class Step(NamedTuple):
    """One command. `shown` is what the page shows of its output, line by line."""

    machine: str
    command: str
    shown: list[str]


def walk(page: Path, heading: str) -> list[Step]:
    """The commands under a heading, in order. Raises ValueError for a line that belongs to none."""
    text = page.read_text("utf-8")
    start = text.index(f"\n## {heading}\n")
    text = text[start : text.find("\n## ", start + 1)]
    return [
        step
        for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for step in _steps(block)
    ]


def _steps(block: str) -> list[Step]:
    steps: list[Step] = []
    lines = iter(block.splitlines())
    for line in lines:
        if prompt := _PROMPT.fullmatch(line):
            command = [prompt[2]]
            here = re.search(r"<<'(\w+)'", prompt[2])
            while (command[-1] != here[1]) if here and len(command) else command[-1].endswith("\\"):
                command.append(next(lines))
            steps.append(Step(prompt[1], "\n".join(command), []))
        elif steps:
            steps[-1].shown.append(line)
        else:
            raise ValueError(f"a block starts with what no command says: {line!r}")
    return steps


def says(shown: list[str], output: str) -> bool:
    """Whether a program said what the page shows."""
    pattern = "\n".join(re.escape(line).replace("…", ".*") for line in shown)
    return not shown or re.search(pattern, output, re.DOTALL) is not None
