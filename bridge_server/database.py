"""The hub's SQLite file: opened so that only its owner can read it, and brought forward to the version of this code.

Several processes may use one file. Each `Database` is one connection and belongs to the thread that opened it.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

# One script for each step from one version to the next. A step keeps what is there; it is never edited once released.
_STEPS: Final = (
    """
CREATE TABLE credentials (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    hash BLOB NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('server', 'device', 'operator')),
    server_id TEXT CHECK ((server_id IS NULL) = (kind = 'operator')),
    device_id TEXT UNIQUE CHECK ((device_id IS NOT NULL) = (kind = 'device')),
    name TEXT NOT NULL,
    scopes TEXT NOT NULL DEFAULT '',
    created_at INTEGER NOT NULL,
    revoked_at INTEGER,
    revocation INTEGER
) STRICT;
CREATE INDEX credentials_by_server ON credentials (server_id, kind);
CREATE INDEX credentials_by_revocation ON credentials (revocation) WHERE revocation IS NOT NULL;
""",
    """
CREATE TABLE pairings (
    id TEXT PRIMARY KEY,
    server_id TEXT NOT NULL,
    handle BLOB UNIQUE,
    secret BLOB NOT NULL,
    scopes TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'redeemed', 'closed')),
    wrong INTEGER NOT NULL DEFAULT 0,
    created_at INTEGER NOT NULL,
    ends_at INTEGER NOT NULL,
    device_id TEXT
) STRICT;
CREATE INDEX pairings_by_server ON pairings (server_id);
CREATE INDEX pairings_by_end ON pairings (ends_at);
CREATE TABLE pairing_attempts (
    id INTEGER PRIMARY KEY,
    address BLOB NOT NULL,
    at INTEGER NOT NULL
) STRICT;
CREATE INDEX pairing_attempts_by_address ON pairing_attempts (address, at);
CREATE INDEX pairing_attempts_by_time ON pairing_attempts (at);
""",
    """
ALTER TABLE credentials ADD COLUMN disconnection INTEGER;
CREATE INDEX credentials_by_disconnection ON credentials (disconnection) WHERE disconnection IS NOT NULL;
""",
    """
CREATE TABLE device_cursors (
    device_id TEXT PRIMARY KEY,
    epoch TEXT NOT NULL,
    event_id INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
""",
)
VERSION: Final = len(_STEPS)


class BadDatabase(Exception):
    """The hub's database can't be used; the text says why and what to do."""


def try_later(error: sqlite3.Error) -> bool:
    """Whether what failed may go well in a while, nothing having been written: another process holds the write lock,
    or the disk is full."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL)


class Database:
    """One connection. Writes are durable when they return.

    Raises BadDatabase when the file can't be opened or was written by a newer version; such a file is left as it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # SQLite too stays with it when the working directory changes
        self.wrote = False
        """Whether something was committed through this connection since somebody last set this to False."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The file exists with its final mode before SQLite puts anything into it; the WAL files copy that mode.
            # One that exists is not opened: closing it would drop the locks that this process holds on it, and the
            # next process to leave would then remove the WAL from under us.
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
            found = path.stat()
            self._file = found.st_dev, found.st_ino
            if found.st_mode & 0o077:
                path.chmod(0o600)
            self.connection = sqlite3.connect(path, isolation_level=None, timeout=5.0)
            try:
                self._prepare()
            except BaseException:
                self.connection.close()
                raise
            self.wrote = False  # making the tables is no news
        except (OSError, sqlite3.Error) as error:
            raise BadDatabase(f"the credential database {path} can't be used: {error}") from None

    def wait_at_most(self, seconds: float) -> None:
        """How long a write waits for another process's, from now on; 5 s until this is called."""
        self.connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    def close(self) -> None:
        """Let go of the file. Closing twice is harmless."""
        self.connection.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction that holds the write lock from its start: what is read in it stays true until it ends."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:  # a full disk has ended it already
                self.connection.execute("ROLLBACK")
            raise
        self.wrote = True

    def check_same(self) -> None:
        """Raises BadDatabase once the file is no longer the one that was opened.

        SQLite goes on with a file that has lost its name, and never sees what others write to the one in its place.
        """
        try:
            found = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            same = False
        except OSError as error:
            raise BadDatabase(f"the credential database {self.path} can't be used: {error}") from None
        else:
            same = (found.st_dev, found.st_ino) == self._file
        if not same:
            raise BadDatabase(
                f"the credential database {self.path} was replaced or removed while it was in use; restart this program"
            )

    def scalar(self, query: str) -> int:
        """The one number that `query` asks for."""
        return int(self.connection.execute(query).fetchone()[0])

    def _prepare(self) -> None:
        version = self.scalar("PRAGMA user_version")
        if version > VERSION:
            raise BadDatabase(f"{self.path} was written by a newer version (schema {version}); upgrade bridge-server")
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        if version == VERSION:
            return
        # Two processes may find an old file at once: whoever comes second finds the work done.
        with self.writing() as connection:
            for step in _STEPS[self.scalar("PRAGMA user_version") :]:
                for statement in step.split(";"):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
