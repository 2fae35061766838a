"""What a run showed, rule by rule: for a terminal, for a program, and for docs/conformance.md."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tests.conformance.kit.play import DEVIATION, FAIL, NOT_OFFERED, PASS, Outcome
from tests.conformance.kit.script import Rule, deviations, rules

NOT_SEEN = "-"
WORST = (FAIL, DEVIATION, PASS, NOT_OFFERED, NOT_SEEN)


class Row(NamedTuple):
    """One rule: the worst that any of its vectors showed, how many there were, and the deviations among them."""

    rule: Rule
    verdict: str
    vectors: int
    deviations: tuple[str, ...]


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """Every rule, in order."""
    found = []
    for number, rule in rules().items():
        mine = [outcome for outcome in outcomes if number in outcome.vector.rules]
        verdicts = {outcome.verdict for outcome in mine} or {NOT_SEEN}
        names = [
            name
            for name, deviation in deviations().items()
            if any(name in outcome.deviations for outcome in mine) and number in deviation.rules
        ]
        verdict = next(verdict for verdict in WORST if verdict in verdicts)
        if verdict == DEVIATION and not names:
            verdict = PASS  # what deviated in its vectors was another rule's
        found.append(Row(rule, verdict, len(mine), tuple(names)))
    return found


def summary(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many vectors went how."""
    verdicts = [outcome.verdict for outcome in outcomes]
    return {verdict: verdicts.count(verdict) for verdict in (PASS, DEVIATION, FAIL, NOT_OFFERED)}


def as_text(outcomes: Sequence[Outcome]) -> str:
    """A table, then what failed, what deviated and why, what was not offered, and a last line of numbers."""
    lines = [f"{'rule':<7}{'verdict':<13}{'vectors':>7}  what it says"]
    for row in rows(outcomes):
        names = f"  [{', '.join(row.deviations)}]" if row.deviations else ""
        lines.append(f"{row.rule.number:<7}{row.verdict:<13}{row.vectors:>7}  {row.rule.says}{names}")
    for title, verdict in (("Failed", FAIL), ("Not offered by this server", NOT_OFFERED)):
        if found := [outcome for outcome in outcomes if outcome.verdict == verdict]:
            lines += ["", f"{title}:"]
            lines += [f"  {outcome.vector.id}: {outcome.why}" for outcome in found]
    if seen := _seen(outcomes):
        lines += ["", "Known deviations that showed:"]
        lines += [f"  {name}: {deviations()[name].reason}" for name in seen]
    lines += ["", ", ".join(f"{count} {verdict}" for verdict, count in summary(outcomes).items())]
    return "\n".join(lines)


def as_json(url: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same for a program."""
    return {
        "url": url,
        "summary": summary(outcomes),
        "rules": [
            {
                "rule": row.rule.number,
                "says": row.rule.says,
                "verdict": row.verdict,
                "vectors": row.vectors,
                "deviations": list(row.deviations),
                "unseen": row.rule.unseen or None,
            }
            for row in rows(outcomes)
        ],
        "vectors": [
            {
                "vector": outcome.vector.name,
                "vsn": outcome.vector.vsn,
                "rules": list(outcome.vector.rules),
                "verdict": outcome.verdict,
                "deviations": outcome.deviations,
                "why": outcome.why or None,
            }
            for outcome in outcomes
        ],
        "deviations": {name: deviations()[name].reason for name in _seen(outcomes)},
    }


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """The two tables of docs/conformance.md."""
    lines = ["| rule | what it says | verdict | deviations |", "| --- | --- | --- | --- |"]
    for row in rows(outcomes):
        verdict = f"not seen: {row.rule.unseen}" if row.rule.unseen else row.verdict
        names = ", ".join(f"`{name}`" for name in row.deviations)
        lines.append(f"| {row.rule.number} | {_cell(row.rule.says)} | {_cell(verdict)} | {names} |")
    lines += ["", "| deviation | rules | reason |", "| --- | --- | --- |"]
    for name in _seen(outcomes):
        deviation = deviations()[name]
        lines.append(f"| `{name}` | {', '.join(deviation.rules)} | {_cell(deviation.reason)} |")
    counts = summary(outcomes)
    lines += ["", f"{len(outcomes)} vectors: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in counts) + "."]
    return "\n".join(lines)


def _seen(outcomes: Sequence[Outcome]) -> list[str]:
    return [name for name in deviations() if any(name in outcome.deviations for outcome in outcomes)]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
