"""A broadcast hub as its documentation shows it: `websockets.asyncio.server` and `broadcast`, under uvloop."""

import asyncio
import json
from collections import defaultdict

import uvloop
from websockets.asyncio.server import ServerConnection, broadcast, serve

apps: defaultdict[str, set[ServerConnection]] = defaultdict(set)


async def handle(connection: ServerConnection) -> None:
    """`/app/<group>` listens, `/publish/<group>` sends."""
    assert connection.request is not None
    _, role, group = connection.request.path.split("/")
    if role == "app":
        apps[group].add(connection)
        await connection.send("joined")
        try:
            await connection.wait_closed()
        finally:
            apps[group].discard(connection)
    else:
        async for event in connection:
            broadcast(apps[group], event)
            await connection.send("ok")


async def main() -> None:
    """Serve until killed."""
    async with serve(handle, "127.0.0.1", 0, compression=None, backlog=4096) as server:
        print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
