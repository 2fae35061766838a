"""The token of the home's API: made once, private, never weak."""

import stat
from pathlib import Path

import pytest

from bridge_client import local_token
from bridge_client.keys import BadKeyFile


def test_it_is_made_at_the_first_need_and_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert local_token.load(state) is None
    assert not state.exists(), "looking makes nothing"
    token = local_token.obtain(state)
    assert len(token) == 43, "256 bits in base64"
    assert local_token.obtain(state) == token == local_token.load(state)
    assert stat.S_IMODE(local_token.path(state).stat().st_mode) == 0o600
    assert local_token.obtain(tmp_path / "other") != token


@pytest.mark.parametrize("text", ["", "short", "x" * 42, "x" * 44, "x" * 42 + "=", "x" * 42 + "\0", "é" * 43])
def test_a_file_that_holds_no_token_is_refused(tmp_path: Path, text: str) -> None:
    local_token.path(tmp_path).write_text(text)
    local_token.path(tmp_path).chmod(0o600)
    with pytest.raises(BadKeyFile, match=r"home-api\.token"):
        local_token.obtain(tmp_path)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    local_token.obtain(tmp_path)
    local_token.path(tmp_path).chmod(0o644)
    with pytest.raises(BadKeyFile, match="chmod 600"):
        local_token.load(tmp_path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    local_token.obtain(tmp_path / "a")
    (tmp_path / "b").mkdir()
    local_token.path(tmp_path / "b").symlink_to(local_token.path(tmp_path / "a"))
    with pytest.raises(BadKeyFile):
        local_token.load(tmp_path / "b")


def test_tokens_are_compared_whatever_they_hold() -> None:
    assert local_token.same("abc", "abc")
    assert not local_token.same("abc", "abd")
    assert not local_token.same("\udcff", "abc")
