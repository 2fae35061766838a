"""The command `doctor`. Prints; the checks are in `doctor.py`."""

import asyncio
import sys
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge_server.cli_parts import EXIT_CODES, print_json, store_options
from bridge_server.config import BadConfig, Config

STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red"}


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
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            text = finding.text + (f"\n→ {finding.remedy}" if finding.remedy else "")
            table.add_row(Text(finding.status, STYLES[finding.status]), finding.check, Text(text))
        Console(highlight=False).print(table)
    else:
        for finding in findings:
            click.echo("\t".join((finding.status, finding.check, finding.text, finding.remedy or "")).rstrip())
    if failed:
        sys.exit(1)
