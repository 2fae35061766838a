"""A TCP server in a few lines, that leaves no connection open behind it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(answer: Answer, port: int = 0) -> AsyncIterator[int]:
    """Serve each connection to `port` of 127.0.0.1 (0: any free one) with `answer`; yields the port.

    A connection is closed when `answer` returns, or its peer leaves before it has said what `answer` wants to read; at
    the end all of them are. A transport that nobody closes warns when it is collected, in whatever test runs then.
    """
    served: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # some only look whether anybody listens
        finally:
            writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(serve(reader, writer))
        served[task] = writer
        task.add_done_callback(served.pop)

    server = await asyncio.start_server(accepted, "127.0.0.1", port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        tasks = list(served)
        for task, writer in served.items():
            task.cancel()
            writer.transport.abort()  # a task that never began closes nothing
        await asyncio.gather(*tasks, return_exceptions=True)
