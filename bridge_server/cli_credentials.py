"""The commands about who gets in: `servers`, `devices`, `operators`, and for all three `revoke` and `disconnect`."""

from pathlib import Path
from typing import Any

import click

from bridge_server.auth import SCOPES, Credentials, Device, Identity, Operator, Server
from bridge_server.cli_parts import (
    EXIT_CODES,
    fail,
    hand_over,
    hub_url_option,
    list_found,
    opened,
    out_option,
    print_json,
    store_options,
)


def add_to(cli: click.Group) -> None:
    """Give `cli` these commands."""
    for command in (servers, devices, operators, revoke, disconnect):
        cli.add_command(command)


@click.group(epilog=EXIT_CODES)
def servers() -> None:
    """Homes: make and list their credentials. To end one: revoke."""


@servers.command("add", epilog=EXIT_CODES)
@click.argument("name")
@click.option("--server-id", help="One more credential for this home, instead of a new home.")
@out_option
@hub_url_option
@store_options
def servers_add(name: str, server_id: str | None, out: Path | None, hub_url: str | None, **options: Any) -> None:
    """Make a credential for a home that apps will see as NAME. It is shown once.

    On the home: bridge-client serve --credential-file FILE. A home on this machine needs none of it, it enrols itself.

    \b
    To replace the credential of a home, its apps stay paired:
        bridge-server servers add Attic --server-id SERVER_ID --out new.json
        bridge-client serve --credential-file new.json      # on the home
        bridge-server servers list                          # the number of the old one
        bridge-server revoke NUMBER
    """
    with opened(options) as (config, credentials, as_json):
        hand_over(
            config,
            credentials,
            lambda: credentials.add_server(name, server_id),
            hub_url=hub_url,
            out=out,
            as_json=as_json,
        )


@servers.command("list", epilog=EXIT_CODES)
@store_options
def servers_list(**options: Any) -> None:
    """List the homes and their credentials, oldest first."""
    list_found(options, lambda credentials: credentials.servers())


@click.group(epilog=EXIT_CODES)
def devices() -> None:
    """Apps: make and list their credentials. To end one: revoke. A home makes its own with: bridge-client pair."""


@devices.command("add", epilog=EXIT_CODES)
@click.argument("server_id")
@click.argument("name")
@click.option("--scopes", default="view,approve", show_default=True, help=f"What it may do: {', '.join(SCOPES)}.")
@out_option
@hub_url_option
@store_options
def devices_add(server_id: str, name: str, scopes: str, out: Path | None, hub_url: str | None, **options: Any) -> None:
    """Make a credential for an app called NAME that reads the home SERVER_ID. It is shown once."""
    wanted = [scope.strip() for scope in scopes.split(",") if scope.strip()]
    with opened(options) as (config, credentials, as_json):
        hand_over(
            config,
            credentials,
            lambda: credentials.add_device(server_id, name, wanted),
            hub_url=hub_url,
            out=out,
            as_json=as_json,
        )


@devices.command("list", epilog=EXIT_CODES)
@click.option("--server", "server_id", help="Only the apps of this home.")
@store_options
def devices_list(server_id: str | None, **options: Any) -> None:
    """List the apps, oldest first."""
    list_found(options, lambda credentials: credentials.devices(server_id))


@click.group(epilog=EXIT_CODES)
def operators() -> None:
    """Whoever reads /metrics: make and list their credentials. To end one: revoke."""


@operators.command("add", epilog=EXIT_CODES)
@click.argument("name")
@out_option
@store_options
def operators_add(name: str, out: Path | None, **options: Any) -> None:
    """Make a credential that may read /metrics. It is shown once."""
    with opened(options) as (config, credentials, as_json):
        hand_over(config, credentials, lambda: credentials.add_operator(name), hub_url=None, out=out, as_json=as_json)


