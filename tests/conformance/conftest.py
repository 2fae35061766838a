"""The way from a client to the hub: by a cable that can be cut, with or without an nginx behind it."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge_server.app import Hub
from tests.conformance.driver import Order
from tests.conformance.nginx import nginx
from tests.support.cable import Cable
from tests.support.running_hub import running_hub
from tests.support.scripted_home import ScriptedHome, scripted_home


@dataclass(frozen=True)
class Place:
    """Where apps dial, and the home that they watch there."""

    hub: Hub
    server_id: str
    port: int

    def order(self, name: str, **more: str) -> Order:
        """What one client is told: its name, and where, as whom and what to join; it adds /websocket by itself."""
        _, token = self.hub.credentials.add_device(self.server_id, name)
        url = f"ws://127.0.0.1:{self.port}/socket"
        return {"name": name, "url": url, "token": token, "topic": f"app:{self.server_id}", **more}


@dataclass(frozen=True)
class Scene(Place):
    """A hub with one home on it, whose apps dial the cable."""

    home: ScriptedHome
    cable: Cable


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    """A hub that takes a credential in the URL, as many a client has no other place for it."""
    async with running_hub(tmp_path, allow_query_credentials=True) as hub:
        yield hub


@pytest.fixture
async def nginx_port(hub: Hub, tmp_path: Path) -> AsyncIterator[int]:
    """The port of an nginx in front of the hub."""
    async with nginx(tmp_path / "nginx", hub.port) as port:
        yield port


@pytest.fixture(params=["direct", pytest.param("nginx", marks=pytest.mark.requires("nginx"))])
async def way(request: pytest.FixtureRequest, hub: Hub, tmp_path: Path) -> AsyncIterator[Cable]:
    """A cable to the hub, with or without an nginx at its end."""
    async with AsyncExitStack() as stack:
        port = hub.port
        if request.param == "nginx":
            port = await stack.enter_async_context(nginx(tmp_path / "nginx", port))
        yield await stack.enter_async_context(Cable(port))


@pytest.fixture
async def scene(hub: Hub, way: Cable) -> AsyncIterator[Scene]:
    """The whole of it, by both ways."""
    async with _scene(hub, way) as whole:
        yield whole


@pytest.fixture
async def direct_scene(hub: Hub) -> AsyncIterator[Scene]:
    """The whole of it, with nothing between cable and hub."""
    async with Cable(hub.port) as cable, _scene(hub, cable) as whole:
        yield whole


@asynccontextmanager
async def _scene(hub: Hub, cable: Cable) -> AsyncIterator[Scene]:
    server, token = hub.credentials.add_server("home")
    async with scripted_home(hub.url, server.server_id, token, f"epoch-{secrets.token_hex(4)}") as home:
        yield Scene(hub, server.server_id, cable.port, home, cable)
