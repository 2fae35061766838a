"""The commands about apps: `pair`, `redeem`, `devices`. Prints; the work is in `pairing.py`."""

import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bridge_client.cli_parts import (
    EXIT_CODES,
    FILE,
    as_json_option,
    fail,
    hub_url_option,
    run,
    say,
    show_rows,
    state_dir_option,
)
from bridge_client.config import LOCAL_HUB_URL, Config
from bridge_client.lazy import lazily
from protocol.pairing import CODE_SECONDS, DeviceListed, PairedDevice

if TYPE_CHECKING:
    import aiohttp

    from bridge_client import app, keys, pairing, render
else:
    aiohttp = lazily("aiohttp")
    app, keys, pairing, render = (lazily(f"bridge_client.{name}") for name in ("app", "keys", "pairing", "render"))

SCOPES = ("view", "approve", "control")

_credential_file = click.option("--credential-file", type=FILE, help="The home's credential.")


def add_to(cli: click.Group) -> None:
    """Give `cli` these commands."""
    for command in (pair, redeem, devices):
        cli.add_command(command)


@click.command(epilog=EXIT_CODES)
@click.option("--scopes", help=f"What the app may do: {', '.join(SCOPES)}. Default: view,approve.")
@click.option(
    "--expires-in", type=click.IntRange(1, CODE_SECONDS), default=CODE_SECONDS, help="Seconds; default and most: 300."
)
@click.option("--wait/--no-wait", default=True, help="Wait until an app came (the default), or leave the code open.")
@click.option("--qr/--no-qr", default=True, help="Draw the QR code (the default), or only write link and code.")
@_credential_file
@hub_url_option
@state_dir_option
@as_json_option
def pair(as_json: bool, scopes: str | None, expires_in: int, wait: bool, qr: bool, **options: Any) -> None:
    """Show a code with which one app can pair with this home: as a QR code, a link, and text.

    The code serves once, for five minutes. Stopping this command ends it early. With --json there is one line when the
    code opens and another when an app came. Exit code 1: nobody came.

    \b
        bridge-client pair                       # on the home
        bridge-client redeem LINK                # an app in a terminal; others scan or open the link
        bridge-client devices list
    """
    wanted = None if scopes is None else tuple(scope.strip() for scope in scopes.split(",") if scope.strip())
    if wanted is not None and (not wanted or not set(wanted) <= set(SCOPES)):
        raise click.UsageError(f"--scopes: one or more of {', '.join(SCOPES)}, separated by commas")
    run(_told(_pair(Config.from_env(**options), wanted, expires_in, wait, qr, as_json)))


async def _pair(
    config: Config, scopes: tuple[str, ...] | None, seconds: int, wait: bool, qr: bool, as_json: bool
) -> None:
    async with _home(config) as home:
        invitation = await home.invite(scopes, seconds)
        device, waiting = None, wait
        try:
            show_invitation(invitation, as_json=as_json, qr=qr)
            if not wait:
                return
            device = await home.wait(invitation.pairing_id)
            waiting = False
        finally:
            if waiting:
                with suppress(pairing.PairingFailed):
                    await home.close(invitation.pairing_id)
    if device is None:
        fail("the code ended and nobody came; for a new one: bridge-client pair")
    show_device(device, as_json=as_json)


@click.command(epilog=EXIT_CODES)
@click.argument("code")
@click.option("--name", default=socket.gethostname, help="What the home will call this app; default: the host's name.")
@click.option(
    "--out", type=FILE, help="Where to keep the app's credential; default: app-credential.json in the state directory."
)
@hub_url_option
@state_dir_option
@as_json_option
def redeem(code: str, name: str, out: Path | None, as_json: bool, **options: Any) -> None:
    """Make this terminal an app of a home: CODE is the pairing code, or the link that holds it.

    A code alone needs --hub-url, unless the hub is on this machine. Afterwards: bridge-client watch
    """
    config = Config.from_env(**options)
    path = out or config.state_dir / "app-credential.json"
    if path.exists() or path.is_symlink():
        fail(f"{path} exists: this terminal is paired already. Remove it if it was revoked, or name another with --out")
    run(_told(_redeem(config, code, name, path, as_json)))


