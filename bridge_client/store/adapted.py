"""A store that can only publish and list, as an event store: everything else is made from these two (row A7)."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final

from bridge_client.store import PlainStore, StoreClosed, Stored

FASTEST_LOOK: Final = 0.05
SLOWEST_LOOK: Final = 2.0
"""Seconds between two looks for events that others have stored: doubled from the fastest while none comes."""

_Events = list[Stored]  # inside the class, `list` is a method


class Adapted:
    """`EventStore` over a `PlainStore`, which stays the caller's to close.

    What this object publishes wakes whoever waits at once; what others store is looked for. The last id is found by
    reading on from the last one known, at first from the start: give `known_head` to spare a large store that.

    `epoch` names the life of the store, which is the caller's to keep: nothing is kept here. None makes a new one, and
    the hub is then sent everything again. A store that goes back in time is not noticed here.
    """

    def __init__(self, plain: PlainStore, *, epoch: str | None = None, known_head: int = 0) -> None:
        self._plain = plain
        self._epoch = token_hex(16) if epoch is None else epoch
        self._known_head = known_head
        self._changed = asyncio.Event()
        self._closed = False

    @property
    def epoch(self) -> str:
        return self._epoch

    @property
    def restored(self) -> int:
        return 0

    async def publish(self, event: Mapping[str, Any] | bytes) -> Stored:
        self._check_open()
        stored = await self._plain.publish(event)
        self._wake()
        return stored

    async def publish_many(self, events: Sequence[Mapping[str, Any] | bytes]) -> _Events:
        return [await self.publish(event) for event in events]

    async def list(
        self,
        *,
        since_id: int | None = None,
        limit: int = 500,
        session_id: str | None = None,
        request_id: str | None = None,
    ) -> list[Stored]:
        self._check_open()
        return await self._plain.list(since_id=since_id, limit=limit, session_id=session_id, request_id=request_id)

    def recent(self, after: int, limit: int = 500) -> _Events | None:
        self._check_open()
        return None

    async def head(self) -> int | None:
        while page := await self.list(since_id=self._known_head):
            self._known_head = page[-1].event_id
        return self._known_head or None

    async def floor(self) -> int:
        """What a store removes that does not say so is not known here."""
        self._check_open()
        return 0

    async def preceding(self, event_id: int) -> int | None:
        found: int | None = None
        while page := await self.list(since_id=found):
            below = [event.event_id for event in page if event.event_id <= event_id]
            if not below:
                break
            found = below[-1]
        return found

    async def wait(self, after: int) -> None:
        pause = FASTEST_LOOK
        while True:
            self._check_open()
            changed = self._changed  # taken before the look: what is stored during it ends the pause
            if await self.list(since_id=after, limit=1):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await changed.wait()
            pause = min(2 * pause, SLOWEST_LOOK)

    async def renew_epoch(self) -> str:
        self._check_open()
        self._epoch = token_hex(16)
        return self._epoch

    async def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosed("the event store is closed")
