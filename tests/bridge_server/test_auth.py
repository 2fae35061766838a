"""Credentials, what a request carries, and which requests reach a loopback port (Phoenix rules by their numbers)."""

import re
import sqlite3
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge_server.auth import Credentials, Device, Operator, Refused, Server, clean_name, credential
from bridge_server.database import BadDatabase
from protocol.errors import REFUSALS
from protocol.topics import SERVER_ID

UNKNOWN = "a" * 26


@pytest.fixture
def credentials(tmp_path: Path) -> Iterator[Credentials]:
    opened = Credentials(tmp_path / "state" / "hub.db", clock=lambda: 1_700_000_000.0)
    yield opened
    opened.close()


def refusal(credentials: Credentials, token: str) -> str:
    with pytest.raises(Refused) as caught:
        credentials.authenticate(token)
    assert caught.value.reason in REFUSALS
    assert not token or token not in str(caught.value)
    return caught.value.reason


def test_a_token_leads_to_its_identity_and_to_no_other(credentials: Credentials) -> None:
    home, home_token = credentials.add_server("Attic")
    other, other_token = credentials.add_server("Attic")
    phone, phone_token = credentials.add_device(home.server_id, "Phone", ("view",))
    operator, operator_token = credentials.add_operator("ops")

    assert credentials.authenticate(home_token) == home == Server(home.credential_id, home.server_id, "Attic")
    assert credentials.authenticate(other_token) == other != home
    assert credentials.authenticate(phone_token) == phone
    assert phone == Device(phone.credential_id, phone.device_id, home.server_id, "Phone", frozenset({"view"}))
    assert credentials.authenticate(operator_token) == operator == Operator(operator.credential_id, "ops")
    assert SERVER_ID.fullmatch(home.server_id)
    assert home.server_id != other.server_id


def test_tokens_are_greppable_and_hold_256_bits(credentials: Credentials) -> None:
    home, token = credentials.add_server("a")
    tokens = [token, credentials.add_device(home.server_id, "b")[1], credentials.add_operator("c")[1]]
    assert [re.fullmatch(r"(sb[sdo]_)[A-Za-z0-9_-]{43}", each)[1] for each in tokens] == ["sbs_", "sbd_", "sbo_"]  # type: ignore[index]


@pytest.mark.parametrize(
    "token", ["sbs_x", "x" * 512, "x" * 513, "x" * 10_000_000, "\ud800", "\0", "é", "sbs_" + "A" * 43]
)
def test_unknown_malformed_and_oversized_tokens_are_all_invalid(credentials: Credentials, token: str) -> None:
    credentials.add_server("a")
    assert refusal(credentials, token) == "credential_invalid"


def test_an_absent_token_is_missing(credentials: Credentials) -> None:
    assert refusal(credentials, "") == "credential_missing"


