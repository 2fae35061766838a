"""The bench: that it measures what it says, finds what is wrong, and reports whatever it measured. Never times."""

import asyncio
import json
import os
import random
import re
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

if sys.platform != "linux":
    pytest.skip("the bench needs Linux (/proc, epoll, CPU affinity)", allow_module_level=True)

from benchmarks import __main__ as bench
from benchmarks import frozen, home_to_app, report, storm
from benchmarks.frozen import Frozen
from benchmarks.generator import Load, Result, Run, event
from benchmarks.home_to_app import CatchUp, Latency
from benchmarks.receiver import Receiver
from benchmarks.servers import HUB, OTHERS, build_floor, floor, running
from benchmarks.shapes import SHAPES, Row
from benchmarks.storm import Storm

PAGE = Path(__file__).parent.parent / "docs/performance.md"


# --- what an app gets


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver(warm_up=0, on_delivery=None)
    yield receiver
    receiver.close()


def stream(numbers: Sequence[int], now: int = 5) -> bytes:
    return b"".join(b"\x81\x7e\x00\xffgl l" + event(number, 150, now).encode() for number in numbers)


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ([1, 2, 3, 4], 0),
        ([1, 2, 4], 1),  # lost (and one too few in the end)
        ([1, 2, 2, 3], 1),  # doubled
        ([1, 3, 2, 4], 3),  # out of order: the one too early, the one too late, and the one behind it
        ([2, 3], 1),
    ],
)
async def test_every_delivery_is_checked_wherever_reads_cut_the_stream(
    receiver: Receiver, numbers: list[int], wrong: int
) -> None:
    data, rng = stream(numbers), random.Random(7)
    seen = 0
    for app in range(12):  # the first learns the marks, the others compare them
        end, other = socket.socketpair()
        end.setblocking(False)
        receiver.add(end.fileno(), group=0)
        cuts = [0, *sorted(rng.sample(range(1, len(data)), 3 * app)), len(data)]
        for start, stop in pairwise(cuts):
            other.sendall(data[start:stop])
            while receiver.deliveries < seen + data[:stop].count(b".5."):
                await asyncio.sleep(0)
        seen += len(numbers)
        assert receiver.deliveries == seen
        assert receiver.wrong == (app + 1) * wrong
        other.close()
        end.close()
    assert receiver.numbers == numbers * 12
    assert all(latency > 0 for latency in receiver.latencies)


async def test_time_counts_from_the_mark_and_only_behind_the_warm_up() -> None:
    delivered: list[tuple[int, int]] = []
    receiver = Receiver(warm_up=2, on_delivery=lambda *delivery: delivered.append(delivery))
    pairs = [socket.socketpair() for _ in range(4)]
    for group, (end, other) in enumerate(pairs):
        end.setblocking(False)
        receiver.add(end.fileno(), group)
        other.sendall(stream([1, 2, 3], now=1))
    async with asyncio.timeout(20):
        while len(delivered) < 12:
            await asyncio.sleep(0.001)
        for _, other in pairs:
            other.sendall(stream([4], now=receiver.last_arrival))
        while len(delivered) < 16:
            await asyncio.sleep(0.001)
    receiver.close()
    for end, other in pairs:
        end.close()
        other.close()
    assert sorted(delivered) == [(group, number) for group in range(4) for number in (1, 2, 3, 4)]
    assert (receiver.wrong, sorted(receiver.numbers)) == (0, [3, 3, 3, 3, 4, 4, 4, 4])  # 1 and 2 are warm-up
    old, new = sorted(receiver.latencies)[4:], sorted(receiver.latencies)[:4]
    assert max(new) < min(old)


# --- each kind of run, tiny


