"""The link: what is retried, what is not, and that it keeps its secret."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from bridge_client.clock import SystemClock
from bridge_client.dial import CredentialRefused, WebSocketDialler, Wire, socket_url
from bridge_client.link import JoinRejected, Link, Session
from protocol.errors import REFUSALS
from tests.bridge_client.scripted_hub import (
    DEADLINE,
    NoWait,
    Peer,
    ScriptedHub,
    scripted_hub,
)

CREDENTIAL = "sb-server-0123456789abcdefghijklmnopqrstuvwxyz"


TOPIC = "app:x"


async def join_once(session: Session) -> str:
    await session.join(TOPIC, {})
    return "joined"


async def until_lost(session: Session) -> None:
    """Join, then take what comes for as long as the socket lives."""
    await session.join(TOPIC, {})
    while True:
        await session.next()


def link(hub: ScriptedHub, **more: Any) -> Link:
    return Link(hub.url, CREDENTIAL, rng=NoWait(), **more)


async def accept(peer: Peer) -> None:
    await peer.join()


@pytest.mark.parametrize(
    ("hub_url", "expected"),
    [
        ("http://h:4000", "ws://h:4000/socket/websocket?vsn=2.0.0"),
        ("https://h/", "wss://h/socket/websocket?vsn=2.0.0"),
        ("wss://h/behind/proxy", "wss://h/behind/proxy/socket/websocket?vsn=2.0.0"),
        ("ws://h/socket", "ws://h/socket/websocket?vsn=2.0.0"),
        ("ws://h/socket/websocket?a=b&vsn=1.0.0", "ws://h/socket/websocket?a=b&vsn=2.0.0"),
        ("http://[::1]:1/", "ws://[::1]:1/socket/websocket?vsn=2.0.0"),
    ],
)
def test_the_socket_url_follows_from_the_hub_url(hub_url: str, expected: str) -> None:
    assert socket_url(hub_url) == expected


@pytest.mark.parametrize("hub_url", ["ftp://h", "h:4000", "http://", "https://user:secret@h", "https://secret@h"])
def test_other_urls_are_refused_without_showing_them(hub_url: str) -> None:
    with pytest.raises(ValueError) as refused:
        socket_url(hub_url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("credential", ["", "a b", "a\nb", "ä", "a\x00"])
def test_a_credential_that_fits_no_header_is_refused_without_showing_it(credential: str) -> None:
    with pytest.raises(ValueError) as refused:
        Link("http://h", credential)
    assert not credential or credential not in str(refused.value)


@pytest.mark.parametrize("code", [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1011, 1012, 1013, 1014, 4000, "reset"])
async def test_case_5_every_close_is_retried_and_logged(code: int | str, caplog: pytest.LogCaptureFixture) -> None:
    """case 5; and case 4: a proxy that closes with 1001 when its configuration is loaded anew."""

    async def drop(peer: Peer) -> None:
        await peer.join()
        if isinstance(code, int):
            await peer.close(code)
        else:
            peer.reset()

    async def talk(session: Session) -> str:
        await session.join(TOPIC, {})
        if len(hub.peers) == 1:
            await session.next()
        return "joined again"

    caplog.set_level(logging.INFO)
    async with asyncio.timeout(DEADLINE), scripted_hub(drop, accept) as hub:
        assert await link(hub).run(talk) == "joined again"
    lines = [r for r in caplog.records if r.name == "bridge_client.link" and r.levelno == logging.WARNING]
    assert len(lines) == 1
    assert (f"closed with {code}" if isinstance(code, int) else "without a close") in lines[0].getMessage()


async def test_case_14_a_hub_that_is_not_there_is_tried_until_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    real, tries = WebSocketDialler(), 0

    async def dial(url: str, headers: Mapping[str, str]) -> Wire:
        nonlocal tries
        tries += 1
        return await real(url if tries > 6 else "ws://127.0.0.1:1/", headers)

    async with asyncio.timeout(DEADLINE), scripted_hub(accept) as hub:
        assert await link(hub, dial=dial).run(join_once) == "joined"
    levels = [r.levelname for r in caplog.records if "trying again" in r.getMessage()]
    assert levels == ["WARNING", *["INFO"] * 5]  # one warning, but never silent


@pytest.mark.parametrize("reason", ["credential_invalid", "credential_revoked"])
async def test_a_refused_credential_ends_the_run(reason: str) -> None:
    assert not REFUSALS[reason].come_back
    async with asyncio.timeout(DEADLINE), scripted_hub(accept) as hub:
        hub.refusals.append((403, f'{{"reason": "{reason}"}}', {}))
        with pytest.raises(CredentialRefused, match=reason):
            await link(hub).run(join_once)
        assert len(hub.requests) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (403, '{"reason": "bad_host"}'),
        (403, "Forbidden"),
        (403, '["credential_revoked"]'),
        (401, '{"reason": "credential_revoked"}'),
        (404, ""),
        (429, '{"reason": "overloaded"}'),
        (500, ""),
        (502, "<html>"),
        (503, '{"reason": "draining"}'),
    ],
)
async def test_case_53_every_other_refusal_is_retried(status: int, body: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with asyncio.timeout(DEADLINE), scripted_hub(accept) as hub:
        hub.refusals.append((status, body, {}))
        assert await link(hub).run(join_once) == "joined"
    assert f"HTTP {status}" in caplog.text
    assert ("start `bridge-server serve` there" in caplog.text) == (status == 502)


class Impatient(SystemClock):
    """Notes long sleeps instead of sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        if seconds > 5.0:
            self.slept.append(seconds)
        else:
            await super().sleep(seconds)


