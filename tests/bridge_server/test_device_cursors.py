"""The place a device is kept at: what it says, when it is written, what a join makes of it."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge_server import device_cursors
from bridge_server.database import Database
from bridge_server.device_cursors import DeviceCursors
from protocol.event_id import Cursor
from tests.support.running_hub import running_hub
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import Bench, HomeWire, Wire


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_cursors, "WRITE_SECONDS", 0.01)


def written(path: Path) -> dict[str, Cursor]:
    """What another process sees."""
    with closing(sqlite3.connect(path)) as connection:
        return {row[0]: Cursor(*row[1:]) for row in connection.execute("SELECT * FROM device_cursors")}


async def until_written(path: Path, expected: dict[str, Cursor]) -> None:
    async with asyncio.timeout(20):
        while written(path) != expected:
            await asyncio.sleep(0.01)


async def test_what_is_said_is_written_within_a_moment_by_a_hub_that_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    database = Database(path)
    cursors = DeviceCursors(database)
    running = asyncio.create_task(cursors.run())
    for number in range(1, 501):
        cursors.put("phone", Cursor("E", number))
    cursors.put("tablet", Cursor("E", 3))
    assert cursors.get("phone") == Cursor("E", 500)
    await until_written(path, {"phone": Cursor("E", 500), "tablet": Cursor("E", 3)})
    assert cursors.get("phone") == Cursor("E", 500)
    running.cancel()
    cursors.put("phone", Cursor("E", 501))
    await cursors.close()
    await cursors.close()
    assert written(path)["phone"] == Cursor("E", 501)
    database.close()


async def test_a_place_never_moves_back_within_an_epoch_and_follows_to_another(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    database = Database(path)
    for place, expected in [
        (Cursor("E", 7), Cursor("E", 7)),
        (Cursor("E", 5), Cursor("E", 7)),
        (Cursor("F", 2), Cursor("F", 2)),
        (Cursor("F", 1), Cursor("F", 2)),
    ]:
        cursors = DeviceCursors(database)
        cursors.put("phone", place)
        assert cursors.get("phone") == expected, "also before it is written"
        await cursors.close()
        assert written(path) == {"phone": expected}
    database.close()


async def test_a_database_that_can_not_be_written_loses_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "hub.db"
    database = Database(path)
    cursors = DeviceCursors(database)
    aside = tmp_path / "aside.db"
    path.rename(aside)
    running = asyncio.create_task(cursors.run())
    cursors.put("phone", Cursor("E", 7))
    async with asyncio.timeout(20):
        while not caplog.records:
            await asyncio.sleep(0.01)
    assert cursors.get("phone") == Cursor("E", 7)
    cursors.put("phone", Cursor("E", 8))
    assert not path.exists()
    aside.rename(path)
    await until_written(path, {"phone": Cursor("E", 8)})
    running.cancel()
    await cursors.close()
    assert len(caplog.records) == 1, "said once"
    database.close()


# On the wire.


def a_home(bench: Bench, last: int) -> HomeWire:
    home = bench.home()
    home.joins("E")
    home.events(1, last)
    return home


def say(app: Wire, **payload: Any) -> Any:
    reply = app.call("cursor", payload)
    return reply["response"] if reply["status"] == "error" else reply["status"]


@virtual_time
async def test_a_device_resumes_where_it_said_and_nowhere_else() -> None:
    bench = Bench()
    home, app = a_home(bench, 5), bench.app()
    reply = app.join({"cursor": "server"})
    assert (reply["since_id"], reply["recovered"]) == (None, True)
    assert app.ids() == [], "none stored: live from the head"
    home.events(6, 9)
    await settle()
    assert say(app, event_id="7", epoch="E") == "ok"
    app.drop()
    home.events(10, 11)
    again = bench.app()
    assert again.join({"cursor": "server"})["since_id"] == "7", "what it was sent does not count, what it said does"
    await settle()
    assert again.ids() == [8, 9, 10, 11]


@virtual_time
async def test_a_second_drop_before_the_first_new_event_keeps_the_place() -> None:
    bench = Bench()
    home, app = a_home(bench, 5), bench.app()
    app.join()
    say(app, event_id="3")
    for _ in range(3):
        app.drop()
        app = bench.app()
        assert app.join({"cursor": "server"})["since_id"] == "3"
        await settle()
        assert app.ids() == [4, 5]
    home.event(6)
    await settle()
    assert app.ids() == [4, 5, 6]


@virtual_time
async def test_the_same_join_payload_for_ever_goes_on_with_a_stored_place_and_repeats_with_a_fixed_one() -> None:
    bench = Bench()
    home = a_home(bench, 3)
    stored: dict[str, Any] = {"cursor": "server", "since_id": "0"}
    seen: list[int] = []
    for last in (6, 9, 12):
        app = bench.app()
        app.join(stored)
        await settle()
        seen += app.ids()
        say(app, event_id=str(seen[-1]))
        app.drop()
        home.events(last - 2, last)
    assert seen == list(range(1, 10))
    fixed = [bench.app() for _ in range(2)]
    for app in fixed:
        assert "since_id" not in app.join({"since_id": "10"})
        await settle()
        assert app.ids() == [11, 12]


@virtual_time
async def test_a_place_belongs_to_one_device_and_all_its_connections() -> None:
    bench = Bench()
    a_home(bench, 5)
    one, two, other = bench.app(), bench.app(), bench.app(device_id="other")
    for app in (one, two, other):
        app.join()
    say(one, event_id="2")
    say(two, event_id="4")
    say(one, event_id="3")
    assert bench.app().join({"cursor": "server"})["since_id"] == "4"
    assert other.join({"cursor": "server"})["since_id"] is None


@virtual_time
async def test_a_place_is_of_the_epoch_it_was_said_in() -> None:
    bench = Bench()
    a_home(bench, 5)
    app = bench.app()
    app.join()
    say(app, event_id="4")
    new = bench.home()
    new.joins("F", 5)
    new.events(1, 5)
    again = bench.app()
    reply = again.join({"cursor": "server"})
    assert (reply["since_id"], reply["recovered"], reply["gap"]["reason"]) == ("4", False, "epoch_changed")
    say(again, event_id="5", epoch="F")
    assert bench.app().join({"cursor": "server"})["recovered"] is True


@virtual_time
async def test_what_is_no_place_is_refused_and_changes_nothing() -> None:
    bench = Bench()
    app = bench.app()
    app.join()
    assert say(app, event_id="3") == {"reason": "bad_cursor"}, "nobody knows the epoch of a cold hub"
    a_home(bench, 5)
    for payload in ({"event_id": "007"}, {"event_id": None}, {"event_id": "-1"}, {"event_id": {}}):
        assert say(app, **payload) == {"reason": "bad_cursor"}
    for payload in (
        {},
        {"event_id": "1", "epoch": ""},
        {"event_id": "1", "epoch": "x" * 129},
        {"event_id": "9" * 9000},
    ):
        assert say(app, **payload) == {"reason": "bad_push"}
    assert app.join({"cursor": "server"})["since_id"] is None
    assert app.refused({"cursor": "mine"}) == {"reason": "bad_join", "field": "cursor"}
    assert say(app, event_id="2") == {"reason": "unmatched topic"}, "the refused join ended the one before"


async def test_a_hub_that_restarts_knows_the_place(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        hub.device_cursors.put("phone", Cursor("E", 12))
    async with running_hub(tmp_path) as hub:
        assert hub.device_cursors.get("phone") == Cursor("E", 12)
