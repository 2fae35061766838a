"""Targets that hold a connection: the port's request heads, the frames after an upgrade, and our own channels.

They run on one event loop of this process. The connection is in memory: it takes all, and remembers what it was given.
An error in the hub's log is a find: it is written where an exception was caught.
"""

import asyncio
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bridge_server.auth import Device, Server
from bridge_server.channels import Channel, Handled, Reply, Router
from bridge_server.channels.app import AppChannel, show_home
from bridge_server.channels.presence import Presence
from bridge_server.channels.server import ServerChannel
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.device_cursors import DeviceCursors
from bridge_server.history.memory import MemoryHistory
from bridge_server.home import Homes
from bridge_server.hub import Hub
from bridge_server.limits import Limits
from bridge_server.outbox import Budget
from bridge_server.peer import Peer
from bridge_server.pubsub.memory import MemoryPubSub
from bridge_server.transports.handshake import Mount
from bridge_server.transports.port import MAX_HEAD, Port, Split
from bridge_server.transports.websocket import WebSocketDriver
from bridge_server.transports.websocket import frame as server_frame
from protocol.codec import V1, V2
from protocol.frames import Payload
from tests.fuzz.machines import MAX_RECORDS, SEPARATOR
from tests.support.raw_socket import BINARY, CLOSE, CONTINUATION, PING, frame, head

FRAME_LIMIT: Final = 4096

LOOP = asyncio.new_event_loop()


class Memory(asyncio.Transport):
    """A connection that takes everything at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.ended = False
        self.reading = True

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    def is_closing(self) -> bool:
        return self.ended

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class HandedOver(asyncio.Protocol):
    """Stands where aiohttp's protocol would: what is no upgrade ends here."""


class Echo(Channel):
    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        return Reply("ok", payload)


