"""Drives PyPI `phxsocket` as an app would. It has no reconnect: the app dials again, and joins with its cursor.

A client's order: {name, package, url, token, topic}. The package to drive is named in the order and loaded by this
program alone, which nothing imports. See program.py for the rest.
"""

import asyncio
import importlib
from typing import Any

from program import Client, Commands, Order, run


async def drive(app: Client, order: Order, commands: Commands) -> None:
    library = importlib.import_module(order["package"])
    loop = asyncio.get_running_loop()
    leaving, quitting = commands.heard("leave"), commands.heard("quit")
    while not leaving.is_set():
        lost = asyncio.Event()
        left = asyncio.Event()
        socket = library.Client(f"{order['url']}/websocket", {"token": order["token"]})
        socket.on_close = lambda _, lost=lost: loop.call_soon_threadsafe(lost.set)
        try:
            await asyncio.to_thread(socket.connect)
        except Exception:  # whatever the library raises: the app only tries again
            await asyncio.sleep(0.1)
            continue
        app.say("opened")
        channel = socket.channel(order["topic"], app.cursor)
        channel.on_message = lambda _, event, payload: app.event(event, payload)
        channel.on_close = lambda left=left: loop.call_soon_threadsafe(left.set)
        app.say("joined", reply=await asyncio.to_thread(channel.join))
        await _first(lost, leaving)
        if lost.is_set():
            app.say("closed")
            continue
        channel.leave()
        await left.wait()
        app.say("left")
        await quitting.wait()
        await asyncio.to_thread(socket.close)


async def _first(*events: asyncio.Event) -> None:
    waiting: list[asyncio.Task[Any]] = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()


run(drive)