def test_the_database_holds_no_token(credentials: Credentials, tmp_path: Path) -> None:
    _, token = credentials.add_server("a")
    for file in (tmp_path / "state").iterdir():
        assert token.encode() not in file.read_bytes()
        assert token[4:].encode() not in file.read_bytes()


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state" / "hub.db"
    credentials = Credentials(path)
    credentials.add_server("a")
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == dict.fromkeys(
        ("hub.db", "hub.db-wal", "hub.db-shm"), 0o600
    )
    credentials.close()
    path.chmod(0o644)
    Credentials(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_credentials_outlive_the_process_that_made_them(credentials: Credentials, tmp_path: Path) -> None:
    home, token = credentials.add_server("a")
    credentials.close()
    again = Credentials(tmp_path / "state" / "hub.db")
    assert again.authenticate(token) == home
    again.close()


def test_a_database_of_a_newer_version_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    Credentials(path).close()
    raw = sqlite3.connect(path)
    raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(BadDatabase, match="newer version"):
        Credentials(path)


def test_a_file_that_is_no_database_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    path.write_bytes(b"this is not a database, not at all\n" * 100)
    with pytest.raises(BadDatabase, match=re.escape(str(path))):
        Credentials(path)


def test_revocation_reaches_other_connections_through_data_version(credentials: Credentials, tmp_path: Path) -> None:
    home, home_token = credentials.add_server("a")
    phone, phone_token = credentials.add_device(home.server_id, "p")
    tablet, tablet_token = credentials.add_device(home.server_id, "t")
    hub = Credentials(tmp_path / "state" / "hub.db")
    assert not hub.changed()

    assert credentials.revoke_device(phone.device_id) == 1
    assert hub.changed()
    assert not hub.changed()
    assert hub.revoked() == {phone.credential_id}
    assert hub.revoked() == frozenset()
    assert not hub.is_live(phone)
    assert hub.is_live(tablet)
    assert refusal(hub, phone_token) == "credential_revoked"
    assert hub.authenticate(tablet_token) == tablet

    assert credentials.revoke_server(home.server_id) == 2
    assert hub.revoked() == {home.credential_id, tablet.credential_id}
    assert refusal(hub, home_token) == refusal(hub, tablet_token) == "credential_revoked"
    assert credentials.revoke_server(home.server_id) == 0
    assert hub.revoked() == frozenset()
    hub.close()


def test_own_writes_count_as_changes_too(credentials: Credentials) -> None:
    home, _ = credentials.add_server("a")
    assert credentials.changed()
    assert not credentials.changed()
    credentials.revoke_credential(home.credential_id)
    assert credentials.changed()
    assert credentials.revoked() == {home.credential_id}


def test_a_second_credential_for_a_home_keeps_its_id(credentials: Credentials) -> None:
    home, token = credentials.add_server("a")
    again, second = credentials.add_server("b", home.server_id)
    assert again.server_id == home.server_id
    assert credentials.authenticate(second) == again
    credentials.revoke_credential(home.credential_id)
    assert refusal(credentials, token) == "credential_revoked"
    assert credentials.authenticate(second) == again


def test_only_known_homes_get_devices_and_further_credentials(credentials: Credentials) -> None:
    home, _ = credentials.add_server("a")
    for add in (credentials.add_device, lambda server_id, name: credentials.add_server(name, server_id)):
        with pytest.raises(KeyError):
            add(UNKNOWN, "x")
        with pytest.raises(ValueError, match="not a server id"):
            add("server:*", "x")
    credentials.revoke_server(home.server_id)
    with pytest.raises(KeyError):
        credentials.add_device(home.server_id, "x")
    assert credentials.devices() == []


@pytest.mark.parametrize("scopes", [(), ("view", "root"), ("",)])
def test_scopes_outside_the_list_are_refused(credentials: Credentials, scopes: tuple[str, ...]) -> None:
    home, _ = credentials.add_server("a")
    with pytest.raises(ValueError, match="view, approve, control"):
        credentials.add_device(home.server_id, "x", scopes)


def test_lists_name_what_there_is(credentials: Credentials) -> None:
    one, _ = credentials.add_server("one")
    two, _ = credentials.add_server("two")
    phone, _ = credentials.add_device(two.server_id, "phone")
    credentials.revoke_server(one.server_id)
    assert [(entry.identity, entry.created_at, entry.revoked_at) for entry in credentials.servers()] == [
        (one, 1_700_000_000, 1_700_000_000),
        (two, 1_700_000_000, None),
    ]
    assert [entry.identity for entry in credentials.devices()] == [phone]
    assert credentials.devices(one.server_id) == []
    assert credentials.operators() == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("  My\tphone\n ", "My phone"),
        ("a\x1b[31mb\x00\u202ec\ud800", "a[31mbc"),
        ("é" * 100, "é" * 64),
        ("x" * 1_000_000, "x" * 64),
    ],
)
def test_names_are_bounded_and_cleaned(given: str, shown: str) -> None:
    assert clean_name(given) == shown


