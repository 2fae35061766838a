"""The driver of one upgraded connection, over real sockets: heads, frames, faults, closes, deadlines, floods."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge_server.outbox import URGENT_BYTES
from bridge_server.transports.websocket import CLOSE_SECONDS, MAX_FRAGMENTS
from tests.support.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Frame, RawSocket, frame, head
from tests.support.recorded_server import PREFIX, RecordedServer, recorded_server

SOCKET = f"{PREFIX}/socket/websocket?vsn=2.0.0"
SMALL = f"{PREFIX}/small/websocket?vsn=2.0.0"


@asynccontextmanager
async def connected(server: RecordedServer, path: str = SOCKET) -> AsyncIterator[RawSocket]:
    async with RawSocket(server.port) as socket:
        assert (await socket.upgrade(path)).status == 101
        yield socket


def heartbeat(ref: str) -> str:
    return json.dumps([None, ref, "phoenix", "heartbeat", {}])


async def beats(socket: RawSocket, ref: str) -> None:
    """The next frame is the answer to this heartbeat."""
    answer = json.loads(await socket.text())
    assert answer[1:4] == [ref, "phoenix", "phx_reply"], answer


async def alive(socket: RawSocket, ref: str = "alive") -> None:
    """Nothing waits to be read, and the connection lives."""
    socket.send_text(heartbeat(ref))
    await beats(socket, ref)


async def join(socket: RawSocket, topic: str = "room:1", ref: str = "1", **payload: object) -> None:
    socket.send_text(json.dumps([ref, ref, topic, "phx_join", payload]))
    answer = json.loads(await socket.text())
    assert answer[4]["status"] == "ok", answer


async def open_connections(server: RecordedServer) -> int:
    """How many sockets the hub counts, as an operator sees it."""
    async with RawSocket(server.port) as socket:
        socket.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = await socket.response()
        assert answer.status == 200
        return sum(
            int(float(n)) for n in re.findall(rb"^bridge_connections\{[^}]*\} ([0-9.e+]+)$", answer.body, re.MULTILINE)
        )


def closing(server: RecordedServer) -> bool:
    """Whether some socket has been told goodbye and is still there."""
    port = server.hub._listener
    assert port is not None
    return any(driver._deadline is not None for driver in port.drivers)


def stop_up(socket: RawSocket) -> None:
    """Read nothing more, and have so much sent that the hub itself must keep it. The socket has joined room:1."""
    socket.stop_reading()
    socket.send_text('["1","2","room:1","big_reply",{"n":8000000}]')


# The head.


async def test_a_head_sent_byte_by_byte_is_accepted(server: RecordedServer) -> None:
    async with RawSocket(server.port) as socket:
        for byte in head(SOCKET):
            socket.send(bytes((byte,)))
            await socket.sent()
            await asyncio.sleep(0)
        assert (await socket.response()).status == 101
        await alive(socket)


async def test_frames_in_the_segment_of_the_upgrade_are_taken(server: RecordedServer) -> None:
    async with RawSocket(server.port) as socket:
        frames = frame(heartbeat("1").encode()) + frame(b"ping", PING) + frame(heartbeat("2").encode())
        socket.send(head(SOCKET) + frames)
        assert (await socket.response()).status == 101
        await beats(socket, "1")
        await beats(socket, "2")
        assert await socket.receive() == Frame(PONG, b"ping")


async def test_a_frame_cut_anywhere_behind_the_upgrade_is_put_together(server: RecordedServer) -> None:
    whole = frame(heartbeat("1").encode())
    for cut in (1, 5, len(whole) - 1):
        async with RawSocket(server.port) as socket:
            socket.send(head(SOCKET) + whole[:cut])
            assert (await socket.response()).status == 101
            socket.send(whole[cut:])
            await beats(socket, "1")


async def test_a_frame_over_the_mounts_limit_is_refused_even_behind_the_upgrade(server: RecordedServer) -> None:
    async with RawSocket(server.port) as socket:
        socket.send(head(SMALL) + frame(b" " * 993))
        assert (await socket.response()).status == 101
        assert (await socket.closed()).close_code == 1009


async def test_an_oversized_head_is_431(server: RecordedServer) -> None:
    for ending in (b"", b"\r\n\r\n"):
        async with RawSocket(server.port) as socket:
            socket.send(head(SOCKET)[:-2] + b"X-Big: " + b"x" * 17_000 + ending)
            answer = await socket.response()
            assert answer.status == 431
            assert json.loads(answer.body)["reason"] == "bad_request"


async def test_a_head_that_is_not_finished_in_time_is_aborted(server: RecordedServer) -> None:
    async with RawSocket(server.port) as slow, connected(server) as other:
        slow.send(head(SOCKET)[:-2])
        await alive(other)  # by now the slow one is being read, too
        server.hands.time += server.hub.config.handshake_timeout - 1
        await alive(other)
        server.hands.time += 2
        await slow.ended()
        await alive(other)


@pytest.mark.parametrize("before", [b"\r\n", b"\r\n\r\n", b"\n\r\n\r\n"])
async def test_line_ends_before_a_head_are_no_head(server: RecordedServer, before: bytes) -> None:
    async with RawSocket(server.port) as slow, RawSocket(server.port) as socket, connected(server) as other:
        socket.send(before + head(SOCKET))
        assert (await socket.response()).status == 101
        slow.send(before + head(SOCKET)[:-2])
        await slow.sent()
        await alive(other)
        server.hands.time += server.hub.config.handshake_timeout + 1
        await slow.ended()


# Messages.


async def test_fragments_are_joined_with_control_frames_between_them(server: RecordedServer) -> None:
    async with connected(server) as socket:
        text = heartbeat("é☃").encode()
        pieces = [text[at : at + 1] for at in range(len(text))]  # cut inside characters, too
        socket.send_frame(pieces[0], TEXT, fin=False)
        for piece in pieces[1:-1]:
            socket.send_frame(b"", CONTINUATION, fin=False)
            socket.send_frame(piece, CONTINUATION, fin=False)
        socket.send_frame(b"between", PING)
        assert await socket.receive() == Frame(PONG, b"between")
        socket.send_frame(pieces[-1], CONTINUATION)
        await beats(socket, "é☃")


async def test_fragments_of_a_binary_message_stay_binary(server: RecordedServer) -> None:
    async with connected(server) as socket:
        await join(socket)
        socket.send_frame(b"\0\1\1\6\x06" + b"12", BINARY, fin=False)
        socket.send_frame(b"room:1binary\xff\0", CONTINUATION)
        assert await socket.receive() == Frame(BINARY, b"\1\1\1\6\2" + b"12room:1ok\xff\0")


async def test_a_message_may_come_in_as_many_fragments_as_the_limit_says_and_no_more(server: RecordedServer) -> None:
    for count in (MAX_FRAGMENTS, MAX_FRAGMENTS + 1):
        async with connected(server) as socket:
            text = heartbeat("x" * count).encode()
            size = len(text) // count + 1
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            pieces += [b""] * (count - len(pieces))
            socket.send_frame(pieces[0], TEXT, fin=False)
            for piece in pieces[1:-1]:
                socket.send_frame(piece, CONTINUATION, fin=False)
            socket.send_frame(pieces[-1], CONTINUATION)
            if count == MAX_FRAGMENTS:
                await beats(socket, "x" * count)
            else:
                closed = await socket.receive()
                assert closed is not None
                assert (closed.close_code, closed.close_reason) == (1009, "too many fragments")


async def test_a_flood_of_empty_fragments_is_closed_and_holds_nobody_up(server: RecordedServer) -> None:
    async with connected(server) as flooder, connected(server) as other:
        flooder.send(frame(b"", TEXT, fin=False) + frame(b"", CONTINUATION, fin=False) * 200_000)
        other.send_text(heartbeat("meanwhile"))
        async with asyncio.timeout(20):
            await beats(other, "meanwhile")
        closed = await flooder.receive()
        assert closed is not None
        assert closed.close_code == 1009


async def test_a_flood_of_small_messages_leaves_room_for_others(server: RecordedServer) -> None:
    async with connected(server) as flooder, connected(server) as other:
        count = 5_000
        flooder.send(frame(heartbeat("f").encode()) * count)
        for number in range(5):
            other.send_text(heartbeat(str(number)))
            await beats(other, str(number))
        for _ in range(count):
            await beats(flooder, "f")


@pytest.mark.parametrize(
    ("name", "sent", "code"),
    [
        ("unmasked", frame(b"[]", masked=False), 1002),
        ("first reserved bit", frame(heartbeat("1").encode(), rsv=4), 1002),
        ("third reserved bit", frame(b"x", PING, rsv=1), 1002),
        ("reserved data opcode", frame(b"[]", 3), 1002),
        ("reserved control opcode", frame(b"", 11), 1002),
        ("fragmented ping", frame(b"", PING, fin=False), 1002),
        ("long ping", frame(b"x" * 126, PING), 1002),
        ("continuation of nothing", frame(b"", CONTINUATION), 1002),
        ("text inside a fragmented one", frame(b"[", fin=False) + frame(b"[]"), 1002),
        ("close code 1005", frame((1005).to_bytes(2), CLOSE), 1002),
        ("close code 999", frame((999).to_bytes(2), CLOSE), 1002),
        ("close of one byte", frame(b"\3", CLOSE), 1002),
        ("invalid UTF-8", frame(b'["1","1","t","e","\xff"]'), 1007),
        ("half a character in a fragment", frame(b'["\xe2', fin=False) + frame(b'"]', CONTINUATION), 1007),
        ("invalid UTF-8 in a binary head", frame(b"\0\1\1\1\1" + b"11\xff1", BINARY), 1007),
        ("invalid UTF-8 in a close", frame((1000).to_bytes(2) + b"\xff", CLOSE), 1007),
        ("no JSON", frame(b"nonsense"), 1003),
        ("no message", frame(b"{}"), 1003),
        ("too deep", frame(b'["1","1","t","e",' + b"[" * 100_000 + b"]" * 100_000 + b"]"), 1003),
        ("too big", frame(b" " * (2**20 + 65_537)), 1009),
        ("too big in fragments", frame(b" " * 2**20, fin=False) + frame(b" " * 65_537, CONTINUATION), 1009),
        ("says it will be too big", frame(b" " * 10**6)[:2] + (2**40).to_bytes(8), 1009),
    ],
)  # fmt: skip
async def test_rule26_a_fault_closes_its_own_socket_with_its_code_and_a_reason(
    server: RecordedServer, name: str, sent: bytes, code: int
) -> None:
    async with connected(server) as faulty, connected(server) as other:
        await join(other)
        faulty.send_text(heartbeat("before"))
        faulty.send(sent)
        await beats(faulty, "before")
        closed = await faulty.receive()
        assert closed is not None
        assert closed.close_code == code, closed
        assert closed.close_reason, "a close says why"
        assert await faulty.receive() is None
        other.send_text('["1","2","room:1","ping",{}]')
        assert json.loads(await other.text())[1] == "2"


async def test_a_message_of_exactly_the_limit_is_taken(server: RecordedServer) -> None:
    async with connected(server, SMALL) as socket:
        text = heartbeat("1").replace("{}", '{"x":""}')
        socket.send_text(text.replace('""', '"' + "x" * (992 - len(text)) + '"'))
        await beats(socket, "1")
        socket.send_text(text.replace('""', '"' + "x" * (993 - len(text)) + '"'))
        assert (await socket.closed()).close_code == 1009


# Control frames and closes.


async def test_a_ping_is_answered_with_its_payload_and_a_pong_with_nothing(server: RecordedServer) -> None:
    async with connected(server) as socket:
        for data in (b"", b"hello", b"\xff" * 125):
            socket.send_frame(data, PING)
            assert await socket.receive() == Frame(PONG, data)
        socket.send_frame(b"unsolicited", PONG)
        await alive(socket)


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1011, 1014, 3000, 4999])
async def test_rule27_a_clients_close_code_is_echoed_and_ends_the_connection(server: RecordedServer, code: int) -> None:
    async with connected(server) as socket:
        await join(socket)
        socket.send_frame(code.to_bytes(2) + b"bye", CLOSE)
        assert (await socket.closed()).close_code == code


async def test_a_close_without_a_code_is_echoed_without_one(server: RecordedServer) -> None:
    async with connected(server) as socket:
        socket.send_frame(b"", CLOSE)
        assert (await socket.closed()).data == b""


async def test_nothing_is_written_after_the_close_frame(server: RecordedServer) -> None:
    """An event published in the very turn in which its listener says goodbye, and all that follow."""
    async with connected(server) as leaving, connected(server) as shouting:
        await join(leaving)
        await join(shouting)
        shout = frame(b'["1","2","room:1","shout",{"n":1}]')
        leaving.send(shout + frame((1000).to_bytes(2), CLOSE) + shout)
        for _ in range(20):
            shouting.send(shout)
        received = []
        while (came := await leaving.receive()) is not None:
            received.append(came)
        assert [one.opcode for one in received[-1:]] == [CLOSE]
        assert CLOSE not in [one.opcode for one in received[:-1]]


async def test_a_client_that_vanishes_is_forgotten(server: RecordedServer) -> None:
    """Case 29."""
    async with connected(server) as other:
        async with connected(server) as socket:
            await join(socket)
            assert await open_connections(server) == 2
        while await open_connections(server) != 1:
            await alive(other)


async def test_a_peer_that_does_not_answer_the_goodbye_is_aborted_in_time(server: RecordedServer) -> None:
    async with connected(server, SOCKET + "&uid=one") as mute, connected(server) as other:
        server.disconnect("one")
        closed = await mute.receive()
        assert closed is not None
        assert closed.close_code == 1001
        mute.send_frame(b"no pong after the goodbye", PING)
        await alive(other)
        assert await open_connections(server) == 2, "it may still answer"
        server.hands.time += CLOSE_SECONDS
        assert await mute.receive() is None
        assert await open_connections(server) == 1


async def test_a_peer_that_never_reads_its_goodbye_is_aborted_in_time(server: RecordedServer) -> None:
    async with connected(server) as deaf, connected(server) as other:
        await join(deaf)
        stop_up(deaf)
        deaf.send_text("nonsense")
        while not closing(server):
            await alive(other)
        assert await open_connections(server) == 2, "its goodbye waits behind what it does not read"
        server.hands.time += CLOSE_SECONDS
        while await open_connections(server) != 1:
            await alive(other)


async def test_rule25_an_idle_peer_is_closed_and_any_frame_counts_as_life(server: RecordedServer) -> None:
    async with connected(server) as idle, connected(server) as pinging:
        timeout = server.hub.config.idle_timeout
        server.hands.time += timeout - 1
        pinging.send_frame(b"", PONG)
        pinging.send_frame(b"1", PING)
        assert await pinging.receive() == Frame(PONG, b"1")
        server.hands.time += 2
        closed = await idle.receive()
        assert closed is not None
        assert (closed.close_code, closed.close_reason) == (1001, "idle")
        await alive(pinging)


# Pings of the hub.


async def test_pings_are_off_unless_they_are_asked_for(server: RecordedServer) -> None:
    async with connected(server) as socket:
        server.hands.time += server.hub.config.idle_timeout - 1
        await alive(socket, "1")
        await alive(socket, "2")


@pytest.fixture
async def pinging(tmp_path: Path) -> AsyncIterator[RecordedServer]:
    async with recorded_server(tmp_path, ("pings", {"ping_interval": 20.0, "idle_timeout": 90.0})) as server:
        yield server


PINGS = f"{PREFIX}/pings/websocket?vsn=2.0.0"


async def pinged(server: RecordedServer, socket: RawSocket) -> None:
    server.hands.time += 20
    assert await socket.receive() == Frame(PING, b"")


async def test_a_peer_that_answers_pings_and_says_nothing_else_stays(pinging: RecordedServer) -> None:
    """Cases 20 and 65: a mobile SDK whose application sleeps."""
    async with connected(pinging, PINGS) as socket:
        for _ in range(3):
            await pinged(pinging, socket)
            socket.send_frame(b"", PONG)
            await alive(socket)


async def test_anything_that_comes_answers_a_ping(pinging: RecordedServer) -> None:
    async with connected(pinging, PINGS) as socket:
        for number in range(3):
            await pinged(pinging, socket)
            await alive(socket, str(number))


async def test_a_ping_that_nothing_answers_closes_before_the_idle_timeout(pinging: RecordedServer) -> None:
    """Case 20: half-open connections are found in two intervals."""
    async with connected(pinging, PINGS) as mute:
        await pinged(pinging, mute)
        pinging.hands.time += 20
        closed = await mute.receive()
        assert closed is not None
        assert (closed.close_code, closed.close_reason) == (1001, "mute")


async def test_a_peer_that_is_behind_is_not_asked_and_not_blamed(pinging: RecordedServer) -> None:
    """What it has not read yet stands before the ping."""
    async with connected(pinging, PINGS) as slow, connected(pinging, PINGS) as awake:
        await join(slow)
        stop_up(slow)
        while not pinging.hub.budget.busy:
            await alive(awake)
        (outbox,) = pinging.hub.budget.busy
        for _ in range(3):
            outbox._progress = pinging.hands.time + 20  # it takes something meanwhile
            await pinged(pinging, awake)
            await alive(awake)
        assert not closing(pinging)
        assert outbox._urgent is None


# Peers that do not read.


@pytest.mark.parametrize("payload", [b"", b"x" * 125])
async def test_a_peer_that_pings_and_never_reads_is_cut_and_holds_nobody_up(
    server: RecordedServer, payload: bytes
) -> None:
    async with connected(server) as deaf, connected(server) as other:
        await join(deaf)
        stop_up(deaf)
        burst = frame(payload, PING) * 5_000
        most = 0
        while not closing(server):
            deaf.send(burst)
            async with asyncio.timeout(20):
                await alive(other)
            most = max(most, server.hub.budget.used)
        held = _held(server)
        for _ in range(3):
            deaf.send(burst)
            await alive(other)
        assert _held(server) <= held, "after the goodbye nothing is added to what the peer does not read"
        assert most <= 2 * URGENT_BYTES
        assert server.hub.budget.cuts["answers"] == 1
        assert server.hub.budget.used == 0
        server.hands.time += CLOSE_SECONDS
        while await open_connections(server) != 1:
            await alive(other)


def _held(server: RecordedServer) -> int:
    port = server.hub._listener
    assert port is not None
    return sum(driver._transport.get_write_buffer_size() for driver in port.drivers)  # type: ignore[attr-defined]
