"""Which requests other programs run in this store: each holds a lock while its request is under way.

The lock is the system's (`flock`), so it ends with the process that holds it, however that ends. A home leaves alone
what is held, and ends what nobody runs any more.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


class RequestLocks:
    """The locks of one store; its `folder` is made (0700) with the first one. Request ids are names of files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def hold(self, request_id: str) -> Iterator[None]:
        """Be the one who runs this request; nobody may have had its id. Raises OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / request_id
        lock = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        finally:
            with suppress(OSError):
                path.unlink()  # nobody waits for it: there is one request of each id
            os.close(lock)

    def held(self, request_id: str) -> bool:
        """Whether a program runs it. What one left behind is removed. Raises nothing."""
        path = self._folder / request_id
        try:
            lock = os.open(path, _FLAGS)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            with suppress(OSError):
                path.unlink()
            return False
        finally:
            os.close(lock)
