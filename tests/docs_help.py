"""What `--help` says in docs/cli.md, and the pen that writes it there: python -m tests.docs_help"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

import bridge_client.cli
import bridge_server.cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
WIDTH = 100
PROGRAMS = {"bridge-client": bridge_client.cli.cli, "bridge-server": bridge_server.cli.cli}

BLOCK = re.compile(r"^```text\n\$ ([a-z -]+?) --help\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(command: click.Command, path: str) -> Iterator[str]:
    """Every command and group of commands, by the words that call it."""
    yield path
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, f"{path} {name}")


def every_command() -> list[str]:
    return [path for name, cli in PROGRAMS.items() for path in commands(cli, name)]


def said(path: str) -> str:
    """What `path --help` prints on a terminal of WIDTH columns, without blanks at the ends of lines."""
    name, *words = path.split()
    result = CliRunner().invoke(
        PROGRAMS[name], [*words, "--help"], prog_name=name, terminal_width=WIDTH, max_content_width=WIDTH
    )
    assert result.exit_code == 0, result.output
    return "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())


def shown() -> dict[str, str]:
    """What the page shows, by command."""
    return {match[1]: match[2] for match in BLOCK.finditer(PAGE.read_text("utf-8"))}


def write() -> None:
    """Renew each block on the page, and put blocks for new commands at the end of their program's part."""
    text = BLOCK.sub(lambda match: block(match[1]) if match[1] in every_command() else "", PAGE.read_text("utf-8"))
    for path in every_command():
        if path not in {match[1] for match in BLOCK.finditer(text)}:
            name = path.split()[0]
            part = re.search(rf"^## {name}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
            assert part, f"the page has no part {name}"
            text = f"{text[: part.end()].rstrip()}\n\n### {path}\n\n{block(path)}\n\n{text[part.end() :]}"
    PAGE.write_text(text.rstrip() + "\n", "utf-8")


def block(path: str) -> str:
    return f"```text\n$ {path} --help\n{said(path)}```"


if __name__ == "__main__":
    write()
