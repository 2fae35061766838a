"""The command line of the hub. Prints; does nothing itself that another program could not do with the same modules.

Exit codes: 0 done (a stopped hub too), 1 it could not be done, 2 the command or a setting is wrong.
"""

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sqlite3
import sys
from dataclasses import replace
from typing import Any

import click
import uvloop

from bridge_server import cli_credentials, cli_doctor, logs, open_files
from bridge_server.cli_parts import EXIT_CODES, fail, in_words, print_json, store_options
from bridge_server.config import MAX_CONNECTIONS, BadConfig, Config
from bridge_server.database import BadDatabase


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="session-bridge")
def cli() -> None:
    """The hub of Session Bridge: it relays the events of homes to their apps.

    \b
    A first hub, on this machine:
        bridge-server serve
        bridge-client serve            # the home; it enrols itself
        bridge-client pair             # shows a code for an app
        bridge-server servers list     # what homes there are
        bridge-server doctor           # what may be wrong

    Every setting can also stand in the environment (SESSION_BRIDGE_PORT for --port) or under [hub] in the TOML file
    that SESSION_BRIDGE_CONFIG names.
    """


@cli.command(epilog=EXIT_CODES)
@click.option("--host", help="Address to listen on (default 127.0.0.1).")
@click.option("--port", type=int, help="Port to listen on (default 4000); 0 lets the system choose.")
@click.option("--public-url", help="The URL under which apps reach this hub through a proxy or tunnel.")
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), help="Default INFO.")
@click.option("--log-json", is_flag=True, default=None, help="Log one JSON object a line.")
@store_options
def serve(as_json: bool, **options: Any) -> None:
    """Run the hub until SIGINT or SIGTERM. The first line on standard output says where it listens.

    Either signal drains the sockets and then stops; a second one stops at once. Logs go to standard error.
    """
    config = Config.from_env(**options)
    logs.set_up(config.log_level, sys.stderr, as_json=config.log_json)
    chosen = config.max_connections != MAX_CONNECTIONS
    config = replace(config, max_connections=open_files.raise_limit(config.max_connections, chosen=chosen))
    try:
        uvloop.run(_serve(config, as_json))
    except socket.gaierror as error:
        fail(f"{config.host!r} names no address of this machine ({error.strerror}); choose another --host")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fail(f"port {config.port} on {config.host} is taken; stop what listens there, or choose another --port")
        if error.errno in (errno.EACCES, errno.EADDRNOTAVAIL):
            fail(f"{config.host} port {config.port} can't be used ({error.strerror}); choose another --host or --port")
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
            print_json({"url": hub.url, "port": hub.port, "pid": os.getpid()})
        else:
            click.echo(f"bridge-server listens on {hub.url} (pid {os.getpid()}); Ctrl-C stops it")
        sys.stdout.flush()
        await stop.wait()
        await hub.drain()


cli_credentials.add_to(cli)
cli_doctor.add_to(cli)


def main() -> None:
    """The console script. Every failure is one sentence on standard error; a traceback goes to the DEBUG log only."""
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as `__main__` left it; from here on it is caught
            signal.signal(signal.SIGINT, signal.default_int_handler)
        cli.main(standalone_mode=False, prog_name="bridge-server")
        code = 0
    except BadConfig as error:
        code = _complain(str(error), 2)
    except (click.exceptions.Abort, KeyboardInterrupt):
        code = _complain("interrupted", 1)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:
        # Whoever read our output has enough; the interpreter's own flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (BadDatabase, sqlite3.Error) as error:
        code = _complain(str(error), 1)
    except OSError as error:
        code = _complain(in_words(error), 1)
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
