"""What the hub's commands share: options, how a list and a credential are printed, how one ends in an error."""

import contextlib
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.table import Table

from bridge_server import listening
from bridge_server.auth import SCOPES, Credentials, Device, Entry, Identity, Operator, Server
from bridge_server.config import Config
from protocol.loopback import normal_origin

EXIT_CODES = "Exit codes: 0 done, 1 it could not be done, 2 the command or a setting is wrong."

as_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs instead of text for people."
)
state_dir_option = click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the hub keeps its files."
)
database_option = click.option(
    "--database", type=click.Path(path_type=Path, dir_okay=False), help="The credential database."
)
out_option = click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the credential into this new file (mode 0600) instead of printing it.",
)


def _checked_url(_context: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    try:
        good = url is None or (normal_origin(url) is not None and re.match(r"https?://[!-~]+\Z", url))
    except ValueError:
        good = False
    if not good:
        raise click.BadParameter("must start with http:// or https:// and name a host")
    return url


hub_url_option = click.option(
    "--hub-url",
    callback=_checked_url,
    help="The URL that goes into the credential; default: the public URL, else where the hub listens.",
)


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where the database is, and `--json`: what every command takes."""
    return state_dir_option(database_option(as_json_option(command)))


@contextlib.contextmanager
def opened(options: dict[str, Any]) -> Iterator[tuple[Config, Credentials, bool]]:
    """The settings, the credential database, and whether to print JSON. What the database refuses ends the command."""
    config = Config.from_env(state_dir=options["state_dir"], database=options["database"])
    credentials = Credentials(config.database_path)
    try:
        yield config, credentials, options["as_json"]
    except KeyError as error:
        fail(f"there is no home {error.args[0]} with a credential that stands; see: bridge-server servers list")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    finally:
        credentials.close()


def list_found(options: dict[str, Any], find: Callable[[Credentials], Sequence[Entry]]) -> None:
    """Print what `find` finds in the credential database. One that is not there is empty, and stays not there."""
    config = Config.from_env(state_dir=options["state_dir"], database=options["database"])
    if not config.database_path.exists():
        show_list([], options["as_json"])
        return
    with opened(options) as (_, credentials, as_json):
        show_list(find(credentials), as_json)


def hand_over(
    config: Config,
    credentials: Credentials,
    make: Callable[[], tuple[Identity, str]],
    *,
    hub_url: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Have `make` make a credential and print it, or write it into the new file `out` and print the rest.

    None is made when `out` can't be created; one that can't be written is revoked.
    """
    file = None if out is None else _create(out)
    made: Identity | None = None
    try:
        made, token = make()
        facts = record(made) | {"hub_url": hub_url or _reached_at(config)}
        secret = facts | {"credential": token}
        if file is not None:
            _write(file, json.dumps(secret, indent=2) + "\n")
            secret = facts | {"file": str(out)}
    except BaseException as error:
        if out is not None:
            out.unlink(missing_ok=True)
            if made is not None:
                credentials.revoke_credential(made.credential_id)
                if isinstance(error, OSError):
                    fail(f"{out} can't be written ({error.strerror}); it is removed, and its credential is revoked")
        raise
    finally:
        if file is not None:
            os.close(file)
    if as_json:
        print_json(secret)
        return
    click.echo("\n".join(f"{name:<14}{shown(value)}" for name, value in secret.items()))
    if out is None:
        click.echo("The credential is not shown again. Keep it, or revoke it and make another.", err=True)


def _create(path: Path) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        fail(f"{path} can't be created ({error.strerror}); nothing was made: choose another --out")


def _write(file: int, text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(file, data) :]
    os.fsync(file)  # some file systems say only here that there is no room


def _reached_at(config: Config) -> str:
    return config.public_url or listening.find(config.database_path) or listening.url_of(config.host, config.port)


def record(identity: Identity) -> dict[str, Any]:
    """What a list says of a credential; never the credential itself."""
    match identity:
        case Server(credential_id, server_id, name):
            return {"server_id": server_id, "name": name, "credential_id": credential_id}
        case Device(credential_id, device_id, server_id, name, scopes):
            shown = [scope for scope in SCOPES if scope in scopes]
            return {"device_id": device_id, "server_id": server_id, "name": name, "scopes": shown}
        case Operator(credential_id, name):
            return {"credential_id": credential_id, "name": name}


def show_list(entries: Sequence[Entry], as_json: bool) -> None:
    """Print credentials: a table on a terminal, columns with tabs for a pipe, or JSON."""
    rows = [
        record(entry.identity)
        | {"created": day(entry.created_at), "revoked": day(entry.revoked_at) if entry.revoked_at else None}
        for entry in entries
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        click.echo("none yet", err=True)
    elif sys.stdout.isatty():
        table = Table(*rows[0], box=None, header_style="bold")
        for row in rows:
            table.add_row(*map(shown, row.values()), style="dim" if row["revoked"] else None)
        Console(width=10_000).print(table)  # never broken: what does not fit is for the terminal to wrap
    else:
        for row in rows:
            click.echo("\t".join(map(shown, row.values())))


def day(seconds: int) -> str:
    """RFC 3339 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def shown(value: object) -> str:
    """A value as a cell of a table."""
    return ",".join(value) if isinstance(value, list) else "" if value is None else str(value)


def print_json(value: object) -> None:
    """One line of JSON."""
    click.echo(json.dumps(value))


def fail(message: str) -> NoReturn:
    """End the command with exit code 1 and one sentence."""
    raise click.ClickException(message)


def in_words(error: OSError) -> str:
    """What the system refused, where, and what to look at."""
    if error.filename is None or error.strerror is None:
        return str(error)
    advice = {errno.ENOSPC: "make room on the disk", errno.EDQUOT: "make room on the disk"}
    look = advice.get(error.errno or 0, "check the name, and what this user may do there")
    return f"{os.fsdecode(error.filename)} can't be used ({error.strerror}); {look}"
