"""Stores that move under a home: restored, overwritten, copied to another machine; and homes that change their hub.

Each scene is played with files, a real hub and an app that is there all the time. In the end the app holds exactly what
the store holds, each event once and in order, and it was told of the break if there was one.
"""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from bridge_client.app_client import AppClient, Event, Gap
from bridge_client.home_topic import Replaced
from bridge_client.store.sqlite import SqliteStore
from bridge_server.app import Hub
from tests.bridge_client.scripted_hub import NoWait
from tests.faults.near import forwarding
from tests.support.running_hub import running_hub

DEADLINE = 60.0
BACK = "went back in time"


class Machine:
    """A place where a home runs: its store and its cursor, in files."""

    def __init__(self, folder: Path, hub: Hub, server_id: str, token: str) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.store = folder / "home.db"
        self.cursor = folder / "home.db.cursor"
        self._url, self._server_id, self._token = hub.url, server_id, token

    @asynccontextmanager
    async def home(self, name: str = "home") -> AsyncIterator[tuple[SqliteStore, "asyncio.Task[None]"]]:
        store = await SqliteStore.open(self.store)
        try:
            async with forwarding(
                store, self._url, self._token, self._server_id, self.cursor, instance=name
            ) as forwarder:
                yield store, forwarder
        finally:
            await store.close()

    async def publish(self, count: int, text: str) -> list[tuple[int, bytes]]:
        """With no home running: what another program of this machine does. Returns all that the store holds."""
        store = await SqliteStore.open(self.store)
        await publish(store, count, text)
        events = await stored(store)
        await store.close()
        return events


class Reader:
    """An app: what it has read of the history it is in, and how often it was told of another one."""

    def __init__(self) -> None:
        self.events: list[tuple[int, bytes]] = []
        self.gaps: list[str] = []
        self._changed = asyncio.Event()

    async def read(self, client: AppClient) -> None:
        async for item in client:
            if isinstance(item, Gap):
                self.gaps.append(item.reason)
                self.events.clear()
            elif isinstance(item, Event):
                self.events.append((item.event_id, item.data))
            self._changed.set()

    async def has(self, events: list[tuple[int, bytes]]) -> None:
        while self.events != events:
            self._changed.clear()
            await self._changed.wait()


@asynccontextmanager
async def reading(hub: Hub, server_id: str) -> AsyncIterator[Reader]:
    _, token = hub.credentials.add_device(server_id, "phone")
    reader = Reader()
    async with AppClient(hub.url, token, server_id, cursor=(None, 0), rng=NoWait()) as client:
        task = asyncio.create_task(reader.read(client))
        try:
            yield reader
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def publish(store: SqliteStore, count: int, text: str) -> None:
    for number in range(count):
        await store.publish({"type": "note", "session_id": "s", "text": f"{text} {number}"})


async def stored(store: SqliteStore) -> list[tuple[int, bytes]]:
    return [(event.event_id, event.data) for event in await store.list(limit=10_000)]


