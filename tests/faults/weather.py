"""A TCP relay that treats its connections as bad networks do: at random, by a seed, it cuts, stalls and trickles."""

import asyncio
import contextlib
import random
import socket
import struct
from types import TracebackType
from typing import Self


class Weather:
    """Relays connections on a port of its own to `port` on 127.0.0.1; bad until `clear`."""

    def __init__(self, port: int, seed: int) -> None:
        self._target = port
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._bad = True
        self.cuts = self.stalls = self.trickles = 0

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def clear(self) -> None:
        """From here on carry everything at once."""
        self._bad = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        far = None
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target)
            pumps = [
                asyncio.ensure_future(self._pump(reader, far)),
                asyncio.ensure_future(self._pump(far_reader, writer)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._lines.discard(task)
            for end in (writer, far):
                if end is not None:
                    _reset(end)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                chance = self._random.random() if self._bad else 1.0
                if chance < 0.01:
                    self.cuts += 1
                    sink.write(data[: self._random.randint(0, len(data))])  # what is in the way still arrives
                    await sink.drain()
                    return
                if chance < 0.04:
                    self.stalls += 1
                    await asyncio.sleep(self._random.choice((0.05, 0.3, 1.0)))
                elif chance < 0.12:
                    self.trickles += 1
                    while len(data) > 1 and self._bad:
                        size = self._random.randint(1, max(1, len(data) // 3))
                        sink.write(data[:size])
                        await sink.drain()
                        data = data[size:]
                        await asyncio.sleep(0.002)
                sink.write(data)
                await sink.drain()


def _reset(end: asyncio.StreamWriter) -> None:
    line = end.get_extra_info("socket")
    if line is not None and line.fileno() >= 0:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end.transport.abort()
