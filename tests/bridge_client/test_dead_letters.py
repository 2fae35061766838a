"""Dead letters: kept on the disk, bounded, and in their owner's hands."""

import asyncio
import json
import sqlite3
import stat
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import click.testing
import pytest

from bridge_client import dead_letters
from bridge_client.cli import cli
from bridge_client.config import Config
from bridge_client.dead_letters import MOST_LETTERS, DeadLetters, plain_text
from bridge_client.store import StoreError
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_file import SCHEMA_VERSION
from tests.bridge_client.forwarding import letters_in
from tests.bridge_client.scripted_hub import VirtualClock
from tests.support.old_stores import make_old

T = TypeVar("T")


def event(event_id: int, text: str = "") -> bytes:
    return json.dumps({"event_id": str(event_id), "type": "note", "session_id": "s", "text": text}).encode()


async def test_what_is_buried_is_there_after_a_restart(tmp_path: Path) -> None:
    path, clock = tmp_path / "state" / "letters", VirtualClock()
    letters = await letters_in(path, clock)
    assert await letters.bury("e", 7, event(7), "too_large: 9 bytes")
    assert not await letters.bury("e", 7, event(7), "something else"), "again changes nothing"
    await letters.bury("e", 9, b"\xff no JSON", "not an object")
    await letters.bury("e", 8, event(8), "came late", replaced=False)
    before = [letters.tombstone("e", number) for number in (7, 8, 9)]
    await letters.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    letters = await letters_in(path)
    first, second, third = await letters.list()
    assert first == (1, "e", 7, clock.wall(), "too_large: 9 bytes", "note", "s", len(event(7)), True, event(7))
    assert (second.type, second.session_id, second.data) == (None, None, b"\xff no JSON")
    assert not third.replaced
    assert [letters.tombstone("e", number) for number in (7, 8, 9)] == before
    assert before[0] == b'{"event_id":"7","type":"unforwardable","session_id":"s","reason":"too_large: 9 bytes"}'
    assert before[1:] == [None, b'{"event_id":"9","type":"unforwardable","reason":"not an object"}']
    assert letters.tombstone("another epoch", 7) is None
    await letters.close()


async def test_who_is_dropped_leaves_the_tombstone_standing() -> None:
    letters = DeadLetters.in_memory()
    await letters.bury("e", 7, event(7), "r")
    stone = letters.tombstone("e", 7)
    assert await letters.drop(1)
    assert not await letters.drop(1)
    assert (await letters.count(), await letters.list(), await letters.get(1)) == (0, [], None)
    assert letters.tombstone("e", 7) == stone
    assert not await letters.bury("e", 7, event(7), "r")