def copy(path: Path, to: Path) -> None:
    """What `sqlite3 PATH ".backup TO"` and `.restore` do: one transaction, into whatever file stands there."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    async with asyncio.timeout(DEADLINE), running_hub(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
async def machine(hub: Hub, tmp_path: Path) -> Machine:
    server, token = hub.credentials.add_server("home")
    return Machine(tmp_path / "one", hub, server.server_id, token)


def said_once(caplog: pytest.LogCaptureFixture, what: str = BACK) -> None:
    said = [record.getMessage() for record in caplog.records if BACK in record.getMessage()]
    assert len(said) == 1, said
    assert what in said[0]


@pytest.mark.parametrize("how", ["another file", "the same file"])
@pytest.mark.parametrize("cursor", ["kept", "restored too", "lost"])
async def test_a_restored_store_that_outgrew_what_was_forwarded_is_another_history(
    hub: Hub, machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str, cursor: str
) -> None:
    async with reading(hub, machine._server_id) as app:
        async with machine.home() as (store, _):
            await publish(store, 5, "before the backup")
            await app.has(await stored(store))
        copy(machine.store, backup := tmp_path / "backup.db")
        older = machine.cursor.read_bytes()
        async with machine.home() as (store, _):
            await publish(store, 5, "lost with the disk")
            await app.has(await stored(store))
        if how == "another file":
            os.replace(backup, machine.store)
        else:
            machine.store.write_bytes(backup.read_bytes())
        if cursor == "restored too":
            machine.cursor.write_bytes(older)
        elif cursor == "lost":
            machine.cursor.unlink()
        events = await machine.publish(9, "after the restore")
        assert len(events) == 14
        async with machine.home():
            await app.has(events)
        assert app.gaps == ["epoch_changed"]
    said_once(caplog, "event 10 is another one")


async def test_an_older_cursor_alone_costs_nothing(
    hub: Hub, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading(hub, machine._server_id) as app:
        async with machine.home() as (store, _):
            await publish(store, 5, "first")
            await app.has(await stored(store))
        older = machine.cursor.read_bytes()
        async with machine.home() as (store, _):
            await publish(store, 5, "second")
            await app.has(await stored(store))
        machine.cursor.write_bytes(older)
        async with machine.home() as (store, _):
            await publish(store, 5, "third")
            await app.has(await stored(store))
        assert app.gaps == []
    assert BACK not in caplog.text


@pytest.mark.parametrize("more", [0, 3, 20])
async def test_a_copy_restored_into_the_open_file_is_noticed(
    hub: Hub, machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture, more: int
) -> None:
    """Also where other programs publish at once, until there are more events than before."""
    async with reading(hub, machine._server_id) as app:
        async with machine.home() as (store, _):
            await publish(store, 5, "before the backup")
            await app.has(await stored(store))
            copy(machine.store, backup := tmp_path / "backup.db")
            await publish(store, 5, "undone")
            await app.has(await stored(store))
            copied = await SqliteStore.open(backup)
            await publish(copied, more, "in the copy")
            await copied.close()
            copy(backup, machine.store)
            await app.has(await stored(store))
            assert len(app.events) == 5 + more
            await publish(store, 2, "after the restore")
            await app.has(await stored(store))
        assert app.gaps == ["epoch_changed"]
    said_once(caplog)


async def test_a_store_copied_to_another_machine_goes_its_own_way(
    hub: Hub, machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One identity on two machines: the newest wins and the other says so and stops; back again, it is not believed to
    be the same history, though it has the same epoch, more events, and a cursor that fits."""
    other = Machine(tmp_path / "two", hub, machine._server_id, machine._token)

    async def until_replaced() -> None:
        async with machine.home("first machine") as (store, forwarder):
            await publish(store, 5, "common")
            await app.has(await stored(store))
            copy(machine.store, other.store)
            other.cursor.write_bytes(machine.cursor.read_bytes())
            async with other.home("second machine") as (copied, _):
                await asyncio.wait([forwarder])
                await publish(copied, 3, "there")
                await app.has(await stored(copied))
                assert app.gaps == []
            await publish(store, 4, "here")

    async with reading(hub, machine._server_id) as app:
        with pytest.raises(Replaced, match="second machine"):
            await until_replaced()
        async with machine.home("first machine") as (store, _):
            await app.has(await stored(store))
            assert len(app.events) == 9
        assert app.gaps == ["epoch_changed"]
    said_once(caplog, "event 8 is another one here than at the hub")


async def test_case_80_another_hub_gets_everything_and_the_first_one_what_it_lacks(
    hub: Hub, machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_hub(tmp_path / "second hub") as second, reading(hub, machine._server_id) as app:
        async with machine.home() as (store, _):
            await publish(store, 5, "for the first")
            await app.has(await stored(store))
        server, token = second.credentials.add_server("home")
        moved = Machine(machine.store.parent, second, server.server_id, token)
        async with reading(second, server.server_id) as there, moved.home() as (store, _):
            await publish(store, 3, "for the second")
            await there.has(await stored(store))
        async with machine.home() as (store, _):
            await publish(store, 2, "again for the first")
            await app.has(await stored(store))
        assert (app.gaps, there.gaps) == ([], [])
    assert caplog.text.count("belongs to another hub: not used") == 2
    assert BACK not in caplog.text