@pytest.mark.parametrize("name", ["", " \t", "\x00\x1b\u202e"])
def test_a_name_without_a_visible_character_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="visible"):
        clean_name(name)


def test_authentication_is_one_look_up_however_many_there_are(credentials: Credentials) -> None:
    home, _ = credentials.add_server("a")
    tokens = [credentials.add_device(home.server_id, "x")[1] for _ in range(300)]
    plan = credentials._db.execute("EXPLAIN QUERY PLAN SELECT id FROM credentials WHERE hash = x'00'").fetchall()
    assert "INDEX" in plan[0][3]
    started = time.process_time()
    for token in tokens * 10:
        credentials.authenticate(token)
    # Typically 20 µs of computing; the bound only catches a hash that is slow on purpose, or a scan.
    assert (time.process_time() - started) / 3000 < 0.001


# What a request carries.

TOKEN = "sbd_" + "aZ09_-" * 7 + "a"


def test_a_credential_comes_from_each_header() -> None:
    assert credential([("Authorization", f"Bearer {TOKEN}")]) == TOKEN
    assert credential([("AUTHORIZATION", f"bearer   {TOKEN} ")]) == TOKEN
    assert credential([("x-api-key", TOKEN)]) == TOKEN
    assert credential([("Authorization", "Basic dXNlcjpwdw=="), ("X-Api-Key", TOKEN)]) == TOKEN
    assert credential([("X-Api-Key", "other"), ("Authorization", f"Bearer {TOKEN}")]) == TOKEN


@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("token", [TOKEN, "a", "ab", "abc", "?>?>~~~é"])
def test_rule_6_the_subprotocol_carries_it_in_both_alphabets_padded_or_not(encode, padded: bool, token: str) -> None:  # type: ignore[no-untyped-def]
    entry = encode(token.encode()).decode()
    entry = entry if padded else entry.rstrip("=")
    assert credential([], ["phoenix", f"base64url.bearer.phx.{entry}"]) == token


@pytest.mark.parametrize("junk", ["", "=", "a", "abcde", "a b=", "a+b-/_*", "YQ==YQ==", "//79", "A" * 1000, "é"])
def test_rule_6_junk_in_the_subprotocol_is_invalid_and_nothing_worse(junk: str) -> None:
    with pytest.raises(Refused) as caught:
        credential([], [f"base64url.bearer.phx.{junk}"])
    assert caught.value.reason == "credential_invalid"


def test_a_credential_given_twice_is_invalid() -> None:
    entry = "base64url.bearer.phx." + b64encode(TOKEN.encode()).decode()
    pair = ("Authorization", f"Bearer {TOKEN}")
    for headers, entries in (([pair, pair], []), ([("X-API-Key", "a"), ("X-API-Key", "b")], []), ([], [entry, entry])):
        with pytest.raises(Refused) as caught:
            credential(headers, entries)
        assert caught.value.reason == "credential_invalid"


@pytest.mark.parametrize(
    "headers", [[], [("Authorization", "Bearer")], [("Authorization", "Bearer  ")], [("X-API-Key", "")]]
)
def test_no_credential_is_missing(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(Refused) as caught:
        credential(headers, ["phoenix"], [("vsn", "2.0.0"), ("token", "")])
    assert caught.value.reason == "credential_missing"


@pytest.mark.parametrize("name", ["token", "api_key", "apikey"])
def test_a_credential_in_the_query_is_refused_unless_allowed(name: str) -> None:
    for headers in ([], [("Authorization", f"Bearer {TOKEN}")]):
        with pytest.raises(Refused) as caught:
            credential(headers, [], [(name, TOKEN)])
        assert caught.value.reason == "credential_in_query"
    assert credential([], [], [(name, TOKEN)], allow_query=True) == TOKEN
    assert credential([("X-API-Key", "first")], [], [(name, TOKEN)], allow_query=True) == "first"
