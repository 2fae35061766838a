"""What no peer may send: each gets the right refusal, and the peer next to it notices nothing."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from websockets.asyncio.client import ClientConnection, connect

from bridge_server.app import Hub
from tests.support.raw_socket import BINARY, CONTINUATION, PING, TEXT, RawSocket, frame, head
from tests.support.running_hub import running_hub
from tests.support.scripted_home import ScriptedHome, scripted_home

DEEP = b"[" * 100_000
LIMIT = 1 << 20


class Neighbourhood(NamedTuple):
    """A home at work and an app that listens to it, both beside the peer that misbehaves."""

    hub: Hub
    server_id: str
    home_token: str
    app_token: str
    home: ScriptedHome
    app: ClientConnection

    async def is_unharmed(self) -> None:
        """The app's heartbeat is answered, and the home's next event reaches it, as the very next one."""
        await self.app.send('[null,"hb","phoenix","heartbeat",{}]')
        assert json.loads(await self.app.recv()) == [
            None,
            "hb",
            "phoenix",
            "phx_reply",
            {"status": "ok", "response": {}},
        ]
        (event_id,) = await self.home.publish(1)
        _, _, _, event, payload = json.loads(await self.app.recv())
        assert (event, payload["event"]["event_id"]) == ("session_event", event_id)


@pytest.fixture
async def neighbours(hub: Hub) -> AsyncIterator[Neighbourhood]:
    server, home_token = hub.credentials.add_server("Home")
    _, app_token = hub.credentials.add_device(server.server_id, "App")
    async with (
        scripted_home(hub.url, server.server_id, home_token) as home,
        connect(
            hub.url.replace("http", "ws", 1) + "/socket/websocket?vsn=2.0.0",
            additional_headers={"Authorization": f"Bearer {app_token}"},
            proxy=None,
        ) as app,
    ):
        await app.send(json.dumps(["1", "1", f"app:{server.server_id}", "phx_join", {}]))
        assert json.loads(await app.recv())[3] == "phx_reply"
        assert json.loads(await app.recv())[3] == "replay_complete"
        yield Neighbourhood(hub, server.server_id, home_token, app_token, home, app)


@asynccontextmanager
async def peer(hub: Hub, token: str, vsn: str = "2.0.0") -> AsyncIterator[RawSocket]:
    async with RawSocket(hub.port) as raw:
        answer = await raw.upgrade(
            f"/socket/websocket?vsn={vsn}", f"Authorization: Bearer {token}", host=f"127.0.0.1:{hub.port}"
        )
        assert answer.status == 101, answer
        yield raw


def join(topic: str) -> bytes:
    return json.dumps(["1", "1", topic, "phx_join", {}]).encode()


BAD_MESSAGES = {
    "empty": (b"", TEXT, 1003),
    "no JSON": (b"hello", TEXT, 1003),
    "an object": (b"{}", TEXT, 1003),
    "four slots": (b'["1","1","phoenix","heartbeat"]', TEXT, 1003),
    "cut short": (b'["1","1","phoenix","heartb', TEXT, 1003),
    "more after the end": (b'["1","1","phoenix","heartbeat",{}] x', TEXT, 1003),
    "null": (b"null", TEXT, 1003),
    "NaN": (b'["1","1","phoenix","heartbeat",{"x":NaN}]', TEXT, 1003),
    "Infinity": (b'["1","1","phoenix","heartbeat",{"x":-Infinity}]', TEXT, 1003),
    "deep array": (b'["1","1","phoenix","heartbeat",' + DEEP, TEXT, 1003),
    "deep and whole": (b'["1","1","phoenix","heartbeat",' + DEEP + DEEP.replace(b"[", b"]") + b"]", TEXT, 1003),
    "deep objects": (
        b'["1","1","phoenix","heartbeat",' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"]",
        TEXT,
        1003,
    ),
    "deep before the brackets": (DEEP + b"]" * 100_000, TEXT, 1003),
    "bad UTF-8": (b'["1","1","phoenix","heartbeat",{"x":"\xff"}]', TEXT, 1007),
    "UTF-8 of a surrogate": (b'["1","1","phoenix","heartbeat",{"x":"\xed\xa0\x80"}]', TEXT, 1007),
    "overlong UTF-8": (b'["1","1","phoenix","heartbeat",{"x":"\xc0\xaf"}]', TEXT, 1007),
    "bad UTF-8 cut short": (b'["1","1","phoenix","heartbeat",{"x":"\xe2\x82', TEXT, 1007),
    "over the frame limit": (b'["1","1","phoenix","heartbeat",{"x":"' + b"y" * (LIMIT + 65_536) + b'"}]', TEXT, 1009),
    "binary without a head": (b"\x00\x01", BINARY, 1003),
    "binary of another kind": (b"\x01\x01\x01\x07\x021" + b"x" * 20, BINARY, 1003),
    "binary shorter than it says": (b"\x00\xff\xff\xff\xff", BINARY, 1003),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
@pytest.mark.parametrize("role", ["home", "app"])
async def test_a_message_that_is_no_frame_ends_its_own_connection_only(
    neighbours: Neighbourhood, name: str, role: str
) -> None:
    data, opcode, code = BAD_MESSAGES[name]
    hub = neighbours.hub
    if role == "home":  # another home: the first one's link must not be taken over
        server, token = hub.credentials.add_server("Rude home")
        topic = f"server:{server.server_id}"
    else:
        token, topic = neighbours.app_token, f"app:{neighbours.server_id}"
    async with peer(hub, token) as raw:
        raw.send_frame(join(topic))
        assert '"status":"ok"' in await raw.text()
        if role == "app":
            assert '"replay_complete"' in await raw.text()
        raw.send_frame(data, opcode)
        raw.send_frame(b'["1","9","phoenix","heartbeat",{}]')
        assert (await raw.closed()).close_code == code
    await neighbours.is_unharmed()


BROKEN_FRAMES: dict[str, Callable[[], bytes]] = {
    "not masked": lambda: frame(b'[null,"1","phoenix","heartbeat",{}]', masked=False),
    "a reserved bit": lambda: frame(b"x", rsv=4),
    "a reserved opcode": lambda: frame(b"x", 3),
    "a continuation of nothing": lambda: frame(b"x", CONTINUATION),
    "a ping in two parts": lambda: frame(b"x", PING, fin=False),
    "a ping too long": lambda: frame(b"x" * 126, PING),
    "a new message inside another": lambda: frame(b"x", fin=False) + frame(b"y"),
}


@pytest.mark.parametrize("name", BROKEN_FRAMES)
async def test_a_broken_websocket_frame_ends_its_own_connection_only(neighbours: Neighbourhood, name: str) -> None:
    async with peer(neighbours.hub, neighbours.app_token) as raw:
        raw.send(BROKEN_FRAMES[name]())
        assert (await raw.closed()).close_code == 1002
    await neighbours.is_unharmed()


def event(number: int, data: str = '"some text"') -> str:
    return f'{{"event_id":"{number}","type":"note","session_id":"s","data":{data}}}'


def padded(number: int, size: int) -> str:
    """An event of exactly `size` bytes."""
    return event(number, '"' + "y" * (size - len(event(number, '""'))) + '"')


@asynccontextmanager
async def rude_home(hub: Hub) -> AsyncIterator[tuple[RawSocket, str, str]]:
    """Another home of the hub, joined; with its server id and an app's credential for it."""
    server, token = hub.credentials.add_server("Rude home")
    _, device = hub.credentials.add_device(server.server_id, "Its app")
    async with peer(hub, token) as raw:
        raw.send_frame(b'["1","1","server:%b","phx_join",{"epoch":"e","head_id":null}]' % server.server_id.encode())
        assert '"status":"ok"' in await raw.text()
        yield raw, server.server_id, device


