"""docs/features.md, held to the tests: each row has its proof, and each proof its row."""

import re
from pathlib import Path

import pytest

from tests import docs_features
from tests.docs_features import AWAITED, PAGE, Test, cell, named, rows, written

SOURCE = Path(__file__).resolve().parents[2] / "shared" / "spec" / "features.md"


def test_the_page_names_the_tests_there_are() -> None:
    page = PAGE.read_text("utf-8")
    assert written(page) == page, "write it anew: python -m tests.docs_features"


@pytest.mark.skipif(not SOURCE.exists(), reason=f"the list of all rows is not here ({SOURCE})")
def test_the_page_has_every_row_that_is_to_be_built() -> None:
    source = re.findall(r"^\| ([AB]\d+) \| .* \| core\b[^|]*\|$", SOURCE.read_text("utf-8"), re.MULTILINE)
    assert len(source) > 200
    assert set(source) - set(rows(PAGE.read_text("utf-8"))) == set()


@pytest.mark.parametrize(
    ("claim", "rows"),
    [
        ("test A24 a session", {"A24"}),
        ("test A10 to A13 A50 x", {"A10", "A12", "A13", "A50"}),
        ("rows B1 to 3.", {"B1", "B3"}),
        ("test 2 15 BA1 A0 A1b C1D", set()),
    ],
)
def test_a_test_names_rows_by_name_and_by_range(claim: str, rows: set[str]) -> None:
    assert named(claim, ("A12", "A13", "B3")) == rows


def test_a_row_without_test_a_test_without_row_and_a_row_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = Test(PAGE.parent.parent / "tests" / "x" / "test_x.py", "test_A1_x", "test A1 x")
    monkeypatch.setattr(docs_features, "tests", lambda: iter([proof]))
    known = "| A1 | one | {} |\n"
    assert written(known.format(AWAITED)) == known.format(cell([proof]))
    assert written(known.format("") + f"| A2 | two | {AWAITED} |\n").endswith(f"| A2 | two | {AWAITED} |\n")
    with pytest.raises(ValueError, match="no test names A2:"):
        written(known.format("") + "| A2 | two | some |\n")
    with pytest.raises(ValueError, match=r"A1.*test_x\.py::test_A1_x"):
        written("| A2 | two | – |\n")
    with pytest.raises(ValueError, match="A1 twice"):
        written(known.format("") * 2)
