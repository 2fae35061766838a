"""A home in this process: its store in memory, its forwarder dialling whatever URL it is given."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from bridge_client.cursor import CursorFile
from bridge_client.dial import WebSocketDialler, Wire
from bridge_client.forwarder import Forwarder
from bridge_client.link import Link
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore
from tests.faults.apps import Impatient


async def older(url: str, headers: Mapping[str, str]) -> Wire:
    """Dial, and leave out of the home's join what an older version did not say."""
    wire = await WebSocketDialler()(url, headers)
    send = wire.send

    async def without(data: bytes) -> None:
        await send(data.replace(b',"backfill":true', b""))

    wire.send = without  # type: ignore[method-assign]
    return wire


@asynccontextmanager
async def forwarding(
    store: EventStore,
    url: str,
    token: str,
    server_id: str,
    cursor: Path,
    *,
    instance: str = "home",
    past: bool = True,
) -> AsyncIterator[asyncio.Task[None]]:
    """A forwarder at work for as long as the context lasts; yields its task. It must not have ended by itself.

    Without `past` the hub takes it for one of a version that does not send what the hub no longer holds.
    """
    file = CursorFile(cursor, interval=0.01)
    forwarder = Forwarder(
        StoreSource(store),
        file,
        Link(url, token, rng=Impatient(), heartbeat=0.5, dial=None if past else older),
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
