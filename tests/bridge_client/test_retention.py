"""Retention: which events go, in which steps, which never; and what readers below the floor are told."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge_client import retention
from bridge_client.dead_letters import DeadLetters
from bridge_client.retention import INTERVAL, MARK_SECONDS, REST, STEP_EVENTS, Keeper, Mark, Rules, due
from bridge_client.runners import Message
from bridge_client.session_records import SessionRecord
from bridge_client.sessions import Sessions
from bridge_client.sources.store import StoreSource
from bridge_client.store import StoreError, sqlite_retention
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_file import _STEPS, SCHEMA_VERSION, open_letters
from bridge_client.store.sqlite_retention import SqliteRetention
from bridge_client.store.sqlite_sessions import SqliteSessions

DAY = 86_400.0


class Clock:
    """Both clocks in a test's hand; who sleeps lets others run, and that is all."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(tmp_path / "home.db")
    yield store
    await store.close()


async def publish(store: SqliteStore, count: int, size: int = 100) -> int:
    """The last id."""
    text = "x" * size
    stored = await asyncio.gather(*(store.publish({"type": "t", "session_id": "s", "x": text}) for _ in range(count)))
    return stored[-1].event_id


def keeper(store: SqliteStore, clock: Clock, acked: Callable[[], int | None] = lambda: 10**9, **rules: Any) -> Keeper:
    return Keeper(SqliteRetention(store), Rules(**rules), acked, clock)


async def ids(store: SqliteStore) -> list[int]:
    return [one.event_id for one in await store.list(limit=10_000)]


# Which events.


def marks(*rows: tuple[int, float, int]) -> list[Mark]:
    return [Mark(event_id, at, 10, size) for event_id, at, size in rows]


THREE = marks((10, 100.0, 50), (20, 200.0, 50), (30, 300.0, 50))


@pytest.mark.parametrize(
    ("rules", "now", "to"),
    [
        (Rules(), 10**9, 0),
        (Rules(seconds=100), 199.0, 0),
        (Rules(seconds=100), 200.0, 10),
        (Rules(seconds=100), 301.0, 20),
        (Rules(seconds=100), 10**9, 30),
        (Rules(size=150), 0.0, 0),
        (Rules(size=149), 0.0, 10),
        (Rules(size=60), 0.0, 20),
        (Rules(size=1), 0.0, 30),
        (Rules(seconds=100, size=60), 200.0, 20),
        (Rules(seconds=100, size=149), 301.0, 20),
    ],
)
def test_whichever_rule_reaches_further_decides(rules: Rules, now: float, to: int) -> None:
    found = due(THREE, rules, now)
    assert (0 if found is None else found.event_id) == to


def test_a_clock_that_went_back_makes_nothing_older_than_it_is() -> None:
    """A machine that starts without a clock stamps 1970, then learns the time: only what is in front may be old."""
    stepped = marks((10, 5_000.0, 50), (20, 3.0, 50), (30, 5_100.0, 50))
    assert due(stepped, Rules(seconds=1_000), 5_200.0) is None
    assert due(stepped, Rules(seconds=150), 5_200.0) == stepped[1]


async def test_events_go_by_age_a_mark_an_hour(store: SqliteStore, clock: Clock) -> None:
    keeping = keeper(store, clock, seconds=DAY)
    for _ in range(30):
        await publish(store, 2)
        await keeping.run_once()
        clock.now += MARK_SECONDS
    assert await ids(store) == list(range(13, 61)), "those of the last 24 hours"
    assert await store.floor() == 12
    clock.now += 90 * DAY
    await keeping.run_once()
    assert await ids(store) == [60], "the newest stays: the store knows its place by it"
    assert await store.head() == 60
    assert await publish(store, 1) == 61


async def test_events_go_by_size_the_oldest_first(store: SqliteStore, clock: Clock) -> None:
    await publish(store, 3_000, size=900)
    await keeper(store, clock, size=1_000_000).run_once()
    held = await store.list(limit=10_000)
    assert [one.event_id for one in held] == list(range(held[0].event_id, 3_001))
    size = sum(len(one.data) for one in held)
    assert 10_000 < size <= 1_000_000 + retention.MARK_BYTES
    found = await SqliteRetention(store).outlook(Rules(size=1_000_000), clock.now)
    assert (found.extent.events, found.extent.size, found.extent.floor) == (len(held), size, held[0].event_id - 1)
    assert (found.extent.oldest, found.due) == (held[0].event_id, 0)


