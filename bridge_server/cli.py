"""The command line of the hub. Prints; does nothing itself that another program could not do with the same modules.

Exit codes: 0 done (a stopped hub too), 1 it could not be done, 2 the command or a setting is wrong.
"""

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import click
import uvloop
from rich.console import Console
from rich.table import Table

from bridge_server import logs
from bridge_server.auth import SCOPES, Credentials, Device, Entry, Identity, Operator, Server
from bridge_server.config import BadConfig, Config
from bridge_server.database import BadDatabase

EXIT_CODES = "Exit codes: 0 done, 1 it could not be done, 2 the command or a setting is wrong."

_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs instead of text for people.")
_state_dir = click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), help="Where the hub keeps its files."
)
_database = click.option("--database", type=click.Path(path_type=Path, dir_okay=False), help="The credential database.")
_out = click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the credential into this new file (mode 0600) instead of printing it.",
)
_hub_url = click.option("--hub-url", help="The URL that goes into the credential; default: the public URL.")


def _store(command: Callable[..., Any]) -> Callable[..., Any]:
    return _state_dir(_database(_as_json(command)))


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="session-bridge")
def cli() -> None:
    """The hub of Session Bridge: it relays the events of homes to their apps.

    \b
    A first hub, on this machine:
        bridge-server serve
        bridge-client serve            # the home; it enrols itself
        bridge-server servers list     # its server id
        bridge-server devices add SERVER_ID Phone --out phone.json
        bridge-client watch --credential-file phone.json

    Every setting can also stand in the environment (SESSION_BRIDGE_PORT for --port) or under [hub] in the TOML file
    that SESSION_BRIDGE_CONFIG names.
    """


@cli.command(epilog=EXIT_CODES)
@click.option("--host", help="Address to listen on (default 127.0.0.1).")
@click.option("--port", type=int, help="Port to listen on (default 4000); 0 lets the system choose.")
@click.option("--public-url", help="The URL under which apps reach this hub through a proxy or tunnel.")
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), help="Default INFO.")
@click.option("--log-json", is_flag=True, default=None, help="Log one JSON object a line.")
@_store
def serve(as_json: bool, **options: Any) -> None:
    """Run the hub until SIGINT or SIGTERM. The first line on standard output says where it listens.

    Either signal drains the sockets and then stops; a second one stops at once. Logs go to standard error.
    """
    config = Config.from_env(**options)
    logs.set_up(config.log_level, sys.stderr, as_json=config.log_json)
    try:
        uvloop.run(_serve(config, as_json))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            _fail(f"port {config.port} on {config.host} is taken; stop what listens there, or choose another --port")
        if error.errno in (errno.EACCES, errno.EADDRNOTAVAIL):
            _fail(f"{config.host} port {config.port} can't be used ({error.strerror}); choose another --host or --port")
        raise


async def _serve(config: Config, as_json: bool) -> None:
    # Imported here: the other commands need no server, and start in a third of the time without one.
    from bridge_server.app import Hub

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def stopping(again: signal.Signals) -> None:
        if stop.is_set():
            signal.signal(again, signal.SIG_DFL)
            os.kill(os.getpid(), again)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping, number)
    async with Hub(config) as hub:
        # By its defaults the collector walks over all open connections again and again while new ones arrive: a sixth
        # of what a connection costs, and pauses for everybody. What ends in a cycle can wait for a few hundred others.
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        if as_json:
            _print_json({"url": hub.url, "port": hub.port, "pid": os.getpid()})
        else:
            click.echo(f"bridge-server listens on {hub.url} (pid {os.getpid()}); Ctrl-C stops it")
        sys.stdout.flush()
        await stop.wait()
        await hub.drain()


@cli.group(epilog=EXIT_CODES)
def servers() -> None:
    """Homes: make, list and revoke their credentials."""


