"""Store, forwarder, hub and app client together, over real sockets: each app sees every event once, in order."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_client.app_client import AppClient, CaughtUp, Event, Gap, Place, ServerStatus
from bridge_client.cursor import CursorFile
from bridge_client.dial import CredentialRefused, WebSocketDialler, Wire
from bridge_client.forwarder import Forwarder, Limits
from bridge_client.home_topic import Replaced
from bridge_client.link import JoinRejected, Link
from bridge_client.sources import Source
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore
from bridge_server.app import Hub
from tests.bridge_client.forwarding import Cut
from tests.bridge_client.scripted_hub import NoWait
from tests.support.cable import Cable
from tests.support.running_hub import running_hub

DEADLINE = 60.0


class World:
    """One home with its credentials at one hub."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        server, self.home_token = hub.credentials.add_server("a home")
        device, self.app_token = hub.credentials.add_device(server.server_id, "a phone")
        self.device_id = device.device_id
        self.server_id = server.server_id
        self.hub = hub
        self.url = hub.url
        self.folder = folder

    @asynccontextmanager
    async def forwarding(
        self,
        store: EventStore,
        *,
        url: str = "",
        dial: Any = None,
        limits: Limits | None = None,
        instance: str = "one",
        source: Source | None = None,
    ) -> AsyncIterator["asyncio.Task[None]"]:
        cursor = CursorFile(self.folder / f"cursor-{instance}.json", interval=0.01)
        forwarder = Forwarder(
            source or StoreSource(store),
            cursor,
            Link(url or self.url, self.home_token, dial=dial, rng=NoWait()),
            server_id=self.server_id,
            hub_url=self.url,
            name="a home",
            instance=instance,
            limits=limits,
        )
        task = asyncio.create_task(forwarder.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await cursor.close()

    def app(self, cursor: Any = None, *, url: str = "", dial: Any = None, **more: Any) -> AppClient:
        return AppClient(
            url or self.url, self.app_token, self.server_id, cursor=cursor, dial=dial, rng=NoWait(), **more
        )


async def publish(store: EventStore, count: int, size: int = 40) -> None:
    for n in range(count):
        await store.publish({"type": "partial", "session_id": "s", "request_id": "r", "n": n, "text": "é" * size})


async def receive(client: AppClient, last: int) -> list[Any]:
    """What comes until the event `last`, status and catching up left out."""
    taken: list[Any] = []
    async for item in client:
        if not isinstance(item, ServerStatus | CaughtUp):
            taken.append(item)
        if isinstance(item, Event) and item.event_id == last:
            break
    return taken


async def stored(store: EventStore) -> list[tuple[int, bytes]]:
    events: list[tuple[int, bytes]] = []
    while page := await store.list(since_id=events[-1][0] if events else None):
        events.extend((event.event_id, event.data) for event in page)
    return events


def read(items: list[Any]) -> list[tuple[int, bytes]]:
    assert not [item for item in items if isinstance(item, Gap)]
    return [(item.event_id, item.data) for item in items]


@pytest.fixture
async def world(hub: Hub, tmp_path: Path) -> AsyncIterator[World]:
    async with asyncio.timeout(DEADLINE):
        yield World(hub, tmp_path)


async def test_A203_what_the_app_reads_is_byte_for_byte_what_the_store_holds(world: World, tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "home.db")
    await publish(store, 700)
    for text in (b'{"type":"a","n":1.50,"big":123456789012345678901234567890}', b'{"type":"b","z":"\\u00e9", "a":1}'):
        await store.publish(text)
    async with world.forwarding(store), world.app((store.epoch, 0)) as client:
        await publish(store, 300, size=2000)
        assert read(await receive(client, 1002)) == await stored(store)
        assert client.cursor == Place(store.epoch, 1002)
    await store.close()


async def test_a_home_over_its_limit_of_messages_waits_and_loses_nothing(tmp_path: Path) -> None:
    """The hub answers `rate_limited`; the forwarder waits as long as it is told, and sends what waited in fewer."""
    async with asyncio.timeout(DEADLINE), running_hub(tmp_path, home_messages=4) as hub:
        world, store = World(hub, tmp_path), MemoryStore()
        received: list[Any] = []
        async with world.forwarding(store), world.app((store.epoch, 0)) as client:
            for number in range(1, 46):  # each in a message of its own: forty may come at once
                await publish(store, 1)
                received += await receive(client, number)
        assert read(received) == await stored(store)
        assert hub.limits.messages_refused


async def test_A200_live_without_a_cursor_only_what_happens_from_now_on(world: World) -> None:
    store = MemoryStore()
    await publish(store, 5)
    async with world.forwarding(store), world.app() as client:
        async for item in client:
            if isinstance(item, CaughtUp) and item.to_id is not None:
                break
            assert isinstance(item, ServerStatus | CaughtUp)
            if isinstance(item, CaughtUp):  # the home is not there yet: it states its head when it comes
                break
        await publish(store, 3)
        items = await receive(client, 8)
    assert [item.event_id for item in items][-3:] == [6, 7, 8]


@pytest.mark.parametrize("after", range(8))  # a join and its reply, three batches and their answers
async def test_A208_the_homes_link_cut_at_each_frame(world: World, after: int) -> None:
    store, plan = MemoryStore(), Cut(after)
    await publish(store, 450)
    async with world.forwarding(store, dial=plan), world.app((store.epoch, 0)) as client:
        await publish(store, 50)
        assert read(await receive(client, 500)) == await stored(store)
    assert plan.cut


@pytest.mark.parametrize("after", [0, 1, 2, 3, 50, 300, 502])
async def test_the_apps_link_cut_at_each_frame(world: World, after: int) -> None:
    store, plan = MemoryStore(), Cut(after)
    await publish(store, 450)
    async with world.forwarding(store), world.app((store.epoch, 0), dial=plan) as client:
        await publish(store, 50)
        assert read(await receive(client, 500)) == await stored(store)
        # A cut behind the last event is still to come.
        await publish(store, 5)
        assert [item.event_id for item in await receive(client, 505)] == list(range(501, 506))
    assert plan.cut


async def test_both_cables_cut_again_and_again_while_events_flow(hub: Hub, world: World) -> None:
    store, chance = MemoryStore(), random.Random(7)
    async with AsyncExitStack() as stack:
        home, phone = await stack.enter_async_context(Cable(hub.port)), await stack.enter_async_context(Cable(hub.port))
        await stack.enter_async_context(world.forwarding(store, url=f"http://127.0.0.1:{home.port}"))
        client = await stack.enter_async_context(world.app((store.epoch, 0), url=f"http://127.0.0.1:{phone.port}"))
        receiving = asyncio.create_task(receive(client, 1500))
        for _ in range(30):
            await publish(store, 50)
            for cable in (home, phone):
                if chance.random() < 0.3:
                    cable.cut()
                    cable.mend()
            await asyncio.sleep(chance.random() * 0.02)  # not a wait for anything: the cuts fall where they fall
        assert read(await receiving) == await stored(store)
        assert home.accepted > 2
        assert phone.accepted > 2


async def test_a_hub_that_lost_its_memory_is_refilled_and_the_app_misses_nothing(tmp_path: Path) -> None:
    store = MemoryStore()
    async with asyncio.timeout(DEADLINE), AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        hub = await first.enter_async_context(running_hub(tmp_path))
        world = World(hub, tmp_path)
        await stack.enter_async_context(world.forwarding(store))
        client = await stack.enter_async_context(world.app((store.epoch, 0)))
        await publish(store, 300)
        items = await receive(client, 300)
        await first.aclose()
        await publish(store, 100)
        await stack.enter_async_context(running_hub(tmp_path, port=hub.port))
        items += await receive(client, 400)
        assert read(items) == await stored(store)


async def test_a_refill_that_is_too_short_is_completed_from_the_store(tmp_path: Path) -> None:
    store = MemoryStore()
    async with asyncio.timeout(DEADLINE), running_hub(tmp_path) as hub:
        world = World(hub, tmp_path)
        await publish(store, 100)
        (tmp_path / "cursor-one.json").write_text(
            f'{{"format":1,"epoch":"{store.epoch}","event_id":"100","hub_epoch":null,"hub_url":"{hub.url}",'
            f'"server_id":"{world.server_id}"}}'
        )
        async with world.forwarding(store, limits=Limits(refill_events=10)), world.app((store.epoch, 20)) as client:
            assert read(await receive(client, 100)) == (await stored(store))[20:]


async def test_a_restored_store_is_another_epoch_and_all_of_it_comes(world: World) -> None:
    old = MemoryStore()
    await publish(old, 20)
    async with world.app((old.epoch, 0)) as client:
        async with world.forwarding(old):
            await receive(client, 20)
        restored = MemoryStore()
        restored._epoch = old.epoch
        await publish(restored, 12)
        async with world.forwarding(restored):
            gap, *events = await receive(client, 12)
        assert isinstance(gap, Gap)
        assert gap.reason == "epoch_changed"
        assert read(events) == await stored(restored)
        assert client.cursor == Place(restored.epoch, 12)
        assert restored.epoch != old.epoch


async def test_a_newer_forwarder_replaces_the_older_one(world: World) -> None:
    store = MemoryStore()
    async with world.forwarding(store) as older, world.app((store.epoch, 0)) as client:
        await publish(store, 1)
        await receive(client, 1)
        async with world.forwarding(store, instance="two"):
            with pytest.raises(Replaced, match="two"):
                await older
            await publish(store, 1)
            assert [item.event_id for item in await receive(client, 2)] == [2]


async def test_revoked_credentials_say_so_and_stop(hub: Hub, world: World) -> None:
    store = MemoryStore()
    async with world.forwarding(store) as forwarder, world.app((store.epoch, 0)) as client:
        await publish(store, 1)
        await receive(client, 1)
        hub.credentials.revoke_server(world.server_id)
        with pytest.raises(CredentialRefused, match="revoked"):
            await forwarder
        hub.credentials.revoke_device(world.device_id)
        with pytest.raises(CredentialRefused, match="revoked"):
            await receive(client, 99)


async def test_neither_side_gets_into_another_home(hub: Hub, world: World) -> None:
    other = World(hub, world.folder)
    world.server_id = other.server_id
    async with world.forwarding(MemoryStore()) as forwarder:
        with pytest.raises(JoinRejected, match="unauthorized"):
            await forwarder
    async with world.app() as client:
        with pytest.raises(JoinRejected, match="unauthorized"):
            await anext(client)


async def test_case_61_an_event_over_the_hubs_limit_leaves_a_tombstone_and_those_behind_it_come(tmp_path: Path) -> None:
    store = MemoryStore()
    async with asyncio.timeout(DEADLINE), running_hub(tmp_path, max_event_bytes=10_000) as hub:
        world = World(hub, tmp_path)
        await publish(store, 3)
        async with world.app((store.epoch, 0)) as client, world.forwarding(store):
            assert [item.event_id for item in await receive(client, 3)] == [1, 2, 3]
            await publish(store, 1)
            await publish(store, 1, size=20_000)
            await publish(store, 1)
            before, stone, behind = await receive(client, 6)
    assert (before.event_id, stone.event_id, behind.event_id) == (4, 5, 6)
    assert (stone.type, stone.session_id) == ("unforwardable", "s")
    saved = CursorFile(tmp_path / "cursor-one.json").load()
    assert saved is not None
    assert saved.event_id == 6


class Late:
    """A dialler whose wires keep each message of the hub back until `release` is set, and lose it if cut meanwhile."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.wires: list[Wire] = []

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Wire:
        wire = await WebSocketDialler()(url, headers)
        self.wires.append(wire)
        return wire if len(self.wires) > 1 else _LateWire(wire, self.release)


class _LateWire:
    def __init__(self, wire: Wire, release: asyncio.Event) -> None:
        self._wire = wire
        self._release = release
        self._joined = False
        self.send, self.close, self.abort = wire.send, wire.close, wire.abort

    async def recv(self) -> bytes:
        data = await self._wire.recv()
        if self._joined:
            await self._release.wait()
            return await self._wire.recv()
        self._joined = True
        return data


async def test_case_89_acknowledgements_lost_with_the_link_are_harmless(world: World) -> None:
    store, dial = MemoryStore(), Late()
    await publish(store, 30)
    async with world.app((store.epoch, 0)) as client, world.forwarding(store, dial=dial):
        events = await receive(client, 30)  # the hub has them, the forwarder does not know
        assert not (world.folder / "cursor-one.json").exists()
        dial.wires[0].abort()
        dial.release.set()
        await publish(store, 5)
        events += await receive(client, 35)
        assert read(events) == await stored(store)
        assert len(dial.wires) == 2
