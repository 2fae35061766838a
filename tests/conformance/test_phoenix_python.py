"""PyPI `phoenix-channels-python-client`, the strictest about join_ref, run for real in an environment of its own."""

from pathlib import Path

import pytest

from tests.conformance.conftest import Scene
from tests.conformance.driver import driver
from tests.conformance.journey import join_drop_resume_leave
from tests.support.programs import missing

HERE = Path(__file__).resolve().parent
PYTHON = HERE.parent.parent / ".venv-clients" / "bin" / "python"


@pytest.fixture
def client() -> tuple[str | Path, ...]:
    """The command line of the client."""
    if not PYTHON.exists():
        missing(".venv-clients is not built: `make test` builds it")
    return PYTHON, HERE / "py" / "phoenix_channels.py"


async def test_phoenix_python_joins_is_dropped_resumes_and_leaves(
    client: tuple[str | Path, ...], scene: Scene, tmp_path: Path
) -> None:
    async with driver(
        *client, log=tmp_path / "client.log", url=scene.socket_url, token=scene.token, topic=scene.topic
    ) as phoenix:
        await join_drop_resume_leave(phoenix, scene)
        assert phoenix.of("topic_lost") == []
