"""`python -m benchmarks`: measure, print, and on request write what was found into the docs."""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks import frozen, home_to_app, report, storm
from benchmarks.servers import GENERATOR_CORE, ROOT, build_floor
from benchmarks.shapes import SHAPES, Say, rounds

PARTS = (*(shape.key for shape in SHAPES), "latency", "catchup", "storm", "frozen")
HOME_PARTS = ("latency", "catchup")

_SHAPES_HELP = "\n".join(f"    {shape.key}  {shape.title}: {shape.shows}" for shape in SHAPES)


@click.command(
    help=f"""Measure the hub, beside the floor and what a Python user might take instead.

    Each system does the same job on the first core, the load generator runs on the last one and checks that every app
    got every event once and in order. Systems take turns within a round; what counts are ratios to the floor of the
    same round, since absolute times drift on a busy machine. PARTS are shapes and ways (default: all of them):

    \b
{_SHAPES_HELP}
    latency  store commit to app: home, hub and apps in three processes, 50 events/s, 1,000 apps
    catchup  a home that was cut off forwards 100,000 events
    storm    10,000 apps lose their connections at once, come back with their cursors, and recover
    frozen   one of 1,000 apps never reads: the latency of the others, without it and with it

    \b
    python -m benchmarks                    everything, about eight minutes
    python -m benchmarks A B --rounds 1     two shapes, once
    python -m benchmarks latency --json     one way, for a program

    Exit status: 0 all goals met, 1 a goal missed, 2 it could not be measured.
    """
)
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--rounds", "count", default=3, type=click.IntRange(1, 50), help="How many; medians count (default: 3).")
@click.option("--others/--no-others", default=True, help="Measure the three other systems too, or not (default: do).")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--write", is_flag=True, help="Write tables and plot into docs/performance.md.")
def main(parts: Sequence[str], count: int, others: bool, as_json: bool, write: bool) -> None:
    """See the help above."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < 11_000:
        click.echo(f"10,000 connections need more open files than the {hard} allowed here: ulimit -Hn 20000", err=True)
        raise SystemExit(2)
    os.sched_setaffinity(0, {GENERATOR_CORE})
    started = time.monotonic()

    def say(text: str) -> None:
        click.echo(f"{time.monotonic() - started:4.0f} s  {text}", err=True)

    try:
        found = uvloop.run(measure(parts or PARTS, count, others, say))
    except (RuntimeError, ConnectionError, TimeoutError) as error:
        click.echo(f"the bench could not finish: {error}", err=True)
        raise SystemExit(2) from None
    if write:
        report.write_docs(found, ROOT / "docs/performance.md", ROOT / "docs/images/performance-fanout.svg")
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=2))
    else:
        show(found)
    raise SystemExit(0 if all(goal.met for goal in report.goals(found)) else 1)


async def measure(parts: Sequence[str], count: int, others: bool, say: Say) -> report.Findings:
    """Run the parts."""
    shapes = [shape for shape in SHAPES if shape.key in parts]
    latencies, catch_ups, storms, frozens = [], [], [], []
    with TemporaryDirectory(prefix="bench-") as directory:
        floor = await asyncio.to_thread(build_floor, Path(directory)) if shapes else Path()
        rows = await rounds(shapes, count, floor, say, others)
    for number in range(count):
        if "latency" in parts:
            latencies.append(await home_to_app.latency())
            say(f"round {number + 1} store commit → app: p99 {latencies[-1].from_commit['p99']:.1f} ms")
        if "catchup" in parts:
            catch_ups.append(await home_to_app.catch_up())
            say(f"round {number + 1} catching up: {catch_ups[-1].events_per_s:,.0f} events/s")
        if "storm" in parts:
            storms.append(await storm.storm())
            say(f"round {number + 1} storm: {storms[-1].apps:,} apps back after {storms[-1].seconds:.1f} s")
        if "frozen" in parts:
            frozens.append(await frozen.frozen())
            say(f"round {number + 1} one frozen app: p99 {frozens[-1].p99_without:.1f} → {frozens[-1].p99_with:.1f} ms")
    return report.Findings(rows, latencies, catch_ups, storms, frozens)


def show(found: report.Findings) -> None:
    """Print the tables."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    tables = [("Server CPU per delivery, as a multiple of the floor", report.ratio_table(found))]
    tables += [("Latency", report.latency_table(found)), ("Slow apps", report.slow_table(found))]
    for title, (head, *rows) in [*tables, ("Goals", report.goal_table(found))]:
        if rows:
            table = Table(*(cell.replace("*", "") for cell in head), title=title, title_justify="left")
            for row in rows:
                table.add_row(*(cell.replace("*", "") for cell in row))
            console.print(table)
    console.print(report.machine())


if __name__ == "__main__":
    main()
