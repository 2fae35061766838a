"""A test that lacks its program says so, and in CI it fails: a suite must not shrink in silence."""

import pytest

from tests.support.programs import missing, require


def test_a_missing_program_skips_on_somebodys_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed"):
        require("no-such-program")


@pytest.mark.parametrize("value", ["true", "1", "True"])
def test_a_missing_program_fails_in_ci(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CI", value)
    with pytest.raises(pytest.fail.Exception, match="a browser is not built"):
        missing("a browser is not built")


def test_a_program_is_found_by_its_path() -> None:
    assert require("sh").endswith("/sh")