async def test_without_a_rule_everything_stays_and_is_marked_for_the_day_a_rule_comes(
    store: SqliteStore, clock: Clock
) -> None:
    await publish(store, 3_000)
    await keeper(store, clock).run_once()
    clock.now += 100 * DAY
    await keeper(store, clock).run_once()
    assert len(await ids(store)) == 3_000
    await keeper(store, clock, seconds=99 * DAY).run_once()
    assert await ids(store) == [3_000]


# What stays.


@pytest.mark.parametrize(("acked", "left"), [(None, 1), (0, 1), (700, 700), (1_000, 1_000)])
async def test_what_the_hub_has_not_acknowledged_stays(
    store: SqliteStore, clock: Clock, acked: int | None, left: int
) -> None:
    await publish(store, 1_100)
    await keeper(store, clock, lambda: acked, size=1).run_once()
    assert (await ids(store))[0] == left, "the acknowledged event itself is the mark by which the store is known"
    held = await store.list(limit=10_000)
    extent = (await SqliteRetention(store).outlook(Rules(size=1), clock.now)).extent
    assert (extent.events, extent.size) == (len(held), sum(len(one.data) for one in held)), "also within a mark"


async def test_A95_what_a_running_request_needs_stays_and_sessions_with_their_cursors_too(
    store: SqliteStore, clock: Clock
) -> None:
    sessions = Sessions(SqliteSessions(store), clock)
    for name in ("idle", "busy"):
        await sessions.create(session_id=name)
        await sessions.append(name, Message(role="user", content="hello"))
    idle = await sessions.get("idle")
    busy = await sessions.begin("busy", "r", Message(role="user", content="go"), stream=True)
    await publish(store, 3_000)
    await keeper(store, clock, size=1).run_once()
    assert (await ids(store))[0] == busy.cursor_event_id + 1
    assert await sessions.get("idle") == idle
    await sessions.end("busy", "r", [])
    clock.now += MARK_SECONDS
    await keeper(store, clock, size=1).run_once()
    assert len(await ids(store)) < 5
    found: tuple[SessionRecord, Any] = await sessions.history("busy")
    assert [message.content for message in found[1]] == ["hello", "go"]
    await sessions.append("idle", Message(role="user", content="again"))
    assert (await sessions.get("idle")).cursor_event_id == await store.head()


async def test_dead_letters_keep_what_they_hold(store: SqliteStore, clock: Clock) -> None:
    last = await publish(store, 2_000)
    letters = await DeadLetters.open(lambda: open_letters(store.path), store.path)
    data = (await store.list(limit=1))[0].data
    await letters.bury(store.epoch, 1, data, "too large")
    await keeper(store, clock, size=1).run_once()
    assert await ids(store) == [last]
    assert [(letter.event_id, letter.data) for letter in await letters.list()] == [(1, data)]
    await letters.close()


async def test_another_history_in_the_same_file_is_left_alone(store: SqliteStore, clock: Clock, tmp_path: Path) -> None:
    """A copy restored while a pass is under way: its marks are others, and what was due says nothing of its events."""
    stock = SqliteRetention(store)
    await publish(store, 2_000)
    await stock.mark(clock.now)
    backup = sqlite3.connect(tmp_path / "backup.db")
    with closing(sqlite3.connect(store.path)) as file:
        file.backup(backup)
        await publish(store, 2_000)
        while await stock.mark(clock.now):
            pass
        to = (await stock.marks())[-1]
        backup.backup(file)
    backup.close()
    assert (await stock.remove(to, 10**9)).events == 0
    assert await ids(store) == list(range(1, 2_001))


# How.


async def test_each_transaction_is_small_and_the_disk_rests_between_two(store: SqliteStore, clock: Clock) -> None:
    await publish(store, 3_000)
    steps: list[int] = []
    stock = SqliteRetention(store)
    remove = stock.remove

    async def noted(to: Mark, acked: int) -> Any:
        done = await remove(to, acked)
        clock.now += 0.5
        steps.append(done.events)
        return done

    stock.remove = noted  # type: ignore[method-assign]
    clock.slept.clear()
    await Keeper(stock, Rules(size=1), lambda: 10**9, clock).run_once()
    assert sum(steps) == 2_999
    assert max(steps) == STEP_EVENTS
    assert clock.slept.count(0.5 * REST) == len(steps)


async def test_large_events_go_by_bytes(store: SqliteStore, clock: Clock) -> None:
    await publish(store, 12, size=300_000)
    stock = SqliteRetention(store)
    await stock.mark(clock.now)
    removed = await stock.remove((await stock.marks())[-1], 10**9)
    assert (removed.events, removed.floor, removed.more) == (1, 1, True)


