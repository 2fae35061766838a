"""What pairing keeps: bounded, over steps of the clock, without secrets, and forward from the version before."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_server.auth import Credentials, Refused
from bridge_server.database import VERSION, BadDatabase
from bridge_server.pairing import (
    ATTEMPT_MS,
    MAX_ATTEMPTS,
    MAX_CODES,
    MAX_DEVICES,
    MAX_OPEN,
    MAX_WRONG,
    REMEMBER_MS,
    PairingRefused,
    Pairings,
    load_key,
)
from tests.support.pairing_desk import HERE, START, VIEW, Desk, unknown, wrong


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path / "state")
    yield made
    made.credentials.close()


# Bounds.


def test_open_codes_of_a_home_are_bounded(desk: Desk) -> None:
    first = desk.open(seconds=100)
    desk.open()
    desk.open()
    with pytest.raises(PairingRefused, match="rate_limited") as caught:
        desk.open()
    assert caught.value.retry_after == 100
    desk.pairings.close(desk.home.server_id, first.id)
    desk.open()
    desk.now += 300
    assert desk.open()


def test_codes_of_a_home_are_bounded_also_when_it_closes_them(desk: Desk) -> None:
    for _ in range(MAX_CODES):
        desk.pairings.close(desk.home.server_id, desk.open().id)
    with pytest.raises(PairingRefused, match="rate_limited") as caught:
        desk.open()
    assert caught.value.retry_after == REMEMBER_MS / 1000
    other, _ = desk.credentials.add_server("b")
    assert desk.open(other)
    desk.now += caught.value.retry_after
    assert desk.open()


def test_devices_of_a_home_are_bounded_and_old_revocations_forgotten(desk: Desk) -> None:
    other, _ = desk.credentials.add_server("b")
    bystander, _ = desk.credentials.add_device(other.server_id, "b")
    watcher = Credentials(desk.path)
    made = [desk.credentials.add_device(desk.home.server_id, "x")[0] for _ in range(MAX_DEVICES)]
    with pytest.raises(PairingRefused, match="too_many_devices"):
        desk.open()
    for device in made:
        desk.credentials.revoke_device(device.device_id)
    extra, _ = desk.credentials.add_device(desk.home.server_id, "y")
    desk.credentials.revoke_device(extra.device_id)
    assert len(watcher.revoked()) == MAX_DEVICES + 1
    last = desk.redeem(desk.open().code)
    kept = [entry.identity for entry in desk.credentials.devices(desk.home.server_id)]
    assert kept == [*made[1:], extra, last]
    # The numbering of revocations goes on: nobody misses the next one.
    desk.credentials.revoke_device(bystander.device_id)
    assert watcher.revoked() == {bystander.credential_id}
    watcher.close()


def test_rows_of_strangers_are_purged_and_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge_server.pairing.MAX_ROWS", 50)
    for number in range(80):
        desk.refusal(unknown(), f"198.51.100.{number}")
    count = "SELECT count(*) FROM pairing_attempts"
    assert desk.credentials.database.scalar(count) == 51
    desk.now += ATTEMPT_MS / 1000
    desk.refusal(unknown())
    assert desk.credentials.database.scalar(count) == 1


def test_a_full_house_of_handles_takes_them_from_the_ended_only(desk: Desk) -> None:
    letters = iter("BBBB" + "C" * 8 + "BBBB" * 100)
    desk.pairings = Pairings(desk.credentials, clock=lambda: desk.now, choose=lambda _: next(letters))
    first = desk.open(seconds=10)
    assert str(first.code) == "BBBB-CCCC-CCCC"
    with pytest.raises(PairingRefused, match="overloaded"):
        desk.open()
    desk.now += 10
    letters = iter("BBBB" * 51 + "F" * 8)
    second = desk.open()
    assert str(second.code) == "BBBB-FFFF-FFFF"
    assert desk.refusal(first.code) == "wrong"
    assert desk.pairings.find(desk.home.server_id, first.id) == ("expired", None)
    assert desk.redeem(second.code)


# Clock steps.


def test_a_clock_set_back_forgets_no_attempt_and_locks_nobody_out_for_ever(desk: Desk) -> None:
    for _ in range(MAX_ATTEMPTS):
        desk.refusal(unknown())
    desk.now -= 365 * 86_400
    assert desk.refusal(unknown()) == "rate_limited"
    desk.now += ATTEMPT_MS / 1000 - 1
    assert desk.refusal(unknown()) == "rate_limited"
    desk.now += 1
    assert desk.refusal(unknown()) == "wrong"


def test_a_clock_set_back_leaves_no_code_from_the_future(desk: Desk) -> None:
    codes = [desk.open() for _ in range(MAX_OPEN)]
    desk.now -= 30
    assert desk.redeem(codes[0].code)
    desk.now -= 86_400
    assert desk.pairings.find(desk.home.server_id, codes[1].id) == ("expired", None)
    assert desk.refusal(codes[1].code) == "wrong"
    assert desk.redeem(desk.open().code)


def test_a_clock_set_forward_ends_codes(desk: Desk) -> None:
    issued = desk.open()
    desk.now += 365 * 86_400
    assert desk.refusal(issued.code) == "wrong"
    assert desk.redeem(desk.open().code)


# Tenants, secrets, files.


def test_another_homes_pairing_is_like_none(desk: Desk) -> None:
    stranger, _ = desk.credentials.add_server("b")
    issued = desk.open()
    for act in (desk.pairings.find, desk.pairings.close):
        for pairing_id in (issued.id, "absent"):
            with pytest.raises(PairingRefused, match="not_found"):
                act(stranger.server_id, pairing_id)
    assert desk.redeem(issued.code)


def test_neither_code_nor_token_nor_address_is_on_the_disk(desk: Desk) -> None:
    issued, other = desk.open(), desk.open()
    token = desk.pairings.redeem(issued.code, "Phone", HERE)[1]
    desk.refusal(wrong(other.code), "2001:db8:77::1")
    dump = desk.dump().upper()
    assert b"PHONE" in dump
    for code in (issued.code, other.code, wrong(other.code)):
        for text in (str(code), code.secret, code.handle + code.secret):
            assert text.encode() not in dump
    for text in (token, HERE, "2001:db8:77"):
        assert text.upper().encode() not in dump


def test_nothing_secret_is_logged(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    issued = desk.open()
    for turn in range(MAX_WRONG):
        desk.refusal(wrong(issued.code, turn))
    assert f"pairing {issued.id} of home {desk.home.server_id} is dead" in caplog.text
    assert issued.code.secret not in caplog.text
    assert str(issued.code) not in caplog.text
    assert issued.code.handle not in caplog.text


def test_the_key_is_private_made_once_and_needed(tmp_path: Path) -> None:
    path = tmp_path / "hub.db.pairing-key"
    key = load_key(path)
    assert len(key) == 32
    assert load_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    path.write_bytes(b"short")
    with pytest.raises(BadDatabase, match="remove it"):
        load_key(path)
    path.unlink()
    path.symlink_to("elsewhere")
    with pytest.raises(BadDatabase, match=path.name):
        load_key(path)


def test_with_another_key_no_code_serves(desk: Desk) -> None:
    issued = desk.open()
    desk.path.with_name("hub.db.pairing-key").unlink()
    desk.restart()
    assert desk.refusal(issued.code) == "wrong"
    assert desk.redeem(desk.open().code)


# The database of the version before.

VERSION_1 = """
CREATE TABLE credentials (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash BLOB NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('server', 'device', 'operator')),
    server_id TEXT CHECK ((server_id IS NULL) = (kind = 'operator')),
    device_id TEXT UNIQUE CHECK ((device_id IS NOT NULL) = (kind = 'device')),
    name TEXT NOT NULL,
    scopes TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    revocation INTEGER
) STRICT;
CREATE INDEX credentials_by_server ON credentials (server_id, kind);
CREATE INDEX credentials_by_revocation ON credentials (revocation) WHERE revocation IS NOT NULL;
PRAGMA user_version = 1;
"""


def test_a_database_of_version_1_keeps_everything(tmp_path: Path) -> None:
    new = Credentials(tmp_path / "new.db", clock=lambda: START)
    home, home_token = new.add_server("Attic")
    phone, phone_token = new.add_device(home.server_id, "Phone")
    tablet, tablet_token = new.add_device(home.server_id, "Tablet")
    operator, operator_token = new.add_operator("ops")
    new.revoke_device(tablet.device_id)
    old = sqlite3.connect(tmp_path / "old.db")
    old.executescript(VERSION_1)
    columns = ", ".join(row[1] for row in old.execute("PRAGMA table_info(credentials)"))
    rows = new.database.connection.execute(f"SELECT {columns} FROM credentials").fetchall()
    old.executemany(f"INSERT INTO credentials VALUES ({', '.join('?' * 10)})", rows)
    old.commit()
    old.close()
    listed = [new.servers(), new.devices(), new.operators()]
    new.close()

    for _ in range(2):
        moved = Credentials(tmp_path / "old.db", clock=lambda: START)
        assert [moved.servers(), moved.devices(), moved.operators()] == listed
        assert [moved.authenticate(token) for token in (home_token, phone_token, operator_token)] == [
            *(home, phone, operator)
        ]
        with pytest.raises(Refused, match="credential_revoked"):
            moved.authenticate(tablet_token)
        pairings = Pairings(moved, clock=lambda: START)
        assert pairings.redeem(pairings.open(home.server_id, VIEW, 300).code, "x", HERE)[2] == "Attic"
        moved.revoke_device(moved.devices()[-1].identity.device_id)  # type: ignore[union-attr]
        listed[1] = moved.devices()
        assert moved.database.scalar("PRAGMA user_version") == VERSION
        moved.close()


def test_a_database_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    raw = sqlite3.connect(path)
    raw.executescript(f"CREATE TABLE future (x); PRAGMA user_version = {VERSION + 1};")
    raw.close()
    before = path.read_bytes()
    with pytest.raises(BadDatabase, match=rf"schema {VERSION + 1}.*upgrade"):
        Credentials(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["hub.db"]
