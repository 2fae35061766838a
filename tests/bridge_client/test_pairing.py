"""The home's and the app's side of pairing, against a real hub; and against what is none."""

import asyncio
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
import segno
from aiohttp import web

from bridge_client.dial import CredentialRefused
from bridge_client.keys import Credential
from bridge_client.pairing import (
    PATIENCE_SECONDS,
    HomeApi,
    HubUnreachable,
    Invitation,
    PairingFailed,
    invitations,
    redeem,
)
from bridge_server.app import Hub
from bridge_server.auth import Device
from protocol.errors import BadCode
from protocol.pairing import PairedDevice, parse_code, parse_link

LINK = "https://hub.example/#pair=BCDF-GHJK-LMNP"


class TurnedClock:
    """Time that passes only by waiting for it; `at_sleep` is called before each wait."""

    def __init__(self, at_sleep: Callable[[], Awaitable[object]] | None = None) -> None:
        self.now = 0.0
        self.at_sleep = at_sleep

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if self.at_sleep is not None:
            await self.at_sleep()
        self.now += seconds


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def home_of(hub: Hub, session: aiohttp.ClientSession) -> HomeApi:
    server, token = hub.credentials.add_server("Attic")
    return HomeApi(Credential(hub.url, server.server_id, token), session)


async def test_invite_redeem_wait(hub: Hub, session: aiohttp.ClientSession) -> None:
    home = home_of(hub, session)
    invitation = await home.invite(("view",), 60)
    assert invitation.scopes == ("view",)
    assert str(parse_code(invitation.code)) == invitation.code
    waiting = asyncio.ensure_future(home.wait(invitation.pairing_id))
    credential = await redeem(invitation.link, "Laptop", session)
    device = await asyncio.wait_for(waiting, 20)
    assert device == PairedDevice(credential.device_id, "Laptop", ["view"])  # type: ignore[arg-type]
    assert credential.hub_url == hub.url
    identity = hub.credentials.authenticate(credential.credential)
    assert isinstance(identity, Device)
    assert (identity.device_id, identity.server_id) == (credential.device_id, credential.server_id)


async def test_a_code_ends_without_an_app(hub: Hub, session: aiohttp.ClientSession) -> None:
    home = home_of(hub, session)
    invitation = await home.invite()
    await home.close(invitation.pairing_id)
    await home.close(invitation.pairing_id)
    assert await home.wait(invitation.pairing_id) is None


async def test_devices_are_listed_and_revoked(hub: Hub, session: aiohttp.ClientSession) -> None:
    home = home_of(hub, session)
    credential = await redeem((await home.invite()).link, "Laptop", session)
    (listed,) = await home.devices()
    assert (listed.device_id, listed.name, listed.revoked_at) == (credential.device_id, "Laptop", None)
    await home.revoke(listed.device_id)
    await home.revoke(listed.device_id)
    (listed,) = await home.devices()
    assert listed.revoked_at is not None
    for absent in ("a" * 16, "../x", ""):
        with pytest.raises(PairingFailed) as caught:
            await home.revoke(absent)
        assert caught.value.code == "not_found"


async def test_a_bare_code_needs_the_hubs_url(hub: Hub, session: aiohttp.ClientSession) -> None:
    invitation = await home_of(hub, session).invite()
    with pytest.raises(BadCode, match="where the hub is"):
        await redeem(invitation.code, "Laptop", session)
    credential = await redeem(invitation.code.lower(), "Laptop", session, hub.url + "/")
    assert credential.device_id


@pytest.mark.parametrize("text", ["", "BCDF", "https://hub.example/", "ftp://x/#pair=BCDF-GHJK-LMNP", LINK + "Q"])
async def test_what_is_no_code_and_no_link_asks_nobody(session: aiohttp.ClientSession, text: str) -> None:
    with pytest.raises(BadCode):
        await redeem(text, "x", session, "http://127.0.0.1:1")


async def test_refusals_say_what_to_do(hub: Hub, session: aiohttp.ClientSession) -> None:
    home = home_of(hub, session)
    invitation = await home.invite()
    await redeem(invitation.link, "x", session)
    with pytest.raises(PairingFailed, match=r"redeemed already; ask for a new one \(reused\)"):
        await redeem(invitation.link, "y", session)
    for _ in range(3):
        await home.invite()
    with pytest.raises(PairingFailed, match=r"try again in \d+ s \(rate_limited\)"):
        await home.invite()
    hub.credentials.revoke_server(home._credential.server_id)
    for asking in (home.invite, home.devices, lambda: home.wait(invitation.pairing_id)):
        with pytest.raises(CredentialRefused, match="revoked"):
            await asking()


# Codes for a home that starts.


async def test_a_new_code_follows_each_that_ended_until_an_app_came(hub: Hub, session: aiohttp.ClientSession) -> None:
    home, shown = home_of(hub, session), list[Invitation]()

    async def while_waiting() -> None:
        if len(shown) < 5:
            await home.close(shown[-1].pairing_id)
        else:
            await redeem(shown[-1].link, "Phone", session)

    came = None
    async for news in invitations(home, clock=TurnedClock(while_waiting)):
        if isinstance(news, Invitation):
            shown.append(news)
        else:
            came = news
    assert came is not None
    assert came.name == "Phone"
    assert len({invitation.code for invitation in shown}) == 5


