"""A home whose hub takes no long events: from the refusal to the event's way to the app after all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge_client import app, cli_dead_letters
from bridge_client.api.status import StatusReport
from bridge_client.app_client import AppClient, Event
from bridge_client.config import Config
from bridge_client.keys import Credential
from bridge_client.store import EventStore
from bridge_server.app import Hub
from tests.bridge_client.scripted_hub import NoWait
from tests.support.running_hub import running_hub

DEADLINE = 60.0


@asynccontextmanager
async def serving(config: Config, credential: Credential) -> AsyncIterator[tuple[EventStore, StatusReport]]:
    """What `bridge-client serve` puts together, in this process."""
    async with (
        app.open_source(config) as opened,
        app.answering(config, opened) as report,
        app.forwarding(config, credential, opened.source, opened.letters) as forwarder,
    ):
        assert opened.store is not None
        report.attach(forwarder, credential.server_id, credential.hub_url)
        task = asyncio.create_task(forwarder.run())
        try:
            yield opened.store, report
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def read(hub: Hub, server_id: str, until: int) -> list[Event]:
    _, token = hub.credentials.add_device(server_id, "phone")
    events: list[Event] = []
    async with AppClient(hub.url, token, server_id, cursor=(None, 0), rng=NoWait()) as client:
        async for item in client:
            if isinstance(item, Event):
                events.append(item)
                if item.event_id == until:
                    break
    return events


async def test_case_62_a_dead_letter_is_counted_listed_and_sent_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """case 62, end to end: marked, logged, skipped, the next one delivered; and, once the limit is raised, sent."""
    config = Config(state_dir=tmp_path / "home", api=False, name="Home")
    async with asyncio.timeout(DEADLINE):
        async with running_hub(tmp_path, max_event_bytes=10_000) as hub:
            server, token = hub.credentials.add_server("home")
            async with serving(config, Credential(hub.url, server.server_id, token)) as (store, report):
                for text in ("before", "x" * 20_000, "behind"):
                    await store.publish({"type": "note", "session_id": "s", "text": text})
                events = await read(hub, server.server_id, 3)
                facts = await report.facts()
        assert [event.type for event in events] == ["note", "unforwardable", "note"]
        assert facts["dead_letters"] == (await app.status(config))["dead_letters"] == 1
        with pytest.raises(Exception, match="1 of them could not be sent anew"):
            await cli_dead_letters._resend(config, (1,), everything=False, as_json=False)
        assert "and the hub takes 10000: raise max_event_bytes there" in capsys.readouterr().err
        async with running_hub(tmp_path) as hub:
            async with serving(config, Credential(hub.url, server.server_id, token)) as (store, report):
                await read(hub, server.server_id, 3)
                await cli_dead_letters._resend(config, (1,), everything=False, as_json=False)
                *_, sent = await read(hub, server.server_id, 4)
                assert (await report.facts())["dead_letters"] == 0
            assert (sent.event_id, sent.type) == (4, "note")
            assert b"x" * 20_000 in sent.data
