"""One home with its apps, on real processes: a folder, a hub's port, credentials, and the store that is the truth."""

import asyncio
from pathlib import Path

from bridge_client import keys
from bridge_client.store import EventStore
from bridge_client.store.sqlite import SqliteStore
from bridge_server.auth import Credentials
from tests.support.ports import free_port
from tests.support.processes import HomeProgram, HubProgram, IngestProgram


class Scene:
    """The names of things; nothing runs yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hub_folder = folder / "hub"
        self.home_folder = folder / "home"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.credentials = Credentials(self.hub_folder / "hub.db")
        server, self.home_token = self.credentials.add_server("Home")
        self.server_id = server.server_id
        self.set_hub_url(self.url)

    def set_hub_url(self, url: str) -> None:
        """Where the home finds the hub: the hub itself, or a wire in front of it."""
        credential = keys.Credential(url, self.server_id, self.home_token)
        keys.save(self.home_folder / "home-credential.json", credential)

    def device(self) -> str:
        """The credential of one more app."""
        return self.credentials.add_device(self.server_id, "App")[1]

    def hub(self, **settings: object) -> HubProgram:
        """The hub; it waits for a home that a slow machine takes long to start."""
        return HubProgram(self.hub_folder, self.port, **{"cold_wait": 60.0, **settings})  # type: ignore[arg-type]

    def home(self, name: str = "home", **settings: object) -> HomeProgram:
        """The home; under another name one with a state directory of its own, over the same store and credential."""
        if name == "home":
            return HomeProgram(self.home_folder, name, **settings)  # type: ignore[arg-type]
        kept = {"store": self.home_folder / "home.db", "credential_file": self.home_folder / "home-credential.json"}
        return HomeProgram(self.folder / name, name, **kept, **settings)  # type: ignore[arg-type]

    def ingest(self, name: str = "ingest") -> IngestProgram:
        return IngestProgram(self.home_folder, name)

    async def store(self) -> SqliteStore:
        """The home's store, opened by this process too."""
        return await SqliteStore.open(self.home_folder / "home.db")


async def publish_steadily(store: EventStore, per_second: float, enough: asyncio.Event) -> None:
    """Publish events at an even pace until there are enough. Not to be cancelled: one on its way would still come."""
    loop = asyncio.get_running_loop()
    start, number = loop.time(), 0
    while not enough.is_set():
        await store.publish({"type": "note", "session_id": "s-1", "number": number, "text": f"żółw \u2028 {number}"})
        number += 1
        await asyncio.sleep(max(0.0, start + number / per_second - loop.time()))
