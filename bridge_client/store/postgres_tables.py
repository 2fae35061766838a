"""The tables of an event store in PostgreSQL: what a transaction puts there, and how they are asked.

Texts that are looked for (session, request, run, type, an event's own id) are kept as bytes, because PostgreSQL's texts
can't hold every JSON string; one that is too long for an index as the digest of it.
"""

import asyncio
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, NamedTuple

from bridge_client.session_log import EventIdTaken, Sequenced
from bridge_client.store import Stored, StoreError
from bridge_client.store.admission import Admitted
from bridge_client.store.waiters import Wanted
from protocol.event_id import MAX_EVENT_ID

VERSION: Final = 1

_SCHEMA: Final = """
    CREATE TABLE bridge_about (
        one BOOLEAN PRIMARY KEY CHECK (one), version INTEGER NOT NULL, epoch TEXT NOT NULL, last_id BIGINT NOT NULL
    );
    CREATE TABLE bridge_events (
        id BIGINT PRIMARY KEY, data BYTEA NOT NULL, session BYTEA, request BYTEA, sequence BIGINT, type BYTEA NOT NULL,
        run BYTEA, at BIGINT NOT NULL, own_id BYTEA, batch TEXT NOT NULL
    );
    CREATE INDEX bridge_events_of_session ON bridge_events (session, id) WHERE session IS NOT NULL;
    CREATE INDEX bridge_events_of_request ON bridge_events (request, id) WHERE request IS NOT NULL;
    CREATE INDEX bridge_events_by_sequence ON bridge_events (session, sequence) INCLUDE (type, run, at)
        WHERE session IS NOT NULL;
    CREATE UNIQUE INDEX bridge_events_by_own_id ON bridge_events (own_id) WHERE own_id IS NOT NULL;
    CREATE TABLE bridge_sequences (session BYTEA PRIMARY KEY, last BIGINT NOT NULL);
"""
_INSERT: Final = "INSERT INTO bridge_events VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
_SCHEMA_LOCK: Final = 0x5E5510B21D6E
_LONGEST_KEY: Final = 256
_SET_LAST: Final = """
    INSERT INTO bridge_sequences VALUES ($1, $2) ON CONFLICT (session) DO UPDATE SET last = excluded.last
"""

_Row = tuple[Any, ...]


class Placed(NamedTuple):
    """An event that a transaction stores, or that was stored already."""

    sequenced: Sequenced
    at: int
    repeated: bool = False


class Write(NamedTuple):
    event: Admitted
    done: asyncio.Future[Sequenced]


Writes = list[Write]
Outcomes = list[Placed | Exception]


async def insert(connection: Any, batch: Writes, token: str, now: int) -> tuple[Outcomes, int | None]:
    """Store what is new of the batch, in the connection's transaction: the outcomes, and the first id given.

    `token` names the transaction; `now` (microseconds since 1970) is the time of events that say none.
    """
    last_id: int = await connection.fetchval("SELECT last_id FROM bridge_about FOR UPDATE")
    before = last_id
    if last_id + len(batch) > MAX_EVENT_ID:
        raise StoreError(f"the event store has used every id up to {MAX_EVENT_ID}; begin a new one")
    sessions = {key(write.event.session_id) for write in batch if write.event.session_id is not None}
    query = "SELECT session, last FROM bridge_sequences WHERE session = ANY($1::bytea[])"
    last = dict.fromkeys(sessions, 0) | dict(await connection.fetch(query, list(sessions)))
    known = await _known(connection, batch)
    outcomes: Outcomes = []
    rows: list[_Row] = []
    for event, _ in batch:
        session, own_id = key_or_none(event.session_id), key_or_none(event.own_id)
        if own_id in known:
            its_session, sequenced = known[own_id]
            taken = EventIdTaken(f"$.id: {event.own_id!r:.80} is the id of an event of another session")
            outcomes.append(Placed(sequenced, 0, repeated=True) if its_session == session else taken)
            continue
        last_id += 1
        if session is not None:
            last[session] += 1
        sequence = None if session is None else last[session]
        stored, at = event.stored(last_id, sequence), now if event.at is None else event.at
        sequenced = Sequenced(stored, sequence or 0)
        keys = (session, key_or_none(event.request_id), sequence, key(event.type), key_or_none(event.run_id))
        rows.append((last_id, stored.data, *keys, at, own_id, token))
        outcomes.append(Placed(sequenced, at))
        if own_id is not None:
            known[own_id] = (session, sequenced)
    if rows:
        await connection.executemany(_INSERT, rows)
        await connection.executemany(_SET_LAST, [(session, last[session]) for session in sessions])
        await connection.execute("UPDATE bridge_about SET last_id = $1", last_id)
    return outcomes, before + 1 if rows else None


async def _known(connection: Any, batch: Writes) -> dict[bytes | None, tuple[bytes | None, Sequenced]]:
    own_ids = [key(write.event.own_id) for write in batch if write.event.own_id is not None]
    if not own_ids:
        return {}
    query = "SELECT own_id, session, id, data, sequence FROM bridge_events WHERE own_id = ANY($1::bytea[])"
    return {
        row["own_id"]: (row["session"], Sequenced(Stored(row["id"], row["data"]), row["sequence"]))
        for row in await connection.fetch(query, own_ids)
    }


async def prepare(connection: Any, name: str) -> None:
    """Make the tables if they are missing, once, whoever else is at it. Raises StoreError."""
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _SCHEMA_LOCK)
    if await connection.fetchval("SELECT to_regclass('bridge_about')") is None:
        await connection.execute(_SCHEMA)
        await connection.execute("INSERT INTO bridge_about VALUES (TRUE, $1, $2, 0)", VERSION, token_hex(16))
        return
    version = await connection.fetchval("SELECT version FROM bridge_about")
    if version > VERSION:
        raise StoreError(
            f"{name} was made by a newer version (schema {version}; this one knows {VERSION}): upgrade bridge-client"
        )


def session_filter(wanted: Wanted) -> tuple[list[str], list[Any]]:
    """The conditions of all filters, each of which the index of sessions can judge."""
    where = ["session = $1", "sequence > $2", "sequence < $3"]
    values: list[Any] = [key(wanted.session_id), wanted.after, wanted.before]
    for condition, value in (
        ("type = ", key_or_none(wanted.type)),
        ("run = ", key_or_none(wanted.run_id)),
        ("at >= ", wanted.since),
    ):
        if value is not None:
            values.append(value)
            where.append(f"{condition}${len(values)}")
    return where, values


def key(text: str) -> bytes:
    """What an index holds of a text. No UTF-8 begins with the byte of a digest."""
    data = text.encode()
    return data if len(data) <= _LONGEST_KEY else b"\xff" + sha256(data).digest()


def key_or_none(text: str | None) -> bytes | None:
    return None if text is None else key(text)
