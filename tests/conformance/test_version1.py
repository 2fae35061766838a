"""Clients that speak nothing but version 1.0.0: no join_ref, refs of any type, some without heartbeat or reconnect."""

from pathlib import Path

import pytest

from tests.conformance.conftest import Scene
from tests.conformance.driver import driver, javascript, python
from tests.conformance.journey import join_drop_resume_leave


async def test_npm_phoenix_channels_and_phoenix_socket(direct_scene: Scene, tmp_path: Path) -> None:
    scene = direct_scene
    orders = [scene.order(package, package=package) for package in ("phoenix-channels", "phoenix-socket")]
    async with driver(*javascript("version1.mjs"), log=tmp_path / "clients.log", orders=orders) as program:
        await join_drop_resume_leave(program, scene.home, scene.cable)
        for client in program.clients:
            assert client.of("refused") == client.of("join_timeout") == [], client.name
            (left,) = client.of("left")
            assert set(left["message"]) == {"topic", "event", "payload", "ref"}, client.name


@pytest.mark.parametrize("package", ["phxsocket", "chunnel"])
async def test_pypi_clients_with_integer_refs(package: str, direct_scene: Scene, tmp_path: Path) -> None:
    """Both look their replies up by an integer, phxsocket from 0 on; chunnel sends no heartbeat."""
    scene = direct_scene
    orders = [scene.order(package, package=package)]
    async with driver(*python(f"{package}_client.py"), log=tmp_path / "clients.log", orders=orders) as program:
        await join_drop_resume_leave(program, scene.home, scene.cable)
