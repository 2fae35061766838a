"""What the live tier no longer has: fetched from the home's store, a page at a time, for all apps that wait for it.

One fetch serves every app whose place its page covers. A page lives as long as somebody reads this home's past, in a
cache that all homes share: an app that reads slowly holds no page of its own, it asks again. Fetches are few at a time
for each home and one at a time for each device, devices take turns, and what a device reads over its allowance comes
slower. Nothing is fetched ahead: when an app leaves, what only it wanted is not asked for.

The home is not trusted with more than its own events: a page that is not what was asked for, or none in time, fails
who waited for it, and for a while the home is not asked again, so that its apps are told at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

from msgspec import Raw

from bridge_server.history import Kept
from bridge_server.pages import Page, Places, Shared
from protocol import envelope, event_id
from protocol.errors import InvalidEvent

FAILURES: Final = ("offline", "timeout", "bad_page", "unavailable", "retention")
"""Why a page was not to be had: the home is away, did not answer in time, answered what was not asked for, said that
it can't, or does not have these events any more."""


class Missing(Exception):
    """The events asked for are not to be had; `reason` is one of FAILURES."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Fetch:
    """A page that somebody waits for; `id` and `deadline` while it is asked for."""

    __slots__ = ("after", "deadline", "device", "id", "to", "waiting")

    def __init__(self, device: str, after: int, to: int) -> None:
        self.device = device
        self.after = after
        self.to = to
        self.id = ""
        self.deadline: asyncio.TimerHandle | None = None
        self.waiting: dict[asyncio.Future[Page | None], None] = {}

    def settle(self, page: Page | None) -> None:
        """Give the page, or (None) let everybody look again."""
        for future in self.waiting:
            if not future.done():
                future.set_result(page)

    def fail(self, reason: str) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_exception(Missing(reason))


class Backfill:
    """The past of one home, as its apps read it. Not thread-safe.

    `floor` is the lowest place that can be read from, as far as the home has said.
    """

    def __init__(self, shared: Shared, now: Callable[[], float]) -> None:
        self.able = False
        """Whether the home said at its last join that it answers."""
        self.floor = 0
        self.pages: Places[Page] = Places()
        self.shared = shared
        self.limits = shared.limits
        self.readers = 0
        self._now = now
        self._ask: Callable[[str, int, int, int], None] | None = None
        self._muted_until = 0.0
        self._last_id = 0
        self._fetches: Places[_Fetch] = Places()
        self._flying: dict[str, _Fetch] = {}
        self._queues: dict[str, deque[_Fetch]] = {}  # by device, in the order in which it is their turn
        self._debts: dict[str, tuple[float, float]] = {}  # by device: bytes over the allowance, and when that was so

    def asks(self) -> bool:
        """Whether the home would be asked, if it were here."""
        return self.able and self._now() >= self._muted_until

    # The home.

    def opened(self, ask: Callable[[str, int, int, int], None]) -> None:
        """The home is joined: `ask(id, after, to, limit)` asks it for a page."""
        self._ask = ask
        self._pump()

    def lost(self, *, epoch_changed: bool = False) -> None:
        """The home's link is over, perhaps its epoch too. What was asked for is asked for again on the next one."""
        self._ask = None
        self.floor, self._muted_until = 0, 0.0
        flying, self._flying = list(self._flying.values()), {}
        for fetch in reversed(flying):
            self._landed(fetch)
            if fetch.waiting and not epoch_changed:
                self._queue(fetch).appendleft(fetch)
            else:
                self._fetches.pop(fetch.after)
                fetch.settle(None)
        if epoch_changed:
            self._drop_pages()
            self.give_up()

    def give_up(self) -> None:
        """The home does not come: everybody who waits for it is told."""
        self._fail_queued("offline")

    def answered(
        self, page_id: str, events: Sequence[Raw], floor: str | None, error: str | None, max_event_bytes: int
    ) -> str | None:
        """Take the home's answer; returns what is wrong with it. One that nobody asked for (any more) is ignored."""
        fetch = self._flying.pop(page_id, None)
        if fetch is None:
            return None
        self._landed(fetch)
        self._fetches.pop(fetch.after)
        if more := self._queues.pop(fetch.device, None):
            self._queues[fetch.device] = more  # it had its turn
        if error is not None:
            self._refused(fetch, "unavailable")
            return None
        try:
            start = fetch.after if floor is None else max(fetch.after, event_id.parse(floor))
            page = self._checked(fetch, start, events, max_event_bytes)
        except (ValueError, InvalidEvent) as problem:
            self._refused(fetch, "bad_page")
            return str(problem.args[0])
        if start > fetch.after:
            self.floor = start
        if page.to > page.after and self.readers:
            self.pages.put(page.after, page)
            self.shared.keep(self, page)
        fetch.settle(page)
        self._pump()
        return None

    def _checked(self, fetch: _Fetch, start: int, events: Sequence[Raw], max_event_bytes: int) -> Page:
        limits, now = self.limits, self._now()
        if len(events) > limits.page_events:
            raise ValueError(f"more than the {limits.page_events} events asked for")
        sizes = [len(bytes(raw)) for raw in events]
        if sizes and (max(sizes) > max_event_bytes or (len(sizes) > 1 and sum(sizes) > limits.page_bytes)):
            raise ValueError(f"more than {limits.page_bytes} bytes of events, or one above {max_event_bytes}")
        kept: list[Kept] = []
        place = start
        for raw in events:
            data = bytes(raw)
            number, kind, session_id = envelope.read(data)
            if not place < number <= fetch.to:
                raise ValueError(f"event {number} does not lie behind {place} and up to {fetch.to}")
            kept.append(Kept(number, data, kind, session_id, now))
            place = number
        return Page(start, place if kept else fetch.to, kept)

    def _refused(self, fetch: _Fetch, reason: str) -> None:
        self._muted_until = self._now() + self.limits.mute_seconds
        fetch.fail(reason)
        for other in [*self._flying.values()]:
            self._landed(other)
            self._fetches.pop(other.after)
            other.fail(reason)
        self._flying = {}
        self._fail_queued(reason)

    def _fail_queued(self, reason: str) -> None:
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for fetch in queue:
                self._fetches.pop(fetch.after)
                fetch.fail(reason)

    # Apps.

    async def page(self, device: str, place: int, to: int) -> Page:
        """The page that `place` lies in; `to` is above it, and the home has had it. Raises Missing."""
        while True:
            if place < self.floor:
                raise Missing("retention")
            page = self.pages.before(place)
            if page is not None and place < page.to:
                self.shared.touch(self, page.after)
                return page
            if not self.asks():
                raise Missing("unavailable")
            found = await self._wait(self._fetch(device, place, to))
            if found is not None and found.after <= place < found.to:
                return found

    def _fetch(self, device: str, place: int, to: int) -> _Fetch:
        under_way = self._fetches.before(place)
        # Ids are mostly dense. Where the page turns out to end earlier, the rest is fetched after it.
        if under_way is not None and place < min(under_way.to, under_way.after + self.limits.page_events):
            return under_way
        fetch = _Fetch(device, place, to)
        self._fetches.put(place, fetch)
        self._queue(fetch).append(fetch)
        return fetch

    async def _wait(self, fetch: _Fetch) -> Page | None:
        future: asyncio.Future[Page | None] = asyncio.get_running_loop().create_future()
        fetch.waiting[future] = None
        try:
            self._pump()
            return await future
        finally:
            fetch.waiting.pop(future, None)
            if not fetch.waiting and not fetch.id and self._fetches.before(fetch.after) is fetch:
                self._unqueue(fetch)

    def _queue(self, fetch: _Fetch) -> deque[_Fetch]:
        return self._queues.setdefault(fetch.device, deque())

    def _unqueue(self, fetch: _Fetch) -> None:
        self._fetches.pop(fetch.after)
        queue = self._queues[fetch.device]
        queue.remove(fetch)
        if not queue:
            del self._queues[fetch.device]

    def _pump(self) -> None:
        while self._ask is not None and len(self._flying) < self.limits.home_fetches:
            busy = {fetch.device for fetch in self._flying.values()}
            device = next((device for device in self._queues if device not in busy), None)
            if device is None:
                return
            queue = self._queues.pop(device)
            fetch = queue.popleft()
            if queue:
                self._queues[device] = queue  # behind the others
            self._last_id += 1
            fetch.id = str(self._last_id)
            self._flying[fetch.id] = fetch
            loop = asyncio.get_running_loop()
            fetch.deadline = loop.call_later(self.limits.page_seconds, self._late, fetch.id)
            self.shared.fetches += 1
            self._ask(fetch.id, fetch.after, fetch.to, self.limits.page_events)

    def _late(self, page_id: str) -> None:
        fetch = self._flying.pop(page_id, None)
        if fetch is not None:
            self._landed(fetch)
            self._fetches.pop(fetch.after)
            self._refused(fetch, "timeout")

    @staticmethod
    def _landed(fetch: _Fetch) -> None:
        fetch.id = ""
        if fetch.deadline is not None:
            fetch.deadline.cancel()
            fetch.deadline = None

    # Who reads, and how much.

    def entered(self) -> None:
        """One more app reads."""
        self.readers += 1
        self.shared.started += 1

    def left(self) -> None:
        """An app has read enough, or is gone."""
        self.readers -= 1
        if not self.readers:
            self._drop_pages()
            self._debts = {device: debt for device, debt in self._debts.items() if self.debt(device) > 0}

    def _drop_pages(self) -> None:
        for page in self.pages.all():
            self.shared.forget(self, page.after)
        self.pages = Places()

    def debt(self, device: str) -> float:
        """Bytes that a device has read and not yet earned back."""
        owed, since = self._debts.get(device, (0.0, 0.0))
        return max(0.0, owed - (self._now() - since) * self.limits.device_rate)

    def charge(self, device: str, size: int) -> None:
        """A device was handed `size` bytes."""
        self._debts[device] = (self.debt(device) + size, self._now())


class Reader:
    """One app that reads a home's past, in parts. A context manager; it counts as a reader from its first read on."""

    __slots__ = ("_backfill", "_device", "_entered")

    def __init__(self, backfill: Backfill, device: str) -> None:
        self._backfill = backfill
        self._device = device
        self._entered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._entered:
            self._backfill.left()

    async def read(self, place: int, to: int) -> tuple[Sequence[Kept], int] | None:
        """Events behind `place` in order, and the place up to which they are all; None if they are not to be had."""
        backfill, limits = self._backfill, self._backfill.limits
        if not self._entered:
            self._entered = True
            backfill.entered()
        over = backfill.debt(self._device) - limits.device_burst
        if over > 0:
            await asyncio.sleep(over / limits.device_rate)
        try:
            page = await backfill.page(self._device, place, to)
        except Missing as missing:
            backfill.shared.failures[missing.reason] += 1
            return None
        await backfill.shared.turn()
        part, reached = page.part(place, to, limits.part_bytes)
        backfill.charge(self._device, sum(len(event.data) for event in part))
        return part, reached
