"""A broadcast hub with python-socketio: rooms, on aiohttp, under uvloop."""

import asyncio
import json
from typing import Any

import socketio
import uvloop
from aiohttp import web

# The generator answers no pings: a run is over before the first would be missed.
hub = socketio.AsyncServer(async_mode="aiohttp", http_compression=False, ping_interval=600)


@hub.event
async def join(sid: str, group: int) -> str:
    """An app listens to a group."""
    await hub.enter_room(sid, f"group-{group}")
    return "ok"


@hub.event
async def publish(sid: str, group: int, event: dict[str, Any]) -> str:
    """A publisher sends to a group."""
    await hub.emit("event", event, room=f"group-{group}")
    return "ok"


async def main() -> None:
    """Serve until killed."""
    app = web.Application()
    hub.attach(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(json.dumps({"port": runner.addresses[0][1]}), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