async def push(raw: RawSocket, server_id: str, payload: str, name: str = "session_events") -> dict[str, object]:
    raw.send_text(f'["1","5","server:{server_id}","{name}",{payload}]')
    answer = json.loads(await raw.text())
    return {"status": answer[4]["status"], **answer[4]["response"]}


async def test_too_large_an_event_is_named_and_the_home_goes_on(neighbours: Neighbourhood) -> None:
    async with rude_home(neighbours.hub) as (raw, server_id, _):
        taken = await push(raw, server_id, f'{{"event":{padded(1, LIMIT)},"prev_id":null}}', "session_event")
        assert taken == {"status": "ok", "acked_id": "1"}, "an event of exactly the limit is taken"
        too_large = {"status": "error", "reason": "too_large", "id": "2", "limit": LIMIT, "acked_id": "1"}
        answer = await push(raw, server_id, f'{{"event":{padded(2, LIMIT + 1)},"prev_id":"1"}}', "session_event")
        assert answer == too_large
        taken = await push(raw, server_id, f'{{"event":{event(2)},"prev_id":"1"}}', "session_event")
        assert taken == {"status": "ok", "acked_id": "2"}
    await neighbours.is_unharmed()


async def test_what_came_before_too_large_an_event_of_a_batch_is_kept(tmp_path: Path) -> None:
    """The limit is low here: a batch may not be longer than 256 KiB, whatever one event may be."""
    limit = 10_000
    async with running_hub(tmp_path, max_event_bytes=limit) as hub, rude_home(hub) as (raw, server_id, _):
        batch = ",".join([event(1), padded(2, limit), padded(3, limit + 1), event(4)])
        answer = await push(raw, server_id, f'{{"events":[{batch}],"prev_id":null}}')
        assert answer == {"status": "error", "reason": "too_large", "id": "3", "limit": limit, "acked_id": "2"}
        # What was in flight behind it is refused too, so that nothing is skipped in silence.
        answer = await push(raw, server_id, f'{{"event":{event(5)},"prev_id":"4"}}', "session_event")
        assert answer == {"status": "error", "reason": "gap", "resume_from": "2", "acked_id": "2"}
        answer = await push(raw, server_id, f'{{"event":{event(3)},"prev_id":"2"}}', "session_event")
        assert answer == {"status": "ok", "acked_id": "3"}


