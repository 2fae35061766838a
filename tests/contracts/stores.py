"""Every event store with its session log, opened the same way."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from bridge_client.session_log import SessionLog
from bridge_client.store import EventStore, PlainStore, Stored
from bridge_client.store.adapted import Adapted
from bridge_client.store.memory import MemoryStore
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_log import SqliteSessionLog
from tests.support.postgres_server import shared_server

LOCAL = ("memory", "sqlite")
BACKENDS = (*LOCAL, "postgres")
STORES = (*BACKENDS, "plain")


def postgres_url(folder: Path) -> str:
    """A database that is the folder's own."""
    name = f"s{sha256(str(folder).encode()).hexdigest()[:20]}"
    server = shared_server()
    server.sql(f"CREATE SCHEMA IF NOT EXISTS {name}")
    return server.url(name)


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
    elif backend == "postgres":
        from bridge_client.store.postgres import PostgresStore  # an extra

        postgres = await PostgresStore.open(postgres_url(folder), **options)
        found = Opened(postgres, postgres)
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
