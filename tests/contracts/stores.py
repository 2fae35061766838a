"""Every event store with its session log, opened the same way."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bridge_client.session_log import SessionLog
from bridge_client.store import EventStore
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_log import SqliteSessionLog

BACKENDS = ("memory", "sqlite")


class Opened(NamedTuple):
    """A store, and the log of the same events."""

    store: EventStore
    log: SessionLog


@asynccontextmanager
async def opened(backend: str, folder: Path, **options: Any) -> AsyncIterator[Opened]:
    if backend == "memory":
        memory = MemoryStore(**options)
        found = Opened(memory, memory)
    else:
        sqlite = await SqliteStore.open(folder / "events.db", **options)
        found = Opened(sqlite, SqliteSessionLog(sqlite))
    try:
        yield found
    finally:
        await found.store.close()
