"""Local enrolment, the hub's side, over real sockets: what gets a credential, and everything that gets none."""

import json
import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bridge_server.auth import Credentials, Server
from bridge_server.enrol import CHALLENGE_SECONDS, MAX_BODY, MAX_CHALLENGES, EnrolmentRefused, LocalEnrolment, routes
from protocol.pairing import (
    LOCAL_CHALLENGE_PATH,
    LOCAL_ENROL_PATH,
    home_proof,
    hub_proof,
    local_key_name,
)

NONCE = "ab" * 32


class Hub:
    """A real aiohttp server with nothing but local enrolment, on a clock of its own."""

    def __init__(self, state_dir: Path) -> None:
        self.now = 0.0
        self.state_dir = state_dir
        self.credentials = Credentials(state_dir / "hub.db")
        self.enrolment = LocalEnrolment(self.credentials, clock=lambda: self.now)
        self.url = ""
        self.key = b""

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.add_routes(routes(self.enrolment))
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        self.key = bytes.fromhex(self.enrolment.write_key(self.state_dir, port).read_text())
        return runner

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        status, answer, _ = await self.ask(path, body, **options)
        return status, answer

    async def ask(self, path: str, body: Any, **options: Any) -> tuple[int, Any, Any]:
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with (
            aiohttp.ClientSession() as session,
            session.post(self.url + path, data=data, headers=headers, **options) as response,
        ):
            return response.status, await response.json(), response.headers

    async def challenge(self) -> str:
        status, answer = await self.post(LOCAL_CHALLENGE_PATH, {"nonce": NONCE})
        assert status == 200
        assert answer["proof"] == hub_proof(self.key, NONCE, answer["nonce"])
        return str(answer["nonce"])

    def body(self, nonce: str, name: str = "Attic", key: bytes | None = None) -> dict[str, str]:
        return {"nonce": nonce, "proof": home_proof(self.key if key is None else key, NONCE, nonce, name), "name": name}


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    started = Hub(tmp_path / "state")
    runner = await started.start()
    yield started
    await runner.cleanup()
    started.credentials.close()


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    return answer[0], answer[1]["error"]["code"]


async def test_who_reads_the_key_gets_a_credential(hub: Hub) -> None:
    status, answer = await hub.post(LOCAL_ENROL_PATH, hub.body(await hub.challenge(), " At\x00tic "))
    assert status == 200
    identity = hub.credentials.authenticate(answer["credential"])
    assert isinstance(identity, Server)
    assert (identity.server_id, identity.name) == (answer["server_id"], "Attic")


def test_the_key_file_is_private_fresh_and_taken_back(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path / "hub.db")
    one, two = (LocalEnrolment(credentials, clock=lambda: 0.0) for _ in range(2))
    path = one.write_key(tmp_path / "state", 4000)
    first = path.read_bytes()
    assert path == tmp_path / "state" / local_key_name(4000)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert two.write_key(tmp_path / "state", 4000) == path
    assert path.read_bytes() != first
    assert len(bytes.fromhex(path.read_text())) == 32
    two.remove_key()
    two.remove_key()
    assert list(path.parent.iterdir()) == []
    credentials.close()


def test_a_link_in_the_place_of_the_key_is_replaced_not_followed(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path / "hub.db")
    target = tmp_path / "elsewhere"
    target.write_text("mine")
    (tmp_path / local_key_name(4000)).symlink_to(target)
    path = LocalEnrolment(credentials, clock=lambda: 0.0).write_key(tmp_path, 4000)
    assert not path.is_symlink()
    assert target.read_text() == "mine"
    credentials.close()


async def test_a_challenge_serves_once(hub: Hub) -> None:
    body = hub.body(await hub.challenge())
    assert (await hub.post(LOCAL_ENROL_PATH, body))[0] == 200
    assert code(await hub.post(LOCAL_ENROL_PATH, body)) == (403, "proof_refused")
    assert len(hub.credentials.servers()) == 1


async def test_a_wrong_proof_gets_nothing_and_closes_the_challenge(hub: Hub) -> None:
    nonce = await hub.challenge()
    assert code(await hub.post(LOCAL_ENROL_PATH, hub.body(nonce, key=bytes(32)))) == (403, "proof_refused")
    assert code(await hub.post(LOCAL_ENROL_PATH, hub.body(nonce))) == (403, "proof_refused")
    assert hub.credentials.servers() == []


async def test_the_hubs_own_proof_is_no_proof_of_a_home(hub: Hub) -> None:
    nonce = await hub.challenge()
    body = {"nonce": nonce, "proof": hub_proof(hub.key, NONCE, nonce), "name": ""}
    assert code(await hub.post(LOCAL_ENROL_PATH, body)) == (403, "proof_refused")


async def test_the_proof_covers_the_name(hub: Hub) -> None:
    body = hub.body(await hub.challenge()) | {"name": "Cellar"}
    assert code(await hub.post(LOCAL_ENROL_PATH, body)) == (403, "proof_refused")


async def test_a_challenge_expires(hub: Hub) -> None:
    late, just_in_time = hub.body(await hub.challenge()), hub.body(await hub.challenge())
    hub.now = CHALLENGE_SECONDS - 0.001
    assert (await hub.post(LOCAL_ENROL_PATH, just_in_time))[0] == 200
    hub.now = CHALLENGE_SECONDS
    assert code(await hub.post(LOCAL_ENROL_PATH, late)) == (403, "proof_refused")


