"""Where a running hub is reached, in a file beside its database: for commands that hand out credentials for it.

The file is locked for as long as the hub runs, so that what a killed one left behind counts for nothing. With several
hubs on one database it is that of the first.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import Self

MAX_URL_BYTES = 4096


class Listening:
    """The file of one running hub, until `close`."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle

    @classmethod
    def say(cls, database: Path, url: str) -> Self | None:
        """The hub on this database is reached at `url`; None if another has said so already. Raises OSError."""
        path = _beside(database)
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, url.encode() + b"\n", 0)
        except BlockingIOError:
            os.close(handle)
            return None
        except BaseException:
            os.close(handle)
            raise
        return cls(path, handle)

    def close(self) -> None:
        """Take it back."""
        with suppress(OSError):
            self._path.unlink()
        os.close(self._handle)


def find(database: Path) -> str | None:
    """Where the hub that runs on this database is reached, None if none does or its file is not ours to read."""
    try:
        handle = os.open(_beside(database), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held: its hub runs
        return os.pread(handle, MAX_URL_BYTES, 0).decode("utf-8", "replace").strip() or None
    finally:
        os.close(handle)
    return None


def url_of(host: str, port: int) -> str:
    """Where this machine reaches a hub that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _beside(database: Path) -> Path:
    return database.with_name(database.name + ".address")
