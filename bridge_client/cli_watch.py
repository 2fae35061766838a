"""`bridge-client watch`: a home's events on this terminal, from the hub or from the home's own API. Prints."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import click

from bridge_client import logs
from bridge_client.cli_parts import (
    EXIT_CODES,
    FILE,
    as_json_option,
    fail,
    hub_url_option,
    log_options,
    run,
    state_dir_option,
)
from bridge_client.config import Config
from bridge_client.lazy import lazily
from protocol import event_id as ids
from protocol.errors import BadEventId

if TYPE_CHECKING:
    from rich import console as rich_console

    from bridge_client import app, app_client, keys, render, transcript
else:
    rich_console = lazily("rich.console")
    app, app_client, render = (lazily(f"bridge_client.{name}") for name in ("app", "app_client", "render"))
    keys, transcript = lazily("bridge_client.keys"), lazily("bridge_client.transcript")

REFRESH: Final = 0.1
"""Seconds between two drawings of what grows."""

TICK: Final = 0.5


class Items(Protocol):
    """Where items come from: an AppClient, or LocalEvents."""

    connected: bool
    behind: int | None

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *ending: Any) -> None: ...

    def __aiter__(self) -> AsyncIterator["app_client.Item"]: ...


def add_to(cli: click.Group) -> None:
    """Give `cli` this command."""
    cli.add_command(watch)


@click.command(epilog=EXIT_CODES)
@click.option("--local", is_flag=True, help="Ask the home on this machine, not the hub.")
@click.option(
    "--credential-file", type=FILE, help="The app's credential; default: app-credential.json in the state directory."
)
@click.option("--since", help="Resume behind this event id; default: only what happens from now on.")
@click.option("--epoch", help="The epoch that --since belongs to; default: the current one.")
@click.option("--session", "session_id", help="Only the events of this session.")
@click.option("--unfold", is_flag=True, help="Show all that tools gave back.")
@hub_url_option
@state_dir_option
@log_options("WARNING")
@as_json_option
def watch(
    as_json: bool,
    local: bool,
    credential_file: Path | None,
    since: str | None,
    epoch: str | None,
    session_id: str | None,
    unfold: bool,
    **options: Any,
) -> None:
    """Show a home's events, live. On a terminal: replies as they grow, tools folded, and a line of how things stand.

    Into a pipe, each event is one line, with tabs between time, type, session and text; with --json, as the home wrote
    it. Drops are bridged: what happened meanwhile follows in its place. What can't follow is said (with --json on
    standard error), as are log records from WARNING on, or from the level you choose.

    \b
        bridge-client pair                       # at home; shows a link
        bridge-client redeem LINK                # here, once
        bridge-client watch
        bridge-client watch --local              # on the home's machine, without pairing and without a hub
    """
    if epoch is not None and since is None:
        raise click.UsageError("--epoch goes with --since: name the event id to resume behind")
    if local and credential_file is not None:
        raise click.UsageError("--local needs no credential: leave --credential-file out")
    config = Config.from_env(defaults={"log_level": "WARNING"}, **options)
    logs.set_up(config.log_level, sys.stderr, as_json=config.log_json)
    try:
        cursor = None if since is None else (epoch, ids.parse(since))
    except BadEventId as error:
        raise click.UsageError(f"--since: {error}") from None
    items: Items
    if local:
        items = app.local_events(config, cursor=cursor, session_id=session_id)
    else:
        items = _from_hub(config, credential_file or _app_credential(config), cursor, session_id)
    if as_json:
        run(_as_json(items))
    elif sys.stdout.isatty():
        run(show(items, rich_console.Console(highlight=False), unfold=unfold))
    else:
        run(_as_lines(items))


def _app_credential(config: Config) -> Path:
    return config.state_dir / "app-credential.json"


def _from_hub(config: Config, path: Path, cursor: tuple[str | None, int] | None, session_id: str | None) -> Items:
    credential = keys.load_for(config.hub_url, path)
    if credential is None:
        out = "" if path == _app_credential(config) else f" --out {path}"
        fail(
            f"there is no {path}: this terminal is not paired with a home. At home `bridge-client pair` shows a link;"
            f" then, here: bridge-client redeem LINK{out}\n"
            f"The hub's operator can make the file too: bridge-server devices add SERVER_ID NAME --out {path}\n"
            "On the home's own machine: bridge-client watch --local"
        )
    return app.app_client(credential, cursor=cursor, session_id=session_id)


async def _as_json(items: Items) -> None:
    async with items:
        async for item in items:
            if isinstance(item, app_client.Event):
                # A line break can only be white space between two tokens: inside a JSON string it is an escape.
                sys.stdout.buffer.write(item.data.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n")
                sys.stdout.buffer.flush()
            else:
                click.echo(render.render(item, time.time()), err=True)


async def _as_lines(items: Items) -> None:
    async with items:
        async for item in items:
            click.echo(render.render(item, time.time(), tabs=True))


async def show(items: Items, console: "rich_console.Console", *, unfold: bool = False) -> None:
    """Draw the items until they end: what is finished scrolls by; below it stays what grows, and how things stand."""
    from rich.live import Live

    shown = transcript.Transcript()

    def below() -> "rich_console.RenderableType":
        growing = [render.show(block, growing=True) for block in shown.growing[-_MOST_GROWING:]]
        status = render.status_line(shown.standing, time.time(), link=items.connected, behind=items.behind)
        return rich_console.Group(*growing, status)

    with Live(below(), console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:

        async def tick() -> None:
            while True:
                live.update(below(), refresh=True)
                await asyncio.sleep(TICK)

        async with items:
            ticking = asyncio.create_task(tick())
            try:
                drawn = 0.0
                async for item in items:
                    finished = shown.take(item)
                    for block in finished:
                        console.print(render.show(block, unfold=unfold))
                    if finished or time.monotonic() - drawn >= REFRESH:
                        live.update(below(), refresh=True)
                        drawn = time.monotonic()
            finally:
                ticking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await ticking


_MOST_GROWING: Final = 4
