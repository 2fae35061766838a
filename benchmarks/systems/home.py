"""A real home: SQLite store and forwarder. `python -m benchmarks.systems.home DIRECTORY COUNT RATE SIZE`.

Standard input: one line of JSON with `hub_url`, `server_id` and `credential`. With a rate, COUNT events are published
at that many a second while they are forwarded, and one line `{"commit_ns": […]}` tells how long after its mark each was
in the store. With rate 0 the home forwards one event, is cut off, stores all the others, and comes back; `{"started":
nanoseconds}` says when.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.generator import event
from bridge_client.app import forwarding, open_store
from bridge_client.config import Config
from bridge_client.forwarder import Forwarder
from bridge_client.keys import Credential
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore


async def main(directory: Path, count: int, rate: float, size: int) -> None:
    """Serve until killed."""
    credential = Credential(**json.loads(sys.stdin.readline()))
    config = Config(state_dir=directory, hub_url=credential.hub_url)
    async with open_store(config) as store:
        if rate:
            async with connected(config, credential, store):
                print(json.dumps({"commit_ns": await publish(store, count, rate, size)}), flush=True)
                await asyncio.Event().wait()
        async with connected(config, credential, store) as forwarder:
            await store.publish(body(1, size))
            await until(lambda: forwarder.status.acked_id is not None)
        await fill(store, count, size)
        async with forwarding(config, credential, StoreSource(store)) as forwarder:
            print(json.dumps({"started": time.monotonic_ns()}), flush=True)
            await forwarder.run()


@asynccontextmanager
async def connected(config: Config, credential: Credential, store: EventStore) -> AsyncIterator[Forwarder]:
    """A forwarder at work, joined; cut off at the end."""
    async with forwarding(config, credential, StoreSource(store)) as forwarder:
        running = asyncio.ensure_future(forwarder.run())
        await until(lambda: forwarder.status.connected_since is not None or running.done())
        if running.done():
            running.result()  # says why
        await asyncio.sleep(0.5)
        try:
            yield forwarder
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def until(true: Callable[[], bool]) -> None:
    """Look every 10 ms."""
    while not true():  # noqa: ASYNC110 (a forwarder has no event for it)
        await asyncio.sleep(0.01)


async def publish(store: EventStore, count: int, rate: float, size: int) -> list[int]:
    """Publish at a rate; nanoseconds from each event's mark until its publish returned."""
    commits = []
    started = time.monotonic()
    for number in range(1, count + 1):
        await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
        now = time.monotonic_ns()
        await store.publish(body(number, size, now))
        commits.append(time.monotonic_ns() - now)
    return commits


async def fill(store: EventStore, count: int, size: int) -> None:
    """Publish all but the first as fast as the store takes."""
    for first in range(2, count + 1, 500):
        await asyncio.gather(
            *(store.publish(body(number, size)) for number in range(first, min(first + 500, count + 1)))
        )


def body(number: int, size: int, now: int | None = None) -> bytes:
    """An event as an agent makes it: the store adds the id."""
    content = json.loads(event(number, size, now))
    del content["event_id"]
    return json.dumps(content, separators=(",", ":")).encode()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
