"""What the runs say: medians, ratios to the floor of the same round, goals met or missed; as tables and a plot."""

import os
import platform
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.frozen import Frozen
from benchmarks.home_to_app import CatchUp, Latency
from benchmarks.servers import HUB, OTHERS
from benchmarks.shapes import SHAPES, Row
from benchmarks.storm import Storm

TITLES = {"floor": "floor (C, no decisions)", **{system.name: system.title for system in (HUB, *OTHERS)}}


class Goal(NamedTuple):
    """One promise, and what was measured."""

    text: str
    measured: str
    met: bool


class Findings(NamedTuple):
    """Everything one `python -m benchmarks` measured; None for what was left out."""

    rows: Sequence[Row]
    latencies: Sequence[Latency]
    catch_ups: Sequence[CatchUp]
    storms: Sequence[Storm] = ()
    frozen: Sequence[Frozen] = ()

    def of(self, shape: str, system: str) -> list[Row]:
        """The runs of one system at one shape."""
        return [row for row in self.rows if (row.shape, row.system) == (shape, system)]

    def middle(self, shape: str, system: str, what: str) -> float | None:
        """The median of one figure over the rounds that have it (nothing arrived: no latency)."""
        values = [value for row in self.of(shape, system) if (value := _figure(row, what)) is not None]
        return median(values) if values else None

    def ratio(self, shape: str, system: str) -> float | None:
        """Median of CPU per delivery over that of the floor in the same round."""
        floors = {row.round: row.result.cpu_us for row in self.of(shape, "floor")}
        ratios = [row.result.cpu_us / floors[row.round] for row in self.of(shape, system) if floors.get(row.round)]
        return median(ratios) if ratios else None

    def wrong(self) -> int:
        """Deliveries lost, doubled or out of order, in all runs."""
        home = sum(one.wrong for one in self.latencies) + sum(one.wrong for one in self.catch_ups)
        return (
            home
            + sum(one.wrong for one in self.storms)
            + sum(one.wrong for one in self.frozen)
            + sum(row.result.wrong for row in self.rows)
        )

    def as_json(self) -> dict[str, Any]:
        """All of it, for another program."""
        return {
            "machine": machine(),
            "goals": [goal._asdict() for goal in goals(self)],
            "runs": [row._asdict() | {"result": row.result.as_dict()} for row in self.rows],
            "latency": [one._asdict() for one in self.latencies],
            "catch_up": [one._asdict() for one in self.catch_ups],
            "storm": [one._asdict() for one in self.storms],
            "frozen": [one._asdict() for one in self.frozen],
        }


def _figure(row: Row, what: str) -> float | None:
    return row.result.latency_ms.get(what) if what in ("p50", "p99") else float(getattr(row.result, what))


