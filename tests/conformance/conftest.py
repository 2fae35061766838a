"""The way from a client to the hub: by a cable that can be cut, with or without an nginx behind it."""

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bridge_server.app import Hub
from tests.conformance.nginx import nginx
from tests.support.cable import Cable
from tests.support.scripted_home import ScriptedHome, scripted_home


@dataclass(frozen=True)
class Scene:
    """A hub with one home on it and one paired device, whose client dials the cable."""

    home: ScriptedHome
    cable: Cable
    topic: str
    token: str

    @property
    def socket_url(self) -> str:
        """Where a Phoenix client dials: it adds /websocket and the version itself."""
        return f"ws://127.0.0.1:{self.cable.port}/socket"


@pytest.fixture
async def nginx_port(hub: Hub, tmp_path: Path) -> AsyncIterator[int]:
    """The port of an nginx in front of the hub."""
    async with nginx(tmp_path / "nginx", _port(hub)) as port:
        yield port


@pytest.fixture(params=["direct", pytest.param("nginx", marks=pytest.mark.requires("nginx"))])
async def scene(request: pytest.FixtureRequest, hub: Hub, tmp_path: Path) -> AsyncIterator[Scene]:
    server, home_token = hub.credentials.add_server("home")
    device, token = hub.credentials.add_device(server.server_id, "phone")
    async with AsyncExitStack() as stack:
        target = _port(hub)
        if request.param == "nginx":
            target = await stack.enter_async_context(nginx(tmp_path / "nginx", target))
        cable = await stack.enter_async_context(Cable(target))
        epoch = f"epoch-{secrets.token_hex(4)}"
        home = await stack.enter_async_context(scripted_home(hub.url, server.server_id, home_token, epoch))
        yield Scene(home, cable, f"app:{device.server_id}", token)


def _port(hub: Hub) -> int:
    port = urlsplit(hub.url).port
    assert port is not None
    return port
