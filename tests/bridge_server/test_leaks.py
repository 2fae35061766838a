"""Connections come and go by the thousand, and leave the hub as they found it: no object, no entry, no memory stays."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from bridge_server.app import Hub
from tests.support.census import Census, census, resident
from tests.support.processes import until
from tests.support.raw_socket import CLOSE, TEXT, RawSocket
from tests.support.running_hub import running_hub

MIB = 2**20
AT_ONCE = 20
WARM_UP = 200


class Guests(NamedTuple):
    """A hub, and who may connect to it."""

    hub: Hub
    server_id: str
    home: str
    app: str

    async def upgrade(self, socket: RawSocket, token: str, vsn: str = "2.0.0") -> int:
        path, host = f"/socket/websocket?vsn={vsn}", f"127.0.0.1:{self.hub.port}"
        return (await socket.upgrade(path, f"Authorization: Bearer {token}", host=host)).status


async def until_reply(socket: RawSocket, ref: str) -> None:
    while True:
        message = json.loads(await socket.text())
        slots = message if isinstance(message, list) else [None, message["ref"], None, message["event"]]
        if slots[1] == ref and slots[3] == "phx_reply":
            return


async def app_comes_and_goes(guests: Guests) -> None:
    """Join, leave, close: all in order."""
    async with RawSocket(guests.hub.port) as socket:
        assert await guests.upgrade(socket, guests.app) == 101
        socket.send_text(f'["1","1","app:{guests.server_id}","phx_join",{{"since_id":"0","types":["note"]}}]')
        await until_reply(socket, "1")
        socket.send_text(f'["1","2","app:{guests.server_id}","phx_leave",{{}}]')
        await until_reply(socket, "2")
        socket.send_frame(b"\x03\xe8", CLOSE)
        await socket.ended()


async def app_vanishes(guests: Guests) -> None:
    """Joined twice, in version 1.0.0, then gone without a word."""
    async with RawSocket(guests.hub.port) as socket:
        assert await guests.upgrade(socket, guests.app, "1.0.0") == 101
        for ref in ("1", "2"):
            join = {"topic": f"app:{guests.server_id}", "event": "phx_join", "payload": {}, "ref": ref}
            socket.send_text(json.dumps(join))
            await until_reply(socket, ref)


async def app_speaks_nonsense(guests: Guests) -> None:
    async with RawSocket(guests.hub.port) as socket:
        assert await guests.upgrade(socket, guests.app) == 101
        socket.send_text(f'["1","1","app:{guests.server_id}","phx_join",{{}}]["half a mess')
        await socket.ended()


async def stranger_is_refused(guests: Guests) -> None:
    async with RawSocket(guests.hub.port) as socket:
        assert await guests.upgrade(socket, "nobody's") == 403
        await socket.ended()


async def request_is_cut_short(guests: Guests) -> None:
    """Half a head, half a frame, and a page."""
    async with RawSocket(guests.hub.port) as socket:
        socket.send(b"GET /socket/websocket HTTP/1.1\r\nUpgrade: webso")
        await socket.sent()
    async with RawSocket(guests.hub.port) as socket:
        assert await guests.upgrade(socket, guests.app) == 101
        socket.send_frame(b'["1","1","app', TEXT, fin=False)
        await socket.sent()
    async with RawSocket(guests.hub.port) as socket:
        socket.send(f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{guests.hub.port}\r\n\r\n".encode())
        assert (await socket.response()).status == 200


async def app_polls(guests: Guests) -> None:
    """A session of long polling that joins, takes one answer, and is never polled again."""
    port = guests.hub.port
    asked = f"Host: 127.0.0.1:{port}\r\nX-Phoenix-AuthToken: {guests.app}\r\n"
    query = "vsn=2.0.0"
    for method, body in (("GET", ""), ("POST", f'["1","1","app:{guests.server_id}","phx_join",{{}}]'), ("GET", "")):
        async with RawSocket(port) as socket:
            length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
            socket.send(f"{method} /socket/longpoll?{query} HTTP/1.1\r\n{asked}{length}\r\n{body}".encode())
            answer = json.loads((await socket.response()).body)
            assert answer["status"] == (410 if "token=" not in query else 200), answer
            query = f"vsn=2.0.0&token={answer.get('token') or query.rpartition('=')[2]}"


CYCLES: tuple[Callable[[Guests], Awaitable[None]], ...] = (
    app_comes_and_goes,
    app_comes_and_goes,
    app_vanishes,
    app_speaks_nonsense,
    stranger_is_refused,
    app_polls,
    request_is_cut_short,
)


async def home_comes_and_goes(guests: Guests) -> None:
    """One at a time: a home that is joined twice is a takeover, and those are counted.

    It sends one event again and again: what the hub keeps of events has bounds of its own.
    """
    topic = f"server:{guests.server_id}"
    async with RawSocket(guests.hub.port) as socket:
        assert await guests.upgrade(socket, guests.home) == 101
        socket.send_text(f'["1","1","{topic}","phx_join",{{"epoch":"e","head_id":null}}]')
        await until_reply(socket, "1")
        event = '{"event_id":"1","type":"note","session_id":"s"}'
        socket.send_text(f'["1","2","{topic}","session_event",{{"event":{event},"prev_id":null}}]')
        await until_reply(socket, "2")
        socket.send_text(f'["1","3","{topic}","phx_leave",{{}}]')
        await until_reply(socket, "3")
        socket.send_frame(b"\x03\xe8", CLOSE)
        await socket.ended()


async def visits(guests: Guests, start: int, count: int) -> None:
    """Every kind of visit in turn, many at once; every tenth is the home's."""

    async def apps(first: int) -> None:
        for number in range(first, start + count, AT_ONCE):
            if number % 10:
                await CYCLES[number % len(CYCLES)](guests)

    async def homes() -> None:
        for _ in range(count // 10):
            await home_comes_and_goes(guests)

    async with asyncio.TaskGroup() as group:
        group.create_task(homes())
        for first in range(start, start + AT_ONCE):
            group.create_task(apps(first))


async def settled(guests: Guests) -> Census:
    """What the hub holds once nobody is connected and its timers have run."""
    listener = guests.hub._listener
    assert listener is not None
    home = guests.hub.homes.get(guests.server_id)
    await until(
        lambda: not (listener.drivers or listener.splits or home.watchers or home.online or home.alarm),
        "everybody has gone",
    )
    before = census(guests.hub)
    while (now := census(guests.hub)) != before:  # a timer was still to run
        before = now
        await asyncio.sleep(0.05)
    return now


async def come_and_go(folder: Path, count: int, most_bytes: int) -> None:
    async with running_hub(folder, status_grace=0.01, presence_grace=0.0, poll_window=2.0) as hub:
        server, home = hub.credentials.add_server("home")
        _, app = hub.credentials.add_device(server.server_id, "phone")
        guests = Guests(hub, server.server_id, home, app)
        await visits(guests, 0, WARM_UP)
        before, memory = await settled(guests), resident()
        await visits(guests, WARM_UP, count)
        after, grown = await settled(guests), resident()
    assert after - before == {}, "this stayed"
    assert before - after == {}, "this was there before, and nothing of a visit may be"
    if memory is not None and grown is not None:
        assert grown - memory < most_bytes, f"{(grown - memory) / MIB:.1f} MiB more after {count} visits"


async def test_hundreds_of_visits_leave_nothing(tmp_path: Path) -> None:
    await come_and_go(tmp_path, 400, 6 * MIB)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_ten_thousand_visits_leave_nothing(tmp_path: Path) -> None:
    await come_and_go(tmp_path, 10_000, 8 * MIB)


async def test_the_census_sees_what_stays(hub: Hub) -> None:
    """An entry in a table somewhere below the hub, a peer that somebody keeps, an event too many."""
    server, home = hub.credentials.add_server("home")
    _, app = hub.credentials.add_device(server.server_id, "phone")
    guests = Guests(hub, server.server_id, home, app)
    before = await settled(guests)
    assert before["bridge_server.app.Hub"] >= 1
    assert hub._listener is not None
    hub._listener.refusals.add(403, "made_up", "local")
    assert census(hub) - before == {"entries of Refusals": 1, "entries of Seldom": 1}
    async with RawSocket(hub.port) as socket:
        assert await guests.upgrade(socket, app) == 101
        kept = next(iter(hub._listener.drivers)).peer
        with suppress(TimeoutError):
            socket.send_text('["1","1","app:x","phx_join",{}]')
            await until_reply(socket, "1")
    stayed = await settled(guests) - before
    assert stayed["bridge_server.peer.Peer"] == 1
    assert stayed["protocol.server.ServerConnection"] == 1
    del kept
    assert await settled(guests) - before == {"entries of Refusals": 1, "entries of Seldom": 1}
