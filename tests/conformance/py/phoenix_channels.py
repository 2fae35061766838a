"""Drives PyPI `phoenix-channels-python-client` as an app would: joins a topic, resumes with its cursor, tells it all.

A client's order: {name, url, token, topic, version}; version is "1.0" or "2.0". See program.py for the rest.
"""

from typing import Any

from phoenix_channels_python_client import PHXChannelsClient
from program import Client, Commands, Order, run


async def drive(app: Client, order: Order, commands: Commands) -> None:
    async def on_message(message: Any) -> None:
        app.event(str(message.event), message.payload)

    async def on_reconnect() -> None:
        app.say("opened")

    async def on_disconnect(error: Exception | None) -> None:
        app.say("closed", error=str(error) if error else None)

    async def on_topic_lost(topic: str, error: Exception) -> None:
        app.say("topic_lost", topic=topic, error=str(error))

    client = PHXChannelsClient(
        f"{order['url']}/websocket",
        api_key=order["token"],
        protocol_version=order["version"],
        additional_headers={"x-api-key": order["token"]},
        on_reconnect=on_reconnect,
        on_disconnect=on_disconnect,
        on_topic_lost=on_topic_lost,
    )
    # The client always joins with an empty payload; the cursor is put in where it serialises its messages.
    handler = client.get_protocol_handler()
    serialize = handler.serialize_message

    def serialize_with_cursor(message: Any) -> str:
        joining = str(message.event) == "phx_join"
        return serialize(message.model_copy(update={"payload": dict(app.cursor)}) if joining else message)

    handler.serialize_message = serialize_with_cursor  # type: ignore[method-assign]
    async with client:
        app.say("opened")
        await client.subscribe_to_topic(order["topic"], on_message)
        app.say("joined")
        await commands.heard("leave").wait()
        await client.unsubscribe_from_topic(order["topic"])
        app.say("left")
        await commands.heard("quit").wait()


run(drive)
