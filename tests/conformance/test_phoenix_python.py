"""PyPI `phoenix-channels-python-client`, the strictest about join_ref, in both versions of the protocol."""

from pathlib import Path

from tests.conformance.conftest import Scene
from tests.conformance.driver import driver, python
from tests.conformance.journey import join_drop_resume_leave


async def test_phoenix_python_joins_is_dropped_resumes_and_leaves(scene: Scene, tmp_path: Path) -> None:
    orders = [scene.order(f"version {version}", version=version) for version in ("1.0", "2.0")]
    async with driver(*python("phoenix_channels.py"), log=tmp_path / "clients.log", orders=orders) as program:
        await join_drop_resume_leave(program, scene.home, scene.cable)
        for client in program.clients:
            assert client.of("topic_lost") == [], client.name
