"""A home in this process: its store in memory, its forwarder dialling whatever URL it is given."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bridge_client.cursor import CursorFile
from bridge_client.forwarder import Forwarder
from bridge_client.link import Link
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore
from tests.faults.apps import Impatient


@asynccontextmanager
async def forwarding(
    store: EventStore, url: str, token: str, server_id: str, cursor: Path, *, instance: str = "home"
) -> AsyncIterator[asyncio.Task[None]]:
    """A forwarder at work for as long as the context lasts; yields its task. It must not have ended by itself."""
    file = CursorFile(cursor, interval=0.01)
    forwarder = Forwarder(
        StoreSource(store),
        file,
        Link(url, token, rng=Impatient(), heartbeat=0.5),
        server_id=server_id,
        hub_url=url,
        name="Home",
        instance=instance,
    )

    async def run() -> None:
        await forwarder.run()

    task = asyncio.create_task(run())
    try:
        yield task
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await file.close()
