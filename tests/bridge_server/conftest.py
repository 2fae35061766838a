"""A hub with the recorded server's mounts; and which event loop a test runs on.

The driver and what stands on it run on both loops, the hub's own being uvloop.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from tests.support.recorded_server import RecordedServer, recorded_server

ON_BOTH_LOOPS = {"test_websocket_driver.py", "test_peer.py", "test_longpoll_sessions.py"}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in ON_BOTH_LOOPS:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RecordedServer]:
    async with recorded_server(tmp_path) as server:
        yield server
