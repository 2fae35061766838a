"""The forwarder's cursor file."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge_client.cursor import CursorFile, DamagedCursor, SavedCursor

ROOT = Path(__file__).resolve().parent.parent.parent


def cursor(event_id: int, hub_epoch: str | None = "h") -> SavedCursor:
    return SavedCursor("e", event_id, hub_epoch, "wss://hub.example", "a" * 26)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cursor.json"


class Writes(list[str]):
    """The contents of every file that was put in place, and a way to wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._replace = os.replace
        self._happened = asyncio.Event()

    def replace(self, old: Path, new: Path) -> None:
        text = old.read_text()
        self._replace(old, new)
        self.append(text)
        self._loop.call_soon_threadsafe(self._happened.set)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(20):
            while len(self) < count:
                self._happened.clear()
                await self._happened.wait()


@pytest.fixture
async def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    writes = Writes(asyncio.get_running_loop())
    monkeypatch.setattr(os, "replace", writes.replace)
    return writes


async def test_what_was_saved_is_loaded(path: Path) -> None:
    file = CursorFile(path)
    assert file.load() is None
    for saved in (cursor(5), cursor(2**53 - 1, None), cursor(0)):
        file.save(saved)
        await file.flush()
        assert CursorFile(path).load() == saved
    await file.close()


async def test_files_are_private_and_nothing_is_left_beside(path: Path) -> None:
    file = CursorFile(path)
    file.save(cursor(5))
    await file.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["cursor.json"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_of_fast_saves_the_last_counts_and_few_are_written(path: Path, writes: Writes) -> None:
    file = CursorFile(path)
    started = time.perf_counter()
    for event_id in range(1, 2001):
        file.save(cursor(event_id))
        if event_id % 100 == 0:
            await asyncio.sleep(0)
    spent = time.perf_counter() - started
    await file.flush()
    assert CursorFile(path).load() == cursor(2000)
    assert 1 <= len(writes) <= 2 + spent / 0.1
    await file.close()


async def test_without_flush_the_last_save_is_written_after_the_interval(path: Path, writes: Writes) -> None:
    file = CursorFile(path, interval=0.01)
    file.save(cursor(1))
    file.save(cursor(2))
    await writes.until(2)
    assert file.load() == cursor(2)
    assert '"event_id": "1"' in writes[0]
    await file.close()


async def test_saving_backwards_is_obeyed(path: Path) -> None:
    file = CursorFile(path)
    for event_id in (9, 8, 3):
        file.save(cursor(event_id))
    await file.close()
    assert CursorFile(path).load() == cursor(3)


async def test_flush_ends_while_saves_keep_coming(path: Path) -> None:
    file = CursorFile(path)
    file.save(cursor(1))
    flushing = asyncio.ensure_future(file.flush())
    event_id = 1
    async with asyncio.timeout(20):
        while not flushing.done():
            event_id += 1
            file.save(cursor(event_id))
            await asyncio.sleep(0)
    loaded = file.load()
    assert loaded is not None
    assert 1 <= loaded.event_id <= event_id
    await file.close()


async def test_a_failed_write_is_reported_and_tried_again(
    path: Path, writes: Writes, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.parent.joinpath("state").write_text("a file where the directory should be")
    file = CursorFile(path, interval=0.01)
    file.save(cursor(4))
    with pytest.raises(OSError, match="state"):
        await file.flush()
    assert "trying again" in caplog.text
    path.parent.unlink()
    await writes.until(1)
    assert file.load() == cursor(4)
    await file.close()


GOOD = b'{"format":1,"epoch":"e","event_id":"12","hub_epoch":null,"hub_url":"u","server_id":"s"}'


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\0" * 100,
        GOOD[:-9],
        GOOD.replace(b'"12"', b"12"),
        GOOD.replace(b'"12"', b'"-1"'),
        GOOD.replace(b'"12"', b'"012"'),
        GOOD.replace(b'"12"', b'"9007199254740992"'),
        GOOD.replace(b'"u"', b'"\xff"'),
        GOOD.replace(b'"format":1', b'"format":2'),
        b"[" * 100_000,
        b"[]",
    ],
)
def test_a_damaged_file_is_named(path: Path, damage: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(damage)
    with pytest.raises(DamagedCursor, match=r"cursor\.json"):
        CursorFile(path).load()


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(place=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_any_damaged_byte_loads_or_is_damage(tmp_path: Path, place: int, byte: int) -> None:
    path = tmp_path / "cursor.json"
    path.write_bytes(GOOD[:place] + bytes([byte]) + GOOD[place + 1 :])
    with suppress(DamagedCursor):
        assert isinstance(CursorFile(path).load(), SavedCursor)


def test_the_file_is_readable_json_with_the_id_as_a_string(path: Path) -> None:
    async def save() -> None:
        file = CursorFile(path)
        file.save(cursor(12))
        await file.close()

    asyncio.run(save())
    assert msgspec.json.decode(path.read_bytes())["event_id"] == "12"


SAVER = """
    import asyncio, os, sys
    from bridge_client.cursor import CursorFile, SavedCursor

    async def main(path):
        file = CursorFile(path, interval=0.0)
        for event_id in range(1, 1_000_000):
            os.write(1, b"%d\\n" % event_id)  # the acknowledgement
            file.save(SavedCursor("e", event_id, None, "u", "s"))
            await asyncio.sleep(0)

    asyncio.run(main(sys.argv[1]))
"""


def test_kill_9_leaves_a_whole_cursor_that_is_not_ahead(path: Path) -> None:
    last = 0
    for count in (3, 500, 2500, 5000):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SAVER), str(path)], cwd=ROOT, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(count)]
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines()
        saved = CursorFile(path).load()
        if saved is not None:
            last = saved.event_id
            assert last <= int(lines[-1])
    assert last > 0