async def test_codes_for_a_home_that_starts_come_to_an_end(hub: Hub, session: aiohttp.ClientSession) -> None:
    home, shown = home_of(hub, session), list[Invitation]()
    async for news in invitations(home, codes=2, clock=TurnedClock(lambda: home.close(shown[-1].pairing_id))):
        assert isinstance(news, Invitation)
        shown.append(news)
    assert len(shown) == 2


async def test_whoever_stops_waiting_leaves_no_open_code(hub: Hub, session: aiohttp.ClientSession) -> None:
    home = home_of(hub, session)
    shown = asyncio.Queue[Invitation | PairedDevice]()

    async def show() -> None:
        async for news in invitations(home):
            shown.put_nowait(news)

    showing = asyncio.ensure_future(show())
    invitation = await asyncio.wait_for(shown.get(), 20)
    assert isinstance(invitation, Invitation)
    showing.cancel()
    await asyncio.wait([showing])
    assert (await home.state(invitation.pairing_id)).status == "closed"


# Hubs that are away, or none.


@asynccontextmanager
async def answering(answer: Callable[[], web.Response]) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.Response:
        return answer()

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_hub_that_comes_back_in_time_is_waited_for(session: aiohttp.ClientSession) -> None:
    answers = ["no", "no", '{"status": "open"}', "no", '{"status": "expired"}']

    def answer() -> web.Response:
        text = answers.pop(0)
        return web.Response(status=502 if text == "no" else 200, text=text, content_type="application/json")

    async with answering(answer) as url:
        home = HomeApi(Credential(url, "a" * 26, "sbs_x"), session)
        assert await home.wait("1", TurnedClock()) is None
    assert answers == []


async def test_a_hub_that_stays_away_is_given_up(session: aiohttp.ClientSession, unused_tcp_port: int) -> None:
    home, clock = HomeApi(Credential(f"http://127.0.0.1:{unused_tcp_port}", "a" * 26, "sbs_x"), session), TurnedClock()
    with pytest.raises(HubUnreachable, match="can't be reached"):
        await home.wait("1", clock)
    assert clock.now == PATIENCE_SECONDS


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "hello"),
        (200, "{}"),
        (200, "[" * 1000),
        (201, '{"pairing_id": "../x", "code": "c", "expires_at": "t", "scopes": [], "link": "l"}'),
        (201, '{"pairing_id": "x", "code": "nope", "expires_at": "t", "scopes": [], "link": "' + LINK + '"}'),
        (201, '{"pairing_id": "x", "code": "BCDFGHJKLMNQ", "expires_at": "t", "scopes": [], "link": "' + LINK + '"}'),
        (
            201,
            '{"pairing_id": "x", "code": "BCDFGHJKLMNP", "expires_at": "t", "scopes": [], "link": "'
            + LINK.replace("hub.", "\\u001b[2Jhub.")
            + '"}',
        ),
        (302, ""),
        (403, "{}"),
        (403, '{"error": {"code": "\\u001b[2J"}}'),
        (200, " " * (1 << 20) + "1"),
    ],
)
async def test_what_is_no_hub_gets_no_trust_and_no_echo(session: aiohttp.ClientSession, status: int, body: str) -> None:
    async with answering(lambda: web.Response(status=status, text=body, headers={"Location": "/x"})) as url:
        home = HomeApi(Credential(url, "a" * 26, "sbs_secret"), session)
        with pytest.raises(PairingFailed) as caught:
            await home.invite()
        with pytest.raises(PairingFailed):
            await redeem("BCDF-GHJK-LMNP", "x", session, url)
    told = "".join(traceback.format_exception(caught.value))
    assert url in str(caught.value)
    assert "\x1b" not in told
    assert "sbs_secret" not in told


# The QR code.


def test_the_qr_code_on_the_terminal_is_the_link() -> None:
    lines = Invitation("1", "BCDF-GHJK-LMNP", LINK, "", ()).qr.splitlines()
    dark = {" ": (1, 1), "▀": (0, 1), "▄": (1, 0), "█": (0, 0)}
    rows = [[dark[char][half] for char in line] for line in lines for half in (0, 1)]
    wanted = [list(row) for row in segno.make(LINK, error="l", micro=False).matrix]
    size = len(wanted)
    assert [row[2:-2] for row in rows[2 : 2 + size]] == wanted
    # A quiet zone of two light modules all around, which scanners need.
    assert not any(any(row) for row in rows[:2] + rows[2 + size : 4 + size])
    assert not any(row[0] or row[1] or row[-1] or row[-2] for row in rows[: 4 + size])
    assert parse_link(LINK) == ("https://hub.example", parse_code("BCDF-GHJK-LMNP"))


def test_the_poster_fits_a_small_terminal_and_says_everything_as_text() -> None:
    poster = Invitation("1", "BCDF-GHJK-LMNP", LINK, "2026-01-02T03:04:05Z", ()).poster
    assert re.search(r"\(serves once, until \d\d:\d\d\)", poster)
    assert LINK in poster
    assert "BCDF-GHJK-LMNP" in poster.replace(LINK, "")
    assert max(map(len, poster.splitlines())) <= 80
    assert len(poster.splitlines()) <= 24
