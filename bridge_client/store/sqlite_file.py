"""The SQLite file of an event store: make it, check it, connect to it, say what is wrong with it."""

import os
import sqlite3
import stat
import time
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from secrets import token_hex
from typing import Final

from bridge_client.dead_letters import TABLES as DEAD_LETTERS
from bridge_client.store import StoreError
from bridge_client.store.admission import read_stored

BUSY_SECONDS: Final = 30.0
"""How long a transaction waits for other processes."""

_STEPS: Final = (
    (
        "CREATE TABLE events"
        " (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, request_id TEXT, data BLOB NOT NULL)",
        "CREATE INDEX events_of_session ON events (session_id, id) WHERE session_id IS NOT NULL",
        "CREATE INDEX events_of_request ON events (request_id, id) WHERE request_id IS NOT NULL",
        "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    ),
    (
        "CREATE TABLE sessions (session_id TEXT PRIMARY KEY, revision INTEGER NOT NULL,"
        " cursor_event_id INTEGER NOT NULL, request_id TEXT, message_count INTEGER NOT NULL,"
        " message_bytes INTEGER NOT NULL, about BLOB NOT NULL)",
        "CREATE INDEX sessions_by_cursor ON sessions (cursor_event_id)",
        "CREATE INDEX sessions_with_request ON sessions (request_id) WHERE request_id IS NOT NULL",
        "CREATE TABLE session_messages (session_id TEXT NOT NULL, position INTEGER NOT NULL, data BLOB NOT NULL,"
        " PRIMARY KEY (session_id, position)) WITHOUT ROWID",
    ),
    DEAD_LETTERS,
    (
        "CREATE TABLE device_requests (device_id TEXT NOT NULL, request_id TEXT NOT NULL, fingerprint BLOB NOT NULL,"
        " begun_at REAL NOT NULL, line INTEGER NOT NULL, status INTEGER, headers BLOB, body BLOB,"
        " size INTEGER NOT NULL, PRIMARY KEY (device_id, request_id))",
        "CREATE INDEX device_requests_by_age ON device_requests (begun_at)",
        "CREATE INDEX device_requests_by_device ON device_requests (device_id, size)",
        "CREATE TABLE request_audit (id INTEGER PRIMARY KEY, at REAL NOT NULL, device_id TEXT NOT NULL,"
        " method TEXT NOT NULL, path TEXT NOT NULL, outcome TEXT NOT NULL)",
    ),
    (
        "CREATE TABLE application_notifications (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,"
        " key TEXT NOT NULL, active INTEGER NOT NULL, data BLOB NOT NULL)",
        "CREATE UNIQUE INDEX active_application_notifications ON application_notifications (key) WHERE active",
        "CREATE INDEX application_notifications_by_end ON application_notifications (active, number)",
    ),
    (
        *(f"ALTER TABLE events ADD COLUMN {column}" for column in ("sequence INTEGER", "type TEXT", "run_id TEXT")),
        *(f"ALTER TABLE events ADD COLUMN {column}" for column in ("at INTEGER", "own_id TEXT")),
        # The greatest number of a session's events that are gone, so that it is not given again.
        "CREATE TABLE removed_sequences (session_id TEXT PRIMARY KEY, last INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE TRIGGER remember_sequence AFTER DELETE ON events WHEN OLD.sequence IS NOT NULL BEGIN"
        " INSERT INTO removed_sequences VALUES (OLD.session_id, OLD.sequence)"
        " ON CONFLICT DO UPDATE SET last = max(last, excluded.last); END",
        # Which events there were at what time is not known: without a time of their own they are never `since` any.
        "UPDATE events SET sequence = place.number, type = type_of(data), run_id = run_of(data), at = time_of(data)"
        " FROM (SELECT id, row_number() OVER (PARTITION BY session_id ORDER BY id) AS number"
        " FROM events WHERE session_id IS NOT NULL ORDER BY id) AS place WHERE events.id = place.id",
        # All that a filter looks at, so that only events that match are read.
        "CREATE INDEX events_by_sequence ON events (session_id, sequence, type, run_id, at) WHERE sequence IS NOT NULL",
        "CREATE UNIQUE INDEX events_by_own_id ON events (own_id) WHERE own_id IS NOT NULL",
    ),
    (
        # Every event up to `id` was stored by `at`; counts and bytes of those behind the mark before (retention).
        "CREATE TABLE event_marks (id INTEGER PRIMARY KEY, at REAL NOT NULL, events INTEGER NOT NULL,"
        " size INTEGER NOT NULL)",
    ),
)
"""Step n makes a file of version n one of version n + 1. A step that has been released never changes.

Steps may use the functions of `_FUNCTIONS`.
"""

_read = lru_cache(1)(read_stored)
_FUNCTIONS: Final = {
    "type_of": lambda data: _read(data).type,
    "run_of": lambda data: _read(data).run_id,
    "time_of": lambda data: _read(data).at,
}

SCHEMA_VERSION: Final = len(_STEPS)
"""`PRAGMA user_version` of the files this code writes."""


FLOOR: Final = "SELECT coalesce((SELECT CAST(value AS INTEGER) FROM about WHERE key = 'floor'), 0)"
"""The last id that was removed to make room, 0 while none was."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection that commits durably. It may move between threads, but serves one at a time."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def open_file(path: Path) -> sqlite3.Connection:
    """Make the file if it is absent, bring it into shape, and return the writer's connection. Raises StoreError."""
    try:
        make_private(path)
        connection = connect(path)
    except (OSError, sqlite3.Error) as error:
        raise explain(path, "open", error) from error
    try:
        connection.execute("BEGIN")  # one snapshot: another process may be making the schema
        version = _check_version(path, connection)
        connection.execute("ROLLBACK")
        if version == 0:
            # Of a new file only; an older one keeps the space that is freed in it for events to come.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _switch_to_wal(path, connection)
        connection.execute("BEGIN IMMEDIATE")
        version = _check_version(path, connection)
        for name, function in _FUNCTIONS.items():
            connection.create_function(name, 1, function, deterministic=True)
        for step in _STEPS[version:]:
            for statement in step:
                connection.execute(statement)
        if version == 0:
            connection.execute("INSERT INTO about VALUES ('epoch', ?)", (token_hex(16),))
        if version < SCHEMA_VERSION:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        raise explain(path, "open", error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_letters(path: Path) -> sqlite3.Connection:
    """A connection for `DeadLetters`: to the event store, or to a file of their own, made when missing.

    Raises StoreError.
    """
    try:
        make_private(path)
        connection = connect(path)
        try:
            for statement in DEAD_LETTERS:
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
    except (OSError, sqlite3.Error) as error:
        raise explain(path, "open", error) from error
    return connection


def _check_version(path: Path, connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{path} was made by a newer version (schema {version}; this one knows {SCHEMA_VERSION}):"
            " upgrade bridge-client"
        )
    if version == 0 and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise StoreError(f"{path} is a SQLite database, but not an event store: name another file")
    return version


def _switch_to_wal(path: Path, connection: sqlite3.Connection) -> None:
    """SQLite's busy timeout does not cover this switch when two processes make it at once."""
    deadline = time.monotonic() + BUSY_SECONDS
    mode = None
    while mode is None:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    if mode != "wal":
        raise StoreError(f"{path}: this file system can't share memory, which a WAL needs: use a local disk")


def make_private(path: Path) -> None:
    """Make the file (0600, in a directory made 0700), or close one that is there to others. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        # By name: opening and closing the file would drop the locks that this process may hold on it.
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def identify(path: Path) -> tuple[int, int]:
    """Which file has this name now. Raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino


def check_same(path: Path, file: tuple[int, int]) -> None:
    """Raises StoreError when `path` no longer names `file`, OSError when that can't be told."""
    try:
        same = identify(path) == file
    except (FileNotFoundError, NotADirectoryError):
        same = False
    if not same:
        raise StoreError(f"the event store {path} was replaced or removed while it was in use; restart this program")


def renew_epoch(path: Path) -> str:
    """Give the store another epoch. Raises StoreError."""
    epoch = token_hex(16)
    try:
        with closing(connect(path)) as connection:
            connection.execute("UPDATE about SET value = ? WHERE key = 'epoch'", (epoch,))
    except sqlite3.Error as error:
        raise explain(path, "write to", error) from error
    return epoch


def explain(path: Path, what: str, error: Exception) -> StoreError:
    """`error` as what it means for the store, with advice where there is any."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    advice = {
        sqlite3.SQLITE_FULL: ": make room on the disk",
        sqlite3.SQLITE_BUSY: f": another process held it locked for {BUSY_SECONDS:.0f} s",
        sqlite3.SQLITE_NOTADB: ": name another file",
        sqlite3.SQLITE_CORRUPT: ": restore it from a backup",
        sqlite3.SQLITE_IOERR: ": check the disk and its free space",
    }.get(code, "")
    return StoreError(f"can't {what} the event store {path}: {error}{advice}")
