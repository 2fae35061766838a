"""Drives PyPI `chunnel` as an app would. It has no reconnect and no heartbeat: the app dials again with its cursor.

A client's order: {name, url, token, topic}. See program.py for the rest.
"""

import asyncio
from typing import Any

from chunnel.socket import Socket
from program import Client, Commands, Order, run


async def drive(app: Client, order: Order, commands: Commands) -> None:
    leaving, quitting = commands.heard("leave"), commands.heard("quit")
    while not leaving.is_set():
        socket = Socket(f"{order['url']}/websocket", {"token": order["token"]})
        try:
            await socket.connect()
        except Exception:  # whatever the library raises: the app only tries again
            await asyncio.sleep(0.1)
            continue
        app.say("opened")
        channel = socket.channel(order["topic"], dict(app.cursor))
        app.say("joined", reply=await channel.join())
        ended = asyncio.Event()
        listening = asyncio.create_task(_listen(app, channel, ended))
        wanted = asyncio.create_task(leaving.wait())
        # The task of its transport is where this client says that the socket is lost.
        await asyncio.wait((wanted, socket._transport_task), return_when=asyncio.FIRST_COMPLETED)
        wanted.cancel()
        if leaving.is_set():
            await channel.leave()
            await ended.wait()
            app.say("left")
            await quitting.wait()
            await socket.disconnect()
        else:
            app.say("closed", error=str(socket._transport_task.exception()))
            socket._done_recv.set_result(True)  # its reader would wait for ever
        listening.cancel()


async def _listen(app: Client, channel: Any, ended: asyncio.Event) -> None:
    while True:
        message = await channel.receive()
        app.event(message.event, message.payload)
        if message.event == "phx_close":
            ended.set()


run(drive)
