"""What users of relays met after a drop, as scenes between a home, a hub and an app; each names its case."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge_client.app_client import AppClient, CaughtUp, Event, Gap
from bridge_client.store.memory import MemoryStore
from bridge_server.app import Hub
from tests.bridge_client.forwarding import Cut
from tests.bridge_client.scripted_hub import NoWait
from tests.faults.near import forwarding

DEADLINE = 60.0


class Scene:
    """A home with an empty store, forwarding, and the credential of one app."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.store = MemoryStore()
        server, self.home_token = hub.credentials.add_server("home")
        self.server_id = server.server_id
        _, self.token = hub.credentials.add_device(server.server_id, "phone")

    async def publish(self, *types: str) -> None:
        for type in types:
            await self.store.publish({"type": type, "session_id": "s", "request_id": "r", "at": "2026-01-01T00:00:00Z"})

    def app(self, place: int, *, dial: Cut | None = None) -> AppClient:
        cursor = (self.store.epoch, place)
        return AppClient(self.hub.url, self.token, self.server_id, cursor=cursor, dial=dial, rng=NoWait())


@pytest.fixture
async def scene(hub: Hub, tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(hub)
    async with (
        asyncio.timeout(DEADLINE),
        forwarding(scene.store, hub.url, scene.home_token, scene.server_id, tmp_path / "cursor"),
    ):
        yield scene


async def read(client: AppClient, until: int) -> list[Event]:
    """Events up to the one with the id `until`; a gap fails."""
    events: list[Event] = []
    async for item in client:
        assert not isinstance(item, Gap)
        if isinstance(item, Event):
            events.append(item)
            if item.event_id == until:
                break
    return events


@asynccontextmanager
async def joined(client: AppClient) -> AsyncIterator[int | None]:
    """The app, once it was told what it missed; yields the last id that the hub stated."""
    async with client:
        async for item in client:
            assert not isinstance(item, Gap)
            if isinstance(item, CaughtUp):
                yield item.to_id
                return


async def test_case_73_missed_events_arrive_after_a_rejoin_with_nothing_done_by_the_user(scene: Scene) -> None:
    """case 73: rejoin with since_id: the missed events arrive by themselves, and the join states the last id."""
    async with scene.app(0) as client:
        await scene.publish("request_started", "partial")
        await read(client, 2)
    await scene.publish("partial", "partial")
    async with scene.app(2) as client:
        assert [event.event_id for event in await read(client, 4)] == [3, 4]
    async with joined(scene.app(4)) as last:
        assert last == 4


async def test_case_74_the_last_event_of_a_turn_is_there_for_an_app_that_was_cut_off_before(scene: Scene) -> None:
    """case 74: the app dies in the middle of a stream, the terminal event is published, the app rejoins: it arrives."""
    async with scene.app(0) as client:
        await scene.publish("request_started", "partial", "partial")
        await read(client, 2)
    await scene.publish("final", "request_completed")
    async with scene.app(2) as client:
        assert [event.type for event in await read(client, 5)] == ["partial", "final", "request_completed"]


@pytest.mark.parametrize("after", [4, 7, 11])
async def test_case_107_a_socket_killed_in_the_middle_of_a_turn_leaves_the_transcript_whole(
    scene: Scene, after: int
) -> None:
    """case 107: kill the app's socket mid-turn, reconnect: the transcript equals the store's, no gap, no duplicate."""
    plan = Cut(after)
    async with scene.app(0, dial=plan) as client:
        reading = asyncio.create_task(read(client, 40))
        for _ in range(39):
            await scene.publish("partial")
            await asyncio.sleep(0)
        await scene.publish("final")
        events = await reading
        if not plan.cut:  # so much came at once that the cut is still to come
            await scene.publish(*["partial"] * 40)
            events += await read(client, 80)
    assert [(event.event_id, event.data) for event in events] == list(await scene.store.list(limit=500))


async def test_case_83_events_of_one_timestamp_are_all_replayed(scene: Scene) -> None:
    """case 83: fifty events of one timestamp; an app that begins at each of them gets exactly what follows."""
    await scene.publish(*["note"] * 50)
    async with scene.app(0) as client:
        await read(client, 50)
    for place in (0, 9, 10, 11, 49):
        async with scene.app(place) as client:
            assert [event.event_id for event in await read(client, 50)] == list(range(place + 1, 51))
