"""Drives PyPI `realtime` as an app would: subscribes to `realtime:<topic>`, and resumes with a cursor in its join.

Its events come inside `broadcast` messages, as it knows no others. A client's order: {name, url, token, topic}, topic
without `realtime:`. See program.py for the rest.
"""

from typing import Any

from program import Client, Commands, Order, run
from realtime import AsyncRealtimeClient


class Watched(AsyncRealtimeClient):
    """The client, telling when its socket opens and is lost, for which it has no callbacks."""

    app: Client

    async def _on_connect(self) -> None:
        self.app.say("opened")
        await super()._on_connect()

    async def _reconnect(self, error: Exception) -> None:
        self.app.say("closed", error=str(error))
        await super()._reconnect(error)


async def drive(app: Client, order: Order, commands: Commands) -> None:
    client = Watched(order["url"], order["token"])
    client.app = app
    channel = client.channel(order["topic"])

    def on_broadcast(message: Any) -> None:
        app.event(message["event"], message["payload"])
        channel.join_push.update_payload(app.cursor)

    def on_state(state: Any, error: Exception | None) -> None:
        app.say({"SUBSCRIBED": "joined", "CLOSED": "left"}.get(state.value, state.value), error=str(error))

    for event in ("session_event", "replay_complete"):
        channel.on_broadcast(event, on_broadcast)
    await channel.subscribe(on_state)
    await commands.heard("leave").wait()
    await channel.unsubscribe()
    await commands.heard("quit").wait()
    await client.close()


run(drive)