@servers.command("add", epilog=EXIT_CODES)
@click.argument("name")
@click.option("--server-id", help="One more credential for this home, instead of a new home.")
@_out
@_hub_url
@_store
def servers_add(name: str, server_id: str | None, out: Path | None, hub_url: str | None, **options: Any) -> None:
    """Make a credential for a home that apps will see as NAME. It is shown once.

    On the home: bridge-client serve --credential-file FILE. A home on this machine needs none of it, it enrols itself.
    """
    with _credentials(options) as (config, credentials, as_json):
        _hand_over(config, *credentials.add_server(name, server_id), hub_url=hub_url, out=out, as_json=as_json)


@servers.command("list", epilog=EXIT_CODES)
@_store
def servers_list(**options: Any) -> None:
    """List the homes and their credentials, oldest first."""
    with _credentials(options) as (_, credentials, as_json):
        _list(credentials.servers(), as_json)


@servers.command("revoke", epilog=EXIT_CODES)
@click.argument("server_id")
@_store
def servers_revoke(server_id: str, **options: Any) -> None:
    """End the home SERVER_ID: its credentials and those of its apps. Open sockets close within a second."""
    with _credentials(options) as (_, credentials, as_json):
        _revoked(credentials.revoke_server(server_id), f"home {server_id}", "servers", as_json)


@cli.group(epilog=EXIT_CODES)
def devices() -> None:
    """Apps: make, list and revoke their credentials."""


@devices.command("add", epilog=EXIT_CODES)
@click.argument("server_id")
@click.argument("name")
@click.option("--scopes", default="view,approve", show_default=True, help=f"What it may do: {', '.join(SCOPES)}.")
@_out
@_hub_url
@_store
def devices_add(server_id: str, name: str, scopes: str, out: Path | None, hub_url: str | None, **options: Any) -> None:
    """Make a credential for an app called NAME that reads the home SERVER_ID. It is shown once."""
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    with _credentials(options) as (config, credentials, as_json):
        made = credentials.add_device(server_id, name, wanted)
        _hand_over(config, *made, hub_url=hub_url, out=out, as_json=as_json)


@devices.command("list", epilog=EXIT_CODES)
@click.option("--server", "server_id", help="Only the apps of this home.")
@_store
def devices_list(server_id: str | None, **options: Any) -> None:
    """List the apps, oldest first."""
    with _credentials(options) as (_, credentials, as_json):
        _list(credentials.devices(server_id), as_json)


@devices.command("revoke", epilog=EXIT_CODES)
@click.argument("device_id")
@_store
def devices_revoke(device_id: str, **options: Any) -> None:
    """End the app DEVICE_ID. Its open sockets close within a second."""
    with _credentials(options) as (_, credentials, as_json):
        _revoked(credentials.revoke_device(device_id), f"app {device_id}", "devices", as_json)


@cli.group(epilog=EXIT_CODES)
def operators() -> None:
    """Operators: make, list and revoke the credentials that may read /metrics."""


@operators.command("add", epilog=EXIT_CODES)
@click.argument("name")
@_out
@_store
def operators_add(name: str, out: Path | None, **options: Any) -> None:
    """Make a credential that may read /metrics. It is shown once."""
    with _credentials(options) as (config, credentials, as_json):
        _hand_over(config, *credentials.add_operator(name), hub_url=None, out=out, as_json=as_json)


@operators.command("list", epilog=EXIT_CODES)
@_store
def operators_list(**options: Any) -> None:
    """List the operators' credentials, oldest first."""
    with _credentials(options) as (_, credentials, as_json):
        _list(credentials.operators(), as_json)


@operators.command("revoke", epilog=EXIT_CODES)
@click.argument("credential_id", type=int)
@_store
def operators_revoke(credential_id: int, **options: Any) -> None:
    """End the operator credential CREDENTIAL_ID."""
    with _credentials(options) as (_, credentials, as_json):
        known = any(entry.identity.credential_id == credential_id for entry in credentials.operators())
        count = credentials.revoke_credential(credential_id) if known else 0
        _revoked(count, f"operator {credential_id}", "operators", as_json)


