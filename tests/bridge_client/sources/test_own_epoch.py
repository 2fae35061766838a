"""The epoch of a source that is not ours: what it says itself, and what only the forwarder knows."""

from pathlib import Path

import pytest

from bridge_client.keys import BadKeyFile
from bridge_client.sources.own_epoch import LONGEST, Mark, OwnEpoch


def test_a_source_without_an_epoch_gets_one_that_is_kept(tmp_path: Path) -> None:
    epoch = OwnEpoch(tmp_path / "epoch", "a")
    assert not epoch.follow(None)
    assert OwnEpoch(tmp_path / "epoch", "a").value == epoch.value
    assert (tmp_path / "epoch").stat().st_mode & 0o777 == 0o600


def test_the_sources_own_epoch_is_taken_over(tmp_path: Path) -> None:
    epoch = OwnEpoch(tmp_path / "epoch", "a")
    assert not epoch.follow("theirs"), "the first is not another"
    assert epoch.value == "theirs"
    again = OwnEpoch(tmp_path / "epoch", "a")
    assert not again.follow("theirs")
    assert again.follow("other")
    assert again.value not in ("theirs", "other"), "only the first"


def test_an_epoch_that_the_source_had_before_is_not_taken_over_again(tmp_path: Path) -> None:
    """It was restored from a backup of that time: what it has done since is not what apps have read under that name."""
    epoch = OwnEpoch(tmp_path / "epoch", "a")
    values = []
    for theirs in ("one", "two", "one"):
        epoch.follow(theirs)
        values.append(epoch.value)
    assert len(set(values)) == 3


def test_a_renewed_epoch_stands_until_the_source_names_another(tmp_path: Path) -> None:
    epoch = OwnEpoch(tmp_path / "epoch", "a")
    epoch.follow("theirs")
    renewed = epoch.renew()
    again = OwnEpoch(tmp_path / "epoch", "a")
    assert not again.follow("theirs")
    assert again.value == renewed != "theirs"
    assert again.follow("next")
    assert again.value not in (renewed, "theirs")


@pytest.mark.parametrize("theirs", ["", "x" * (LONGEST + 1), "line\nbreak"])
def test_an_epoch_that_does_not_fit_still_counts_as_a_change(tmp_path: Path, theirs: str) -> None:
    epoch = OwnEpoch(tmp_path / "epoch", "a")
    epoch.follow("theirs")
    assert epoch.follow(theirs)
    assert epoch.value not in ("theirs", theirs)
    assert not epoch.follow(theirs)


def test_another_source_in_the_same_file_begins_anew(tmp_path: Path) -> None:
    one = OwnEpoch(tmp_path / "epoch", "a")
    one.remember(Mark(7, "x"))
    assert OwnEpoch(tmp_path / "epoch", "a").mark == Mark(7, "x")
    other = OwnEpoch(tmp_path / "epoch", "b")
    assert other.value != one.value
    assert other.mark is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_text("{")
    (tmp_path / "epoch").chmod(0o600)
    with pytest.raises(BadKeyFile, match="damaged"):
        OwnEpoch(tmp_path / "epoch", "a")
