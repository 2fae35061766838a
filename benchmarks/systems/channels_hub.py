"""A broadcast hub with Django Channels: a consumer and the in-memory layer, under uvicorn with uvloop."""

import json
import socket
from typing import Any

import django
import uvicorn
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    CHANNEL_LAYERS={
        # Its default capacity of 100 messages would drop events of the saturated shape without a word.
        "default": {"BACKEND": "channels.layers.InMemoryChannelLayer", "CONFIG": {"capacity": 100_000}}
    },
)
django.setup()

from channels.generic.websocket import AsyncWebsocketConsumer  # noqa: E402 (after the settings)
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.urls import path  # noqa: E402


class Events(AsyncWebsocketConsumer):
    """`/app/<group>` listens, `/publish/<group>` sends."""

    async def connect(self) -> None:
        """Join the group."""
        self.group = f"group-{self.scope['url_route']['kwargs']['group']}"
        await self.accept()
        if self.scope["url_route"]["kwargs"]["role"] == "app":
            await self.channel_layer.group_add(self.group, self.channel_name)
            await self.send("joined")

    async def receive(self, text_data: str = "", bytes_data: bytes | None = None) -> None:
        """A publisher's event."""
        await self.channel_layer.group_send(self.group, {"type": "event.happened", "event": text_data})
        await self.send("ok")

    async def event_happened(self, message: dict[str, Any]) -> None:
        """An event of the group, for an app."""
        await self.send(message["event"])

    async def disconnect(self, code: int) -> None:
        """Leave the group."""
        await self.channel_layer.group_discard(self.group, self.channel_name)


application = ProtocolTypeRouter({"websocket": URLRouter([path("<str:role>/<int:group>", Events.as_asgi())])})


def main() -> None:
    """Serve until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    config = uvicorn.Config(
        application,
        loop="uvloop",
        lifespan="off",
        log_level="warning",
        ws_per_message_deflate=False,
        ws_ping_interval=None,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
