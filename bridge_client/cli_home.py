"""The commands that run a home and look after it: `serve`, `forward`, `status`, `doctor`, `audit`. They only print."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bridge_client import logs
from bridge_client.alone import alone
from bridge_client.cli_parts import (
    EXIT_CODES,
    FILE,
    as_json_option,
    fail,
    hub_url_option,
    log_options,
    run,
    say,
    show_rows,
    state_dir_option,
    store_option,
)
from bridge_client.clock import rfc3339
from bridge_client.config import BadConfig, Config
from bridge_client.lazy import lazily

if TYPE_CHECKING:
    from bridge_client import app, render
    from bridge_client import doctor as doctor_checks
    from bridge_client.retention_report import Outlook
else:
    app, render, doctor_checks = (lazily(f"bridge_client.{name}") for name in ("app", "render", "doctor"))

_name = click.option("--name", help="The name that apps see for this home; default: the host's.")
_credential = click.option(
    "--credential-file", type=FILE, help="The home's credential, as `bridge-server servers add --out` makes it."
)
_api_port = click.option(
    "--api-port", type=click.IntRange(0, 65_535), help="The port of the home's API; 0: any free one. Default 4100."
)
_api = click.option("--api/--no-api", default=None, help="Answer programs on this machine over HTTP (the default).")
_runner_options = [
    click.option(
        "--runner",
        type=click.Choice(["echo", "openai", "claude", "codex", "command"]),
        help="Who answers what is sent to a session; default: nobody.",
    ),
    click.option("--runner-command", help="For --runner command: the command line, in one word."),
    click.option("--runner-url", help="For --runner openai: the endpoint; default: OpenAI's."),
    click.option("--runner-model", help="For --runner openai: the model."),
    click.option("--runner-key-env", help="For --runner openai: the environment variable that holds the API key."),
    click.option("--runner-key-file", type=FILE, help="For --runner openai: a 0600 file that holds the API key."),
    click.option(
        "--runner-tools",
        type=click.Path(path_type=Path, file_okay=False),
        help="For --runner openai: a folder that the model may read in, with your approval.",
    ),
]
_source = click.option("--source", help="http://HOST/events, https://... or sqlite:PATH?table=NAME.")

STYLES: Final[dict[str, dict[str, Any]]] = {
    "ok": {"fg": "green"},
    "warning": {"fg": "yellow"},
    "failed": {"fg": "red", "bold": True},
}


def _runner(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_runner_options):
        command = option(command)
    return command


def add_to(cli: click.Group) -> None:
    """Give `cli` these commands."""
    for command in (serve, forward, status, doctor, audit):
        cli.add_command(command)


@click.command(epilog=EXIT_CODES)
@_name
@_credential
@hub_url_option
@store_option
@_api_port
@_api
@_runner
@state_dir_option
@log_options()
@as_json_option
def serve(as_json: bool, **options: Any) -> None:
    """Forward the store's events to the hub until SIGINT or SIGTERM. Logs go to standard error.

    Without a credential it gets one from a hub on this machine by itself, and waits until that hub is there. A state
    directory has one home at a time: a second one is refused, and needs a directory of its own (--state-dir). Programs
    on this machine may ask for events meanwhile: GET /events on port 4100, with the token in home-api.token of the
    state directory. Events are published through the store's file, by this process or any other:

    \b
        bridge-client serve
        bridge-client serve --runner claude      # answers messages from the apps, too
        bridge-client ingest events.jsonl --session garden   # in another terminal
        bridge-client status
    """
    config = Config.from_env(**options)
    if config.source is not None:
        raise BadConfig("the setting source is for another command: bridge-client forward")
    logs.set_up(config.log_level, sys.stderr, as_json=config.log_json)
    run(_home(config, as_json))


@click.command(epilog=EXIT_CODES)
@_source
@click.option(
    "--source-token-file", type=FILE, help="A 0600 file with the bearer token that the source's server wants."
)
@_name
@_credential
@hub_url_option
@_api
@state_dir_option
@log_options()
@as_json_option
def forward(as_json: bool, **options: Any) -> None:
    """Forward the events of somebody else's server or file to the hub, with no store of ours between.

    How far it came, and the source's epoch, are kept in the state directory, for each source by itself.

    \b
        bridge-client forward --source http://127.0.0.1:8000/events
        bridge-client forward --source 'sqlite:agent.db?table=events'
        bridge-client forward --source 'sqlite:agent.db?table=log&id=seq&body=event'
        bridge-client forward --source \\
            'sqlite:agent.db?table=log&map=type:kind,session_id:session,data:payload&json=payload'
        bridge-client status --source http://127.0.0.1:8000/events

    A server is polled by since_id, with long-polling where it has that. A file is only read; its ids must be whole
    numbers that rise. Either may go back in time: then all is sent again under a new epoch.
    """
    config = Config.from_env(**options)
    if config.source is None:
        raise BadConfig("--source: what is to be forwarded? http://HOST/events or sqlite:PATH?table=NAME")
    logs.set_up(config.log_level, sys.stderr, as_json=config.log_json)
    run(_home(config, as_json))


async def _home(config: Config, as_json: bool) -> None:
    with alone(config.state_dir, config.source, config.store_path if config.source is None else None):
        await _forward(config, as_json)


async def _forward(config: Config, as_json: bool) -> None:
    async with app.open_source(config) as opened, app.answering(config, opened, app.runner(config)) as report:
        credential = await app.obtain_credential(config)
        forwarding = app.forwarding(config, credential, opened.source, opened.letters, report.requests)
        async with forwarding as forwarder:
            report.attach(forwarder, credential.server_id, credential.hub_url)
            source = config.source_name
            about = {"server_id": credential.server_id, "hub_url": credential.hub_url, "source": source}
            if config.source is None:
                about["store"] = source
            answers = f"; answers at {report.url}" if report.url else ""
            say(
                f"bridge-client forwards {source} to {credential.hub_url} as {credential.server_id}"
                f" (pid {os.getpid()}){answers}; Ctrl-C stops it",
                about | {"api_url": report.url, "pid": os.getpid()} if as_json else None,
            )
            await forwarder.run()


@click.command(epilog=EXIT_CODES)
@store_option
@_source
@state_dir_option
@hub_url_option
@click.option("--credential-file", type=FILE, help="The home's credential.")
@as_json_option
def status(as_json: bool, **options: Any) -> None:
    """Say how things stand: what the hub has acknowledged and when, what waits and for how long, who answers.

    Works whether the home runs or not. A connection that is up says little: look at the age of the last
    acknowledgement and at the lag.
    """
    run(_status(Config.from_env(**options), as_json))


async def _status(config: Config, as_json: bool) -> None:
    facts, found = await app.status(config), await app.outlook(config)
    if as_json:
        click.echo(json.dumps(facts))
        return
    for name, value in _told(facts, found):
        click.echo(f"{name:<13}{render.harmless(str(value))}")


def _told(facts: dict[str, Any], found: "Outlook | None") -> list[tuple[str, Any]]:
    lag, waiting = facts["lag"], facts["waiting"]
    since = "" if lag["seconds"] is None or not waiting else f", the oldest for {lag['seconds']:.1f} s"
    age = facts["last_ack_age_seconds"]
    unacknowledged = "nothing yet" if facts["cursor_error"] is None else f"unknown: {facts['cursor_error']}"
    running = f"yes, pid {facts['pid']}" if facts["running"] else "no"
    connected = {
        None: "unknown: the home " + ("answers no programs" if facts["running"] else "is not running"),
        True: "yes",
        False: f"no: {facts['last_error'] or 'not yet'}",
    }
    return [
        ("source", facts["source"]),
        ("epoch", facts["epoch"] or "no store yet"),
        ("last event", facts["head_id"] or ("no event yet" if facts["head_known"] else "unknown")),
        ("acknowledged", facts["acked_id"] or unacknowledged),
        ("last ack", "never" if age is None else f"{age:.1f} s ago"),
        ("lag", "unknown" if waiting is None else f"{waiting} event{'s' if waiting != 1 else ''}{since}"),
        *([] if found is None else [("stored", found.holds), ("retention", _kept(found, facts["acked_id"]))]),
        ("dead letters", facts["dead_letters"] and f"{facts['dead_letters']}: see bridge-client dead-letters list"),
        ("home", facts["server_id"] or "not enrolled"),
        ("running", running + (f" ({facts['api']})" if facts["api"] else "")),
        ("runner", "none: nobody answers messages" if facts["runner"] is None else _answers(facts)),
        ("connected", connected[facts["connected"]]),
        ("hub", f"{facts['hub_url']} {facts['hub']}"),
    ]


def _answers(facts: dict[str, Any]) -> str:
    return ": ".join(filter(None, (facts["runner"], facts["runner_problem"])))


def _kept(found: "Outlook", acked: str | None) -> str:
    return "; ".join(filter(None, (found.keeps, found.waits(None if acked is None else int(acked)))))


@click.command(epilog=EXIT_CODES)
@store_option
@_source
@state_dir_option
@hub_url_option
@click.option("--credential-file", type=FILE, help="The home's credential.")
@as_json_option
def doctor(as_json: bool, **options: Any) -> None:
    """Look for what is wrong: files and their modes, credential, store, cursor, disk, hub, certificate, clock.

    Also whether a home runs, whether events wait that nobody acknowledges, whether there are dead letters, and whether
    the runner's program is there.

    Changes nothing. A line for each check; into a pipe, with tabs between status, check, finding and remedy. Exit
    code 1 when a check failed; a warning alone is 0.
    """
    run(_doctor(Config.from_env(**options), as_json))


async def _doctor(config: Config, as_json: bool) -> None:
    findings = [finding async for finding in doctor_checks.examine(config, app.open_store, app.outlook, app.standing)]
    failed = [finding.check for finding in findings if finding.status == "failed"]
    if as_json:
        click.echo(json.dumps({"ok": not failed, "checks": [finding._asdict() for finding in findings]}))
    elif sys.stdout.isatty():
        for finding in findings:
            click.echo(_line(finding, shutil.get_terminal_size().columns))
    else:
        for check, status, text, remedy in findings:
            click.echo("\t".join(map(render.harmless, (status, check, text, remedy or ""))).rstrip())
    if failed:
        fail(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}")


@click.command(epilog=EXIT_CODES)
@store_option
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="How many lines.")
@state_dir_option
@as_json_option
def audit(as_json: bool, limit: int, **options: Any) -> None:
    """Show what apps have asked this home to do, the latest last: when, which device, what, and what came of it.

    The outcome is the HTTP status, the reason of a refusal, or `begun` for what a home that died has left open. What
    apps only read is in the home's log, at the level DEBUG.
    """
    run(_audit(Config.from_env(**options), limit, as_json))


async def _audit(config: Config, limit: int, as_json: bool) -> None:
    lines = await app.audited(config, limit)
    if as_json:
        for line in lines:
            click.echo(json.dumps(line._asdict() | {"at": rfc3339(line.at)}))
    elif not lines:
        click.echo("no app has asked this home to do anything yet", err=True)
    else:
        rows = [(rfc3339(line.at), line.device_id, line.outcome, f"{line.method} {line.path}") for line in lines]
        show_rows(("when", "device", "outcome", "what"), rows)


def _line(finding: "doctor_checks.Finding", columns: int) -> str:
    check, text, remedy = map(render.harmless, (finding.check, finding.text, finding.remedy or ""))
    # What was found is never broken, so that a path in it can be copied.
    start = f"{check:<17} " if len(text) <= columns - 26 else f"{check}\n        "
    end = f"\n        → {remedy}" if remedy else ""
    return f"{click.style(f'{finding.status:<7}', **STYLES[finding.status])} {start}{text}{end}"