async def _redeem(config: Config, code: str, name: str, path: Path, as_json: bool) -> None:
    hub_url = config.hub_url or (None if "#pair=" in code else LOCAL_HUB_URL)
    async with aiohttp.ClientSession() as session:
        try:
            credential = await pairing.redeem(code, name, session, hub_url)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    keys.save(path, credential)
    facts = {"device_id": credential.device_id, "server_id": credential.server_id, "file": str(path)}
    usual = path == config.state_dir / "app-credential.json" and config.state_dir == Config.from_env().state_dir
    say(
        f"paired with home {credential.server_id} as app {credential.device_id}; kept in {path}"
        f"\nNow: bridge-client watch{'' if usual else f' --credential-file {path}'}",
        facts if as_json else None,
    )


@click.group(epilog=EXIT_CODES)
def devices() -> None:
    """The apps that are paired with this home: list and revoke them."""


@devices.command("list", epilog=EXIT_CODES)
@click.option("--all", "everything", is_flag=True, help="The revoked ones too.")
@_credential_file
@hub_url_option
@state_dir_option
@as_json_option
def devices_list(as_json: bool, everything: bool, **options: Any) -> None:
    """List the apps, oldest first."""
    run(_told(_list(Config.from_env(**options), everything, as_json)))


async def _list(config: Config, everything: bool, as_json: bool) -> None:
    async with _home(config) as home:
        found = [device for device in await home.devices() if everything or device.revoked_at is None]
    if as_json:
        say(msgspec.json.encode(found).decode(), None)
    elif not found:
        click.echo("no app yet; to pair one: bridge-client pair", err=True)
    else:
        show_rows(("device", "name", "may", "paired", "state"), map(_cells, found))


def _cells(device: DeviceListed) -> tuple[str, ...]:
    state = "revoked" if device.revoked_at is not None else "online" if device.online else "offline"
    return (device.device_id, device.name, ",".join(device.scopes), device.created_at, state)


@devices.command("revoke", epilog=EXIT_CODES)
@click.argument("device_id")
@_credential_file
@hub_url_option
@state_dir_option
@as_json_option
def devices_revoke(device_id: str, as_json: bool, **options: Any) -> None:
    """End the app DEVICE_ID. Its open sockets close within a second."""
    run(_told(_revoke(Config.from_env(**options), device_id, as_json)))


async def _revoke(config: Config, device_id: str, as_json: bool) -> None:
    async with _home(config) as home:
        try:
            await home.revoke(device_id)
        except pairing.PairingFailed as error:
            if error.code != "not_found":
                raise
            fail(f"this home has no app {device_id[:60]!r}; see: bridge-client devices list --all")
    say(f"app {device_id} is revoked", {"revoked": device_id} if as_json else None)


def show_invitation(invitation: "pairing.Invitation", *, as_json: bool = False, qr: bool = True) -> None:
    """Print an open code."""
    facts = {
        "pairing_id": invitation.pairing_id,
        "code": invitation.code,
        "link": invitation.link,
        "expires_at": invitation.expires_at,
        "scopes": list(invitation.scopes),
    }
    text = invitation.poster if qr else f"link  {invitation.link}\ncode  {invitation.code}  ({invitation.serves})"
    say(text, facts if as_json else None)


def show_device(device: PairedDevice, *, as_json: bool = False) -> None:
    """Print that an app came."""
    name, scopes = render.harmless(device.name), render.harmless(", ".join(device.scopes))
    facts = {"device_id": device.device_id, "name": device.name, "scopes": device.scopes}
    say(
        f"paired: {name}, app {render.harmless(device.device_id)} (may {scopes})"
        f"\nTo end it: bridge-client devices revoke {render.harmless(device.device_id)}",
        facts if as_json else None,
    )


@asynccontextmanager
async def _home(config: Config) -> AsyncIterator["pairing.HomeApi"]:
    credential = keys.load_for(config.hub_url, config.credential_path)
    if credential is None:
        fail(f"there is no {config.credential_path}: this home is not enrolled yet; start it: bridge-client serve")
    if credential.device_id is not None:
        fail(f"{config.credential_path} is the credential of an app; --credential-file names the home's")
    async with aiohttp.ClientSession() as session:
        yield pairing.HomeApi(credential, session)


async def _told(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except pairing.PairingFailed as error:
        fail(str(error))