def _short(value: float) -> str:
    """Two digits, or all before the point."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def goals(found: Findings) -> list[Goal]:
    """What was promised, as far as it was measured."""
    listed = []
    for shape in SHAPES:
        ratio = found.ratio(shape.key, "hub")
        if shape.goal is not None and ratio is not None:
            text = f"{shape.key} {shape.title}: CPU ≤ {shape.goal:g} × floor"
            listed.append(Goal(text, f"{ratio:.2f} ×", ratio <= shape.goal))
    if (memory := found.middle("E", "hub", "bytes_per_app")) is not None:
        listed.append(Goal("memory per joined idle app ≤ 7 KB", f"{memory / 1e3:.1f} KB", memory <= 7_000))
    if (seconds := found.middle("E", "hub", "connect_s")) is not None:
        listed.append(Goal("10,000 apps connected and joined ≤ 6 s", f"{seconds:.1f} s", seconds <= 6))
    if found.latencies:
        p99 = median(one.from_commit["p99"] for one in found.latencies)
        p50 = median(one.from_commit["p50"] for one in found.latencies)
        text = "store commit → app, 50 events/s × 1,000 apps: p99 ≤ 25 ms"
        listed.append(Goal(text, f"p50 {p50:.1f} ms, p99 {p99:.1f} ms", p99 <= 25))
    if found.catch_ups:
        rate = median(one.events_per_s for one in found.catch_ups)
        listed.append(Goal("catching up 100,000 events ≥ 10,000 events/s", f"{rate:,.0f} events/s", rate >= 10_000))
    if found.storms:
        seconds = median(one.seconds for one in found.storms)
        refused, noticed = (sum(getattr(one, what) for one in found.storms) for what in ("refused", "home_messages"))
        text = "10,000 apps dropped at once: all recovered ≤ 15 s, none refused, nothing asked of the home"
        measured = f"{seconds:.1f} s, {refused} refused, {noticed} messages to the home"
        listed.append(Goal(text, measured, seconds <= 15 and not refused and not noticed))
    if found.frozen:
        without, beside = (median(getattr(one, f"p99_{what}") for one in found.frozen) for what in ("without", "with"))
        text = "one frozen app among 1,000: p99 of the others changes by < 10 %"
        listed.append(Goal(text, f"{without:.1f} ms → {beside:.1f} ms", beside < 1.1 * without))
    if any((found.rows, found.latencies, found.catch_ups, found.storms, found.frozen)):
        wrong = found.wrong()
        listed.append(Goal("every event once and in order, in every run", f"{wrong} wrong", wrong == 0))
    return listed


def goal_table(found: Findings) -> list[list[str]]:
    """Header and rows."""
    return [["goal", "measured", "met"], *([g.text, g.measured, "yes" if g.met else "**no**"] for g in goals(found))]


def ratio_table(found: Findings) -> list[list[str]]:
    """Header and rows: CPU per delivery as a multiple of the floor, per shape; the floor's own µs; memory, connects."""
    shapes = [shape for shape in SHAPES if found.of(shape.key, "floor") and shape.key in "ABCD"]
    table = [["system", *(f"{shape.key} {shape.title}" for shape in shapes), "KB per idle app", "CPU µs per connect"]]
    for system in TITLES:
        runs = [row for row in found.rows if row.system == system and row.shape in "ABC"]
        if not runs:
            continue
        cells = []
        for shape in shapes:
            ratio, cpu = found.ratio(shape.key, system), found.middle(shape.key, system, "cpu_us")
            cells.append("–" if ratio is None or cpu is None else f"{_short(ratio)} × ({_short(cpu)} µs)")
        memory = median(row.result.bytes_per_app for row in runs) / 1e3
        connect = median(row.result.cpu_us_per_connect for row in runs)
        table.append([TITLES[system], *cells, f"{memory:.1f}", f"{connect:.0f}"])
    return table


def latency_table(found: Findings) -> list[list[str]]:
    """Header and rows: latency at 50 events/s, and of the whole way."""
    table = [["50 events/s × 1,000 apps", "p50 ms", "p99 ms"]]
    for system, title in TITLES.items():
        p50, p99 = found.middle("C", system, "p50"), found.middle("C", system, "p99")
        if p50 is not None and p99 is not None:
            table.append([f"publisher → app, {title}", f"{p50:.1f}", f"{p99:.1f}"])
    for name, title in (("from_commit", "store commit → app"), ("from_publish", "call of publish → app (with fsync)")):
        if found.latencies:
            p50, p99 = (median(getattr(one, name)[p] for one in found.latencies) for p in ("p50", "p99"))
            table.append([f"{title}, home, hub and app in three processes", f"{p50:.1f}", f"{p99:.1f}"])
    return table


