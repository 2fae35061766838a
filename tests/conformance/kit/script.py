"""Vectors: what is sent, what Phoenix answers, and what else is taken for a deviation with a name.

A vector's `steps` are lines of `[connection]MARK body`; the connection without a name is opened at the first line,
others by `@`.

    @ MOUNT [?query | &query] [| Header: value]...   open; `?` stands alone, `&` follows the version
    http METHOD MOUNT                   a request that is no upgrade
    = 403   =sub NAME   =body "part"    what it was answered (101 when nothing is said); `-` and "" are none
    =header NAME VALUE
    > [join_ref,ref,topic,event,{}]     send a message, in the version of the connection; `{...}` goes as it stands
    >text ...                           send text as it stands
    >bin KIND [fields] hex              send a binary frame; the fields' lengths come by themselves
    >frame OPCODE [!fin] [!mask] [rsv] hex-or-"text"
    >vanish                             end the connection without a goodbye
    < [...]   <bin KIND [fields] hex    what must come next; "<any>" stands for any value
    <& [...]                            the same, in any order with its neighbours
    <pong "text"   <close CODE   <nothing
    ~NAME [another expectation]         what else may come in place of the line above, as the deviation NAME: one line,
                                        or none: then nothing comes

`${x*5}` is xxxxx, `{host}` the server's name, and a line after `%100` stands for a hundred, with % from 1 to 100.
"""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

VECTORS = Path(__file__).resolve().parent.parent / "vectors"
VERSIONS = ("1.0.0", "2.0.0")

_LINE = re.compile(
    r"(?P<conn>[a-z]?)(?P<mark>@|=(?:sub|body|header)?|>(?:text|bin|frame|vanish)?|<(?:&|bin|pong|close|nothing)?)"
    r"(?: (?P<body>.*))?"
)
_HTTP = re.compile(r"http (?P<method>[A-Z]+) (?P<body>.+)")
_REPEATED = re.compile(r"\$\{(.)\*(\d+)\}")
_MANY = re.compile(r"%(\d+) (.*)")

EXPECTS = ("<", "<&", "<bin", "<pong", "<close")


class BadVector(Exception):
    """A vector that can't be read; the text says which, and which line."""


class Step(NamedTuple):
    """One line. `otherwise` is the deviations it may show: name -> what comes instead, None for nothing."""

    conn: str
    mark: str
    body: str
    shown: str
    otherwise: dict[str, "Step | None"]


class Vector(NamedTuple):
    """One conversation in one version of the serializer."""

    name: str
    vsn: str
    rules: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def id(self) -> str:
        return f"{self.name} ({self.vsn})"


class Deviation(NamedTuple):
    name: str
    rules: tuple[str, ...]
    reason: str


class Rule(NamedTuple):
    """`unseen` says why no vector shows it, or is empty."""

    number: str
    says: str
    unseen: str


def read_steps(text: str, where: str) -> tuple[Step, ...]:
    """The steps of a vector. Raises BadVector."""
    steps: list[Step] = []
    for shown in filter(None, text.splitlines()):
        if shown.startswith("#"):
            continue
        if shown.startswith("~"):
            name, _, rest = shown[1:].partition(" ")
            if not steps or name in steps[-1].otherwise:
                raise BadVector(f"{where}: {shown!r} has no line of its own before it")
            steps[-1].otherwise[name] = _step(rest, where) if rest else None
            continue
        many = _MANY.fullmatch(shown)
        lines = [many[2].replace("%", str(n)) for n in range(1, int(many[1]) + 1)] if many else [shown]
        steps += [_step(line, where) for line in lines]
    return tuple(steps)


def _step(shown: str, where: str) -> Step:
    if http := _HTTP.fullmatch(shown):
        return Step("", "http", f"{http['method']} {http['body']}", shown, {})
    found = _LINE.fullmatch(shown)
    if found is None:
        raise BadVector(f"{where}: what is {shown!r}?")
    body = _REPEATED.sub(lambda match: match[1] * int(match[2]), found["body"] or "")
    return Step(found["conn"], found["mark"], body, shown, {})


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads((VECTORS / name).read_text("utf-8"))


@cache
def vectors() -> tuple[Vector, ...]:
    """All of them, in the order of the files' names and in each file's own. Raises BadVector."""
    found = []
    for path in sorted(VECTORS.glob("*.toml")):
        for entry in tomllib.loads(path.read_text("utf-8")).get("vector", ()):
            steps = read_steps(entry["steps"], f"{path.name}: {entry['name']}")
            found += [Vector(entry["name"], vsn, tuple(entry["rules"]), steps) for vsn in entry.get("vsn", VERSIONS)]
    return tuple(found)


@cache
def deviations() -> dict[str, Deviation]:
    """By name."""
    return {
        name: Deviation(name, tuple(entry["rules"]), entry["reason"])
        for name, entry in _table("deviations.toml").items()
    }


@cache
def rules() -> dict[str, Rule]:
    """By number, in the order of the rules."""
    table = _table("rules.toml")
    return {number: Rule(number, says, table["unseen"].get(number, "")) for number, says in table["rules"].items()}
