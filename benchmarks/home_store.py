"""`python -m benchmarks.home_store`: pages of `GET /events` over a large session, and publishing while events go.

Pages: a store with many events in one session, asked over HTTP for page after page until its end, with each filter;
milliseconds as the client sees them, and what the process grew by. Publishing: a few at a steady pace, first alone,
then while retention removes the events of that store.
"""

import asyncio
import json
import logging
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import click
import uvloop
from aiohttp import web

from benchmarks.report import machine
from bridge_client.api.events import Events
from bridge_client.api.server import Api
from bridge_client.clock import SystemClock
from bridge_client.retention import Keeper, Rules
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_retention import SqliteRetention

GOAL_MS: Final = 20.0
TOKEN: Final = "made up for the bench, and for nobody else"
PUBLISHERS: Final = 4
PAUSE: Final = 0.01
SECONDS: Final = 8.0


@click.command(help=__doc__)
@click.option("--events", default=100_000, show_default=True, help="How many events the session has.")
@click.option(
    "--from", "path", type=click.Path(path_type=Path, exists=True), help="Take them from these JSON lines, repeated."
)
def main(events: int, path: Path | None) -> None:
    """See the module."""
    logging.disable(logging.WARNING)
    uvloop.run(measure(events, path))


async def measure(count: int, path: Path | None) -> None:
    """Print what is measured."""
    with TemporaryDirectory(prefix="bench-store-") as folder:
        store = await SqliteStore.open(Path(folder) / "home.db")
        try:
            source = islice(cycle(recorded(path)) if path is not None else parts(), count)
            while batch := list(islice(source, 1_000)):
                await asyncio.gather(*map(store.publish, batch))
            await pages(store)
            await publishing(store)
        finally:
            await store.close()
    click.echo(machine())


def parts() -> Iterator[dict[str, Any]]:
    """The worst that a page can hold: parts only, of which each is read, and all become one."""
    number = 0
    while True:
        number += 1
        message = {"role": "assistant", "content": f"token {number} "}
        yield {"type": "partial", "session_id": "s", "request_id": f"r{number // 50_000}", "message": message}


def recorded(path: Path) -> list[dict[str, Any]]:
    """Events of a file, made one session's."""
    events = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{**{k: v for k, v in event.items() if k != "event_id"}, "session_id": "s"} for event in events]


@asynccontextmanager
async def answering(store: SqliteStore) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of the store's API."""
    async with (
        Api([web.get("/events", Events(store).get)], TOKEN, host="127.0.0.1", port=0) as api,
        aiohttp.ClientSession(api.url, headers={"Authorization": f"Bearer {TOKEN}"}) as client,
    ):
        yield client


async def pages(store: SqliteStore) -> None:
    """Walk through all pages with each filter."""
    async with answering(store) as client:
        for name, query in (
            ("everything", {}),
            ("session_id", {"session_id": "s"}),
            ("session_id, limit 1000", {"session_id": "s", "limit": "1000"}),
            ("session_id, compact=false", {"session_id": "s", "compact": "false"}),
        ):
            cpu = time.process_time()
            before, taken, since = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, list[float](), "0"
            while True:
                began = time.perf_counter()
                async with client.get("/events", params={"since_id": since, **query}) as answer:
                    body = await answer.read()
                taken.append((time.perf_counter() - began) * 1e3)
                page = json.loads(body)["events"]
                if not page:
                    break
                since = page[-1]["event_id"]
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
            cpu = (time.process_time() - cpu) / len(taken) * 1e3
            met = "met" if percentile(taken, 50) < GOAL_MS else "missed"
            click.echo(
                f"GET /events {name}: {told(taken)}, {cpu:.1f} ms of processor time with the client's, over"
                f" {len(taken)} pages (goal {GOAL_MS:.0f} ms: {met}); grew by {grown:.1f} MiB"
            )


async def publishing(store: SqliteStore) -> None:
    """With and without retention at work."""
    click.echo(f"publish, retention at rest: {told(await published(store))}")
    head, clock = await store.head() or 0, SystemClock()
    stock = SqliteRetention(store)
    while await stock.mark(clock.wall()):
        pass
    keeper = asyncio.create_task(Keeper(stock, Rules(size=1), lambda: head, clock).run_once())
    taken = await published(store)
    keeper.cancel()
    with suppress(asyncio.CancelledError):
        await keeper
    floor = await store.floor()
    click.echo(f"publish, retention at work: {told(taken)}; it removed {floor:,} events meanwhile")


async def published(store: SqliteStore) -> list[float]:
    """Milliseconds of each publish."""
    taken: list[float] = []
    end = time.perf_counter() + SECONDS

    async def publish() -> None:
        while (began := time.perf_counter()) < end:
            await store.publish({"type": "note", "session_id": "other", "text": "x" * 150})
            taken.append((time.perf_counter() - began) * 1e3)
            await asyncio.sleep(PAUSE)

    await asyncio.gather(*(publish() for _ in range(PUBLISHERS)))
    return taken


def percentile(values: list[float], percent: int) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def told(values: list[float]) -> str:
    """Three of them, in words."""
    return ", ".join(f"p{percent} {percentile(values, percent):.1f} ms" for percent in (50, 95, 99))


if __name__ == "__main__":
    sys.exit(main())