def settled(path: Path) -> int:
    """The file's size, with everything in it that was committed."""
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


async def test_freed_space_is_given_back_or_in_an_older_file_used_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_retention, "LEAST_FREE", 1 << 18)
    older = tmp_path / "older.db"
    with closing(sqlite3.connect(older)) as file:  # as versions before retention made it
        for statement in (statement for step in _STEPS[:4] for statement in step):
            file.execute(statement)
        file.execute("INSERT INTO about VALUES ('epoch', 'e')")
        file.execute("PRAGMA user_version = 4")
        file.commit()
    for path, gives in ((older, False), (tmp_path / "new.db", True)):
        store = await SqliteStore.open(path)
        stock = SqliteRetention(store)
        await publish(store, 800, size=2_000)
        full = settled(path)
        for _ in range(2):
            clock.now += MARK_SECONDS
            await keeper(store, clock, size=1).run_once()
        extent = (await stock.outlook(Rules(), clock.now)).extent
        assert extent.gives_back is gives
        assert (settled(path) < full / 2) is gives
        assert (extent.free <= 1 << 18) is gives
        await publish(store, 700, size=2_000)
        assert settled(path) <= full, "what was freed is used again"
        await store.close()


async def test_a_store_that_fails_is_tried_again_a_minute_later(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        asked = 0

        async def mark(self, now: float) -> bool:
            self.asked += 1
            if self.asked == 2:
                raise StoreError("can't write to the event store: disk full: make room on the disk")
            return False

    failing = Failing()
    running = asyncio.create_task(Keeper(failing, Rules(), lambda: 0, clock).run())  # type: ignore[arg-type]
    while failing.asked < 3:
        await asyncio.sleep(0)
    running.cancel()
    assert clock.slept[:2] == [INTERVAL] * 2
    assert [record.getMessage()[:23] for record in caplog.records] == ["retention has to wait: "]


# The floor.


async def test_the_floor_is_durable_and_the_first_event_behind_it_names_the_id_before(
    store: SqliteStore, clock: Clock
) -> None:
    """The floor rule of a hub: from there on everything can be read, from below it can't."""
    await publish(store, 3_000)
    source = StoreSource(store)
    before = await source.page(1_000, 1)
    assert before[0].event_id == 1_001
    await keeper(store, clock, lambda: 2_501, size=1).run_once()
    await store.close()
    again = await SqliteStore.open(store.path)
    try:
        assert await again.floor() == 2_500
        for after in (0, 1_000, 2_500):
            first, second = await StoreSource(again).page(after, 2)
            assert (first.event_id, first.prev_id, second.prev_id) == (2_501, 2_500, 2_501)
        assert (await again.preceding(2_500), await again.preceding(40)) == (2_500, 40)
    finally:
        await again.close()


async def test_a_source_that_stood_in_the_removed_part_says_where_the_past_begins(
    store: SqliteStore, clock: Clock
) -> None:
    """It must not name the event that it gave last as the one before: what lay between is gone."""
    await publish(store, 3_000)
    other = await SqliteStore.open(store.path)  # it knows nothing of what the first has in memory
    source = StoreSource(other)
    assert (await source.page(0, 100))[-1].event_id == 100
    await keeper(store, clock, lambda: 2_501, size=1).run_once()
    first = (await source.page(100, 10))[0]
    assert (first.event_id, first.prev_id) == (2_501, 2_500)
    await other.close()


async def test_a_file_of_the_version_before_is_taken_over_whole(tmp_path: Path) -> None:
    path = tmp_path / "home.db"
    with closing(sqlite3.connect(path)) as file:
        for statement in (statement for step in _STEPS[:4] for statement in step):
            file.execute(statement)
        file.execute("INSERT INTO about VALUES ('epoch', 'kept')")
        file.execute("INSERT INTO events VALUES (7, 's', NULL, ?)", (b'{"event_id":"7","type":"t","session_id":"s"}',))
        file.execute("PRAGMA user_version = 4")
        file.commit()
    store = await SqliteStore.open(path)
    assert (store.epoch, await store.floor(), await ids(store)) == ("kept", 0, [7])
    assert json.loads((await store.publish({"type": "t"})).data)["event_id"] == "8"
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    await store.close()


def test_a_step_is_small_beside_what_a_publish_may_wait() -> None:
    assert STEP_EVENTS <= 500
    assert retention.STEP_BYTES <= 1 << 20