@pytest.mark.parametrize("bound", ["letters", "bytes", "rows"])
async def test_they_are_bounded_and_the_oldest_go_with_a_word(
    bound: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert MOST_LETTERS == 1_000
    for name, value in (("MOST_LETTERS", 3), ("MOST_BYTES", 250), ("MOST_ROWS", 2)):
        monkeypatch.setattr(dead_letters, name, value if name == f"MOST_{bound.upper()}" else 1 << 20)
    letters = DeadLetters.in_memory()
    for number in range(1, 6):
        await letters.bury("e", number, event(number, "x" * 30), "r")
    kept = [letter.event_id for letter in await letters.list()]
    assert kept == ([3, 4, 5] if bound == "letters" else [4, 5])
    if bound != "rows":
        assert "number 1 (event 1) is dropped, which was the oldest" in caplog.text
    await letters.bury("e", 6, event(6, "x" * 1000), "r")
    assert [letter.event_id for letter in await letters.list()][-1] == 6, "the newest is kept, however large"


async def test_what_was_buried_in_an_earlier_epoch_moves() -> None:
    letters = DeadLetters.in_memory()
    await letters.bury("old", 7, event(7), "r")
    await letters.bury("old", 8, event(8), "r")
    await letters.bury("new", 7, event(7), "r")
    await letters.bury("new", 8, event(8, "another one"), "r")
    assert [(letter.epoch, letter.event_id) for letter in await letters.list()] == [("old", 8), ("new", 7), ("new", 8)]


async def test_a_store_of_an_older_version_gets_room_for_them(tmp_path: Path) -> None:
    path = tmp_path / "home.db"
    make_old(path, 1, (None, event(1)))
    store = await SqliteStore.open(path)
    assert (store.epoch, await store.list()) == ("e", [(1, event(1))])
    await store.publish({"type": "note"})
    await store.close()
    letters = await letters_in(path)
    await letters.bury("e", 1, event(1), "r")
    await letters.close()
    with closing(sqlite3.connect(path)) as new:
        assert new.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert new.execute("SELECT count(*) FROM dead_letters").fetchone() == (1,)


async def test_only_an_event_of_our_store_can_be_published_anew() -> None:
    letters = DeadLetters.in_memory()
    await letters.bury("e", 7, b'{"event_id":"7","type":"note", "n":1.50}', "r")
    await letters.bury("e", 8, b'{"type":"note","event_id":"8"}', "r")
    ours, foreign = await letters.list()
    assert plain_text(ours) == b'{"type":"note", "n":1.50}'
    with pytest.raises(StoreError, match="dead letter 2 is no event of this store"):
        plain_text(foreign)


# The commands.


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("SESSION_BRIDGE_STATE_DIR", str(tmp_path))

    def run(*words: str) -> tuple[int, str, str]:
        done = click.testing.CliRunner().invoke(cli, ["dead-letters", *words])
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.stdout, done.stderr

    return run


def in_files(work: Callable[[SqliteStore, DeadLetters], Coroutine[Any, Any, T]], folder: Path) -> T:
    async def opened() -> T:
        store = await SqliteStore.open(folder / "home.db")
        letters = await letters_in(folder / "home.db")
        try:
            return await work(store, letters)
        finally:
            await letters.close()
            await store.close()

    return asyncio.run(opened())


async def three_events_two_of_them_dead(store: SqliteStore, letters: DeadLetters) -> None:
    for number, text in enumerate(("good", "x" * 3000, "ill\x1b[31m"), 1):
        stored = await store.publish({"type": "note", "session_id": "s-1", "text": text})
        if number > 1:
            await letters.bury(store.epoch, number, stored.data, f"reason {number}")


def test_where_there_is_nothing_nothing_is_made(shell: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, out, _ = shell("list")
    assert (code, out) == (0, "no dead letters: every event found its way, or waits for it (bridge-client status)\n")
    assert shell("list", "--json")[:2] == (0, "")
    for words in (("show", "1"), ("drop", "1"), ("resend", "1")):
        code, _, err = shell(*words)
        assert (code, err.count("there is no dead letter 1; bridge-client dead-letters list")) == (1, 1)
    for words in (("drop",), ("resend",), ("drop", "1", "--all"), ("show", "x"), ("drop", "0")):
        assert shell(*words)[0] == 2, words
    assert list(tmp_path.iterdir()) == []


def test_list_and_show(shell: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    in_files(three_events_two_of_them_dead, tmp_path)
    code, out, _ = shell("list")
    first, second = out.splitlines()
    assert (code, first[:11], first[-8:]) == (0, "1  event 2 ", "reason 2")
    assert "note  s-1  reason 3" in second
    facts = [json.loads(line) for line in shell("list", "--json")[1].splitlines()]
    assert [(fact["number"], fact["event_id"], fact["tombstone"]) for fact in facts] == [(1, "2", True), (2, "3", True)]
    code, out, err = shell("show", "2")
    assert (code, json.loads(out)["text"]) == (0, "ill\x1b[31m")
    assert "event 3 of epoch" in err
    assert "reason 3; a tombstone is in its place" in err
    shown = json.loads(shell("show", "2", "--json")[1])
    assert json.loads(shown["event"])["event_id"] == "3"
    assert shown["bytes"] == len(shown["event"].encode())


def test_resend_publishes_anew_what_fits_and_drop_forgets(
    shell: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    in_files(three_events_two_of_them_dead, tmp_path)
    in_files(lambda _, letters: letters.note_limit(1000), tmp_path)
    code, out, err = shell("resend", "--all")
    assert (code, out) == (1, "number 2 is event 4 now\n")
    assert "number 1 is left alone: " in err
    assert "bytes, and the hub takes 1000: raise max_event_bytes there and start this home" in err
    assert "1 of them could not be sent anew" in err
    in_files(lambda _, letters: letters.note_limit(10_000), tmp_path)
    code, out, _ = shell("resend", "1", "--json")
    assert (code, json.loads(out)) == (0, {"number": 1, "event_id": "5"})
    texts = in_files(lambda store, _: store.list(), tmp_path)
    assert [json.loads(stored.data)["text"][:3] for stored in texts] == ["goo", "xxx", "ill", "ill", "xxx"]
    assert shell("resend", "1")[0] == 1, "only once"
    in_files(lambda _, letters: letters.bury("e", 9, event(9), "r"), tmp_path)
    assert shell("drop", "--all")[:2] == (0, "number 3 is dropped\n")
    assert "no dead letters" in shell("list")[1]


def test_those_of_a_foreign_source_are_shown_and_not_sent(
    shell: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    source = "http://127.0.0.1:1/events"
    path = Config(state_dir=tmp_path, source=source).dead_letters_path

    async def bury() -> None:
        letters = await letters_in(path)
        await letters.bury("e", 4, b"\xff\x00", "an event needs a `type`")
        await letters.close()

    asyncio.run(bury())
    assert "event 4" in shell("list", "--source", source)[1]
    assert "no dead letters" in shell("list")[1]
    code, _, err = shell("resend", "1", "--source", source)
    assert (code, f"these are events of {source}, which alone gives ids: publish them there" in err) == (1, True)
    assert json.loads(shell("show", "1", "--json", "--source", source)[1])["event"] == "\ufffd\x00"
