"""A TCP relay that knows WebSocket frames, so that a connection can be cut exactly between two of them, or frozen."""

import asyncio
import contextlib
import socket
import struct
from types import TracebackType
from typing import Literal, Self

Loss = Literal["lost", "delivered"]


class Wire:
    """Relays connections on a port of its own to `port` on 127.0.0.1.

    `cut_at` = n resets the first connection at its n-th frame, counted over both directions (the two heads of the
    upgrade are frame 0): the frame is `lost` with the connection, or still `delivered`. `cuts` counts such resets.
    """

    def __init__(self, port: int, *, cut_at: int | None = None, loss: Loss = "lost") -> None:
        self._target = port
        self._cut_at = cut_at
        self._loss = loss
        self._frozen = False
        self._lines: set[_Line] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._over = False
        self._server: asyncio.Server | None = None
        self.accepted = 0
        self.cuts = 0

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._over = True
        self.reset()
        await asyncio.gather(*self._serving)

    def reset(self) -> None:
        """Reset every connection, on both ends, without a goodbye."""
        for line in tuple(self._lines):
            line.reset()

    def say_goodbye(self, code: int) -> None:
        """Send the client of every connection a close frame as if from the hub, then end it."""
        for line in tuple(self._lines):
            line.goodbye(code)

    def freeze(self) -> None:
        """Carry nothing more on the connections there are, without ending them: a path that swallows packets."""
        for line in self._lines:
            line.frozen = True

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        serving = asyncio.get_running_loop().create_task(self._serve(reader, writer, self.accepted == 1))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bool) -> None:
        try:
            far = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            _reset(writer)
            return
        line = _Line(self, (reader, writer), far, self._cut_at if first else None)
        self._lines.add(line)
        if self._over:  # it came while the wire was taken away
            line.reset()
        try:
            await line.carry(self._loss)
        finally:
            self._lines.discard(line)


class _Line:
    def __init__(
        self,
        wire: Wire,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        cut_at: int | None,
    ) -> None:
        self._wire = wire
        self._near = near
        self._far = far
        self._cut_at = cut_at
        self._frames = 0
        self.frozen = False

    def reset(self) -> None:
        for _, writer in (self._near, self._far):
            _reset(writer)

    def goodbye(self, code: int) -> None:
        if not self.frozen:
            self._near[1].write(struct.pack("!BBH", 0x88, 2, code))
        self.frozen = True
        self._near[1].close()
        self._far[1].close()

    async def carry(self, loss: Loss) -> None:
        pumps = [
            asyncio.create_task(self._pump(self._near[0], self._far[1], loss)),
            asyncio.create_task(self._pump(self._far[0], self._near[1], loss)),
        ]
        await asyncio.gather(*pumps)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, loss: Loss) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await self._pass(await source.readuntil(b"\r\n\r\n"), sink)
            while True:
                frame = await _frame(source)
                self._frames += 1
                cut = self._frames == self._cut_at
                if not cut or loss == "delivered":
                    await self._pass(frame, sink)
                if cut:
                    self._wire.cuts += 1
                    if loss == "delivered":
                        sink.close()  # in order, so that the frame arrives; the other direction is reset
                    self.reset() if loss == "lost" else _reset(self._other(sink))
        if not self.frozen:
            sink.close()

    def _other(self, sink: asyncio.StreamWriter) -> asyncio.StreamWriter:
        return self._near[1] if sink is self._far[1] else self._far[1]

    async def _pass(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        if not self.frozen:
            sink.write(data)
            await sink.drain()


async def _frame(source: asyncio.StreamReader) -> bytes:
    """One whole WebSocket frame as it stands (RFC 6455 section 5.2)."""
    data = await source.readexactly(2)
    length, masked = data[1] & 0x7F, data[1] & 0x80
    extra = {126: 2, 127: 8}.get(length, 0)
    if extra:
        size = await source.readexactly(extra)
        data, length = data + size, int.from_bytes(size)
    return data + await source.readexactly(length + (4 if masked else 0))


def _reset(end: asyncio.StreamWriter) -> None:
    line = end.get_extra_info("socket")
    if line is not None and line.fileno() >= 0:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()
