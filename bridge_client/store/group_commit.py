"""What the writer of a SQLite store does in one transaction: many writes, each of them whole or not at all."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from bridge_client.session_log import EventIdTaken, Sequenced
from bridge_client.store import Stored, StoreError
from bridge_client.store.admission import Admitted
from protocol.event_id import MAX_EVENT_ID

Apply = Callable[[sqlite3.Connection, Sequence[Stored]], Any]
"""Changes other tables of the file, knowing the ids that the write's events got. What it raises undoes its write."""


class Written(NamedTuple):
    """A write that is durable."""

    stored: list[Stored]
    value: Any
    """What `apply` returned; of an event that the file had already: that one, as Sequenced."""
    sequences: Sequence[int | None] = ()
    """The events' places in their sessions; None for one of no session."""


class Write(NamedTuple):
    """Events, and what else of the file changes with them. An event with an id of its own comes alone."""

    events: Sequence[Admitted]
    done: asyncio.Future[Written]
    apply: Apply | None = None

    @property
    def size(self) -> int:
        """The bytes that wait in the queue because of it."""
        return sum(len(event.members) for event in self.events)


_COLUMNS = ("id", "session_id", "request_id", "data", "sequence", "type", "run_id", "at", "own_id")
_INSERT = f"INSERT INTO events ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608
_Row = tuple[Any, ...]
_REPEATED = "SELECT id, session_id, sequence, data FROM events WHERE own_id = ?"


_LATEST = """
    SELECT max(
        ifnull((SELECT sequence FROM events WHERE session_id = :id AND sequence > 0 ORDER BY sequence DESC LIMIT 1), 0),
        ifnull((SELECT last FROM removed_sequences WHERE session_id = :id), 0)
    )
"""


def latest_sequence(connection: sqlite3.Connection, session_id: str) -> int:
    """The number given last in a session, whether its event is still there or not; 0 before the first."""
    found: int = connection.execute(_LATEST, {"id": session_id}).fetchone()[0]
    return found


class _Places:
    """The next place in each session that this transaction touches."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last: dict[str, int] = {}

    def take(self, session_id: str) -> int:
        last = self._last.get(session_id)
        if last is None:
            last = latest_sequence(self._connection, session_id)
        self._last[session_id] = last + 1
        return last + 1

    def give_back(self, events: Sequence[Admitted]) -> None:
        for event in events:
            if event.session_id is not None:
                self._last[event.session_id] -= 1


def commit(connection: sqlite3.Connection, batch: Sequence[Write], now: int) -> list[Written | Exception]:
    """The outcome of each write, in their order; ids and places are given in this order too, no hole for one undone.

    `now` (microseconds since 1970) is the time of events that say none. Raises if nothing of the batch is stored; the
    transaction may then be open still.
    """
    connection.execute("BEGIN IMMEDIATE")
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
    next_id = (last[0] if last else 0) + 1
    if next_id - 1 + sum(len(write.events) for write in batch) > MAX_EVENT_ID:
        raise StoreError(f"the event store has used every id up to {MAX_EVENT_ID}; begin a new one")
    places = _Places(connection)
    outcomes: list[Written | Exception] = []
    waiting: list[_Row] = []
    for write in batch:
        if write.events and write.events[0].own_id is not None:
            _insert(connection, waiting)
            waiting.clear()
            if (known := _known(connection, write.events[0])) is not None:
                outcomes.append(known)
                continue
        stored: list[Stored] = []
        sequences: list[int | None] = []
        rows: list[_Row] = []
        for event_id, event in enumerate(write.events, next_id):
            session_id = event.session_id
            sequence = None if session_id is None else places.take(session_id)
            stored.append(one := event.stored(event_id, sequence))
            sequences.append(sequence)
            at = now if event.at is None else event.at
            row = (event_id, session_id, event.request_id, one.data, sequence, event.type, event.run_id, at)
            rows.append((*row, event.own_id))
        written = Written(stored, None, sequences)
        if write.apply is None:
            waiting += rows
            outcomes.append(written)
        else:
            _insert(connection, waiting)
            waiting.clear()
            outcomes.append(_apply(connection, write.apply, written, rows))
        if isinstance(outcomes[-1], Written):
            next_id += len(stored)
        else:
            places.give_back(write.events)
    _insert(connection, waiting)
    connection.execute("COMMIT")
    return outcomes


def _known(connection: sqlite3.Connection, event: Admitted) -> Written | Exception | None:
    """The outcome for an event whose id the file has."""
    row = connection.execute(_REPEATED, (event.own_id,)).fetchone()
    if row is None:
        return None
    event_id, session_id, sequence, data = row
    if session_id != event.session_id:
        return EventIdTaken(f"$.id: {event.own_id!r:.80} is the id of an event of another session")
    return Written([], Sequenced(Stored(event_id, data), sequence))


def _apply(connection: sqlite3.Connection, apply: Apply, written: Written, rows: Sequence[_Row]) -> Written | Exception:
    connection.execute("SAVEPOINT one_write")
    outcome: Written | Exception
    try:
        _insert(connection, rows)
        outcome = written._replace(value=apply(connection, written.stored))
    except Exception as error:
        connection.execute("ROLLBACK TO one_write")  # raises if the error ended the transaction: then all is undone
        outcome = error
    connection.execute("RELEASE one_write")
    return outcome


def _insert(connection: sqlite3.Connection, rows: Sequence[_Row]) -> None:
    connection.executemany(_INSERT, rows)
