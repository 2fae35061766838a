"""The command `doctor`. Prints; the checks are in `doctor.py`."""

import asyncio
import shutil
import sys
from typing import Any, Final

import click

from bridge_server.cli_parts import EXIT_CODES, print_json, store_options
from bridge_server.config import BadConfig, Config

STYLES: Final[dict[str, dict[str, Any]]] = {
    "ok": {"fg": "green"},
    "warning": {"fg": "yellow"},
    "failed": {"fg": "red", "bold": True},
}


def add_to(cli: click.Group) -> None:
    """Give `cli` this command."""
    cli.add_command(doctor)


@click.command(epilog=EXIT_CODES)
@click.option("--host", help="The address that the hub is to listen on.")
@click.option("--port", type=int, help="The port that the hub is to listen on.")
@click.option("--public-url", help="The URL under which apps reach this hub.")
@store_options
def doctor(as_json: bool, **options: Any) -> None:
    """Check what the hub stands on, running or not: settings, port, database, disk, limits, TLS, proxy and clock.

    Nothing is changed. A warning is for you to weigh; exit code 1 means that something failed, a bad setting included.
    Run it as the hub's user and with the hub's settings (SESSION_BRIDGE_CONFIG).
    """
    # Imported here: the other commands make no HTTP requests.
    from bridge_server.doctor import Finding, examine

    try:
        findings = asyncio.run(examine(Config.from_env(**options)))
    except BadConfig as error:
        findings = [Finding("settings", "failed", str(error), "correct it; docs/operations.md lists every setting")]
    failed = any(finding.status == "failed" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "checks": [finding._asdict() for finding in findings]})
    elif sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
        for check, status, text, remedy in findings:
            # The text is never broken, so that a path in it can be copied.
            start = f"{check:<13} " if len(text) <= columns - 22 else f"{check}\n        "
            end = f"\n        → {remedy}" if remedy else ""
            click.echo(f"{click.style(f'{status:<7}', **STYLES[status])} {start}{text}{end}")
    else:
        for finding in findings:
            click.echo("\t".join((finding.status, finding.check, finding.text, finding.remedy or "")).rstrip())
    if failed:
        sys.exit(1)
