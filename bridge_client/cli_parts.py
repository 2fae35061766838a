"""What the commands of the home's command line share: options, exit codes, and running until done or stopped."""

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import click
import uvloop

SKIPPED = 4
"""The exit code of `ingest` when it published what it could and skipped what was broken."""

EXIT_CODES = (
    "Exit codes: 0 done, 1 it could not be done, 2 the command or a setting is wrong, 3 the hub will not have us."
)
INGEST_EXIT_CODES = f"{EXIT_CODES[:-1]}, {SKIPPED} some of the input was broken and skipped."

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
