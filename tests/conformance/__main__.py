"""The conformance kit on the command line: python -m tests.conformance --help"""

import asyncio
import json
import logging
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import click

from tests.conformance.kit.check import reachable
from tests.conformance.kit.hub import kit_hub
from tests.conformance.kit.line import Server, Unreachable
from tests.conformance.kit.play import FAIL, Outcome, play
from tests.conformance.kit.report import as_json, as_markdown, as_text
from tests.conformance.kit.script import BadVector, Vector, vectors

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
BEGIN, END = "<!-- written by `python -m tests.conformance --write` -->", "<!-- end -->"


async def run(server: Server, chosen: list[Vector], *, progress: bool = False) -> list[Outcome]:
    """Play vectors, one after the other.

    Raises Unreachable when the server can't be talked to, or lacks the channel.
    """
    await reachable(server)
    outcomes = []
    for number, vector in enumerate(chosen, 1):
        if progress:
            click.echo(f"\r{number}/{len(chosen)} {vector.id:.60}\x1b[K", err=True, nl=False)
        outcomes.append(await play(vector, server))
    if progress:
        click.echo("\r\x1b[K", err=True, nl=False)
    return outcomes


def page(outcomes: list[Outcome]) -> str:
    """docs/conformance.md with the tables of this run."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{as_markdown(outcomes)}\n\n{END}{after}"


async def _run(
    url: str | None, chosen: list[Vector], header: tuple[str, ...], topic: str, timeout: float
) -> tuple[str, list[Outcome]]:
    async with AsyncExitStack() as stack:
        if own := url is None:
            logging.getLogger("bridge_server").addHandler(logging.NullHandler())  # channels crash here on purpose
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            url = await stack.enter_async_context(kit_hub(Path(folder)))
        settle = 0.0 if own else 0.1  # on our hub nothing is late: it answers in the order of what it is told
        server = Server.at(url, headers=header, topic=topic, patience=timeout, settle=settle)
        return server.url, await run(server, chosen, progress=sys.stderr.isatty())


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--url", help="The socket of the server, like ws://127.0.0.1:4000/socket. Without it: a hub of our own.")
@click.option("--header", multiple=True, metavar="'NAME: VALUE'", help="Sent with every request; may be repeated.")
@click.option("--topic", default="room", show_default=True, help="What stands for `room` in `room:*`.")
@click.option("--rule", multiple=True, help="Play only the vectors of this rule; may be repeated.")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 600), default=5.0, show_default=True, help="Seconds to wait for an answer."
)
@click.option("--json", "json_", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--write", is_flag=True, help="Write the tables into docs/conformance.md (our own hub only).")
@click.argument("more", nargs=-1, metavar="")
def main(
    more: tuple[str, ...],
    url: str | None,
    header: tuple[str, ...],
    topic: str,
    rule: tuple[str, ...],
    timeout: float,
    json_: bool,
    write: bool,
) -> None:
    """Play the conformance vectors to a Phoenix channels server, and say for each rule of the protocol: pass,
    deviation (a difference that is known and has a reason), or fail.

    What the server must offer is written in docs/conformance.md; what it lacks is shown as "not offered".

    Exit code: 0 nothing failed, 1 something did, 2 the server can't be tested at all.
    """
    if more:
        raise click.UsageError(f"an address goes behind --url: --url {more[0]}")
    for line in header:
        if ": " not in line or "\r" in line or "\n" in line:
            raise click.UsageError(f"--header {line!r} is no header: write it like 'Authorization: Bearer abc'")
    if write and (url or rule):
        raise click.UsageError("--write is for our own hub and all rules: leave out --url and --rule")
    try:
        chosen = [vector for vector in vectors() if not rule or set(rule) & set(vector.rules)]
        if not chosen:
            raise click.UsageError(f"no vector shows rule {', '.join(rule)}")
        where, outcomes = asyncio.run(_run(url, chosen, header, topic, timeout))
    except (Unreachable, BadVector) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    if write:
        PAGE.write_text(page(outcomes), "utf-8")
    if json_:
        click.echo(json.dumps(as_json(where, outcomes), ensure_ascii=False, indent=2))
    else:
        click.echo(f"{where}\n\n{as_text(outcomes)}")
    sys.exit(any(outcome.verdict == FAIL for outcome in outcomes))


if __name__ == "__main__":
    main(prog_name="python -m tests.conformance")
