"""The file that says where a hub is reached: whom it is believed, and that whoever runs is in it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge_server import listening
from bridge_server.listening import Listening, find

URL = "http://127.0.0.1:4321"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "hub.db"
    path.touch(0o600)
    return path


def address(database: Path) -> Path:
    return database.with_name("hub.db.address")


@contextmanager
def held(path: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    with path.open() as file:
        fcntl.flock(file, how)
        yield


def said(database: Path, url: str = URL) -> Listening:
    found = Listening.say(database, url)
    assert found is not None
    return found


def test_it_is_found_while_its_hub_runs_and_no_longer(database: Path) -> None:
    address(database).touch(0o666)
    address(database).chmod(0o666)  # left behind, and open to all
    first = said(database)
    assert address(database).stat().st_mode & 0o777 == 0o600
    assert find(database) == URL
    assert Listening.say(database, "http://127.0.0.1:1") is None, "the first hub's stands"
    first.close()
    assert find(database) is None
    assert not address(database).exists()


@pytest.mark.parametrize(
    "text", ["foo\nbar", "ftp://hub.example", "http://", "http://a b", "http://hub\n.example", "é"]
)
def test_what_is_no_address_is_not_believed(database: Path, text: str) -> None:
    address(database).write_text(text)
    with held(address(database)):
        assert find(database) is None


def test_what_others_may_write_is_not_believed(database: Path) -> None:
    address(database).write_text(URL)
    with held(address(database)):
        assert find(database) == URL
        address(database).chmod(0o620)
        assert find(database) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_a_file_of_another_user_is_neither_believed_nor_used(database: Path) -> None:
    address(database).write_text(URL)
    os.chown(address(database), 65534, 65534)
    with held(address(database)):
        assert find(database) is None
    with pytest.raises(PermissionError, match="no file of this user"):
        Listening.say(database, URL)
    assert address(database).read_text() == URL


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_what_is_no_file_is_left_alone_and_nobody_waits_for_it(database: Path, kind: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    match kind:
        case "pipe":
            os.mkfifo(address(database))
        case "link":
            address(database).symlink_to(victim)
        case _:
            address(database).mkdir()
    assert find(database) is None
    with pytest.raises(OSError):
        Listening.say(database, URL)
    assert victim.read_text() == "precious"


def test_a_hub_that_begins_as_another_ends_is_in_a_file_that_is_there(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = said(database, "http://127.0.0.1:1")
    lock = fcntl.flock

    def ends_before(handle: int, how: int) -> None:
        if not first_ended:
            first_ended.append(True)
            first.close()
        lock(handle, how)

    first_ended: list[bool] = []
    monkeypatch.setattr(listening.fcntl, "flock", ends_before)
    second = said(database)
    assert find(database) == URL
    second.close()


def test_what_another_hub_says_since_is_not_taken_back(database: Path) -> None:
    first = said(database, "http://127.0.0.1:1")
    address(database).unlink()  # somebody tidied up
    second = said(database)
    first.close()
    assert find(database) == URL
    second.close()


def test_who_looks_at_that_moment_keeps_no_hub_out(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address(database).touch(0o600)
    with address(database).open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(listening.time, "sleep", lambda seconds: looking.close())
        assert said(database) is not None
