"""Event store files as earlier versions left them."""

import sqlite3
from contextlib import closing
from pathlib import Path

from bridge_client.store.sqlite_file import _FUNCTIONS, _STEPS


def make_old(path: Path, version: int, *events: tuple[str | None, bytes], epoch: str = "e") -> None:
    """A file of that schema version which holds these events: session id, and the JSON as it was stored."""
    with closing(sqlite3.connect(path)) as old, old:
        for name, function in _FUNCTIONS.items():
            old.create_function(name, 1, function, deterministic=True)
        for step in _STEPS[:version]:
            for statement in step:
                old.execute(statement)
        old.execute("INSERT INTO about VALUES ('epoch', ?)", (epoch,))
        old.executemany("INSERT INTO events (session_id, data) VALUES (?, ?)", events)
        old.execute(f"PRAGMA user_version = {version}")
