"""One app among a thousand never reads: what do the others notice of it?

The same load twice, right after each other on hubs of their own, without and with the frozen app. Every
event is queued for it by itself.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from benchmarks.generator import Load, Result, play
from benchmarks.servers import HUB, running

LOAD: Final = Load(events=200, rate=20, warm_up=20, size=500, goodbye=0.0)


class Frozen(NamedTuple):
    """The 99th percentile (ms) of the others' latency, without and with one frozen app; deliveries gone wrong."""

    p99_without: float
    p99_with: float
    wrong: int


async def frozen() -> Frozen:
    """Measure both."""
    without, beside = await _run(LOAD), await _run(replace(LOAD, slow=1))
    return Frozen(without.latency_ms["p99"], beside.latency_ms["p99"], without.wrong + beside.wrong)


async def _run(load: Load) -> Result:
    async with running(HUB, 1) as server:
        return await play(server.port, server.dialect, load, server.pid)