class _Finds(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def no_errors(allowed: Callable[[BaseException], bool] = lambda error: False) -> Iterator[None]:
    """Fails on what the hub logs as an error meanwhile, and on what its loop could not deliver to anybody."""
    log = logging.getLogger("bridge_server")
    finds = _Finds()
    log.addHandler(finds)
    propagate, log.propagate = log.propagate, False
    lost: list[dict[str, Any]] = []
    LOOP.set_exception_handler(lambda _, context: lost.append(context))
    try:
        yield
    finally:
        log.removeHandler(finds)
        log.propagate = propagate
        LOOP.set_exception_handler(None)
    for record in finds.records:
        error = record.exc_info[1] if record.exc_info else None
        if error is None or not allowed(error):
            raise AssertionError(record.getMessage()) from error
    assert not lost, lost


def _on_loop(work: Callable[[], None], turns: int = 3) -> None:
    """Run `work` on the loop, and a few turns after it for what it has scheduled."""

    async def run() -> None:
        work()
        for _ in range(turns):
            await asyncio.sleep(0)

    LOOP.run_until_complete(run())


def make_port() -> Port:
    router = Router()
    router.add("room:*", Echo)
    mounts = (
        Mount("/socket", router, lambda *_: None, max_frame_bytes=FRAME_LIMIT, channel_limit=5),
        Mount("/zip", router, lambda *_: None, max_frame_bytes=FRAME_LIMIT, channel_limit=5, compression=True),
        Mount("/sub", router, lambda *_: None, subprotocols=("chat.v1",), origins=frozenset({"//*.x.test"})),
    )
    return Port(
        mounts,
        HandedOver,
        hub=Hub(MemoryPubSub()),
        budget=Budget(),
        clock=Clock(lambda: 0.0, lambda: 0.0),
        hosts=frozenset({"localhost"}),
        max_connections=10,
        handshake_timeout=10.0,
        limits=Limits(Config(host="127.0.0.1")),
    )


_UPGRADE = head("/socket/websocket?vsn=2.0.0")
HEAD_TOKENS = (
    *(b"GET ", b" HTTP/1.1\r\n", b"\r\n", b"\r\n\r\n", b"Host: localhost\r\n", b"Upgrade: websocket\r\n", b"\n", b": "),
    *(b"Connection: Upgrade\r\n", b"Sec-WebSocket-Version: 13\r\n", b"Origin: ", b"Sec-WebSocket-Protocol: "),
    *(
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        b"base64url.bearer.phx.",
        b"/socket/websocket",
        b"?vsn=2.0.0",
    ),
    *(
        b"%ff",
        b"%00",
        b"&",
        b"=",
        b"//",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"http://[",
        b"\x00",
    ),
    *(b"\xff", b"POST ", b"HTTP/1.0", b"vsn[]=", b" " * 64, b"Cookie: " + b"a" * 64),
)
HEAD_SEEDS = (
    b"\x00" + _UPGRADE,
    b"\x07" + _UPGRADE + frame(b'[null,"1","phoenix","heartbeat",{}]'),
    b"\x00" + head("/sub/websocket?vsn=1.0.0", "Origin: https://a.x.test", "Sec-WebSocket-Protocol: chat.v1, x"),
    b"\x03" + head("/socket/websocket?vsn=2.0.0&a=%20&b", "Sec-WebSocket-Protocol: base64url.bearer.phx.YQ==, phoenix"),
    b"\x00" + head("//socket//websocket/?vsn=2.0.0").replace(b"\r\nHost", b"\r\n folded\r\nHost"),
    b"\x00POST /socket/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
    b"\x00GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x00\x16\x03\x01\x02\x00\x01",
)

_STATUS = re.compile(rb"HTTP/1\.1 (101|400|403|404|429|431|503) [A-Za-z ]+\r\nDate: ")


def request_head(data: bytes) -> None:
    """Whatever a connection begins with: an answer by the table, a socket, aiohttp's turn, or more bytes awaited."""
    port = make_port()
    transport = Memory()
    step = (data[0] if data else 0) or len(data) or 1
    split = Split(port)

    def work() -> None:
        transport.set_protocol(split)
        split.connection_made(transport)
        for start in range(1, len(data), step):
            receiver = transport.protocol
            assert isinstance(receiver, asyncio.Protocol)
            if transport.ended or isinstance(receiver, HandedOver):
                break
            receiver.data_received(data[start : start + step])
        assert len(split._head) <= MAX_HEAD + step + 4

    with no_errors():
        _on_loop(work)
        if transport.written:
            assert _STATUS.match(transport.written), bytes(transport.written[:100])
        _lose(transport)
    assert not port.drivers
    assert not port.splits


def _lose(transport: Memory) -> None:
    """The connection is over, for whoever holds it."""

    def lost() -> None:
        transport.ended = True
        protocol = transport.protocol
        protocol.connection_lost(None)

    _on_loop(lost)


_V2_JOIN = frame(b'["1","1","room:1","phx_join",{}]')
FRAME_TOKENS = (
    *(
        frame(b"x"),
        frame(b"", PING),
        frame(b"x", CONTINUATION),
        frame(b"\x03\xe8", CLOSE),
        _V2_JOIN,
        b"\x81\x80\0\0\0\0",
    ),
    *(
        b"\x81\xfe\x10\x00\0\0\0\0",
        b"\x81\xff\0\0\0\0\0\0\x10\x01\0\0\0\0",
        b"\x81\x05",
        b"\xc1\x80\0\0\0\0",
        b"\x01\x80\0\0\0\0",
    ),
    *(
        frame(b'["1","2","room:1","ping",{}]'),
        frame(b'["1","2","room:1","phx_leave",{}]'),
        frame(b"\xff"),
        b"\x8f\x80\0\0\0\0",
    ),
)


def _deflated(data: bytes) -> bytes:
    """A message as permessage-deflate sends it (RFC 7692 section 7.2.1)."""
    packer = zlib.compressobj(wbits=-15)
    return (packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


FRAME_SEEDS = (
    b"\x00" + _V2_JOIN + frame(b'["1","2","room:1","ping",{"a":1}]'),
    b"\x05"
    + _V2_JOIN
    + frame(b'["1","2",', fin=False)
    + frame(b"hi", PING)
    + frame(b'"room:1","ping",{}]', CONTINUATION),
    b"\x00" + frame(b"\x00\x01\x01\x06\x0412room:1ping\xff", BINARY) + frame(b"\x03\xe8bye", CLOSE),
    b"\x01" + frame(b'{"topic":"phoenix","event":"heartbeat","payload":{},"ref":1}'),
    b"\x00" + frame(b"x" * 5000),
    b"\x00" + frame(b"", fin=False) + frame(b"", CONTINUATION, fin=False) * 20,
    b"\x02" + _V2_JOIN + frame(_deflated(b'["1","2","room:1","ping",{"a":"aaaaaaaa"}]'), rsv=4),
    b"\x02" + _V2_JOIN + frame(_deflated(b'["1","2","room:1","ping","' + b"a" * 9000 + b'"]'), rsv=4),
    b"\x02" + frame(_deflated(b"x")[:4], rsv=4, fin=False) + frame(_deflated(b"x")[4:], CONTINUATION),
)


def websocket(data: bytes) -> None:
    """Whatever comes after an upgrade: frames of the server, a close with a code by the table, and nothing held."""
    port = make_port()
    transport = Memory()
    how = data[0] if data else 0
    step = (how >> 2) or len(data) or 1
    split = Split(port)

    def open_() -> None:
        transport.set_protocol(split)
        split.connection_made(transport)
        vsn, mount = "1.0.0" if how & 1 else "2.0.0", "zip" if how & 2 else "socket"
        split.data_received(head(f"/{mount}/websocket?vsn={vsn}", "Sec-WebSocket-Extensions: permessage-deflate"))

    def work() -> None:
        driver = transport.protocol
        assert isinstance(driver, WebSocketDriver)
        for start in range(1, len(data), step):
            if transport.ended:
                break
            driver.data_received(data[start : start + step])
            assert len(driver._fragments or ()) <= 1024

    with no_errors(says_no_binary):
        _on_loop(open_)
        assert transport.written.startswith(b"HTTP/1.1 101 ")
        start = len(transport.written)
        _on_loop(work, turns=4 + len(data) // (16 * 1024))
        _are_frames(bytes(transport.written[start:]), len(data))
        _lose(transport)
    assert not port.drivers


def says_no_binary(error: BaseException) -> bool:
    """A channel that echoes what its client's version has no form for has crashed, and that is right."""
    return isinstance(error, ValueError) and ("binary" in str(error))


def _are_frames(data: bytes, given: int) -> None:
    """Whole server frames, the last of which may be a close; no more of them than what was asked can have cost."""
    assert len(data) <= 2 * FRAME_LIMIT * (1 + given // 16)
    at, closed = 0, False
    while at < len(data):
        assert not closed, "something came after the close"
        first, length = data[at], data[at + 1]
        assert first & 0x80, "the server never fragments"
        assert first & 0x0F in (1, 2, CLOSE, 10), first
        at += 2
        if length >= 126:
            size = 2 if length == 126 else 8
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if first & 0x0F == CLOSE:
            closed = True
            assert length == 0 or int.from_bytes(data[at : at + 2], "big") != 1005
        at += length
    assert at == len(data), "a frame was cut short"


SERVER_ID = "a" * 26
_SERVER, _APP = f"server:{SERVER_ID}", f"app:{SERVER_ID}"
PEER_TOKENS = (
    *(SEPARATOR, f'"{_SERVER}"'.encode(), f'"{_APP}"'.encode(), b'"session_event"', b'"session_events"', b'"event_id"'),
    *(
        b'"epoch"',
        b'"head_id"',
        b'"prev_id"',
        b'"since_id"',
        b'"types"',
        b'"partials"',
        b'"type"',
        b'"1"',
        b'"2"',
        b'"e"',
    ),
    *(
        b'"instance"',
        b'"backfill"',
        b'"backfill_page"',
        b'"cursor"',
        b'"floor"',
        b'"name"',
        b'"protocol"',
        b'"events"',
        b'"event"',
        b'{"event_id":"1","type":"x"}',
        b'"session_id"',
    ),
)


def _said(who: int, ref: int, event: str, payload: str) -> bytes:
    topic = _SERVER if who == 0 else _APP
    return bytes((who,)) + f'["{who + 1}","{ref}","{topic}","{event}",{payload}]'.encode()


PEER_SEEDS = tuple(
    SEPARATOR.join(records)
    for records in (
        (
            _said(0, 1, "phx_join", '{"protocol":1,"epoch":"e","head_id":null,"name":"home","instance":"i"}'),
            _said(1, 1, "phx_join", '{"since_id":"0","epoch":"e"}'),
            _said(0, 2, "session_event", '{"event":{"event_id":"1","type":"note","session_id":"s"},"prev_id":null}'),
            _said(0, 3, "session_events", '{"events":[{"event_id":"2","type":"partial"}],"prev_id":"1"}'),
            _said(1, 2, "phx_leave", "{}"),
        ),
        (
            _said(0, 1, "phx_join", '{"epoch":"e","head_id":"9","backfill":true}'),
            _said(0, 2, "session_event", '{"event":{"event_id":"9","type":"note"},"prev_id":"8"}'),
            _said(1, 1, "phx_join", '{"cursor":"server","since_id":"2"}'),
            _said(1, 2, "cursor", '{"event_id":"3","epoch":"e"}'),
            _said(0, 3, "backfill_page", '{"id":"1","events":[{"event_id":"3","type":"x"}],"floor":null}'),
            _said(0, 4, "backfill_page", '{"id":"2","events":[],"floor":"5"}'),
            _said(0, 5, "backfill_page", '{"id":"3","error":"unavailable"}'),
        ),
        (
            _said(1, 1, "phx_join", '{"since_id":"7","types":["note"],"partials":"none"}'),
            _said(0, 1, "phx_join", '{"epoch":"e","head_id":"9"}'),
            _said(0, 2, "session_event", '{"event":{"event_id":"9","type":"note"},"prev_id":"8"}'),
            _said(2, 1, "phx_join", '{"since_id":"10"}'),
            _said(0, 3, "phx_join", '{"epoch":"f","head_id":null}'),
        ),
        (
            _said(0, 1, "phx_join", '{"head_id":7,"epoch":""}'),
            _said(0, 1, "phx_join", '{"head_id":"07","name":"\\u0000"}'),
            _said(1, 1, "phx_join", '{"since_id":"-1","types":[7],"partials":"some"}'),
            _said(0, 1, "phx_join", '{"head_id":"3"}'),
            _said(0, 2, "session_event", '{"event":{"event_id":"3"},"prev_id":"x"}'),
            _said(0, 2, "session_events", '{"events":{},"prev_id":7}'),
        ),
        (_said(0, 1, "phx_join", "{}"), _said(0, 2, "session_event", '{"event":{"event_id":"5","type":"x"}}'), b"\x03"),
    )
)


def home_and_app(data: bytes) -> None:
    """Our own channels: a home and two apps of it say anything, in any order, and no channel crashes."""
    now = [0.0]
    clock = Clock(lambda: now[0], lambda: now[0])
    config = Config(host="127.0.0.1", history_events=20, history_bytes=20_000, status_grace=0.0)
    topics = Hub(MemoryPubSub())
    presence = Presence(topics, clock.now, grace=0, window=0)
    history = MemoryHistory(config.history_events, config.history_bytes, config.history_seconds)
    homes = Homes(history, clock.now, lambda home: show_home(home, presence, clock))
    cursors = DeviceCursors()
    router = Router()
    router.add("server:*", lambda socket: ServerChannel(socket, topics, homes, config, clock))
    router.add("app:*", lambda socket: AppChannel(socket, homes, presence, config, clock, cursors))
    identities = (Server(1, SERVER_ID, "home"), Device(2, "d", SERVER_ID, "phone", frozenset({"view"})))
    shared: dict[str, Any] = {"hub": topics, "router": router, "budget": Budget(), "clock": clock, "channel_limit": 5}
    lines: dict[int, tuple[Memory, Peer]] = {}

    def say(who: int, message: bytes) -> None:
        if who not in lines:
            transport = Memory()
            peer = Peer(_Plain(transport), V1 if who == 2 else V2, identities[min(who, 1)], {}, **shared)
            lines[who] = (transport, peer)
        lines[who][1].receive(message, binary=False)

    with no_errors():
        for record in data.split(SEPARATOR)[:MAX_RECORDS]:
            how = record[0] if record else 3
            who = how & 3
            now[0] += how >> 5
            if who == 3:
                gone = lines.pop((how >> 2) & 1, None)
                _on_loop(lambda gone=gone: gone[1].gone() if gone else None)  # type: ignore[misc]
            else:
                _on_loop(lambda who=who, record=record: say(who, record[1:]))  # type: ignore[misc]
        for _, peer in lines.values():
            _on_loop(peer.gone)
    for home in homes:
        assert home.holder is None
        assert not home.watchers
        assert home.log is None or len(home.log.page(home.log.floor, home.log.head, 2**20) or ()) <= 20
    assert not topics._topics, "listeners stayed"


class _Plain:
    """The transport contract over a Memory, framed as a WebSocket would."""

    def __init__(self, memory: Memory) -> None:
        self.wrap = server_frame
        self.write = memory.write
        self._memory = memory

    def unsent(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._memory.pause_reading()

    def resume_reading(self) -> None:
        self._memory.resume_reading()

    def close(self, code: int, reason: str) -> None:
        assert code in (1001, 1002, 1003, 1007, 1009, 1011, 1012, 1013)
        self._memory.ended = True

    def abort(self) -> None:
        self._memory.ended = True
