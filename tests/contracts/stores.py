"""Every event store with its session log, opened the same way."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bridge_client.session_log import SessionLog
from bridge_client.store import EventStore, PlainStore, Stored
from bridge_client.store.adapted import Adapted
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_log import SqliteSessionLog

BACKENDS = ("memory", "sqlite")
STORES = (*BACKENDS, "plain")


class Plain:
    """What somebody else may bring: publish and list, nothing else."""

    def __init__(self, **options: Any) -> None:
        self._kept = MemoryStore(**options)

    async def publish(self, event: Mapping[str, Any] | bytes) -> Stored:
        return await self._kept.publish(event)

    async def list(self, **asked: Any) -> list[Stored]:
        return await self._kept.list(**asked)


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


@asynccontextmanager
async def opened_store(backend: str, folder: Path, **options: Any) -> AsyncIterator[EventStore]:
    """An event store; also one that is only that."""
    if backend != "plain":
        async with opened(backend, folder, **options) as found:
            yield found.store
        return
    plain: PlainStore = Plain(**options)
    adapted = Adapted(plain)
    try:
        yield adapted
    finally:
        await adapted.close()
