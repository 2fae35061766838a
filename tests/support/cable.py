"""A TCP relay on loopback that can be cut and mended, so that a client is dropped without its own doing."""

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self


class Cable:
    """Relays bytes from a port of its own to `port` on 127.0.0.1. While cut, it resets whoever connects at once."""

    def __init__(self, port: int = 0) -> None:
        self._target = port
        self._whole = True
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._accepting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.accepted = 0
        """How many connections have been made over this cable."""

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def lead_to(self, port: int) -> None:
        """Relay new connections to another port: for a server that has to know this cable's port before it starts."""
        self._target = port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._accepting)
        await asyncio.gather(*self._pumps)

    def cut(self) -> None:
        """Reset every connection, on both ends and without a goodbye, and let no new one through."""
        self._whole = False
        for end in self._ends:
            reset(end)

    def mend(self) -> None:
        """Let connections through again."""
        self._whole = True

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepting = asyncio.get_running_loop().create_task(self._connect(reader, writer))
        self._accepting.add(accepting)
        accepting.add_done_callback(self._accepting.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            reset(writer)
            return
        self.accepted += 1
        self._ends.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            self._ends.discard(writer)
            reset(writer)
            return
        self._ends.add(far_writer)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
        if not self._whole:
            self.cut()

    async def carry(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        """Hand on what one end has sent. An OSError ends the connection."""
        sink.write(data)
        await sink.drain()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                await self.carry(data, sink)
        except OSError:
            pass  # a reset of one end: the other end hears of it by the close below
        self._ends.discard(sink)
        sink.close()


def reset(end: asyncio.StreamWriter) -> None:
    """End a connection without a goodbye."""
    line = end.get_extra_info("socket")
    if line is not None and line.fileno() >= 0:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()