@pytest.mark.parametrize(
    "bad",
    [
        '{"event_id":"2"}',
        '{"event_id":2,"type":"note"}',
        '{"event_id":"02","type":"note"}',
        '{"event_id":"9007199254740992","type":"note"}',
        '{"event_id":"2","type":""}',
        '{"event_id":"2","type":7}',
        '{"type":"note"}',
        "[]",
        "7",
        "null",
    ],
)
async def test_an_event_that_is_none_is_refused_and_the_home_goes_on(neighbours: Neighbourhood, bad: str) -> None:
    async with rude_home(neighbours.hub) as (raw, server_id, _):
        answer = await push(raw, server_id, f'{{"events":[{event(1)},{bad},{event(3)}],"prev_id":null}}')
        assert (answer["reason"], answer["acked_id"]) == ("invalid_event", "1")
        assert (await push(raw, server_id, f'{{"event":{event(2)},"prev_id":"1"}}', "session_event"))["acked_id"] == "2"
    await neighbours.is_unharmed()


@pytest.mark.parametrize(
    "payload",
    [
        "null",
        "7",
        "[]",
        "{}",
        '{"event":1}',
        '{"events":{}}',
        '{"events":[],"prev_id":7}',
        '{"events":[],"prev_id":"x"}',
    ],
)
@pytest.mark.parametrize("name", ["session_event", "session_events"])
async def test_a_push_of_the_wrong_shape_is_refused_and_the_home_goes_on(
    neighbours: Neighbourhood, payload: str, name: str
) -> None:
    async with rude_home(neighbours.hub) as (raw, server_id, _):
        answer = await push(raw, server_id, payload, name)
        assert (answer["status"], answer["reason"]) in (("error", "bad_push"), ("error", "invalid_event"))
        taken = await push(raw, server_id, f'{{"event":{event(1)},"prev_id":null}}', "session_event")
        assert taken == {"status": "ok", "acked_id": "1"}
    await neighbours.is_unharmed()


async def test_lone_surrogates_are_repaired_live_and_on_replay(neighbours: Neighbourhood) -> None:
    r"""`\ud800` alone is no text: it becomes U+FFFD, once, so that live and replayed bytes are the same."""
    sent = r'"half \ud83d, other \ude00, whole \ud83d\ude00, escaped \\ud800, last \udbff"'
    kept = event(
        1, sent.replace(r"\ud83d,", r"\ufffd,").replace(r"other \ude00", r"other \ufffd").replace(r"\udbff", r"\ufffd")
    )
    async with rude_home(neighbours.hub) as (raw, server_id, device), peer(neighbours.hub, device) as live:
        live.send_frame(join(f"app:{server_id}"))
        assert '"status":"ok"' in await live.text()
        assert '"replay_complete"' in await live.text()
        answer = await push(raw, server_id, f'{{"event":{event(1, sent)},"prev_id":null}}', "session_event")
        assert answer == {"status": "ok", "acked_id": "1"}
        assert await live.text() == f'["1",null,"app:{server_id}","session_event",{{"event":{kept}}}]'
        async with peer(neighbours.hub, device) as later:
            later.send_text(f'["1","1","app:{server_id}","phx_join",{{"since_id":"0"}}]')
            assert '"recovered":true' in await later.text()
            assert await later.text() == f'["1",null,"app:{server_id}","session_event",{{"event":{kept}}}]'
    await neighbours.is_unharmed()


@pytest.mark.parametrize("cut", [0, 1, 7, None], ids=lambda cut: f"{cut} bytes of it")
async def test_what_an_impatient_client_sends_with_its_upgrade_request_is_not_lost(
    neighbours: Neighbourhood, cut: int | None
) -> None:
    """RFC 6455 section 4.1 tells it to wait for the answer; dropping its join in silence would leave it waiting."""
    hub, token = neighbours.hub, neighbours.app_token
    asked = frame(join(f"app:{neighbours.server_id}"))
    request = head("/socket/websocket?vsn=2.0.0", f"Authorization: Bearer {token}", host=f"127.0.0.1:{hub.port}")
    async with RawSocket(hub.port) as raw:
        raw.send(request + asked[:cut])
        assert (await raw.response()).status == 101
        raw.send(asked[len(asked[:cut]) :])
        assert '"status":"ok"' in await raw.text()
        assert '"replay_complete"' in await raw.text()