@contextlib.contextmanager
def _credentials(options: dict[str, Any]) -> Iterator[tuple[Config, Credentials, bool]]:
    config = Config.from_env(state_dir=options["state_dir"], database=options["database"])
    credentials = Credentials(config.database_path)
    try:
        yield config, credentials, options["as_json"]
    except KeyError as error:
        _fail(f"there is no home {error.args[0]} with a credential that stands; see: bridge-server servers list")
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    finally:
        credentials.close()


def _hand_over(
    config: Config, identity: Identity, token: str, *, hub_url: str | None, out: Path | None, as_json: bool
) -> None:
    record = _record(identity) | {"hub_url": hub_url or config.public_url or _listening_url(config)}
    secret = record | {"credential": token}
    if out is not None:
        _write_new(out, json.dumps(secret, indent=2) + "\n")
        secret = record | {"file": str(out)}
    if as_json:
        _print_json(secret)
        return
    click.echo("\n".join(f"{name:<14}{_shown(value)}" for name, value in secret.items()))
    if out is None:
        click.echo("The credential is not shown again. Keep it, or revoke it and make another.", err=True)


def _write_new(path: Path, text: str) -> None:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # The credential exists by now, but nobody has seen it; say so, so that it can be cleared away.
        _fail(f"{path} can't be created ({error.strerror}); revoke what was just made, and choose another --out")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)


def _listening_url(config: Config) -> str:
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def _record(identity: Identity) -> dict[str, Any]:
    match identity:
        case Server(credential_id, server_id, name):
            return {"server_id": server_id, "name": name, "credential_id": credential_id}
        case Device(credential_id, device_id, server_id, name, scopes):
            shown = [scope for scope in SCOPES if scope in scopes]
            return {"device_id": device_id, "server_id": server_id, "name": name, "scopes": shown}
        case Operator(credential_id, name):
            return {"credential_id": credential_id, "name": name}


def _list(entries: Sequence[Entry], as_json: bool) -> None:
    rows = [
        _record(entry.identity)
        | {"created": _day(entry.created_at), "revoked": _day(entry.revoked_at) if entry.revoked_at else None}
        for entry in entries
    ]
    if as_json:
        _print_json(rows)
    elif not rows:
        click.echo("none yet", err=True)
    elif sys.stdout.isatty():
        table = Table(*rows[0], box=None, header_style="bold")
        for row in rows:
            table.add_row(*map(_shown, row.values()), style="dim" if row["revoked"] else None)
        Console().print(table)
    else:
        for row in rows:
            click.echo("\t".join(map(_shown, row.values())))


def _revoked(count: int, what: str, listing: str, as_json: bool) -> None:
    if count == 0:
        _fail(f"{what} has no credential that stands; see: bridge-server {listing} list")
    if as_json:
        _print_json({"revoked": count})
    else:
        click.echo(f"{what}: {count} credential{'s' if count > 1 else ''} revoked")


def _day(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    return ",".join(value) if isinstance(value, list) else "" if value is None else str(value)


def _print_json(value: object) -> None:
    click.echo(json.dumps(value))


def _fail(message: str) -> NoReturn:
    raise click.ClickException(message)


def main() -> None:
    """The console script. Every failure is one sentence on standard error; a traceback goes to the DEBUG log only."""
    try:
        cli.main(standalone_mode=False, prog_name="bridge-server")
        code = 0
    except BadConfig as error:
        code = _complain(str(error), 2)
    except click.exceptions.Abort:
        code = _complain("interrupted", 1)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:
        # Whoever read our output has enough; the interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (BadDatabase, OSError, sqlite3.Error) as error:
        code = _complain(str(error), 1)
    except Exception as error:
        logging.getLogger("bridge_server.cli").debug("internal error", exc_info=True)
        code = _complain(
            f"internal error ({type(error).__name__}: {error}); SESSION_BRIDGE_LOG_LEVEL=DEBUG shows more", 1
        )
    sys.exit(code)


def _complain(message: str, code: int) -> int:
    click.echo(f"Error: {message}", err=True)
    return code


if __name__ == "__main__":
    main()