@operators.command("list", epilog=EXIT_CODES)
@store_options
def operators_list(**options: Any) -> None:
    """List the operators' credentials, oldest first."""
    list_found(options, lambda credentials: credentials.operators())


@click.command(epilog=EXIT_CODES)
@click.argument("what", metavar="ID")
@click.option("--yes", is_flag=True, help="Don't ask before ending a whole home.")
@store_options
def revoke(what: str, yes: bool, **options: Any) -> None:
    """End the home, the app or the credential ID. Its open sockets close within a second; nothing brings it back.

    ID is a server_id (the home with all its credentials and apps), a device_id (one app), or the credential_id that
    the lists show (one credential, whoever's). Before a home ends it asks, also when a number is the home's last one.
    """
    with opened(options) as (_, credentials, as_json):
        found = _standing(credentials, what)
        if isinstance(found, Server) and (what == found.server_id or _is_last(credentials, found)):
            _end_home(credentials, found, yes, as_json)
        else:
            _say(_described(found), credentials.revoke_credential(found.credential_id), as_json)


@click.command(epilog=EXIT_CODES)
@click.argument("what", metavar="ID")
@store_options
def disconnect(what: str, **options: Any) -> None:
    """Close the open sockets of the home, the app or the credential ID within a second. They may come back at once.

    ID is what revoke takes; a server_id stands for the home and its apps. To keep somebody out: revoke.
    """
    with opened(options) as (_, credentials, as_json):
        found = _standing(credentials, what)
        if isinstance(found, Server) and what == found.server_id:
            text, count = f"the home {found.name!r} ({what}) and its apps", credentials.disconnect(server_id=what)
        else:
            text, count = _described(found), credentials.disconnect(credential_id=found.credential_id)
        if as_json:
            print_json({"disconnected": count})
        else:
            click.echo(f"{text}: the sockets of {count} credential{'' if count == 1 else 's'} are closed")


def _standing(credentials: Credentials, what: str) -> Identity:
    entries = [*credentials.servers(), *credentials.devices(), *credentials.operators()]
    named = [entry for entry in entries if what in _ids(entry.identity)]
    if not named:
        fail(f"there is no {what[:60]!r}; see: bridge-server servers list, devices list, operators list")
    living = [entry.identity for entry in named if entry.revoked_at is None]
    if not living:
        fail(f"{what} is revoked already")
    return living[-1]


def _described(identity: Identity) -> str:
    match identity:
        case Server(number, server_id, name):
            return f"credential {number} of the home {name!r} ({server_id})"
        case Device(_, device_id, _, name):
            return f"the app {name!r} ({device_id})"
        case Operator(number, name):
            return f"the operator {name!r} (credential {number})"


def _ids(identity: Identity) -> tuple[str, str]:
    match identity:
        case Server(number, server_id):
            return str(number), server_id
        case Device(number, device_id):
            return str(number), device_id
        case Operator(number):
            return str(number), ""


def _is_last(credentials: Credentials, home: Server) -> bool:
    living = (entry.identity for entry in credentials.servers() if entry.revoked_at is None)
    return all(one == home for one in living if isinstance(one, Server) and one.server_id == home.server_id)


def _end_home(credentials: Credentials, home: Server, yes: bool, as_json: bool) -> None:
    apps = sum(entry.revoked_at is None for entry in credentials.devices(home.server_id))
    text = f"the home {home.name!r} ({home.server_id}) and its {apps} app{'' if apps == 1 else 's'}"
    if not yes:
        if as_json:
            raise click.UsageError(f"this ends {text}; say --yes, nobody can be asked with --json")
        click.echo(f"This ends {text}. They would have to be enrolled and paired anew.", err=True)
        click.confirm("End it?", abort=True, err=True)
    _say(text, credentials.revoke_server(home.server_id), as_json)


def _say(text: str, count: int, as_json: bool) -> None:
    if as_json:
        print_json({"revoked": count})
    else:
        click.echo(f"{text}: {count} credential{'' if count == 1 else 's'} revoked")
