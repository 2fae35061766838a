"""What every test may use: the `requires` marker, and a running hub."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge_server.app import Hub
from tests.support.programs import require
from tests.support.running_hub import running_hub


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        for program in mark.args:
            require(program)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    """A hub on a free loopback port, with its database in the test's own folder."""
    async with running_hub(tmp_path) as hub:
        yield hub
