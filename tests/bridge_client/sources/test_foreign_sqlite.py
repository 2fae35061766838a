"""Somebody else's file: what its tables may look like, and what may happen to it."""

import asyncio
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge_client.dead_letters import DeadLetters
from bridge_client.source_spec import SqliteSpec, parse
from bridge_client.sources import SourceRefused
from bridge_client.sources.foreign_sqlite import ForeignSqlite
from bridge_client.sources.own_epoch import OwnEpoch
from tests.contracts.test_sources import read

DEADLINE = 20


def run(path: Path, script: str, *rows: tuple[Any, ...]) -> None:
    with closing(sqlite3.connect(path)) as connection:
        if rows:
            connection.executemany(script, rows)
        else:
            connection.executescript(script)
        connection.commit()


def make(path: Path, count: int = 0, journal: str = "WAL") -> None:
    run(path, f"PRAGMA journal_mode={journal}; CREATE TABLE events (id INTEGER PRIMARY KEY, body TEXT)")
    if count:
        add(path, *range(1, count + 1))


def add(path: Path, *ids: int, text: str = "") -> None:
    run(path, "INSERT INTO events VALUES (?, ?)", *((n, json.dumps({"type": "note", "n": n, "t": text})) for n in ids))


async def opened(path: Path, options: str = "table=events", letters: DeadLetters | None = None) -> ForeignSqlite:
    name = f"sqlite:{path}?{options}"
    spec = parse(name)
    assert isinstance(spec, SqliteSpec)
    return await ForeignSqlite.open(spec, OwnEpoch(path.parent / "epoch", name), letters=letters)


async def ids(source: ForeignSqlite, after: int = 0) -> list[int]:
    return [event.event_id for event in await read(source, after)]


@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
async def test_the_file_is_only_read(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "agent.db"
    make(path, 3, journal)
    before = path.read_bytes()
    source = await opened(path)
    assert await ids(source) == [1, 2, 3]
    with closing(sqlite3.connect(path)) as connection:  # its owner is not locked out
        connection.execute("BEGIN EXCLUSIVE")
        connection.rollback()
    await source.close()
    assert path.read_bytes() == before


async def test_events_made_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    run(path, 'CREATE TABLE "my log" (seq INTEGER PRIMARY KEY, kind TEXT, "the session" TEXT, payload, ratio REAL)')
    run(path, 'INSERT INTO "my log" VALUES (?, ?, ?, ?, ?)',
        (5, "final", "s1", '{"a": 1.0}', 0.5), (6, "note", None, None, 9e999), (7, "bad", "s", "{", 1.0))  # fmt: skip
    mapping = "map=type:kind,session_id:the session,data:payload,ratio:ratio"
    source = await opened(path, f"table=my log&id=seq&{mapping}&json=payload")
    events = await source.page(0)
    await source.close()
    assert [event.data for event in events[:2]] == [
        b'{"event_id":"5","type":"final","session_id":"s1","data":{"a": 1.0},"ratio":0.5}',
        b'{"event_id":"6","type":"note","ratio":null}',
    ]
    assert json.loads(events[2].data)["type"] == "unforwardable"
    assert [event.prev_id for event in events] == [4, 5, 6]


async def test_a_view_and_a_table_without_an_id(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    run(path, "CREATE TABLE raw (body TEXT); CREATE VIEW seen AS SELECT rowid AS id, body FROM raw WHERE body != ''")
    run(path, "INSERT INTO raw VALUES (?)", ('{"type":"a"}',), ("",), ('{"x":1}',))
    view = await opened(path, "table=seen&type=plain&dense=no")
    assert [event.data for event in await read(view)] == [
        b'{"event_id":"1","type":"a"}', b'{"event_id":"3","type":"plain","x":1}',
    ]  # fmt: skip
    await view.close()
    table = await opened(path, "table=raw&id=rowid&type=plain")
    assert await ids(table) == [1, 2, 3]
    await table.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("table=nothing", "no table or view 'nothing'; it has events, words"),
        ("table=events&body=nothing", "no column 'nothing'; it has id, body"),
        ("table=events&id=nothing", "no column 'nothing'"),
        ("table=words&id=word&body=word", "holds text"),
        ("table=events&map=type:body,x:nothing", "no column 'nothing'"),
    ],
)
async def test_a_source_that_is_not_as_it_was_named_is_refused(tmp_path: Path, options: str, said: str) -> None:
    path = tmp_path / "agent.db"
    make(path, 1)
    run(path, "CREATE TABLE words (word TEXT); INSERT INTO words VALUES ('a')")
    with pytest.raises(SourceRefused, match=said):
        await opened(path, options)


