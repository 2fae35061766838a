"""The replay by itself: pages, pace, one completion, and what eviction does to it at each moment."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from bridge_server.history import Kept
from bridge_server.history.memory import MemoryLog
from bridge_server.replay import PAGE_BYTES, replay
from tests.support.virtual_time import virtual_time

SIZE = PAGE_BYTES // 2 - 1
"""Two of these fit into a page."""


def log_of(last: int, max_events: int = 1000) -> MemoryLog:
    log = MemoryLog(0, max_events, 10**9, 10**9)
    grow(log, last)
    return log


def grow(log: MemoryLog, last: int) -> None:
    for number in range(log.head + 1, last + 1):
        log.append(Kept(number, b"x" * SIZE, "t", None, 0.0))


class Run:
    """One replay; `before_page[n]` is done while the app drains before page n."""

    def __init__(self, log: MemoryLog, before_page: dict[int, Callable[[], None]] | None = None) -> None:
        self.log = log
        self.before_page = before_page or {}
        self.said: list[int | tuple[int, bool, int]] = []
        self.pages = 0
        self.wanted = True
        self.said_fetch: list[tuple[int, int]] = []
        self.home: Callable[[int, int], tuple[Sequence[Kept], int] | None] | None = None

    def send(self, page: Sequence[Kept]) -> None:
        assert sum(len(event.data) for event in page) <= PAGE_BYTES
        self.said += [event.event_id for event in page]

    async def drained(self) -> None:
        self.pages += 1
        if action := self.before_page.get(self.pages):
            action()

    def complete(self, to: int, recovered: bool, last_sent: int) -> bool:
        self.said.append((to, recovered, last_sent))
        return self.wanted

    async def fetch(self, place: int, to: int) -> tuple[Sequence[Kept], int] | None:
        self.said_fetch.append((place, to))
        return self.home(place, to) if self.home else None

    async def go(self, since: int, to: int | None = None) -> bool:
        return await replay(
            self.log,
            since,
            self.log.head if to is None else to,
            send=self.send,
            drained=self.drained,
            complete=self.complete,
            fetch=self.fetch,
        )


@virtual_time
async def test_everything_up_to_the_head_of_the_join_then_the_completion_then_the_rest() -> None:
    run = Run(log_of(7))
    assert await run.go(2, 5) is True
    assert run.said == [3, 4, 5, (5, True, 5), 6, 7]


@virtual_time
async def test_what_is_appended_meanwhile_follows_the_completion() -> None:
    log = log_of(5)
    run = Run(log, {2: lambda: grow(log, 8), 5: lambda: grow(log, 9)})
    assert await run.go(0) is True
    assert run.said == [1, 2, 3, 4, 5, (5, True, 5), 6, 7, 8, 9]


@virtual_time
async def test_each_page_waits_for_the_app() -> None:
    run = Run(log_of(10))
    assert await run.go(0) is True
    assert run.pages == 5


@pytest.mark.parametrize("page", [1, 2, 3])
def test_eviction_before_a_page_withdraws_the_verdict_and_jumps_to_the_head(page: int) -> None:
    @virtual_time
    async def check() -> None:
        log = log_of(6, max_events=6)
        run = Run(log, {page: lambda: grow(log, 14)})
        assert await run.go(0) is True
        sent = 2 * (page - 1)
        assert run.said == [*range(1, sent + 1), (14, False, sent)]

    check()


@virtual_time
async def test_eviction_after_the_completion_ends_it() -> None:
    log = log_of(2, max_events=6)
    run = Run(log, {1: lambda: grow(log, 6), 2: lambda: grow(log, 20)})
    assert await run.go(0) is False
    assert run.said == [1, 2, (2, True, 2)]


@virtual_time
async def test_a_listener_that_wants_no_more_gets_no_more() -> None:
    run = Run(log_of(9))
    run.wanted = False
    assert await run.go(0, 4) is False
    assert run.said == [1, 2, 3, 4, (4, True, 4)]


@virtual_time
async def test_nothing_can_come_between_the_last_page_and_the_end() -> None:
    log = log_of(3)
    run = Run(log)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    seen = -1
    send = run.send

    def last(page: Sequence[Kept]) -> None:
        nonlocal seen
        send(page)
        seen = turns

    run.send = last  # type: ignore[method-assign]
    assert await run.go(0) is True
    assert turns == seen
    task.cancel()


@virtual_time
async def test_a_long_replay_lets_others_run_between_its_pages() -> None:
    run = Run(log_of(40))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    assert await run.go(0) is True
    assert turns >= 19
    task.cancel()
