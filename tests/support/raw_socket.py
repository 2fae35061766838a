"""A WebSocket client that may break every rule: it sends any bytes, and shows each frame the server sends.

It shares no code with the server under test: frames are built and read here, by RFC 6455 section 5.2.
"""

import asyncio
import contextlib
import ssl
import struct
from types import TracebackType
from typing import NamedTuple, Self

from tests.support.processes import PATIENCE

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

KEY = "dGhlIHNhbXBsZSBub25jZQ=="


class Frame(NamedTuple):
    """One frame from the server."""

    opcode: int
    data: bytes

    @property
    def text(self) -> str:
        assert self.opcode == TEXT, f"not a text frame: {self!r}"
        return self.data.decode()

    @property
    def close_code(self) -> int:
        assert self.opcode == CLOSE, f"not a close frame: {self!r}"
        return int.from_bytes(self.data[:2])

    @property
    def close_reason(self) -> str:
        assert self.opcode == CLOSE, f"not a close frame: {self!r}"
        return self.data[2:].decode()


class Response(NamedTuple):
    """The answer to a request head."""

    status: int
    headers: dict[str, str]
    body: bytes


def head(path: str, *lines: str, host: str = "localhost") -> bytes:
    """A valid upgrade request with further header lines."""
    fixed = (
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {KEY}",
        "Sec-WebSocket-Version: 13",
    )
    return "\r\n".join((*fixed, *lines, "", "")).encode()


def frame(data: bytes, opcode: int = TEXT, *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    """One client frame. The mask is zero, which RFC 6455 allows and which keeps the payload readable in a dump."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    mask = 0x80 if masked else 0
    if len(data) < 126:
        lengths = struct.pack("!BB", first, mask | len(data))
    elif len(data) < 65_536:
        lengths = struct.pack("!BBH", first, mask | 126, len(data))
    else:
        lengths = struct.pack("!BBQ", first, mask | 127, len(data))
    return lengths + (b"\0\0\0\0" if masked else b"") + data


class RawSocket:
    """One TCP connection to a server, on 127.0.0.1 by default, with TLS if a context is given.

    An async context manager; leaving it ends the connection.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def abort(self) -> None:
        """Vanish without a goodbye."""
        self._writer.transport.abort()

    def stop_reading(self) -> None:
        """Take nothing more: what the server sends fills the buffers of both kernels, then its own."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def read_on(self) -> None:
        """Take what has come since `stop_reading`, and go on."""
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    def send(self, data: bytes) -> None:
        """Send bytes as they are. Bytes for a connection that the server ended are lost, as on any wire."""
        self._writer.write(data)

    def send_frame(
        self, data: bytes, opcode: int = TEXT, *, fin: bool = True, rsv: int = 0, masked: bool = True
    ) -> None:
        self.send(frame(data, opcode, fin=fin, rsv=rsv, masked=masked))

    def send_text(self, text: str) -> None:
        self.send_frame(text.encode())

    async def sent(self) -> None:
        """Wait until what was sent has left this process."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def take(self, count: int) -> bytes:
        """That many bytes of what the server sends, whatever they are."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readexactly(count)

    async def upgrade(self, path: str, *lines: str, host: str = "localhost") -> Response:
        """Ask for an upgrade; the server's answer. After 101 frames may be sent and received."""
        self.send(head(path, *lines, host=host))
        return await self.response()

    async def response(self) -> Response:
        """The next HTTP answer."""
        async with asyncio.timeout(PATIENCE):
            raw = await self._reader.readuntil(b"\r\n\r\n")
            first, *rest = raw.decode("latin-1").split("\r\n")
            headers = dict(line.lower().split(": ", 1)[:1] + line.split(": ", 1)[1:] for line in rest if line)
            body = await self._reader.readexactly(int(headers.get("content-length", 0)))
        return Response(int(first.split(" ")[1]), headers, body)

    async def receive(self) -> Frame | None:
        """The next frame; None at the end of the stream, however it ended."""
        try:
            async with asyncio.timeout(PATIENCE):
                first, second = await self._reader.readexactly(2)
                assert first & 0x80, "the server never fragments"
                assert not first & 0x70, "the server negotiated no extension, so no reserved bit may be set"
                assert not second & 0x80, "a server's frame is not masked"
                length = second
                if length == 126:
                    length = int.from_bytes(await self._reader.readexactly(2))
                elif length == 127:
                    length = int.from_bytes(await self._reader.readexactly(8))
                return Frame(first & 0x0F, await self._reader.readexactly(length))
        except ConnectionError:
            return None
        except asyncio.IncompleteReadError as end:
            if end.partial:
                raise
            return None

    async def text(self) -> str:
        """The next frame, which must be a text frame."""
        received = await self.receive()
        assert received is not None, "the connection ended"
        return received.text

    async def closed(self) -> Frame:
        """The close frame, which must be next, and after which nothing may come."""
        received = await self.receive()
        assert received is not None, "the connection ended without a close frame"
        assert received.opcode == CLOSE, f"a close frame was expected: {received!r}"
        assert await self.receive() is None, "something came after the close frame"
        return received

    async def ended(self) -> None:
        """Wait for the end of the stream; what comes before it is thrown away."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(PATIENCE):
                while await self._reader.read(65_536):
                    pass
