"""A real hub in this process, on a free port of 127.0.0.1."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bridge_server.app import Hub
from bridge_server.config import Config


@asynccontextmanager
async def running_hub(folder: Path, **settings: Any) -> AsyncIterator[Hub]:
    """Start a hub whose state lies in `folder`, and stop it at the end. `settings` are fields of Config.

    It listens when this yields: `hub.url` is its http:// address, `hub.credentials` makes servers and devices. Stopping
    doesn't linger: sockets are closed at once unless `drain_seconds` is set. An app that joins before its home is told
    late that this one is away, unless `cold_wait` is set: on a busy machine a home's start takes its time.
    """
    chosen: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "state_dir": folder / "hub-state",
        "database": folder / "hub.db",
        "drain_seconds": 0.0,
        "cold_wait": 60.0,
        **settings,
    }
    async with Hub(Config(**chosen)) as hub:
        yield hub
