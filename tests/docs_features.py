"""Which tests prove which row of docs/features.md, and the pen that writes it there: python -m tests.docs_features

A test names a row in its own name (`test_A24_A25_…`, `test_A10_to_A13_…`) or in its docstring (`rows A42 to A55`). A
range stands for those of its rows that the page has.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "features.md"
SCRIPTS = TESTS / "js"
AWAITED = "–"
"""Stands for the tests of a row that has none yet. Written by hand, taken away by `write`, never put back by it."""

_LINE = re.compile(r"^\| ([ABC][1-9]\d*) \| (.+) \| (.*) \|$", re.MULTILINE)
_RANGE = re.compile(r"\b([ABC])([1-9]\d*) to \1?([1-9]\d*)\b")
_NAME = re.compile(r"\b[ABC][1-9]\d*\b")
_SCRIPT_TEST = re.compile(r"""^test\((["'`])(.+?)\1""", re.MULTILINE)


class Test(NamedTuple):
    """One test, and what it says that it proves."""

    __test__ = False  # not one that pytest is to collect

    file: Path
    name: str
    claim: str
    """Its name, readable, and its docstring."""


def tests() -> Iterator[Test]:
    """Every test there is, by file and line."""
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                yield Test(file, node.name, node.name.replace("_", " ") + "\n" + (ast.get_docstring(node) or ""))
    for file in sorted(SCRIPTS.glob("*.test.mjs")):
        for match in _SCRIPT_TEST.finditer(file.read_text("utf-8")):
            yield Test(file, match[2], match[2])


def rows(page: str) -> dict[str, tuple[str, str]]:
    """Each row of the page: what it says, and the tests that it names. Raises ValueError if one is twice there."""
    found: dict[str, tuple[str, str]] = {}
    for match in _LINE.finditer(page):
        if match[1] in found:
            raise ValueError(f"{PAGE.name} has {match[1]} twice")
        found[match[1]] = (match[2], match[3])
    return found


def named(claim: str, known: Iterable[str]) -> set[str]:
    """The rows that a test names; of a range those that are `known`, and always its two ends."""
    known, found = set(known), set(_NAME.findall(claim))
    for letter, first, last in _RANGE.findall(claim):
        between = {f"{letter}{number}" for number in range(int(first), int(last) + 1)}
        found |= {f"{letter}{last}"} | (between & known)
    return found


def proofs(known: Iterable[str]) -> dict[str, list[Test]]:
    """The tests of each row that any names."""
    known = set(known)
    found: dict[str, list[Test]] = {}
    for test in tests():
        for row in named(test.claim, known):
            found.setdefault(row, []).append(test)
    return found


def cell(found: Iterable[Test]) -> str:
    """Links to tests, as a row shows them: their files, and in each which ones."""
    files: dict[Path, list[str]] = {}
    for test in found:
        files.setdefault(test.file, []).append(test.name)
    links = []
    for file, names in files.items():
        place = file.relative_to(TESTS).as_posix()
        links.append(f"[{place}](../tests/{place}): " + ", ".join(f"`{name.replace('|', '/')}`" for name in names))
    return "; ".join(links)


def written(page: str) -> str:
    """The page with the tests of each row. Raises ValueError for a row that lost its tests, or that it doesn't have."""
    known = rows(page)
    found = proofs(known)
    if strangers := sorted(set(found) - set(known)):
        where = {row: f"{found[row][0].file.name}::{found[row][0].name}" for row in strangers}
        raise ValueError(f"{PAGE.name} does not have rows that tests name: {where}")
    if lost := [row for row, (_, shown) in known.items() if row not in found and shown != AWAITED]:
        raise ValueError(f"no test names {', '.join(lost)}: a test's name or docstring has to")
    return _LINE.sub(lambda line: f"| {line[1]} | {line[2]} | {cell(found.get(line[1], ())) or AWAITED} |", page)


if __name__ == "__main__":
    try:
        PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
    except ValueError as error:
        sys.exit(str(error))