def slow_table(found: Findings) -> list[list[str]]:
    """Header and rows: what slow apps cost."""
    table = [["300 apps, 20 never read", "CPU µs per delivery", "p99 ms of the others", "cut", "server grew by"]]
    for system in ("floor", "hub"):
        if not found.of("S", system):
            continue
        values = [found.middle("S", system, what) or 0.0 for what in ("cpu_us", "p99", "cut", "grown_bytes")]
        cells = [f"{values[0]:.1f}", f"{values[1]:.0f}", f"{values[2]:.0f}", f"{values[3] / 2**20:.0f} MiB"]
        table.append([TITLES[system], *cells])
    return table


def machine() -> str:
    """Where this was measured: figures mean little without it."""
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            found = re.search(r"model name\s*: (.+)", file.read())
        model = found[1] if found else model
    load = os.getloadavg()
    return (
        f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()};"
        f" load average {load[0]:.1f} at the end, of which the bench itself makes up to 2"
    )


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A table for docs."""
    head, *rows = table
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write_docs(found: Findings, page: Path, picture: Path) -> None:
    """Put what was measured between the markers of `page`, and draw `picture`.

    Only what was measured whole: a table stays as it is when this run left out a line or a column of it, machine and
    goals when it left out anything that a goal is about.
    """
    text = page.read_text("utf-8")
    ways = found.latencies, found.catch_ups, found.storms, found.frozen
    whole = all(found.of(shape.key, "hub") for shape in SHAPES) and all(ways)
    ratios = all(found.of(key, system) for key in "ABCD" for system in TITLES)
    latency = all(found.of("C", system) for system in TITLES) and found.latencies
    parts = (
        ("machine", whole, f"{machine()}."),
        ("goals", whole, markdown(goal_table(found))),
        ("ratios", ratios, markdown(ratio_table(found))),
        ("latency", latency, markdown(latency_table(found))),
        ("slow", found.of("S", "floor") and found.of("S", "hub"), markdown(slow_table(found))),
    )
    for name, measured, content in parts:
        if measured:
            before, opening, rest = text.partition(f"<!-- bench:{name} -->\n")
            _, closing, after = rest.partition(f"<!-- /bench:{name} -->")
            assert closing, f"{page} has no place for the table {name!r}"
            text = f"{before}{opening}{content}\n{closing}{after}"
    page.write_text(text, "utf-8")
    if ratios:
        draw(found, picture)


def draw(found: Findings, picture: Path) -> None:
    """CPU per delivery and memory per app, as bars."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bench"
    from matplotlib import pyplot

    systems = [name for name in TITLES if found.of("A", name)]
    shapes = [shape for shape in SHAPES if shape.key in "ABCD" and found.of(shape.key, "floor")]
    colours = dict(zip(TITLES, ("#9aa0a6", "#1a66c2", "#e0a030", "#c2571a", "#8a3ab9"), strict=True))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), width_ratios=(3, 1), facecolor="white")
    width = 0.8 / len(systems)
    for place, name in enumerate(systems):
        ratios = [found.ratio(shape.key, name) or 0.0 for shape in shapes]
        spots = [spot + (place - (len(systems) - 1) / 2) * width for spot in range(len(shapes))]
        bars = left.bar(spots, ratios, width * 0.92, label=TITLES[name], color=colours[name])
        left.bar_label(bars, [_short(ratio) for ratio in ratios], fontsize=7, padding=1)
        rows = [row.result.bytes_per_app / 1e3 for row in found.rows if row.system == name and row.shape in "ABC"]
        bar = right.bar([TITLES[name]], [median(rows)], 0.7, color=colours[name])
        right.bar_label(bar, [f"{median(rows):.1f}"], fontsize=8, padding=1)
    left.set_yscale("log")
    left.set_ylim(top=left.get_ylim()[1] * 1.6)
    left.set_xticks(range(len(shapes)), [f"{shape.key}: {shape.title}" for shape in shapes])
    left.set_ylabel("multiple of the floor (log scale)")
    left.set_title("Server CPU per delivery (lower is better)")
    left.legend(fontsize=8, frameon=False)
    right.set_xticks([])
    right.set_ylabel("KB")
    right.set_title("Memory per idle app")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None})
