"""A credential that is revoked, by this process or another, opens nothing any more, and what it had opened ends."""

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from bridge_server.app import REVOCATION_SECONDS, Hub
from bridge_server.auth import Credentials
from bridge_server.database import BadDatabase
from tests.support.raw_socket import RawSocket
from tests.support.running_hub import running_hub

REVOKE = """
import sys
from pathlib import Path
from bridge_server.auth import Credentials
print(Credentials(Path(sys.argv[1])).{call}, flush=True)
"""


async def in_another_process(database: Path, call: str) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-c", REVOKE.format(call=call), str(database), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await program.communicate()
    assert int(out) >= 1


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}"


PATH = "/socket/websocket?vsn=2.0.0"


async def refused(hub: Hub, token: str) -> tuple[int, str]:
    async with RawSocket(hub.port) as socket:
        response = await socket.upgrade(PATH, bearer(token))
        return response.status, json.loads(response.body)["reason"]


async def ended_by(socket: RawSocket) -> tuple[int, str]:
    """The code and reason of the close frame that comes next."""
    closed = await socket.receive()
    assert closed is not None
    return closed.close_code, closed.close_reason


@pytest.mark.parametrize("whose", ["device", "server"])
async def test_revocation_by_another_process_ends_live_sockets_within_a_second(
    hub: Hub, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the hub's own looks, of which a machine that stands still for a while makes none."""
    looks, look = 0, hub.credentials.changed

    def counted() -> bool:
        nonlocal looks
        looks += 1
        return look()

    monkeypatch.setattr(hub.credentials, "changed", counted)
    server, server_token = hub.credentials.add_server("home")
    device, device_token = hub.credentials.add_device(server.server_id, "phone")
    _, bystander = hub.credentials.add_server("another home")
    async with RawSocket(hub.port) as app, RawSocket(hub.port) as home, RawSocket(hub.port) as other:
        for socket, token in ((app, device_token), (home, server_token), (other, bystander)):
            assert (await socket.upgrade(PATH, bearer(token))).status == 101
        call = f"revoke_device({device.device_id!r})" if whose == "device" else f"revoke_server({server.server_id!r})"
        await in_another_process(hub.config.database_path, call)
        before = looks
        ended = [app] if whose == "device" else [app, home]
        for socket in ended:
            assert await ended_by(socket) == (1001, "credential_revoked")
        assert (looks - before) * REVOCATION_SECONDS < 1.0
        assert await refused(hub, device_token) == (403, "credential_revoked")
        if whose == "server":
            assert await refused(hub, server_token) == (403, "credential_revoked")
        for socket in (other,) if whose == "server" else (home, other):
            socket.send_text('["1","2","phoenix","heartbeat",{}]')
            assert json.loads(await socket.text())[4] == {"status": "ok", "response": {}}


async def test_revocation_by_this_process_ends_live_sockets_too(hub: Hub) -> None:
    server, token = hub.credentials.add_server("home")
    async with RawSocket(hub.port) as socket:
        await socket.upgrade(PATH, bearer(token))
        hub.credentials.revoke_credential(server.credential_id)
        assert await ended_by(socket) == (1001, "credential_revoked")


async def test_only_the_credential_that_was_revoked_ends(hub: Hub) -> None:
    server, old = hub.credentials.add_server("home")
    _, new = hub.credentials.add_server("home", server.server_id)
    async with RawSocket(hub.port) as first, RawSocket(hub.port) as second:
        await first.upgrade(PATH, bearer(old))
        await second.upgrade(PATH, bearer(new))
        hub.credentials.revoke_credential(server.credential_id)
        assert await ended_by(first) == (1001, "credential_revoked")
        second.send_text('["1","2","phoenix","heartbeat",{}]')
        assert json.loads(await second.text())[1] == "2"


class Faulty(Credentials):
    """A database that fails in the middle of a look at the revocations, as a locked or full one does."""

    failures = 3

    def revoked(self) -> frozenset[int]:
        if self.failures:
            self.failures -= 1
            raise sqlite3.OperationalError("database is locked")
        return super().revoked()


async def test_a_database_that_fails_for_a_while_hides_no_revocation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = Faulty(tmp_path / "hub.db")
    async with running_hub(tmp_path) as plain:
        config = plain.config
    async with Hub(config, faulty) as hub, RawSocket(hub.port) as socket:
        server, token = faulty.add_server("home")
        await socket.upgrade(PATH, bearer(token))
        faulty.revoke_credential(server.credential_id)
        assert await ended_by(socket) == (1001, "credential_revoked")
    faulty.close()
    assert faulty.failures == 0
    assert caplog.text.count("revocations can't be read") == 1


async def readiness(hub: Hub, wanted: str) -> int:
    """Wait until `/ready` says `wanted`; the HTTP status it says it with."""
    async with aiohttp.ClientSession() as session, asyncio.timeout(20):
        while True:
            async with session.get(f"{hub.url}/ready") as answer:
                if await answer.json() == {"status": wanted}:
                    return answer.status


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_database_that_lost_its_file_is_told_once_and_while_it_lasts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, replaced: bool
) -> None:
    async with running_hub(tmp_path) as hub:
        path, aside = hub.config.database_path, tmp_path / "aside"
        assert await readiness(hub, "ready") == 200
        path.rename(aside)
        if replaced:
            path.write_bytes(aside.read_bytes())
        assert await readiness(hub, "failing") == 503
        with pytest.raises(BadDatabase, match="replaced or removed while it was in use"):
            hub.credentials.changed()
        aside.replace(path)
        assert await readiness(hub, "ready") == 200
    assert caplog.text.count("was replaced or removed while it was in use; restart this program") == 1
    assert "Traceback" not in caplog.text


def test_the_look_costs_no_table_when_nothing_was_written(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path / "hub.db")
    check: Callable[[], bool] = credentials.changed
    assert not check()
    credentials.add_server("home")
    assert check()
    assert not check()
    credentials.close()
