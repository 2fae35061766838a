"""A peer that reads little by little is seen to read: long before the system takes more of what waits for it."""

import asyncio
import socket

from bridge_server.transports.taken import in_system, untaken
from tests.support.processes import until


class Ending(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def test_what_a_slow_reader_takes_is_seen_before_the_system_takes_more() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(listening.getsockname())
        accepted, _ = listening.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * 1024)
        transport, ending = await loop.create_connection(Ending, sock=accepted)
        transport.write(b"x" * 1_000_000)
        seen = [0, 1]

        async def still() -> None:
            while seen[-1] != seen[-2]:
                await asyncio.sleep(0.05)
                seen.append(untaken(transport))

        await still()
        ours, all_of_it = transport.get_write_buffer_size(), untaken(transport)
        assert all_of_it > ours > 0
        await loop.run_in_executor(None, reader.recv, 3_000)
        await until(lambda: untaken(transport) < all_of_it, "the reader was seen to read")
        assert transport.get_write_buffer_size() == ours, "our own count has not moved"
        transport.abort()
        await ending.lost.wait()


def test_what_is_no_socket_holds_nothing() -> None:
    assert in_system(None) == 0
    gone = socket.socket()
    gone.close()
    assert in_system(gone) == 0
