"""What the writer of a SQLite store does in one transaction: many writes, each of them whole or not at all."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bridge_client.store import Stored, StoreError
from bridge_client.store.admission import Admitted
from protocol.event_id import MAX_EVENT_ID

Apply = Callable[[sqlite3.Connection, Sequence[Stored]], Any]
"""Changes other tables of the file, knowing the ids that the write's events got. What it raises undoes its write."""


class Written(NamedTuple):
    """A write that is durable."""

    stored: list[Stored]
    value: Any
    """What `apply` returned."""


class Write(NamedTuple):
    """Events, and what else of the file changes with them."""

    events: Sequence[Admitted]
    done: asyncio.Future[Written]
    apply: Apply | None = None

    @property
    def size(self) -> int:
        """The bytes that wait in the queue because of it."""
        return sum(len(event.members) for event in self.events)


def commit(connection: sqlite3.Connection, batch: Sequence[Write]) -> list[Written | Exception]:
    """The outcome of each write, in their order; ids are given in this order too, without a hole for one undone.

    Raises if nothing of the batch is stored; the transaction may then be open still.
    """
    connection.execute("BEGIN IMMEDIATE")
    row = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    next_id = (row[0] if row else 0) + 1
    if next_id - 1 + sum(len(write.events) for write in batch) > MAX_EVENT_ID:
        raise StoreError(f"the event store has used every id up to {MAX_EVENT_ID}; begin a new one")
    outcomes: list[Written | Exception] = []
    waiting: list[_Row] = []
    for write in batch:
        stored = [event.stored(event_id) for event_id, event in enumerate(write.events, next_id)]
        rows = [
            (at, one.session_id, one.request_id, data) for (at, data), one in zip(stored, write.events, strict=True)
        ]
        outcome: Written | Exception
        if write.apply is None:
            waiting += rows
            outcome = Written(stored, None)
        else:
            _insert(connection, waiting)
            waiting.clear()
            outcome = _apply(connection, write.apply, stored, rows)
        if isinstance(outcome, Written):
            next_id += len(stored)
        outcomes.append(outcome)
    _insert(connection, waiting)
    connection.execute("COMMIT")
    return outcomes


_Row = tuple[int, str | None, str | None, bytes]


def _apply(
    connection: sqlite3.Connection, apply: Apply, stored: list[Stored], rows: Sequence[_Row]
) -> Written | Exception:
    connection.execute("SAVEPOINT one_write")
    outcome: Written | Exception
    try:
        _insert(connection, rows)
        outcome = Written(stored, apply(connection, stored))
    except Exception as error:
        connection.execute("ROLLBACK TO one_write")  # raises if the error ended the transaction: then all is undone
        outcome = error
    connection.execute("RELEASE one_write")
    return outcome


def _insert(connection: sqlite3.Connection, rows: Sequence[_Row]) -> None:
    connection.executemany("INSERT INTO events (id, session_id, request_id, data) VALUES (?, ?, ?, ?)", rows)
