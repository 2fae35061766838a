"""How many files this process may have open: every socket is one, and the system's usual limit is far below a hub's."""

import logging
import resource
from typing import Final, NamedTuple

BESIDE_SOCKETS: Final = 100
"""Files that are no socket of a peer: the database, the listener, the event loop, connections being refused."""

_log = logging.getLogger("bridge_server.open_files")


class OpenFiles(NamedTuple):
    """What is needed, what holds now, and up to what this process may raise it itself (None: no limit)."""

    needed: int
    soft: int | None
    hard: int | None

    @property
    def enough(self) -> bool:
        """Whether all connections fit once the process has raised its limit."""
        return self.hard is None or self.hard >= self.needed


def limit(max_connections: int) -> OpenFiles:
    """The limit of this process, against the connections that the hub is to take."""
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in _get())
    return OpenFiles(max_connections + BESIDE_SOCKETS, soft, hard)


def raise_limit(max_connections: int) -> None:
    """Raise this process's own limit as far as `max_connections` needs and the system lets it; log what is missing."""
    found = limit(max_connections)
    if found.soft is not None and found.soft < found.needed:
        wanted = found.needed if found.hard is None else min(found.needed, found.hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, _get()[1]))
        except (OSError, ValueError) as error:
            _log.warning("the limit of open files stays at %d: %s", found.soft, error)
            return
    if not found.enough:
        _log.warning(
            "%d open files are allowed, max_connections needs %d: raise the limit or lower max_connections",
            found.hard,
            found.needed,
        )


def _get() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