@pytest.mark.parametrize(
    ("headers", "waited"),
    [
        ({"Retry-After": "17"}, [17.0]),
        ({"Retry-After": "Tue, 02 Jan 2024 00:00:30 GMT", "Date": "Tue, 02 Jan 2024 00:00:00 GMT"}, [30.0]),
        ({"Retry-After": "99999999"}, [3600.0]),
        ({"Retry-After": "soon"}, []),
        ({}, []),
    ],
)
async def test_retry_after_is_honoured(headers: dict[str, str], waited: list[float]) -> None:
    clock = Impatient()
    async with asyncio.timeout(DEADLINE), scripted_hub(accept) as hub:
        hub.refusals.append((503, "", headers))
        await link(hub, clock=clock).run(join_once)
    assert clock.slept == waited


@pytest.mark.parametrize("reason", ["flapping", "rate_limited"])
async def test_a_join_that_may_succeed_later_waits_as_asked(reason: str) -> None:
    clock = Impatient()

    async def later(peer: Peer) -> None:
        await peer.join({"reason": reason, "retry_after_ms": 41_000}, "error")

    async with asyncio.timeout(DEADLINE), scripted_hub(later, accept) as hub:
        assert await link(hub, clock=clock).run(join_once) == "joined"
    assert clock.slept == [41.0]


@pytest.mark.parametrize(
    "reason", sorted({r.reason for r in REFUSALS.values() if r.where == "join" and not r.come_back})
)
async def test_a_join_that_never_can_succeed_ends_the_run(reason: str) -> None:
    async def refuse(peer: Peer) -> None:
        await peer.join({"reason": reason}, "error")

    async with asyncio.timeout(DEADLINE), scripted_hub(refuse) as hub:
        with pytest.raises(JoinRejected, match=reason):
            await link(hub).run(join_once)
        assert len(hub.peers) == 1


async def test_a_hub_that_breaks_the_protocol_is_left_with_its_close_code_and_tried_again() -> None:
    codes: list[int | None] = []

    async def nonsense(peer: Peer) -> None:
        await peer.join()
        await peer.send_text("[]")
        await peer.gone()
        codes.append(peer._ws.close_code)

    async def talk(session: Session) -> str:
        await session.join(TOPIC, {})
        if len(hub.peers) == 1:
            await session.next()
        return "joined again"

    async with asyncio.timeout(DEADLINE), scripted_hub(nonsense, accept) as hub:
        assert await link(hub).run(talk) == "joined again"
    assert codes == [1003]


async def test_the_credential_is_in_no_log_record_at_any_level(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    names = [
        None,
        "websockets",
        "websockets.client",
        "websockets.server",
        "asyncio",
        "bridge_client",
        "bridge_client.websocket",
    ]
    for name in names:
        caplog.set_level(logging.DEBUG, name)
    # The scripted hub's own side would log the header it receives: it is not what is tested.
    monkeypatch.setattr(logging.getLogger("websockets.server"), "filters", [lambda record: False])

    async def drop(peer: Peer) -> None:
        await peer.join()
        peer.reset()

    async def nonsense(peer: Peer) -> None:
        await peer.send_text("\x00")

    async with asyncio.timeout(DEADLINE), scripted_hub(drop, nonsense, accept) as hub:
        hub.refusals.append((503, "", {}))
        hub.refusals.append((403, '{"reason": "bad_host"}', {}))

        async def talk(session: Session) -> str:
            await session.join(TOPIC, {})
            if len(hub.peers) < 3:
                await session.next()
            return "done"

        client = link(hub)
        assert await client.run(talk) == "done"
        assert hub.requests[-1].headers["Authorization"] == f"Bearer {CREDENTIAL}"
        assert all(CREDENTIAL not in request.path for request in hub.requests)
        hub.refusals.append((403, '{"reason": "credential_revoked"}', {}))
        with pytest.raises(CredentialRefused) as refused:
            await client.run(talk)
    assert CREDENTIAL not in str(refused.value)
    assert CREDENTIAL not in repr(client)
    assert len(caplog.records) > 5
    for record in caplog.records:
        assert CREDENTIAL not in logging.Formatter().format(record)
        assert CREDENTIAL not in repr(vars(record))
