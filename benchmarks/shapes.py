"""The shapes of load, and the rounds in which the systems take turns at them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.generator import Load, Result, play
from benchmarks.servers import HUB, OTHERS, System, floor, running

Say = Callable[[str], None]

SECONDS_EACH: Final = 2.0
"""Server CPU that a run of a slower system may take: fewer events do, then."""

ABOUT_US: Final = {"websockets": 20, "socketio": 100, "channels": 800}
"""CPU µs per delivery to expect of the slower systems, to size their runs by."""


class Shape(NamedTuple):
    """One shape: its load, the floor to compare with, and what the hub may cost as a multiple of that floor."""

    key: str
    title: str
    load: Load
    floor: str
    goal: float | None
    shows: str
    others: bool = False


SHAPES: Final = (
    Shape(
        "A",
        "sparse",
        Load(events=150, window=1, by_deliveries=True),
        "send",
        1.6,
        "1,000 apps, the next event only when all have the last: nothing to coalesce, one system call a delivery",
        True,
    ),
    Shape(
        "B",
        "saturated",
        Load(events=1200, window=16),
        "writev",
        2.0,
        "1,000 apps, 16 events in flight: what coalescing is worth",
        True,
    ),
    Shape(
        "C",
        "moderate",
        Load(events=200, rate=50, warm_up=20),
        "send",
        None,
        "1,000 apps, 50 events/s: latency",
        True,
    ),
    Shape(
        "D",
        "many small",
        Load(groups=200, events=30_000, window=4),
        "join",
        3.0,
        "200 homes with 5 apps each, 4 events of each home in flight: taking in costs more than giving out",
        True,
    ),
    Shape(
        "E",
        "idle",
        Load(apps=10_000, events=10, rate=2, settle=2.0),
        "send",
        None,
        "10,000 apps connect and join: time, and memory when they have",
    ),
    Shape(
        "S",
        "slow",
        Load(apps=300, slow=20, events=4000, window=64, size=2000),
        "writev",
        None,
        "300 apps, 20 of which never read: they are cut, the others notice nothing",
    ),
)


class Row(NamedTuple):
    """One run."""

    shape: str
    system: str
    round: int
    result: Result


def sized(shape: Shape, system: System) -> Load:
    """The shape's load, with fewer events for a slower system so that its run is about as long."""
    about = ABOUT_US.get(system.name)
    if about is None:
        return shape.load
    load = shape.load
    affordable = int(SECONDS_EACH * 1e6 / about / (load.apps / load.groups))
    events = max(2 * load.groups, min(load.events, affordable - affordable % load.groups))
    return replace(load, events=events, warm_up=min(load.warm_up, events // 4))


async def rounds(shapes: Iterable[Shape], count: int, floor_program: Path, say: Say, others: bool = True) -> list[Row]:
    """Run every shape `count` times, floor and hub right after each other; the others follow in the first round."""
    rows = []
    for number in range(count):
        for shape in shapes:
            systems = [floor(floor_program, shape.floor), HUB]
            for system in systems + list(OTHERS if shape.others and others and number == 0 else ()):
                async with running(system, shape.load.groups) as server:
                    result = await play(server.port, server.dialect, sized(shape, system), server.pid)
                rows.append(Row(shape.key, system.name, number, result))
                latency = f", p99 {result.latency_ms['p99']:.0f} ms" if result.latency_ms else ""
                wrong = f", {result.wrong} WRONG" if result.wrong else ""
                say(f"round {number + 1} {shape.key} {system.title}: {result.cpu_us:.2f} µs{latency}{wrong}")
    return rows
