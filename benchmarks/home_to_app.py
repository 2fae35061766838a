"""The whole way: event store and forwarder in one process, the hub in another, the apps in this one."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from benchmarks.generator import Load, Run, cpu_seconds, percentiles
from benchmarks.servers import CORES, HUB, Running, end, line_of, program, running, start

LIVE: Final = Load(apps=1000, events=500, rate=50, warm_up=50, publishers=False)
CATCH_UP: Final = Load(apps=1, events=100_000, publishers=False, settle=0.1)


class Latency(NamedTuple):
    """Milliseconds from the store's commit, and from the call of publish, to an app's socket."""

    from_commit: dict[str, float]
    from_publish: dict[str, float]
    wrong: int


class CatchUp(NamedTuple):
    """Events a second from a full store to an app that checks them."""

    events_per_s: float
    hub_cpu_us: float
    home_cpu_us: float
    wrong: int


@asynccontextmanager
async def _home(hub: Running, load: Load) -> AsyncIterator[asyncio.subprocess.Process]:
    tenant = hub.ready["tenants"][0]
    with TemporaryDirectory(prefix="bench-home-") as directory:
        arguments = (directory, str(load.events), str(load.rate), str(load.size))
        # On whichever core has room: a home does not share its own with a generator of load.
        process = await start((*program("home"), *arguments), cores=CORES)
        try:
            credential = {
                "hub_url": f"http://127.0.0.1:{hub.port}",
                "server_id": tenant["server_id"],
                "credential": tenant["home"],
            }
            assert process.stdin is not None
            process.stdin.write(json.dumps(credential).encode() + b"\n")
            yield process
        finally:
            await end(process)


async def latency(load: Load | None = None) -> Latency:
    """Live events at a rate, from one home to many apps (LIVE)."""
    load = load or LIVE
    async with running(HUB) as hub:
        run = Run(hub.port, hub.dialect, load, hub.pid)
        try:
            await run.connect()
            async with _home(hub, load) as home:
                commit_ns = (await line_of(home, load.events / load.rate + 60))["commit_ns"]
                result = await run.finish()
        finally:
            run.close()
    taken = run.receiver
    since = [late - commit_ns[number - 1] for number, late in zip(taken.numbers, taken.latencies, strict=True)]
    from_commit = percentiles(since)
    return Latency(from_commit, result.latency_ms, result.wrong)


async def catch_up(load: Load | None = None) -> CatchUp:
    """A store that is full before its forwarder starts (CATCH_UP)."""
    load = load or CATCH_UP
    async with running(HUB) as hub:
        run = Run(hub.port, hub.dialect, load, hub.pid)
        try:
            await run.connect()
            async with _home(hub, load) as home:
                started = (await line_of(home, 120))["started"]
                cpu = cpu_seconds(home.pid)
                result = await run.finish()
                cpu = cpu_seconds(home.pid) - cpu
        finally:
            run.close()
    return CatchUp(
        load.events / (run.receiver.last_arrival - started) * 1e9, result.cpu_us, cpu / load.events * 1e6, result.wrong
    )
