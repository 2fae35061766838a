"""The events of one request on their way into the store: what arrives during a commit is stored by the next one.

One batch is under way at a time, so that behind an event that could not be stored there is none. An event that finds
nothing under way is stored at once. Bounded: who puts more than may wait has to wait itself.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from bridge_client.event_json import encode
from bridge_client.store import EventStore

MAX_WAITING: Final = 256
"""Events that wait while others are being stored; as many may be in the store's hands."""

MAX_WAITING_BYTES: Final = 1 << 20
"""Their JSON; one event more may be on top of it."""


class Publishing:
    """`put` events, in the order in which they are to be stored; `flush` before anything that depends on them."""

    def __init__(self, store: EventStore) -> None:
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        """Done with what the store raised first. Nothing that was put is stored after that."""
        self._store = store
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._put = 0
        self._stored = 0
        self._moved = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def put(self, event: Mapping[str, Any]) -> None:
        """Take it; it is stored also if this is cancelled.

        Raises InvalidEvent for what is no JSON, which changes nothing, and what `failed` has.
        """
        if self.failed.done():
            raise self.failed.result()
        self._waiting.append(data := encode(event))
        self._bytes += len(data)
        self._put += 1
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        await asyncio.sleep(0)  # whoever never waits for anything else lets others have their turn here
        await self._while(lambda: len(self._waiting) >= MAX_WAITING or self._bytes > MAX_WAITING_BYTES)

    async def flush(self) -> None:
        """Return once everything that was put is durable. Raises what `failed` has."""
        put = self._put
        await self._while(lambda: self._stored < put)

    async def _while(self, holds: Callable[[], bool]) -> None:
        while holds() and not self.failed.done():
            await self._moved.wait()
        if self.failed.done():
            raise self.failed.result()

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting, self._bytes = self._waiting, [], 0
                self._move()
                await self._store.publish_many(batch)
                self._stored += len(batch)
                self._move()
        except Exception as error:
            self.failed.set_result(error)
            self._waiting.clear()
            self._move()

    def _move(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
