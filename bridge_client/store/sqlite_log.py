"""The session log of a SQLite store: every event has its place, given with its id in the same transaction."""

import asyncio
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from bridge_client.event_json import repair_text
from bridge_client.session_log import Sequenced
from bridge_client.store import Stored
from bridge_client.store.admission import Page
from bridge_client.store.appending import admit_appended
from bridge_client.store.group_commit import latest_sequence
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.waiters import Filtered, Wanted
from protocol.events.session_manager import Event


class SqliteSessionLog(Filtered):
    """`SessionLog` in the file of a SqliteStore, which stays the caller's to close."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def append_event_with_sequence(self, session_id: str, event: Mapping[str, Any] | bytes | Event) -> Sequenced:
        written = await self._store.append(admit_appended(session_id, event, self._store.max_event_bytes))
        if not written.stored:
            repeated: Sequenced = written.value
            return repeated
        sequence = written.sequences[0]
        assert sequence is not None  # it names a session
        return Sequenced(written.stored[0], sequence)

    async def find(self, wanted: Wanted) -> list[Sequenced]:
        deadline = asyncio.get_running_loop().time() + wanted.wait
        while True:
            with self._store.waiters.waiting(wanted) as woken:
                page = await self._store.query(lambda file: _page(file, wanted))
                if page or asyncio.get_running_loop().time() >= deadline:
                    return page
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self._store.wait_for(woken)

    async def get_latest_sequence(self, session_id: str) -> int:
        return await self._store.query(lambda file: latest_sequence(file, repair_text(session_id)))


def page_query(wanted: Wanted) -> tuple[str, list[Any]]:
    """One query for all filters: it reads the session's part of one index, and then the events that match."""
    query = "SELECT id, sequence, data FROM events WHERE session_id = ? AND sequence > ? AND sequence < ?"
    values: list[Any] = [wanted.session_id, wanted.after, wanted.before]
    for column, value in (("type = ?", wanted.type), ("run_id = ?", wanted.run_id), ("at >= ?", wanted.since)):
        if value is not None:
            query += f" AND {column}"
            values.append(value)
    return query + " ORDER BY sequence", values


def _page(file: sqlite3.Connection, wanted: Wanted) -> list[Sequenced]:
    page = Page(wanted.limit)
    found: list[Sequenced] = []
    rows = file.execute(*page_query(wanted))
    for event_id, sequence, data in rows:
        found.append(Sequenced(Stored(event_id, data), sequence))
        if not page.add(found[-1].stored):
            break
    rows.close()
    return found
