"""A home that is asked through a hub: the real API, store and forwarder, and apps of any scopes."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bridge_client.api.in_process import InProcess
from bridge_client.app_client import AppClient
from bridge_client.clock import SystemClock
from bridge_client.cursor import CursorFile
from bridge_client.forwarder import Forwarder
from bridge_client.link import Link
from bridge_client.requests import Answer, Requests
from bridge_client.runners import Runner
from bridge_client.sources.store import StoreSource
from bridge_client.store.sqlite_requests import SqliteAnswers
from bridge_server.app import Hub
from tests.bridge_client.scripted_hub import NoWait
from tests.support.running_api import TOKEN
from tests.support.running_home import Home, running_home


class RemoteHome:
    """One home and its hub."""

    def __init__(self, hub: Hub, home: Home, server_id: str, token: str, name: str, folder: Path) -> None:
        self.hub = hub
        self.home = home
        self.server_id = server_id
        self.answers = SqliteAnswers(home.store)
        self._token = token
        self._name = name
        self._folder = folder
        self.asked = 0
        self.may = asyncio.Event()
        """Cleared, the home holds what it is asked before it does it."""
        self.may.set()
        self.display: dict[str, Any] | None = None
        """What every answer to an action carries besides, as other homes may."""

    @asynccontextmanager
    async def connected(self, *, requests: bool = True) -> AsyncIterator[None]:
        """The home is joined to the hub and answers."""
        cursor = CursorFile(self._folder / "cursor.json", interval=0.01)
        async with InProcess(self.home.api, TOKEN) as api:

            async def ask(method: str, path: str, body: bytes | None) -> Answer:
                self.asked += 1
                await self.may.wait()
                answer = await api(method, path, body)
                if self.display is None or method == "GET":
                    return answer
                members = json.loads(answer.body) | {"display": self.display}
                return answer._replace(body=json.dumps(members).encode())

            answering = Requests(ask, self.answers, SystemClock())
            forwarder = Forwarder(
                StoreSource(self.home.store),
                cursor,
                Link(self.hub.url, self._token, rng=NoWait()),
                server_id=self.server_id,
                hub_url=self.hub.url,
                name=self._name,
                instance="one",
                requests=answering if requests else None,
            )
            task = asyncio.create_task(forwarder.run())
            try:
                while not self.hub.homes.get(self.server_id).online:
                    await asyncio.sleep(0.005)
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await answering.close()
                await cursor.close()

    def device(self, scopes: Iterable[str] = ("view", "approve", "control"), name: str = "a phone") -> tuple[str, str]:
        """A new device's id and credential."""
        device, credential = self.hub.credentials.add_device(self.server_id, name, tuple(scopes))
        return device.device_id, credential

    def app(self, credential: str, **more: Any) -> AppClient:
        return AppClient(self.hub.url, credential, self.server_id, rng=NoWait(), **more)


@asynccontextmanager
async def remote_home(
    hub: Hub, folder: Path, runner: Runner | None = None, *, server: tuple[str, str] | None = None, name: str = "a home"
) -> AsyncIterator[RemoteHome]:
    """`server` is the id and the credential of one that the hub knows already."""
    if server is None:
        made, token = hub.credentials.add_server(name)
        server = made.server_id, token
    async with running_home(folder, runner) as home:
        yield RemoteHome(hub, home, *server, name, folder)