@pytest.mark.requires("cc")
async def test_a_shape_against_hub_and_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = {
        "A": Load(apps=6, groups=2, events=8, window=1, by_deliveries=True, settle=0.0),
        "D": Load(apps=6, groups=3, events=60, window=4, settle=0.0),
    }
    monkeypatch.setattr(
        bench, "SHAPES", [shape._replace(load=tiny[shape.key]) for shape in SHAPES if shape.key in tiny]
    )
    said: list[str] = []
    found = await bench.measure(["A", "D"], 1, False, said.append)
    assert [(row.shape, row.system, row.result.deliveries, row.result.wrong) for row in found.rows] == [
        ("A", "floor", 6 * 4, 0),
        ("A", "hub", 6 * 4, 0),
        ("D", "floor", 6 * 20, 0),
        ("D", "hub", 6 * 20, 0),
    ]
    assert len(said) == 4
    assert all(row.result.bytes_per_app >= 0 and row.result.latency_ms["max"] > 0 for row in found.rows)
    report.goals(found)


@pytest.mark.requires("cc")
async def test_what_never_comes_makes_the_run_wrong(tmp_path: Path) -> None:
    load = Load(apps=3, events=5, window=5, settle=0.0)
    async with running(floor(build_floor(tmp_path), "send")) as server:
        waiting = Run(server.port, server.dialect, replace(load, events=7, publishers=False), server.pid)
        run = Run(server.port, server.dialect, load, server.pid)
        try:
            await waiting.connect()
            await run.connect()
            await run.publish()
            assert (await run.finish()).wrong == 0
            waiting.patience = 0.05
            assert (await waiting.finish()).wrong == 3 * 2
        finally:
            run.close()
            waiting.close()


async def test_latency_and_catching_up_go_through_a_real_home(monkeypatch: pytest.MonkeyPatch) -> None:
    live = replace(home_to_app.LIVE, apps=4, events=12, warm_up=2, settle=0.0)
    monkeypatch.setattr(home_to_app, "LIVE", live)
    monkeypatch.setattr(home_to_app, "CATCH_UP", replace(home_to_app.CATCH_UP, events=1_200))
    found = await bench.measure(["latency", "catchup"], 1, False, lambda text: None)
    (latency,), (catch_up,) = found.latencies, found.catch_ups
    assert (latency.wrong, catch_up.wrong) == (0, 0)
    assert all(latency.from_commit[name] < latency.from_publish[name] for name in ("p50", "p99", "max", "mean"))
    assert catch_up.events_per_s > 0
    assert {goal.text.split(":")[0] for goal in report.goals(found)} >= {"every event once and in order, in every run"}
    json.dumps(found.as_json())


async def test_a_storm_and_a_frozen_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen, "LOAD", replace(frozen.LOAD, apps=5, events=15, warm_up=2, settle=0.0))
    (one,) = (await bench.measure(["frozen"], 1, False, lambda text: None)).frozen
    assert one.wrong == 0
    assert min(one.p99_with, one.p99_without) > 0
    found = await storm.storm(apps=30)
    assert (found.apps, found.refused, found.wrong, found.home_messages) == (30, 0, 0, 0)
    assert found.seconds > 0


def test_the_command_lists_every_part() -> None:
    said = CliRunner().invoke(bench.main, ["--help"])
    assert said.exit_code == 0
    assert all(re.search(rf"^ +{part}  ", said.output, re.MULTILINE) for part in bench.PARTS)
    assert CliRunner().invoke(bench.main, ["no such part"]).exit_code == 2


# --- the report of whatever was measured

EVERYTHING = {*"ABCDES", "latency", "catchup", "storm", "frozen"}
ALL_SYSTEMS = ("floor", "hub", *(system.name for system in OTHERS))


