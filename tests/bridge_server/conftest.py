"""Which event loop a test runs on: the driver and what stands on it run on both, the hub's own being uvloop."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

ON_BOTH_LOOPS = {"test_websocket_driver.py", "test_peer.py", "test_longpoll_sessions.py"}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in ON_BOTH_LOOPS:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}
