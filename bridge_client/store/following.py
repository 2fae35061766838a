"""Following a store that other processes write too: what is known of its end, and who waits for more.

Other processes' events are looked for while somebody waits: soon after the last one seen, ever more rarely while none
comes. What this process stores wakes whoever waits without any look.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from bridge_client.store import Stored
from bridge_client.store.tail import Tail
from bridge_client.store.waiters import Waiters

FASTEST_LOOK: Final = 0.010
SLOWEST_LOOK: Final = 0.250
"""Seconds between two looks for events of other processes: doubled from the fastest while none comes."""


class Followed(ABC):
    """The part of an EventStore that knows its end. It belongs to the event loop in which it is made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.waiters = Waiters()
        self._changed = asyncio.Event()
        self._known_head = 0
        self._restored = 0
        self._tail = Tail()
        self._pause = FASTEST_LOOK
        self._next_look = 0.0

    @property
    def restored(self) -> int:
        return self._restored

    def recent(self, after: int, limit: int = 500) -> list[Stored] | None:
        self._check_open()
        if after == self._known_head:
            return []
        return self._tail.after(after, limit) or None

    async def wait(self, after: int) -> None:
        restored = self._restored
        while True:
            self._check_open()
            if self._known_head > after or self._restored != restored:
                return
            now = self._loop.time()
            if now >= self._next_look:
                self._next_look = now + self._pause  # one look serves all who wait
                await self._look()
                continue
            look = self._loop.call_at(self._next_look, self._wake)
            try:
                await self._changed.wait()
            finally:
                look.cancel()

    async def wait_for(self, woken: asyncio.Event) -> None:
        """Return once `woken`, one of `waiters`, is set: also by other processes' commits. Raises StoreError."""
        while not woken.is_set():
            self._check_open()
            now = self._loop.time()
            if now >= self._next_look:
                self._next_look = now + self._pause
                await self._look()
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_look):
                    await woken.wait()
        self._check_open()

    @abstractmethod
    def _check_open(self) -> None:
        """Raises StoreClosed."""

    @abstractmethod
    async def _look(self) -> None:
        """See what others have committed, and call `_looked` or `_went_back`. Raises StoreError."""

    def _looked(self, head: int) -> bool:
        """The last id is this one, it was seen to be; whether that is news, and somebody else's."""
        if head <= self._known_head:
            return False
        self._pause, self._next_look = FASTEST_LOOK, self._loop.time() + FASTEST_LOOK
        self._advance(head)
        self.waiters.tell_all()
        return True

    def _went_back(self, head: int) -> None:
        """A copy was restored: what is there now is not what was there."""
        self._tail.clear()
        self._known_head = head
        self._restored += 1
        self._wake_all()

    def _stored(self, events: Sequence[Stored]) -> None:
        """These were committed one after the other, by this process."""
        self._tail.append(events)
        self._advance(events[-1].event_id)

    def _advance(self, head: int) -> None:
        if head > self._known_head:
            self._known_head = head
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _wake_all(self) -> None:
        self._wake()
        self.waiters.tell_all()