def test_open_challenges_are_bounded_until_they_expire(tmp_path: Path) -> None:
    credentials, now = Credentials(tmp_path / "hub.db"), [0.0]
    enrolment = LocalEnrolment(credentials, clock=lambda: now[0])
    for _ in range(MAX_CHALLENGES):
        enrolment.challenge(NONCE)
    with pytest.raises(EnrolmentRefused) as caught:
        enrolment.challenge(NONCE)
    assert (caught.value.status, caught.value.code) == (429, "rate_limited")
    now[0] = CHALLENGE_SECONDS
    assert enrolment.challenge(NONCE).nonce
    credentials.close()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-Forwarded-For": "127.0.0.1"}, "forwarded"),
        ({"Forwarded": "for=127.0.0.1"}, "forwarded"),
        ({"X-Real-IP": "127.0.0.1"}, "forwarded"),
        ({"Via": "1.1 proxy"}, "forwarded"),
        ({"Host": "hub.example"}, "bad_host"),
        ({"Host": "127.0.0.1.evil.example"}, "bad_host"),
        ({"Origin": "http://127.0.0.1:4000"}, "bad_origin"),
        ({"Origin": "null"}, "bad_origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "bad_origin"),
    ],
)
@pytest.mark.parametrize("path", [LOCAL_CHALLENGE_PATH, LOCAL_ENROL_PATH])
async def test_whoever_came_another_way_is_refused(hub: Hub, path: str, headers: dict[str, str], expected: str) -> None:
    body = {"nonce": NONCE} if path == LOCAL_CHALLENGE_PATH else hub.body(await hub.challenge())
    assert code(await hub.post(path, body, headers=headers)) == (403, expected)
    assert hub.credentials.servers() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"nonce": 1}',
        b'{"nonce": "xy"}',
        b'{"nonce": "' + b"AB" * 32 + b'"}',
        b"\xff",
        b"[" * 4000,
    ],
)
@pytest.mark.parametrize("path", [LOCAL_CHALLENGE_PATH, LOCAL_ENROL_PATH])
async def test_what_is_no_request_is_a_400(hub: Hub, path: str, body: bytes) -> None:
    status, answer = await hub.post(path, body)
    assert status in (400, 413)
    assert answer["error"]["message"]


async def test_a_name_nobody_can_see_is_a_400(hub: Hub) -> None:
    assert code(await hub.post(LOCAL_ENROL_PATH, hub.body(await hub.challenge(), "\x00"))) == (400, "bad_name")


async def test_bodies_are_json_short_and_of_known_length(hub: Hub) -> None:
    plain = {"Content-Type": "text/plain"}
    assert code(await hub.post(LOCAL_CHALLENGE_PATH, {"nonce": NONCE}, headers=plain)) == (
        415,
        "unsupported_media_type",
    )
    assert code(await hub.post(LOCAL_CHALLENGE_PATH, b" " * (MAX_BODY + 1))) == (413, "too_large")
    async with aiohttp.ClientSession() as session:
        json_type = {"Content-Type": "application/json"}
        async with session.post(hub.url + LOCAL_CHALLENGE_PATH, data=chunks(), headers=json_type) as response:
            assert code((response.status, await response.json())) == (413, "too_large")


async def chunks() -> AsyncIterator[bytes]:
    yield json.dumps({"nonce": NONCE}).encode()


async def test_neither_key_nor_credential_is_logged(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    _, answer = await hub.post(LOCAL_ENROL_PATH, hub.body(await hub.challenge()))
    assert answer["server_id"] in caplog.text
    assert answer["credential"] not in caplog.text
    assert hub.key.hex() not in caplog.text


async def test_a_database_that_another_process_writes_delays_nobody_and_is_503(hub: Hub) -> None:
    other = sqlite3.connect(hub.state_dir / "hub.db", isolation_level=None)
    nonce = await hub.challenge()
    other.execute("BEGIN IMMEDIATE")
    connection, said = hub.credentials.database.connection, list[str]()
    (milliseconds,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.set_trace_callback(said.append)
    status, answer, headers = await hub.ask(LOCAL_ENROL_PATH, hub.body(nonce))
    assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "overloaded", "1")
    tries = sum(statement.startswith("BEGIN") for statement in said)
    assert 1 <= tries <= 2500 / milliseconds, "it waits for a quarter of what the command line does, at most"
    connection.set_trace_callback(None)
    other.execute("ROLLBACK")
    other.close()
    status, _ = await hub.post(LOCAL_ENROL_PATH, hub.body(await hub.challenge()))
    assert status == 200


async def test_a_full_disk_is_503_and_leaves_no_transaction_open(hub: Hub) -> None:
    connection = hub.credentials.database.connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    statuses = []
    while 503 not in statuses:
        assert len(statuses) < 200
        status, _ = await hub.post(LOCAL_ENROL_PATH, hub.body(await hub.challenge(), "n" * 64))
        statuses.append(status)
    assert not connection.in_transaction
    connection.execute("PRAGMA max_page_count = 100000")
    status, _ = await hub.post(LOCAL_ENROL_PATH, hub.body(await hub.challenge()))
    assert status == 200
    assert len(hub.credentials.servers()) == len(statuses)