async def test_bad_rows_leave_a_tombstone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "agent.db"
    make(path)
    rows = [None, 7, "", "{", "[]", '{"n":1}', b'{"type":"\xff"}', '{"type":"good"}']
    run(path, "INSERT INTO events VALUES (?, ?)", *enumerate(rows, 1))
    letters = DeadLetters.in_memory()
    source = await opened(path, letters=letters)
    events = await read(source)
    assert await read(source) == events
    await source.close()
    assert [json.loads(event.data)["type"] for event in events] == ["unforwardable"] * 7 + ["good"]
    assert all(caplog.text.count(f"event {n} of") == 1 for n in range(1, 8)), "said once"
    kept = [(letter.event_id, letter.data) for letter in await letters.list()]
    assert kept == [(1, b""), (2, b"7"), (3, b""), (4, b"{"), (5, b"[]"), (6, b'{"n":1}'), (7, rows[6])]


async def test_a_hole_is_waited_for_and_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "agent.db"
    make(path, 3)
    source = await opened(path)
    monkeypatch.setattr(source._holes, "_patience", DEADLINE)  # what fills it may come late, on a busy machine
    async with asyncio.timeout(DEADLINE):
        assert await ids(source) == [1, 2, 3]
        add(path, 5)
        assert await source.page(3) == []
        waiting = asyncio.ensure_future(source.wait(3))
        add(path, 4)
        await waiting
        assert await ids(source, 3) == [4, 5]
    await source.close()


async def test_a_hole_that_stays_is_passed_and_who_comes_late_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, letters = tmp_path / "agent.db", DeadLetters.in_memory()
    make(path, 1)
    source = await opened(path, letters=letters)
    async with asyncio.timeout(DEADLINE):
        assert await ids(source) == [1]
        add(path, 4)
        began = asyncio.get_running_loop().time()
        await source.wait(1)
        assert asyncio.get_running_loop().time() - began >= 0.9
        assert [(e.event_id, e.prev_id) for e in await source.page(1)] == [(4, 1)]
        add(path, 3)
        add(path, 5)
        await source.wait(4)
        assert await ids(source, 4) == [5]
    await source.close()
    assert caplog.text.count("event 3 of") == 1
    [late] = await letters.list()
    assert (late.event_id, late.replaced) == (3, False)
    assert letters.tombstone(source.epoch, 3) is None
    assert json.loads(late.data)["type"]


async def test_a_replaced_file_begins_another_epoch(tmp_path: Path) -> None:
    path, other = tmp_path / "agent.db", tmp_path / "other.db"
    make(path, 5)
    make(other, journal="DELETE")
    add(other, *range(1, 10), text="another")
    source = await opened(path)
    async with asyncio.timeout(DEADLINE):
        assert await ids(source) == [1, 2, 3, 4, 5]
        before = source.epoch
        waiting = asyncio.ensure_future(source.wait(5))
        for rest in ("-wal", "-shm"):
            Path(f"{path}{rest}").unlink(missing_ok=True)
        os.replace(other, path)
        await waiting
        assert source.epoch != before
        assert await source.head() == 9
        assert await ids(source) == list(range(1, 10))
    await source.close()


async def test_a_copy_that_goes_on_is_the_same_life(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    make(path, 5, "DELETE")
    source = await opened(path)
    assert await ids(source) == [1, 2, 3, 4, 5]
    before = source.epoch
    shutil.copy(path, tmp_path / "copy")
    os.replace(tmp_path / "copy", path)
    add(path, 6)
    assert await ids(source, 5) == [6]
    assert source.epoch == before
    await source.close()


async def test_a_file_restored_while_nobody_looked_is_known_by_its_last_event(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    make(path, 5, "DELETE")
    source = await opened(path)
    assert await ids(source) == [1, 2, 3, 4, 5]
    before = source.epoch
    await source.close()

    add(path, 6)
    again = await opened(path)
    assert again.epoch == before
    assert await ids(again, 5) == [6]
    await again.close()

    run(path, "DELETE FROM events WHERE id > 2")
    add(path, *range(3, 10), text="written after the restore")
    restored = await opened(path)
    assert restored.epoch != before
    assert await ids(restored) == list(range(1, 10))
    await restored.close()


async def test_a_file_that_is_away_or_locked_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with asyncio.timeout(DEADLINE):
        opening = asyncio.ensure_future(opened(path))
        await asyncio.sleep(0.05)
        assert not opening.done()
        make(path, 2, "DELETE")
        source = await opening
        assert await ids(source) == [1, 2]
        epoch = source.epoch
        os.replace(path, tmp_path / "moved")
        assert await source.page(0) == []
        waiting = asyncio.ensure_future(source.wait(1))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        os.replace(tmp_path / "moved", path)
        await waiting
        assert (await ids(source, 1), source.epoch) == ([2], epoch)
        await source.close()


async def test_looking_at_the_head_disturbs_nobody(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    make(path, 5)
    source = await opened(path)
    assert await ids(source) == [1, 2, 3, 4, 5]
    before = source.epoch
    run(path, "DELETE FROM events WHERE id > 2")
    assert await source.peek() == 2
    assert source.epoch == before
    assert await source.page(5) == []
    assert source.epoch != before
    await source.close()
