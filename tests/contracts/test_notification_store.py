"""What every store of application notifications must do, run against each backend (rows A125 to A129, A133)."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_client import notification_rules as rules
from bridge_client.clock import SystemClock
from bridge_client.notification_rules import Ending, InvalidTransition, NotificationsFull, StaleRevision, draft
from bridge_client.notification_store import ApplicationNotificationStore
from bridge_client.notifications import ApplicationNotifications
from bridge_client.session_records import RecordMoved
from bridge_client.store import EventStore, StoreError
from bridge_client.store.memory import MemoryStore
from bridge_client.store.memory_notifications import MemoryNotifications
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_notifications import SqliteNotifications
from protocol.errors import InvalidEvent
from protocol.requests import MAX_ANSWER_BYTES

Opened = tuple[ApplicationNotificationStore, EventStore]


@asynccontextmanager
async def opened(backend: str, folder: Path) -> AsyncIterator[Opened]:
    if backend == "memory":
        events = MemoryStore()
        yield MemoryNotifications(events), events
        return
    store = await SqliteStore.open(folder / "home.db")
    try:
        yield SqliteNotifications(store), store
    finally:
        await store.close()


@pytest.fixture(params=["memory", "sqlite"])
async def kept(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    async with opened(request.param, tmp_path) as both:
        yield both


def record(id: str, *, key: str | None = None, status: str = "pending", revision: int = 1) -> dict[str, Any]:
    return {"id": id, "key": key or id, "status": status, "revision": revision}


EVENT = {"type": "application_notification_created"}


async def told(events: EventStore) -> list[dict[str, Any]]:
    return [json.loads(event.data) for event in await events.list()]


def app(store: ApplicationNotificationStore) -> ApplicationNotifications:
    return ApplicationNotifications(store, SystemClock())


async def ids(store: ApplicationNotificationStore, *, include_terminal: bool = False) -> list[str]:
    return [one["id"] for one in await store.list(include_terminal=include_terminal)]


async def test_A125_A126_a_record_and_its_event_are_kept_and_found(kept: Opened) -> None:
    store, events = kept
    await store.apply(record("a", key="k"), None, {**EVENT, "n": 1})
    assert await store.get("a") == await store.active("k") == record("a", key="k")
    assert await store.get("k") is None
    assert await store.active("a") is None
    assert [event["n"] for event in await told(events)] == [1]
    await store.apply(record("b"), None, EVENT)
    await store.apply(record("a", key="k", revision=2), record("a", key="k"), EVENT)
    assert await ids(store) == ["a", "b"]  # the last changed first


async def test_a_change_of_a_state_that_is_none_any_more_changes_nothing(kept: Opened) -> None:
    store, events = kept
    first = record("a", key="k")
    await store.apply(first, None, EVENT)
    changes: list[tuple[Any, Any]] = [
        (record("a", key="k", revision=2), None),
        (record("a", key="k", revision=3), record("a", key="k", revision=2)),
        (record("b", revision=2), record("b")),
        (record("other", key="k"), None),  # two active ones of one key
    ]
    for changed, before in changes:
        with pytest.raises(RecordMoved):
            await store.apply(changed, before, EVENT)
    assert await store.list(include_terminal=True) == [first]
    assert len(await told(events)) == 1


@pytest.mark.parametrize(
    "event", [{"type": ""}, {"type": "t", "n": float("nan")}, {"type": "t", "pad": "x" * (2 << 20)}]
)
async def test_A133_an_event_that_can_not_be_stored_leaves_the_record_as_it_was(
    kept: Opened, event: Mapping[str, Any]
) -> None:
    store, events = kept
    with pytest.raises(InvalidEvent):
        await store.apply(record("a"), None, event)
    assert await store.list(include_terminal=True) == []
    await store.apply(record("a"), None, EVENT)
    with pytest.raises(InvalidEvent):
        await store.apply(record("a", status="dismissed", revision=2), record("a"), event)
    assert await store.list() == [record("a")]
    assert len(await told(events)) == 1


async def test_a_store_that_is_closed_says_so_and_changes_nothing(kept: Opened) -> None:
    store, events = kept
    await events.close()
    with pytest.raises(StoreError):
        await store.apply(record("a"), None, EVENT)


async def test_A129_terminal_records_stay_until_retention_removes_the_oldest(
    kept: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "MAX_ENDED", 3)
    store, _ = kept
    for id in "abcdefg":
        await store.apply(record(id), None, EVENT)
    for id in "cabde":
        await store.apply(record(id, status="dismissed", revision=2), record(id), EVENT)
    assert await ids(store) == ["g", "f"]
    assert await ids(store, include_terminal=True) == ["e", "d", "b", "g", "f"]


async def test_A145_the_key_of_a_terminal_one_is_free_again(kept: Opened) -> None:
    store, _ = kept
    await store.apply(record("a", key="k"), None, EVENT)
    await store.apply(record("a", key="k", status="resolved", revision=2), record("a", key="k"), EVENT)
    await store.apply(record("b", key="k"), None, EVENT)
    assert await store.active("k") == record("b", key="k")
    assert await ids(store, include_terminal=True) == ["b", "a"]


async def test_active_ones_are_bounded_and_all_of_the_largest_fit_one_answer(kept: Opened) -> None:
    store, _ = kept
    await asyncio.gather(*(store.apply(record(f"n{n}"), None, EVENT) for n in range(rules.MAX_ACTIVE)))
    with pytest.raises(NotificationsFull, match="dismiss some"):
        await store.apply(record("more"), None, EVENT)
    await store.apply(record("n7", revision=2), record("n7"), EVENT)  # an update needs no room
    await store.apply(record("n8", status="dismissed", revision=2), record("n8"), EVENT)
    await store.apply(record("more"), None, EVENT)
    assert (rules.MAX_ACTIVE + rules.MAX_ENDED) * rules.MAX_RECORD_BYTES < MAX_ANSWER_BYTES


async def test_A144_many_at_once_with_one_key_are_one_notification(kept: Opened) -> None:
    notifications, events = app(kept[0]), kept[1]
    outcomes = await asyncio.gather(*(notifications.create(draft({"title": f"{n}", "key": "k"})) for n in range(30)))
    (one,) = await notifications.list()
    assert one["revision"] == 30
    assert [outcome.record["revision"] for outcome in outcomes] == list(range(1, 31))
    assert {outcome.record["id"] for outcome in outcomes} == {one["id"]}
    types = [event["type"] for event in await told(events)]
    assert types == ["application_notification_created"] + ["application_notification_updated"] * 29


async def test_A144_two_processes_on_one_file_share_one_key(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as (one, events), opened("sqlite", tmp_path) as (other, _):
        both = app(one), app(other)
        said = draft({"title": "t", "key": "k"})
        await asyncio.gather(*(both[n % 2].create(said) for n in range(20)))
        (record,) = await one.list()
        assert record["revision"] == 20
        assert await other.list() == [record]
        assert await events.head() == 20


async def test_A146_A147_A148_A166_A167_the_whole_of_a_life(kept: Opened) -> None:
    notifications, events = app(kept[0]), kept[1]
    made = (await notifications.create(draft({"title": "t", "key": "k"}))).record
    with pytest.raises(StaleRevision) as stale:
        await notifications.end(made["id"], "dismissed", Ending(expected_revision=9))
    assert stale.value.record == made
    dismissed = await notifications.end(made["id"], "dismissed", Ending(expected_revision=1, reason="seen"))
    assert await notifications.end(made["id"], "dismissed", Ending()) == dismissed
    with pytest.raises(InvalidTransition) as invalid:
        await notifications.end(made["id"], "resolved", Ending())
    assert invalid.value.record == dismissed
    assert await notifications.list() == []
    assert await notifications.list(include_terminal=True) == [dismissed]
    again = (await notifications.create(draft({"title": "t", "key": "k"}))).record  # A145
    assert (again["revision"], again["id"] == made["id"]) == (1, False)
    await notifications.end(again["id"], "resolved", Ending())
    old = {"id": "old", "key": "old", "status": "pending", "updated_at": "2025-01-01T00:00:00Z"}
    await kept[0].apply(old, None, EVENT)
    expired = await notifications.end("old", "expired", Ending(expected_revision="2025-01-01T00:00:00Z"))
    assert expired["revision"] == 1
    whole = await told(events)
    assert [event["type"].removeprefix("application_notification_") for event in whole] == [
        "created", "dismissed", "created", "updated", "created", "expired",
    ]  # fmt: skip
    assert [event["notification"]["status"] for event in whole if event is not whole[4]] == [
        "pending", "dismissed", "pending", "resolved", "expired",
    ]  # fmt: skip
    assert not any("session_id" in event for event in whole)  # A123


async def test_A127_A128_they_outlive_whoever_uses_them_and_a_restart(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as (store, _):
        made = (await app(store).create(draft({"title": "t"}))).record
        gone = (await app(store).create(draft({"title": "u"}))).record
        assert await app(store).list() == [gone, made]  # A127: another application object
        gone = await app(store).end(gone["id"], "dismissed", Ending())
    async with opened("sqlite", tmp_path) as (store, events):
        assert await app(store).list() == [made]
        assert await app(store).list(include_terminal=True) == [gone, made]
        assert await events.head() == 3