def findings(parts: set[str], systems: Sequence[str] = ALL_SYSTEMS, *, arrived: bool = True) -> report.Findings:
    latency = {"p50": 9.0, "p99": 19.0, "max": 29.0, "mean": 9.5} if arrived else {}
    costs = {system: 2.0 + place for place, system in enumerate(ALL_SYSTEMS)}
    rows = [
        Row(shape, system, number, Result(cpu_us=costs[system], bytes_per_app=5e3, connect_s=3.0, latency_ms=latency))
        for number in (0, 1)
        for shape in sorted(parts & set("ABCDES"))
        for system in systems
    ]
    latencies = [Latency({"p50": 8.0, "p99": 18.0}, {"p50": 10.0, "p99": 20.0}, 0)] if "latency" in parts else []
    catch_ups = [CatchUp(2e4, 20.0, 30.0, 0)] if "catchup" in parts else []
    storms = [Storm(10_000, 9.0, 800.0, 0, 0, 0)] if "storm" in parts else []
    frozens = [Frozen(20.0, 21.0, 0)] if "frozen" in parts else []
    return report.Findings(rows, latencies, catch_ups, storms, frozens)


GOALS = {
    "A sparse": "A",
    "B saturated": "B",
    "D many small": "D",
    "memory per": "E",
    "10,000 apps connected": "E",
    "store commit": "latency",
    "catching up": "catchup",
    "10,000 apps dropped": "storm",
    "one frozen app": "frozen",
}


@pytest.mark.parametrize("arrived", [True, False])
@pytest.mark.parametrize(
    "parts",
    [
        set(),
        {"E"},
        {"E", "latency"},
        {"S"},
        {"C"},
        {"B", "D"},
        {"latency"},
        {"catchup"},
        {"storm"},
        {"frozen"},
        EVERYTHING - {"A", "C"},
        EVERYTHING,
    ],
    ids=lambda parts: "-".join(sorted(parts)) or "nothing",
)
def test_any_part_alone_is_reported(
    parts: set[str], arrived: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "draw", lambda found, picture: picture.touch())
    monkeypatch.setattr(report, "machine", lambda: "a machine")
    for systems in (("floor", "hub"), ALL_SYSTEMS):
        found = findings(parts, systems, arrived=arrived)
        goals = report.goals(found)
        for text, part in GOALS.items():
            assert any(goal.text.startswith(text) for goal in goals) == (part in parts), text
        assert all(goal.met for goal in goals)
        json.dumps(found.as_json())
        bench.show(found)
        shown = capsys.readouterr().out
        assert ("store commit → app" in shown) == ("latency" in parts)
        assert ("20 never read" in shown) == ("S" in parts)

        page, picture = tmp_path / "page.md", tmp_path / "picture.svg"
        page.write_text(PAGE.read_text("utf-8"), "utf-8")
        picture.unlink(missing_ok=True)
        report.write_docs(found, page, picture)
        before, after = tables(PAGE), tables(page)
        whole = parts == EVERYTHING
        fresh = {name for name in before if before[name] != after[name]}
        allowed = {"slow"} if "S" in parts else set()
        allowed |= {"machine", "goals"} if whole else set()
        allowed |= {"ratios", "latency"} if whole and systems == ALL_SYSTEMS else set()
        assert fresh == allowed
        assert picture.exists() == ("ratios" in allowed)


def tables(page: Path) -> dict[str, str]:
    return dict(re.findall(r"<!-- bench:(\w+) -->\n(.*?)<!-- /bench:", page.read_text("utf-8"), re.DOTALL))


def test_a_ratio_is_of_one_round_and_one_wrong_delivery_misses_the_goal() -> None:
    rows = [
        Row("A", system, number, Result(cpu_us=cost, wrong=system == "hub" and number == 1))
        for number, costs in enumerate([(1.0, 2.0), (10.0, 12.0), (4.0, 6.0)])
        for system, cost in zip(("floor", "hub"), costs, strict=True)
    ]
    found = report.Findings(rows, [], [])
    assert found.ratio("A", "hub") == 1.5
    assert [(goal.measured, goal.met) for goal in report.goals(found)] == [("1.50 ×", True), ("1 wrong", False)]


def test_the_systems_are_the_hub_and_what_the_docs_compare_it_with() -> None:
    text = PAGE.read_text("utf-8")
    assert all(f"| {report.TITLES[name]} |" in text for name in ("floor", HUB.name, *(one.name for one in OTHERS)))
    assert os.access(Path(report.__file__).with_name("floor.c"), os.R_OK)
