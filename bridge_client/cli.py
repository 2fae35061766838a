"""The command line of the home, and of a Python app. Prints; the work is in `app.py` and below it.

Exit codes: 0 done (also when stopped by a signal), 1 it could not be done, 2 the command or a setting is wrong, 3 the
hub will not have us (revoked or unknown credential, replaced by another): starting again can't help. 4 `ingest` skipped
what was broken.
"""

import errno
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge_client import cli_dead_letters, cli_exec, cli_home, cli_notify, cli_pairing, cli_watch
from bridge_client.alone import HomeRuns
from bridge_client.cli_parts import (
    ALL_EXIT_CODES,
    INGEST_EXIT_CODES,
    SKIPPED,
    as_json_option,
    fail,
    in_words,
    run,
    say,
    state_dir_option,
    store_option,
)
from bridge_client.config import BadConfig, Config
from bridge_client.cursor import DamagedCursor
from bridge_client.lazy import lazily
from bridge_client.sources import SourceRefused
from bridge_client.store import StoreError

if TYPE_CHECKING:
    from bridge_client import app, dial, ingest, keys
else:
    app, dial, ingest, keys = (lazily(f"bridge_client.{name}") for name in ("app", "dial", "ingest", "keys"))


@click.group(epilog=ALL_EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="session-bridge")
def cli() -> None:
    """The home side of Session Bridge: keeps the events of agent sessions and forwards them to the hub.

    \b
    On the machine of the hub, nothing is to be configured:
        bridge-client serve                      # enrols itself, then forwards
        bridge-client ingest events.jsonl --session garden   # publishes a file's events
        bridge-client exec -- make test          # shows a command's output here and in the apps
        bridge-client notify "Backup failed" --severity error   # tells whoever looks at the apps
        bridge-client status
        bridge-client pair                       # shows a code for a phone or a browser
        bridge-client doctor                     # when something is wrong
        bridge-client dead-letters list          # what the hub would not take
    An agent server that has events of its own is bridged without a store of ours:
        bridge-client forward --source http://127.0.0.1:8000/events
    Elsewhere, the hub's operator hands out a credential file:
        bridge-client serve --credential-file home.json
        bridge-client watch --credential-file phone.json

    Every setting can also stand in the environment (SESSION_BRIDGE_STORE for --store) or under [home] in the TOML file
    that SESSION_BRIDGE_CONFIG names. A flag beats the environment, which beats the file.
    """


@cli.command("ingest", epilog=INGEST_EXIT_CODES)
@click.argument("files", nargs=-1, required=True, type=click.Path(allow_dash=True, path_type=Path, dir_okay=False))
@click.option(
    "--session", "session_id", help="The session_id that the events get; without one, apps show them under no session."
)
@store_option
@state_dir_option
@as_json_option
def ingest_files(files: tuple[Path, ...], session_id: str | None, as_json: bool, **options: Any) -> None:
    """Publish the events in FILES (- is standard input): JSON lines, one JSON document, or server-sent events.

    An event that docs/events.md lists as an agent application's goes through as it is, with its session unless
    --session names another. Any other value becomes the data of an event, under its own type. An array of objects is
    one event for each of them.

    What is broken is reported with its line number and skipped; the rest goes through. Then the exit code is 4, so that
    a script notices: do not publish the same file again, that would double what went through.
    """
    for path in files:
        _check_readable(path)
    config = Config.from_env(**options)
    run(_ingest(config, files, session_id, as_json))


def _check_readable(path: Path) -> None:
    # Before anything is published: whoever corrects the name and tries again must not publish the others twice.
    if str(path) == "-":
        return
    try:
        if not os.access(path, os.R_OK):
            os.stat(path)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        fail(f"{path} can't be read ({error.strerror}); nothing was published: correct the name, or give - for a pipe")


async def _ingest(config: Config, files: tuple[Path, ...], session_id: str | None, as_json: bool) -> None:
    skipped = 0
    async with app.open_store(config) as store:
        for path in files:
            standard = str(path) == "-"
            handle = sys.stdin.fileno() if standard else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stopped = None
            try:
                report = await ingest.ingest(store, ingest.read_chunks(handle), session_id=session_id)
            except ingest.IngestStopped as error:
                report, stopped = error.report, error
            finally:
                if not standard:
                    os.close(handle)
            for problem in report.problems:
                click.echo(f"{path}:{problem.line}: {problem.reason}", err=True)
            counts = {"file": str(path), "published": report.published, "skipped": report.broken}
            say(f"{path}: {report.published} published, {report.broken} skipped", counts if as_json else None)
            if stopped is not None:
                fail(f"{path}: {stopped}")
            skipped += report.broken
    if skipped:
        raise click.exceptions.Exit(SKIPPED)


cli_home.add_to(cli)
cli_dead_letters.add_to(cli)
cli_exec.add_to(cli)
cli_notify.add_to(cli)
cli_watch.add_to(cli)
cli_pairing.add_to(cli)


def main() -> None:
    """The console script. Every failure is one sentence on standard error; a traceback goes to the DEBUG log only."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as `__main__` left it; from here on it is caught
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = cli.main(standalone_mode=False, prog_name="bridge-client") or 0
    except BadConfig as error:
        code = _complain(str(error), 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = _complain("interrupted", 1)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except dial.Stopped as error:
        code = _complain(str(error), 3)
    except BrokenPipeError:
        # Whoever read our output has enough; the interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (keys.BadKeyFile, keys.EnrolmentFailed, HomeRuns, SourceRefused, StoreError, DamagedCursor) as error:
        code = _complain(str(error), 1)
    except OSError as error:
        code = _complain(in_words(error), 1)
    except Exception as error:
        logging.getLogger("bridge_client.cli").debug("internal error", exc_info=True)
        code = _complain(f"internal error ({type(error).__name__}: {error}); --log-level DEBUG shows more", 1)
    sys.exit(code)


def _complain(message: str, code: int) -> int:
    click.echo(f"Error: {message}", err=True)
    return code


if __name__ == "__main__":
    main()
