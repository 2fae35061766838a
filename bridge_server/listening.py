"""Where a running hub is reached, in a file beside its database: for commands that hand out credentials for it.

The file is locked for as long as the hub runs, so that what a killed one left behind counts for nothing. With several
hubs on one database it is that of the first. A file that another user owns or may write is never believed.
"""

import fcntl
import os
import re
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

MAX_URL_BYTES = 4096

_URL = re.compile(r"https?://[!-~]+")
_TRIES = 10
_PAUSE = 0.01


class Listening:
    """The file of one running hub, until `close`."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path = path
        self._handle = handle

    @classmethod
    def say(cls, database: Path, url: str) -> Self | None:
        """The hub on this database is reached at `url`; None if another has said so already. Raises OSError."""
        path = _beside(database)
        for again in range(_TRIES):
            if again:
                time.sleep(_PAUSE)  # whoever looks at it holds it for a moment, or it has just been taken back
            handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            try:
                found = os.fstat(handle)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise PermissionError(f"{path} is no file of this user")
                os.fchmod(handle, 0o600)
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(path, handle):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, url.encode() + b"\n", 0)
                    return cls(path, handle)
            except BlockingIOError:
                pass
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
        return None

    def close(self) -> None:
        """Take it back."""
        with suppress(OSError):
            if _is_at(self._path, self._handle):
                self._path.unlink()
        os.close(self._handle)


def find(database: Path) -> str | None:
    """Where the hub that runs on this database is reached, None if none does or its file can't be believed."""
    try:
        handle = os.open(_beside(database), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(handle)
        owner = database.stat().st_uid
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner or found.st_mode & 0o022:
            return None
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:  # its hub runs
        url = _URL.fullmatch(os.pread(handle, MAX_URL_BYTES, 0).decode("ascii", "replace").strip())
        return url and url[0]
    except OSError:
        return None
    finally:
        os.close(handle)
    return None


def _is_at(path: Path, handle: int) -> bool:
    """Whether the open file is still the one of this name."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def url_of(host: str, port: int) -> str:
    """Where this machine reaches a hub that listens there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _beside(database: Path) -> Path:
    return database.with_name(database.name + ".address")
