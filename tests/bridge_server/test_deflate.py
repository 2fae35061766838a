"""permessage-deflate: what is agreed on, what is sent, what may be sent to us (RFC 7692, Phoenix rules 26 and 28)."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory

from bridge_server.channels import Router
from bridge_server.transports.deflate import LEVEL, MAX_STREAMS, MIN_BYTES, inflate, negotiate, wrapper
from bridge_server.transports.handshake import Mount
from bridge_server.transports.websocket import MAX_FRAGMENTS, frame
from protocol.codec import Encoded
from protocol.errors import BadDeflate, MessageTooBig
from tests.support.raw_socket import BINARY, CONTINUATION, PING, PONG, TEXT, Frame, RawSocket
from tests.support.raw_socket import frame as client_frame
from tests.support.recorded_server import PREFIX, RecordedServer, recorded_server
from tests.support.running_hub import running_hub
from tests.support.scripted_home import scripted_home

RSV1 = 4
SMALL = 992
"""The frame limit of the mount `small`."""


def deflated(data: bytes, level: int = LEVEL) -> bytes:
    """As a client sends it: section 7.2.1."""
    deflating = zlib.compressobj(level, zlib.DEFLATED, -15)
    return (deflating.compress(data) + deflating.flush(zlib.Z_SYNC_FLUSH))[:-4]


# What is agreed.


@pytest.mark.parametrize(
    ("offer", "response", "bits"),
    [
        ("permessage-deflate", "", 15),
        ("permessage-deflate; client_max_window_bits", "", 15),
        ("permessage-deflate; client_max_window_bits=9", "; client_max_window_bits=9", 15),
        ("permessage-deflate; server_no_context_takeover; client_no_context_takeover", "", 15),
        ("permessage-deflate; server_max_window_bits=10", "; server_max_window_bits=10", 10),
        ("permessage-deflate; server_max_window_bits=15", "; server_max_window_bits=15", 15),
        ("permessage-deflate; server_max_window_bits=8, permessage-deflate", "", 15),
        ("permessage-deflate; nonsense, permessage-deflate; server_max_window_bits=9", "; server_max_window_bits=9", 9),
        ("x-webkit-deflate-frame, permessage-deflate", "", 15),
    ],
)
def test_the_first_offer_that_can_be_met_is_taken(offer: str, response: str, bits: int) -> None:
    agreed = negotiate([offer])
    assert agreed is not None
    assert sorted(agreed.response.split("; ")) == sorted(
        f"permessage-deflate; server_no_context_takeover; client_no_context_takeover{response}".split("; ")
    )
    assert agreed.window_bits == bits


@pytest.mark.parametrize(
    "offer",
    [
        "x-webkit-deflate-frame",
        "permessage-deflate; server_max_window_bits=8",
        "permessage-deflate; server_max_window_bits=16",
        "permessage-deflate; server_max_window_bits",
        "permessage-deflate; server_max_window_bits=010",
        "permessage-deflate; client_max_window_bits=7",
        "permessage-deflate; server_no_context_takeover=1",
        "permessage-deflate; client_no_context_takeover; client_no_context_takeover",
        "permessage-deflate; more",
    ],
)
def test_an_offer_that_can_not_be_met_is_declined(offer: str) -> None:
    assert negotiate([offer]) is None


def test_several_headers_are_one_list_and_a_broken_one_is_said() -> None:
    assert negotiate([]) is None
    assert negotiate(["other", "permessage-deflate"]) is not None
    for broken in ("permessage-deflate; =", "permessage-deflate;;", '"', "a b"):
        with pytest.raises(ValueError, match=r"Sec-WebSocket-Extensions|expected"):
            negotiate([broken])


# What is inflated.


@pytest.mark.parametrize("level", [0, 1, 9])
def test_what_inflates_to_the_limit_is_taken_and_a_byte_more_is_not(level: int) -> None:
    for size in (0, 1, 5_000):
        data = (b"some text " * 501)[:size]
        assert inflate(deflated(data, level), size) == data
        if size:
            with pytest.raises(MessageTooBig, match=f"more than {size - 1} bytes"):
                inflate(deflated(data, level), size - 1)


def test_a_final_block_may_end_a_message_and_another_may_follow() -> None:
    """The examples of section 7.2.3."""
    for data in ("f248cdc9c90700", "f2480500 0000ffff cac9c90700", "000500faff48656c6c6f00", "f348cdc9c90700 00"):
        assert inflate(bytes.fromhex(data), 100) == b"Hello"


def test_what_is_no_deflate_stream_is_bad() -> None:
    for data in (b"\xff\xff\xff", b"\x06", deflated(b"Hello") + b"\x07"):
        with pytest.raises(BadDeflate, match="can't be inflated"):
            inflate(data, 100)
    empty = b"\x03\x00"
    assert inflate(empty * (MAX_STREAMS - 1), 100) == b""
    with pytest.raises(BadDeflate, match="too many deflate streams"):
        inflate(empty * 100_000, 100)


def test_one_frame_serves_all_who_read_in_the_same_form() -> None:
    assert wrapper(15, frame) is wrapper(15, frame)
    assert wrapper(9, frame) is not wrapper(15, frame)
    short, noise = Encoded(b"x" * (MIN_BYTES - 1)), Encoded(bytes(range(256)))
    for wrap in (wrapper(15, frame), wrapper(9, frame)):
        assert wrap(short) == frame(short)
        assert wrap(noise) == frame(noise), "what does not get shorter is sent as it is"
    for size, binary, length in ((MIN_BYTES, False, 1), (10_000, False, 3), (10**6, True, 9)):
        data = b"".join(b"%d " % (n * n) for n in range(size))[:size]
        sent = wrapper(9, frame)(Encoded(data, binary))
        assert sent[0] == 0xC0 | (BINARY if binary else TEXT)
        assert sent[1] == {1: len(sent) - 2, 3: 126, 9: 127}[length]
        assert inflate(sent[1 + length :], size) == data


# On the wire.


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RecordedServer]:
    mounts = ("deflate", {"compression": True}), ("deflate-small", {"compression": True, "max_frame_bytes": SMALL})
    async with recorded_server(tmp_path, *mounts) as server:
        yield server


@asynccontextmanager
async def connected(server: RecordedServer, mount: str = "deflate") -> AsyncIterator[RawSocket]:
    async with RawSocket(server.port) as socket:
        offer = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
        answer = await socket.upgrade(f"{PREFIX}/{mount}/websocket?vsn=2.0.0", offer)
        assert answer.status == 101
        assert answer.headers["sec-websocket-extensions"].startswith("permessage-deflate; ")
        yield socket


def heartbeat(ref: str) -> bytes:
    return json.dumps([None, ref, "phoenix", "heartbeat", {"padding": "x" * 100}]).encode()


async def beats(socket: RawSocket, ref: str) -> None:
    assert json.loads(await socket.text())[1] == ref


async def test_rule28_without_the_option_an_offer_is_ignored(server: RecordedServer) -> None:
    async with RawSocket(server.port) as socket:
        for offer in ("permessage-deflate",):
            answer = await socket.upgrade(f"{PREFIX}/socket/websocket", f"Sec-WebSocket-Extensions: {offer}")
            assert answer.status == 101
            assert "sec-websocket-extensions" not in answer.headers
        socket.send(client_frame(deflated(heartbeat("1")), rsv=RSV1))
        assert (await socket.closed()).close_code == 1002


async def test_a_header_that_breaks_the_grammar_is_400(server: RecordedServer) -> None:
    async with RawSocket(server.port) as socket:
        answer = await socket.upgrade(f"{PREFIX}/deflate/websocket", "Sec-WebSocket-Extensions: permessage-deflate; =")
        assert answer.status == 400
        assert "sec-websocket-extensions" in json.loads(answer.body)["message"]


async def test_compressed_plain_and_fragmented_messages_are_taken(server: RecordedServer) -> None:
    async with connected(server) as socket:
        socket.send(client_frame(deflated(heartbeat("1")), rsv=RSV1) + client_frame(heartbeat("2")))
        await beats(socket, "1")
        await beats(socket, "2")
        whole = deflated(heartbeat("3"))
        socket.send(client_frame(whole[:5], fin=False, rsv=RSV1) + client_frame(b"hi", PING))
        assert await socket.receive() == Frame(PONG, b"hi")
        socket.send(client_frame(whole[5:9], CONTINUATION, fin=False) + client_frame(whole[9:], CONTINUATION))
        await beats(socket, "3")
        socket.send(client_frame(heartbeat("4")[:9], fin=False) + client_frame(heartbeat("4")[9:], CONTINUATION))
        await beats(socket, "4")


def bomb(size: int) -> bytes:
    return deflated(b" " * size, 9)


def _stored(pieces: int) -> list[bytes]:
    return [client_frame(b"\0\0\0\xff\xff", TEXT, fin=False, rsv=RSV1)] + [
        client_frame(b"\0\0\0\xff\xff", CONTINUATION, fin=False)
    ] * pieces


@pytest.mark.parametrize(
    ("name", "sent", "code"),
    [
        ("a bomb", client_frame(bomb(10_000_000)[:SMALL], rsv=RSV1), 1009),
        ("a byte too much", client_frame(bomb(SMALL + 1), rsv=RSV1), 1009),
        (
            "a bomb in fragments",
            client_frame(bomb(800_000)[:9], fin=False, rsv=RSV1) + client_frame(bomb(800_000)[9:], CONTINUATION),
            1009,
        ),
        ("deflated to more than the limit", client_frame(deflated(bytes(range(256)) * 4, 0), rsv=RSV1), 1009),
        ("fragments that inflate to nothing", b"".join(_stored(MAX_FRAGMENTS)), 1009),
        ("no deflate stream", client_frame(b"\xff\xff\xff", rsv=RSV1), 1007),
        ("half a character", client_frame(deflated(b'["\xe2"]' + b" " * 50), rsv=RSV1), 1007),
        ("the bit on a continuation", client_frame(b"", fin=False) + client_frame(b"", CONTINUATION, rsv=RSV1), 1002),
        ("the bit on a ping", client_frame(b"", PING, rsv=RSV1), 1002),
        ("another bit", client_frame(deflated(b"x"), rsv=RSV1 | 2), 1002),
        ("no frame of Phoenix", client_frame(deflated(b"nonsense"), rsv=RSV1), 1003),
    ],
)
async def test_rule26_a_fault_closes_its_own_socket_with_its_code(
    server: RecordedServer, name: str, sent: bytes, code: int
) -> None:
    async with connected(server, "deflate-small") as faulty, connected(server) as other:
        faulty.send_text(heartbeat("before").decode())
        faulty.send(sent)
        await beats(faulty, "before")
        closed = await faulty.receive()
        assert closed is not None
        assert (closed.close_code, bool(closed.close_reason)) == (code, True), closed
        other.send(client_frame(deflated(heartbeat("1")), rsv=RSV1))
        await beats(other, "1")


async def test_listeners_with_and_without_compression_hear_the_same_and_share_their_frames(tmp_path: Path) -> None:
    """Two clients that take any window, one that takes a small one, one that takes none; live and in a replay."""
    event = {"type": "final", "session_id": "s-1", "content": "some text that repeats itself, " * 40}
    async with running_hub(tmp_path, compression=True) as hub:
        server, home_token = hub.credentials.add_server("home")
        device, token = hub.credentials.add_device(server.server_id, "phone")
        factories: list[Callable[[], list[ClientPerMessageDeflateFactory] | None]] = [
            lambda: [ClientPerMessageDeflateFactory()],
            lambda: [ClientPerMessageDeflateFactory(client_max_window_bits=True)],
            lambda: [ClientPerMessageDeflateFactory(server_max_window_bits=9)],
            lambda: None,
        ]

        async def app(factory: Callable[[], list[ClientPerMessageDeflateFactory] | None]) -> ClientConnection:
            socket = await connect(
                f"{hub.url.replace('http', 'ws')}/socket/websocket?vsn=2.0.0",
                additional_headers={"X-API-Key": token},
                compression=None,
                extensions=factory(),
                proxy=None,
            )
            await socket.send(json.dumps(["1", "1", f"app:{device.server_id}", "phx_join", {"since_id": "0"}]))
            return socket

        async def heard(socket: ClientConnection) -> list[str]:
            ids: list[str] = []
            async with asyncio.timeout(20):
                while len(ids) < 3:
                    _, _, _, kind, payload = json.loads(await socket.recv())
                    if kind == "session_event":
                        assert payload["event"]["content"] == event["content"]
                        ids.append(payload["event"]["event_id"])
            return ids

        async with scripted_home(hub.url, server.server_id, home_token) as home:
            await home.tell(event)
            apps = [await app(factory) for factory in factories]
            await home.tell(event)
            await home.tell(event)
            assert [await heard(socket) for socket in apps] == [["1", "2", "3"]] * 4
            (topic,) = (hub.topics._topics[name] for name in hub.topics._topics if device.server_id in name)
            assert len({listener.form for listener in topic.listeners}) == 3, "the first two read in one form"
        for socket in apps:
            await socket.close()


def test_a_mount_compresses_only_when_it_is_told_to() -> None:
    assert not Mount("/socket", Router(), lambda *_: None).compression
