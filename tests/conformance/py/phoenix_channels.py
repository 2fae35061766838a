"""Drives PyPI `phoenix-channels-python-client` as an app would: joins a topic, resumes with its cursor, tells it all.

Runs in .venv-clients. Standard input: first a line of JSON {url, token, topic}, then one command a line: leave, quit.
Standard output: one line of JSON for each thing seen, {"saw": ...} with more keys by kind.
"""

import asyncio
import json
import sys
from typing import Any

from phoenix_channels_python_client import PHXChannelsClient

# The client always joins with an empty payload; the cursor is put in where it serialises its messages.
cursor: dict[str, Any] = {}


def say(saw: str, **more: Any) -> None:
    print(json.dumps({"saw": saw, **more}), flush=True)


async def on_message(message: Any) -> None:
    event, payload = str(message.event), message.payload
    if event == "session_event":
        cursor["since_id"] = payload["event"]["event_id"]
    elif event == "replay_complete":
        if payload["epoch"] is not None:
            cursor["epoch"] = payload["epoch"]
        if payload["to_id"] is not None:
            cursor["since_id"] = payload["to_id"]
    say("event", event=event, payload=payload)


async def on_reconnect() -> None:
    say("opened")


async def on_disconnect(error: Exception | None) -> None:
    say("closed", error=str(error) if error else None)


async def on_topic_lost(topic: str, error: Exception) -> None:
    say("topic_lost", topic=topic, error=str(error))


async def main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    order = json.loads(await lines.readline())
    topic = order["topic"]
    client = PHXChannelsClient(
        f"{order['url']}/websocket",
        api_key=order["token"],
        additional_headers={"x-api-key": order["token"]},
        on_reconnect=on_reconnect,
        on_disconnect=on_disconnect,
        on_topic_lost=on_topic_lost,
    )
    handler = client.get_protocol_handler()
    serialize = handler.serialize_message

    def serialize_with_cursor(message: Any) -> str:
        joining = str(message.event) == "phx_join"
        return serialize(message.model_copy(update={"payload": dict(cursor)}) if joining else message)

    handler.serialize_message = serialize_with_cursor  # type: ignore[method-assign]
    async with client:
        say("opened")
        await client.subscribe_to_topic(topic, on_message)
        say("joined")
        while command := (await lines.readline()).decode().strip():
            if command == "leave":
                await client.unsubscribe_from_topic(topic)
                say("left")
            if command == "quit":
                break


asyncio.run(main())
