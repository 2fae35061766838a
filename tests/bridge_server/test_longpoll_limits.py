"""What long polling bounds: bodies, requests at a time, memory and time per session."""

import asyncio
import gc
import json
import tracemalloc
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge_server.transports import longpoll
from bridge_server.transports.handshake import Accepted
from bridge_server.transports.longpoll_session import Session
from protocol.codec import V2
from tests.support.longpoll_client import LongPollClient, longpoll_client
from tests.support.raw_socket import RawSocket
from tests.support.recorded_server import PREFIX, RecordedServer

PATH = f"{PREFIX}/small/longpoll"
"""A mount that takes messages of at most 992 bytes."""


@pytest.fixture
async def client(server: RecordedServer) -> AsyncIterator[LongPollClient]:
    async with longpoll_client(f"http://127.0.0.1:{server.port}", path=PATH) as client:
        yield client


def heartbeat(length: int) -> bytes:
    text = '[null,"1","phoenix","heartbeat",{"x":"%s"}]'
    return (text % ("x" * (length - len(text) + 2))).encode()


async def test_a_message_of_the_longest_size_is_taken_and_one_byte_more_ends_the_session(
    client: LongPollClient,
) -> None:
    assert await client.post(body=heartbeat(992)) == 200
    assert len(await client.poll()) == 1
    found = await client.said(body=heartbeat(993))
    assert found == {"status": 413, "reason": "a message is at most 992 bytes"}
    assert await client.post(body=heartbeat(10)) == 410


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_refused_and_the_session_lives(client: LongPollClient, chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"[]" * 100

    data: Any = parts() if chunked else b"[]" * 10_000
    headers = {"Content-Type": "application/x-ndjson"}
    assert await client.ask("POST", data=data, headers=headers) == {"status": 413, "reason": "too_large"}
    assert await client.post([None, "1", "phoenix", "heartbeat", {}]) == 200


async def test_case_67_a_body_of_newlines_is_answered_at_once(server: RecordedServer) -> None:
    async with longpoll_client(f"http://127.0.0.1:{server.port}", path=f"{PREFIX}/socket/longpoll") as client:
        assert await client.post(body=b"\n" * 8_000_000) == 413
        assert await client.post(body=b"\n" * 1_000_000) == 200
        assert await client.post(body=b"\n" * 1_000_000 + b"[]") == 413
        assert await client.post([None, "1", "phoenix", "heartbeat", {}]) == 200


async def test_a_body_that_does_not_come_is_given_up(
    client: LongPollClient, server: RecordedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(longpoll, "BODY_SECONDS", 0.05)
    async with RawSocket(server.port) as socket:
        lines = (
            f"POST {PATH}?vsn=2.0.0&token={client.token} HTTP/1.1",
            "Host: localhost",
            "Content-Length: 9",
            "",
            "[",
        )
        socket.send("\r\n".join(lines).encode())
        assert json.loads((await socket.response()).body) == {"status": 408, "reason": "timeout"}


async def test_four_posts_of_a_session_at_a_time(client: LongPollClient, server: RecordedServer) -> None:
    longpolling = server.hub.longpoll
    assert longpolling is not None
    (session,) = longpolling.sessions.values()
    waiting = [
        asyncio.create_task(client.post([str(n), str(n), f"slow:{n}", "phx_join", {"gate": "g"}])) for n in range(4)
    ]
    async with asyncio.timeout(20):
        while session.posts < 4:
            await asyncio.sleep(0.01)
    assert await client.said([None, "1", "phoenix", "heartbeat", {}]) == {"status": 429, "reason": "rate_limited"}
    server.open_gate("g")
    assert await asyncio.gather(*waiting) == [200] * 4
    assert session.posts == 0
    assert len(await client.poll_until(4)) == 4


@pytest.mark.parametrize(
    ("body", "ndjson"),
    [
        (b"", False),
        (b"nonsense", False),
        (b"[]", False),
        (b'["1","1","room:1","phx_join"]', False),
        (b'{"topic":1}', False),
        (b"[" * 500, False),
        (b'[null,"1","phoenix","heartbeat",{"x":"\xff"}]', False),
        (b'[null,"1","phoenix","heartbeat",{}]\nwhat is this', True),
        (b"AAAA", True),
        (b64encode(b"\1\0\0\0\0"), True),
    ],
)
async def test_a_malformed_message_ends_its_session_and_no_other(
    server: RecordedServer, client: LongPollClient, body: bytes, ndjson: bool
) -> None:
    async with longpoll_client(f"http://127.0.0.1:{server.port}", path=PATH) as other:
        found = await client.said(body=body, kind="application/x-ndjson" if ndjson else "application/json")
        assert found["status"] == 400
        assert found["reason"]
        assert await client.post([None, "1", "phoenix", "heartbeat", {}]) == 410
        assert await other.post([None, "1", "phoenix", "heartbeat", {}]) == 200
        assert len(await other.poll()) == 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    body=st.one_of(st.binary(max_size=300), st.lists(st.sampled_from([b"[", b"]", b'"', b"\n", b"1", b",", b"AA=="]))),
    ndjson=st.booleans(),
)
async def test_any_body_is_answered_with_a_status(
    server: RecordedServer, client: LongPollClient, body: bytes | list[bytes], ndjson: bool
) -> None:
    data = body if isinstance(body, bytes) else b"".join(body)
    found = await client.said(body=data, kind="application/x-ndjson" if ndjson else "application/json")
    assert found["status"] in (200, 400, 413)
    if found["status"] != 200:
        await client.open()


async def test_5000_idle_sessions_are_cheap_and_leave_nothing(server: RecordedServer) -> None:
    """No task, no timer, and at most 2.5 KB each; they end together when nobody polls."""
    listener, longpolling = server.hub._listener, server.hub.longpoll
    assert listener is not None
    assert longpolling is not None
    mount = listener.mounts[0]

    def connect() -> None:
        session = Session(listener, mount, longpolling._gone)
        session.started(listener.connected(session, Accepted(mount, V2, None, {}, None)))
        longpolling.sessions[session.id] = session

    connect()
    tasks = len(asyncio.all_tasks())
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(5_000):
            connect()
        full, _ = tracemalloc.get_traced_memory()
        assert (full - before) / 5_000 < 2_500
        now = server.hands.now()
        for second in range(9):
            for session in tuple(longpolling.sessions.values()):
                session.tick(now + second)
        assert tracemalloc.get_traced_memory()[0] - full < 50_000
        assert len(asyncio.all_tasks()) == tasks
        assert len(listener.drivers) == 5_001
        for session in tuple(longpolling.sessions.values()):
            session.tick(now + 15)
        del session
        gc.collect()
        assert (longpolling.sessions, listener.drivers, server.hub.budget.busy) == ({}, set(), set())
        # What dictionaries and sets keep of their largest size, and no session.
        assert tracemalloc.get_traced_memory()[0] - before < 5_000 * 250
    finally:
        tracemalloc.stop()
