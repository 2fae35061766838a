"""A message sent to a home over HTTP, answered there, read by an app through a real hub (rows A1, A2, A14, A40)."""

import asyncio
import json
from pathlib import Path
from typing import Any

from bridge_client.app_client import AppClient, Event, Gap
from bridge_client.cursor import CursorFile
from bridge_client.forwarder import Forwarder
from bridge_client.link import Link
from bridge_client.sources.store import StoreSource
from bridge_server.app import Hub
from tests.bridge_client.scripted_hub import NoWait
from tests.support.running_home import running_home
from tests.support.scripted_runner import ScriptedRunner, reply


async def test_A1_A2_A14_A40_A205_what_is_sent_at_home_is_answered_on_the_phone_byte_for_byte(
    hub: Hub, tmp_path: Path
) -> None:
    server, home_token = hub.credentials.add_server("a home")
    _, app_token = hub.credentials.add_device(server.server_id, "a phone")
    runner = ScriptedRunner(*reply("Hel", "lo"))
    async with running_home(tmp_path, runner) as home, asyncio.timeout(40):
        cursor = CursorFile(tmp_path / "cursor.json", interval=0.01)
        forwarder = Forwarder(
            StoreSource(home.store),
            cursor,
            Link(hub.url, home_token, rng=NoWait()),
            server_id=server.server_id,
            hub_url=hub.url,
            name="a home",
            instance="one",
        )
        forwarding = asyncio.create_task(forwarder.run())
        try:
            await home.create(agent_id="helper")
            first = await home.send("hi")
            await home.until("request_completed", request_id=first)
            loaded = await home.do("GET", "/sessions/s/messages")
            assert [message["content"] for message in loaded["messages"]] == ["hi", "Hello"]
            # The phone loaded the messages at home, and is elsewhere now: it goes on from their cursor at the hub.
            place = (loaded["epoch"], int(loaded["cursor_event_id"]))
            received: list[tuple[int, bytes]] = []
            async with AppClient(hub.url, app_token, server.server_id, cursor=place, rng=NoWait()) as phone:
                second = await home.send("and again")
                async for item in phone:
                    assert not isinstance(item, Gap)
                    if not isinstance(item, Event):
                        continue
                    received.append((item.event_id, item.data))
                    event: dict[str, Any] = json.loads(item.data)
                    if event["type"] == "request_completed" and event["request_id"] == second:
                        break
            assert received == [tuple(event) for event in await home.store.list(since_id=place[1])]
            told = [json.loads(data) for _, data in received]
            assert [event["type"] for event in told] == [
                "request_completed", "message_appended", "checkpoint", "request_started", "assistant_message",
                "partial", "partial", "assistant_message", "final", "checkpoint", "request_completed",
            ]  # fmt: skip
            over_http = await home.events(session_id="s", since_id=place[1], compact="false")
            assert over_http["events"] == told
        finally:
            forwarding.cancel()
            await asyncio.gather(forwarding, return_exceptions=True)
            await cursor.close()
