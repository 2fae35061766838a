"""An app ends its connection in an ugly way in the very turn in which an event goes out: the others still get it."""

import asyncio
import json
import socket
import struct
from pathlib import Path

import pytest
import uvloop

from bridge_server.app import Hub
from bridge_server.message import Message
from protocol.topics import events_topic
from tests.support.processes import until
from tests.support.raw_socket import RawSocket, frame, head
from tests.support.running_hub import running_hub
from tests.support.scripted_home import scripted_home

pytestmark = pytest.mark.lint_allows("id")  # its event, published past the home, has none


def joined(port: int, server_id: str, token: str) -> socket.socket:
    """An app that has joined, on a plain blocking socket; the server answers once the loop runs again."""
    line = socket.create_connection(("127.0.0.1", port))
    join = frame(json.dumps(["1", "1", f"app:{server_id}", "phx_join", {}]).encode())
    line.sendall(head("/socket/websocket?vsn=2.0.0", f"Authorization: Bearer {token}", host=f"127.0.0.1:{port}") + join)
    return line


def goodbye_frame(line: socket.socket) -> None:
    line.sendall(frame(struct.pack("!H", 1000), 8))


def end_of_stream(line: socket.socket) -> None:
    line.shutdown(socket.SHUT_WR)


def reset(line: socket.socket) -> None:
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    line.close()


ENDINGS = {
    "end of stream": [end_of_stream],
    "reset": [reset],
    "end of stream, then reset": [end_of_stream, reset],
    "goodbye": [goodbye_frame],
    "goodbye, end of stream": [goodbye_frame, end_of_stream],
    "goodbye, then reset": [goodbye_frame, reset],
    "all of it": [goodbye_frame, end_of_stream, reset],
}


async def end_while_an_event_goes_out(hub: Hub, ending: str) -> None:
    loop = asyncio.get_running_loop()
    server, home_token = hub.credentials.add_server("Home")
    topic = events_topic(server.server_id)
    tokens = [hub.credentials.add_device(server.server_id, "App")[1] for _ in range(2)]
    async with scripted_home(hub.url, server.server_id, home_token):  # without one nobody would be live
        await _end(hub, loop, server.server_id, topic, tokens, ending)


async def _end(
    hub: Hub, loop: asyncio.AbstractEventLoop, server_id: str, topic: str, tokens: list[str], ending: str
) -> None:
    rude = joined(hub.port, server_id, tokens[0])
    await until(lambda: len(hub.topics.listeners(topic)) == 1, "the rude app has joined")
    async with RawSocket(hub.port) as other:  # joins after it, and so is written to after it
        path, bearer = "/socket/websocket?vsn=2.0.0", f"Authorization: Bearer {tokens[1]}"
        await other.upgrade(path, bearer, host=f"127.0.0.1:{hub.port}")
        other.send_text(json.dumps(["1", "1", f"app:{server_id}", "phx_join", {}]))
        assert '"status":"ok"' in await other.text()
        assert '"replay_complete"' in await other.text()
        for step in ENDINGS[ending]:
            step(rude)
        # The callbacks of one turn run in this order: publish, the end of the rude app; then the event goes out.
        loop.call_soon(hub.topics.publish, topic, Message("session_event", b'{"event":{}}'))
        assert '"session_event"' in await other.text()
        await until(lambda: len(hub.topics.listeners(topic)) == 1, "the rude app is forgotten")
        hub.topics.publish(topic, Message("session_event", b'{"event":{}}'))
        assert '"session_event"' in await other.text()
    rude.close()


@pytest.mark.parametrize("ending", ENDINGS)
async def test_the_others_get_the_event_on_asyncio(hub: Hub, ending: str) -> None:
    await end_while_an_event_goes_out(hub, ending)


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_others_get_the_event_on_uvloop(tmp_path: Path, ending: str) -> None:
    async def run() -> None:
        async with running_hub(tmp_path) as hub:
            await end_while_an_event_goes_out(hub, ending)

    uvloop.run(run())
