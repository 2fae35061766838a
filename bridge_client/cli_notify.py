"""`bridge-client notify`: tell whoever looks at this home's apps something, or that it is over. Prints what it did."""

from typing import TYPE_CHECKING, Any

import click

from bridge_client.cli_parts import EXIT_CODES, as_json_option, fail, run, say, state_dir_option, store_option
from bridge_client.config import Config
from bridge_client.lazy import lazily

if TYPE_CHECKING:
    from bridge_client import app, render, session_rules
    from bridge_client import notification_rules as rules
else:
    app, render, session_rules, rules = (
        lazily(f"bridge_client.{name}") for name in ("app", "render", "session_rules", "notification_rules")
    )


def add_to(cli: click.Group) -> None:
    """Give `cli` this command."""
    cli.add_command(notify)


@click.command(epilog=EXIT_CODES)
@click.argument("title", required=False)
@click.option("--body", default="", help="What more there is to say.")
@click.option(
    "--severity", type=click.Choice(["info", "success", "warning", "error"]), default="info", show_default=True
)
@click.option("--key", help="What it is about: while one of this key is active it is updated, not joined by another.")
@click.option("--session", "session_id", help="The session that it is shown in; default: beside all sessions.")
@click.option(
    "--presentation",
    type=click.Choice(["banner", "inline", "modal"]),
    help="How it is shown; default: inline in a session, else a banner (inline needs a session).",
)
@click.option("--ttl", type=float, help="Seconds after which nobody who has not seen it is shown it.")
@click.option(
    "--resolve", "key_to_resolve", metavar="KEY", help="Instead of a TITLE: the active one of this key is over."
)
@store_option
@state_dir_option
@as_json_option
def notify(title: str | None, as_json: bool, key_to_resolve: str | None, **options: Any) -> None:
    """Show a notification with this TITLE in the apps of this home.

    It stays until somebody dismisses it, on any device, or a script resolves it. The home need not run: what is said
    meanwhile is shown when it does.

    \b
        bridge-client notify "Backup failed" --body "The disk is full." --severity error --key backup
        bridge-client notify --resolve backup
        bridge-client notify "The tests pass" --severity success --session garden
    """
    said = {name: options.pop(name) for name in ("body", "severity", "key", "presentation", "ttl")}
    session_id = options.pop("session_id")
    if (title is None) == (key_to_resolve is None):
        raise click.UsageError("give a TITLE, or --resolve KEY")
    run(_notify(Config.from_env(**options), session_id, title, said, key_to_resolve, as_json))


async def _notify(
    config: Config,
    session_id: str | None,
    title: str | None,
    said: dict[str, Any],
    key_to_resolve: str | None,
    as_json: bool,
) -> None:
    try:
        async with app.notifications(config, session_id) as notifications:
            if key_to_resolve is None:
                chosen = {"presentation": said.pop("presentation"), "ttl_seconds": said.pop("ttl")}
                display = {name: value for name, value in chosen.items() if value is not None}
                source = {"kind": "command", "name": "bridge-client notify"}
                draft = rules.draft({"title": title, "display": display, "source": source, **said})
                outcome = await notifications.create(draft)
                _say(outcome.record, outcome.verb or "", as_json)
                return
            found = await notifications.active(key_to_resolve)
            if found is None:
                raise rules.NoSuchNotification(f"there is no active notification of the key {key_to_resolve!r}")
            record = await notifications.end(found["id"], "resolved", rules.Ending(reason="resolved at home"))
            _say(record, "resolved", as_json)
    except (rules.NotificationError, session_rules.SessionError) as error:
        fail(str(error))


def _say(record: "rules.Record", verb: str, as_json: bool) -> None:
    about = f"{record['id']} {verb}: {record.get('title', '')}"
    say(render.harmless(about), record if as_json else None)
