"""`bridge-client exec`: one command, seen here as always, and by the apps as it happens. Prints what it prints."""

import asyncio
import os
import secrets
import select
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import uvloop

from bridge_client.cli_parts import fail, state_dir_option, store_option
from bridge_client.config import Config
from bridge_client.lazy import lazily
from bridge_client.session_rules import BadSession, RequestRunning

if TYPE_CHECKING:
    from bridge_client import app
else:
    app = lazily("bridge_client.app")

NOT_FOUND = 127
NOT_STARTED = 126

EXIT_CODES = (
    f"Exit codes: the command's own, 128 and the signal's number if one ended it, {NOT_FOUND} it is not there,"
    f" {NOT_STARTED} it can't be started; with nothing run, 1 the store can't be opened or the"
    " session is busy, 2 a setting is wrong."
)


def add_to(cli: click.Group) -> None:
    """Give `cli` this command."""
    cli.add_command(exec_command)


@click.command("exec", epilog=EXIT_CODES, context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--session", "session_id", help="The session that it belongs to, made if it is not there; default: a new one."
)
@store_option
@state_dir_option
def exec_command(command: tuple[str, ...], session_id: str | None, **options: Any) -> None:
    """Run COMMAND here, as without this, and publish what it prints as a session's events.

    Its output goes through unchanged, its exit code is this command's, the terminal's keys reach it. What an agent
    prints as JSON lines (Claude Code, Codex, OpenCode and others) becomes replies and tool calls; other lines are text.

    The session is one like any other. Its first message is the command line: apps see that too, and may go on with it.
    A running home forwards the events at once; otherwise they wait in the store.

    \b
        bridge-client exec -- claude -p --output-format stream-json --verbose 'tidy up'
        bridge-client exec -- codex exec --json 'tidy up'
        bridge-client exec -- make test
    """
    if session_id == "":
        raise click.UsageError("--session: name a session, or leave it out")
    code = uvloop.run(_exec(Config.from_env(**options), command, session_id))
    if code:
        raise click.exceptions.Exit(code)


async def _exec(config: Config, command: tuple[str, ...], session_id: str | None) -> int:
    async with app.open_store(config) as store:
        try:
            one_off = await app.one_off(config, command, store, session_id or f"exec-{secrets.token_hex(6)}")
        except BadSession as error:
            raise click.UsageError(f"--session: {error}") from None
        except RequestRunning as error:
            fail(f"{error}; what nobody runs any more, a home that runs here ends soon. Nothing was run")
        loop = asyncio.get_running_loop()
        # The terminal's keys reach the command by themselves: only what was sent to this process alone is passed on.
        from_terminal = os.isatty(sys.stdin.fileno()) if sys.stdin is not None else False
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, one_off.signal, number)
        loop.add_signal_handler(signal.SIGINT, *([lambda: None] if from_terminal else [one_off.signal, signal.SIGINT]))
        try:
            code = await one_off.run(partial(_write, sys.stdout.fileno()), partial(_write, sys.stderr.fileno()))
        except FileNotFoundError:
            click.echo(f"Error: there is no program {command[0]!r}", err=True)
            return NOT_FOUND
        except (OSError, ValueError) as error:
            said = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            click.echo(f"Error: {command[0]!r} can't be started: {said}", err=True)
            return NOT_STARTED
        if one_off.problem is not None:
            click.echo(f"Error: not all events of this command were stored: {one_off.problem}", err=True)
        elif one_off.unkept is not None:
            click.echo(f"Note: the session keeps the beginning of it only: {one_off.unkept}", err=True)
        return code


def _write(file: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(file, left) :]
        except BlockingIOError:  # whoever shares the terminal with us has made it so
            select.select([], [file], [])
