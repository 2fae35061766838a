"""The end of a hub, and of single sockets: with which close, over how long, and who comes back."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge_server.app import Hub
from bridge_server.auth import Credentials
from bridge_server.transports.port import GOODBYE_SECONDS
from tests.support.ports import free_port
from tests.support.processes import HubProgram
from tests.support.raw_socket import CLOSE, RawSocket
from tests.support.running_hub import running_hub

PATH = "/socket/websocket?vsn=2.0.0"


async def opened(stack: AsyncExitStack, port: int, token: str) -> RawSocket:
    socket = await stack.enter_async_context(RawSocket(port))
    assert (await socket.upgrade(PATH, f"X-API-Key: {token}")).status == 101
    return socket


async def goodbye(socket: RawSocket) -> tuple[int, str] | None:
    """The close frame that ends a socket, answered as a client does; None for an end without one."""
    async with asyncio.timeout(20):
        while (came := await socket.receive()) is not None and came.opcode != CLOSE:
            pass
    if came is None:
        return None
    socket.send_frame(came.data, CLOSE)
    return came.close_code, came.close_reason


@asynccontextmanager
async def crowd(hub: Hub, count: int) -> AsyncIterator[list[RawSocket]]:
    """So many apps of one home, each joined."""
    server, _ = hub.credentials.add_server("home")
    _, token = hub.credentials.add_device(server.server_id, "phone")
    async with AsyncExitStack() as stack:
        sockets = [await opened(stack, hub.port, token) for _ in range(count)]
        for socket in sockets:
            socket.send_text(json.dumps(["1", "1", f"app:{server.server_id}", "phx_join", {}]))
            assert json.loads(await socket.text())[4]["status"] == "ok"
        yield sockets


@pytest.mark.parametrize("code", [1001, 1012, 1013])
async def test_case_7_the_code_of_a_drain_is_the_operators_choice(tmp_path: Path, code: Any) -> None:
    async with running_hub(tmp_path, drain_code=code) as hub, crowd(hub, 2) as sockets:
        ends = asyncio.gather(*map(goodbye, sockets))
        await hub.drain()
        assert await ends == [(code, "restart")] * 2


async def test_case_8_a_drain_may_send_no_close_frame(tmp_path: Path) -> None:
    async with running_hub(tmp_path, drain_code="abort") as hub, crowd(hub, 2) as sockets:
        ends = asyncio.gather(*map(goodbye, sockets))
        await hub.drain()
        assert await ends == [None, None]


async def test_a_drain_is_spread_over_its_window_and_turns_new_sockets_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not all at once: in the middle of it some are gone, and some still work. Then the rest of its window passes."""
    loop, passed = asyncio.get_running_loop(), 0.0
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + passed)
    async with running_hub(tmp_path, drain_seconds=10.0) as hub, crowd(hub, 20) as sockets:
        ends = [asyncio.create_task(goodbye(socket)) for socket in sockets]
        draining = asyncio.create_task(hub.drain())
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert sum(end.done() for end in ends) < len(ends)
        async with RawSocket(hub.port) as late:
            answer = await late.upgrade(PATH)
            assert (answer.status, json.loads(answer.body)) == (503, {"reason": "draining"})
            assert int(answer.headers["retry-after"]) > 0
        async with aiohttp.ClientSession() as http, http.get(f"{hub.url}/ready") as ready:
            assert (ready.status, await ready.json()) == (503, {"status": "draining"})
        passed = 10.0
        await draining
        assert {await end for end in ends} == {(1012, "restart")}


