"""What the commands of the home's command line share: options, exit codes, and running until done or stopped."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import uvloop

from bridge_client.lazy import lazily

if TYPE_CHECKING:
    from rich import console as rich_console
    from rich import table as rich_table
    from rich import text as rich_text

    from bridge_client import render
else:
    rich_console, rich_table, rich_text = (lazily(f"rich.{name}") for name in ("console", "table", "text"))
    render = lazily("bridge_client.render")

SKIPPED = 4
"""The exit code of `ingest` when it published what it could and skipped what was broken."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 it could not be done, 2 the command or a setting is wrong, 3 the hub will not have us."
)
INGEST_EXIT_CODES = f"{EXIT_CODES[:-1]}, {SKIPPED} some of the input was broken and skipped."
ALL_EXIT_CODES = INGEST_EXIT_CODES.replace(f"{SKIPPED} some", f"{SKIPPED} of ingest: some")

FILE = click.Path(path_type=Path, dir_okay=False)
as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs instead of text for people."
)
hub_url_option = click.option(
    "--hub-url", help="Where the hub is; default: the one the credential is for, or this machine."
)
state_dir_option = click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the home keeps its files."
)
store_option = click.option("--store", type=FILE, help="The event store (SQLite).")


def log_options(default: str = "INFO") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options for what is logged, of a command that logs from `default` on."""
    level = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"])
    options = [
        click.option("--log-level", type=level, help=f"Default {default}."),
        click.option("--log-json", is_flag=True, default=None, help="Log one JSON object a line."),
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in options:
            command = option(command)
        return command

    return decorate


def say(text: str, facts: dict[str, Any] | None) -> None:
    """Print `text`, or `facts` as one line of JSON if there are any; at once, also into a pipe."""
    click.echo(text if facts is None else json.dumps(facts))
    sys.stdout.flush()


def show_rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print what others may have written: a table with heads on a terminal, columns with tabs alone into a pipe."""
    harmless = [[render.harmless(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        table = rich_table.Table(*heads, box=None, header_style="bold")
        for row in harmless:
            table.add_row(*map(rich_text.Text, row))
        # Never broken: what does not fit is for the terminal to wrap.
        rich_console.Console(width=10_000, highlight=False).print(table)
    else:
        for row in harmless:
            click.echo("\t".join(row))


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run until done, or until SIGINT or SIGTERM: then `work` is cancelled, cleans up, and that is success."""
    uvloop.run(_until_stopped(work))


async def _until_stopped(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and this sentence."""
    raise click.ClickException(message)


def in_words(error: OSError) -> str:
    """What the system refused, where, and what to look at."""
    if error.filename is None or error.strerror is None:
        return str(error)
    advice = {errno.ENOSPC: "make room on the disk", errno.EDQUOT: "make room on the disk"}
    look = advice.get(error.errno or 0, "check the name, and what this user may do there")
    return f"{os.fsdecode(error.filename)} can't be used ({error.strerror}); {look}"