async def test_a_drain_does_not_wait_for_a_peer_that_never_answers(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub, crowd(hub, 3) as sockets:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await hub.drain()
        assert loop.time() - began >= GOODBYE_SECONDS, "it gave them time"
        assert len(hub._online()) == 1
        for socket in sockets:
            frame = await socket.receive()
            while frame is not None and frame.opcode != CLOSE:
                frame = await socket.receive()
            assert frame is not None, "it was told, all the same"


@pytest.mark.parametrize("code", ["1013", "abort"])
async def test_sigterm_drains_and_ends_with_0_whatever_is_open(tmp_path: Path, code: str) -> None:
    """Sockets that answer, one that never reads, a head that never ends, an HTTP request in the middle of its body."""
    state = tmp_path / "hub"
    credentials = Credentials(state / "hub.db")
    server, _ = credentials.add_server("home")
    _, token = credentials.add_device(server.server_id, "phone")
    credentials.close()
    hub = HubProgram(state, free_port(), drain_seconds=0.3, drain_code=code)
    async with hub, AsyncExitStack() as stack:
        good = [await opened(stack, hub.port, token) for _ in range(3)]
        deaf = await opened(stack, hub.port, token)
        deaf.stop_reading()
        head = await stack.enter_async_context(RawSocket(hub.port))
        head.send(b"GET /socket")
        body = await stack.enter_async_context(RawSocket(hub.port))
        body.send(b"POST /api/pairing/redeem HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
                  b"Content-Type: application/json\r\n\r\n{")  # fmt: skip
        for socket in good:
            socket.send_text('[null,"1","phoenix","heartbeat",{}]')
            await socket.text()
        ends = asyncio.gather(*map(goodbye, good))
        hub.send(signal.SIGTERM)
        assert await ends == [None if code == "abort" else (1013, "restart")] * 3
        assert await hub.ended() == 0
        assert "Traceback" not in hub.text


async def test_case_14_a_hub_that_was_killed_has_its_port_back_at_once(tmp_path: Path) -> None:
    state = tmp_path / "hub"
    credentials = Credentials(state / "hub.db")
    server, _ = credentials.add_server("home")
    _, token = credentials.add_device(server.server_id, "phone")
    credentials.close()
    hub = HubProgram(state, free_port())
    async with hub, AsyncExitStack() as stack:
        held = [await opened(stack, hub.port, token) for _ in range(3)]  # their ends stay in TIME_WAIT
        await hub.kill()
        await hub.start()
        for socket in held:
            await socket.ended()
        socket = await opened(stack, hub.port, token)
        socket.send_text(json.dumps(["1", "1", f"app:{server.server_id}", "phx_join", {}]))
        assert json.loads(await socket.text())[4]["status"] == "ok"


# Forced off.


async def test_case_1_an_operator_disconnects_an_app_which_may_come_back(hub: Hub) -> None:
    """Closed with 1001 within a second of the command; nothing is revoked, and nobody else notices."""
    server, home_token = hub.credentials.add_server("home")
    device, token = hub.credentials.add_device(server.server_id, "phone")
    _, other_token = hub.credentials.add_device(server.server_id, "tablet")
    async with AsyncExitStack() as stack:
        app, other, home = [await opened(stack, hub.port, one) for one in (token, other_token, home_token)]
        operator = Credentials(hub.config.database_path)  # as another process would
        assert operator.disconnect(device_id=device.device_id) == 1
        assert await goodbye(app) == (1001, "disconnected")
        again = await opened(stack, hub.port, token)
        for socket in (again, other, home):
            socket.send_text('[null,"1","phoenix","heartbeat",{}]')
            assert json.loads(await socket.text())[1] == "1"
        assert operator.disconnect(server_id=server.server_id) == 3
        for socket in (again, other, home):
            assert await goodbye(socket) == (1001, "disconnected")
        await opened(stack, hub.port, token)
        assert operator.disconnect(credential_id=server.credential_id) == 1
        operator.revoke_server(server.server_id)
        assert operator.disconnect(server_id=server.server_id) == 0
        operator.close()


async def test_a_hub_that_starts_disconnects_nobody_for_what_was_before(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path / "hub.db")
    server, token = credentials.add_server("home")
    credentials.disconnect(server_id=server.server_id)
    async with running_hub(tmp_path) as hub, AsyncExitStack() as stack:
        socket = await opened(stack, hub.port, token)
        _, other = credentials.add_server("another")  # news for the hub to look at
        second = await opened(stack, hub.port, other)
        credentials.disconnect(credential_id=server.credential_id + 1)
        assert await goodbye(second) == (1001, "disconnected")
        socket.send_text('[null,"1","phoenix","heartbeat",{}]')
        assert json.loads(await socket.text())[1] == "1"
    credentials.close()
