"""How many files this process may have open: every socket is one, and the system's usual limit is far below a hub's."""

import logging
import resource
from contextlib import suppress
from typing import Final, NamedTuple

BESIDE_SOCKETS: Final = 100
"""Files that are no socket of a peer: the database, the listener, the event loop, connections being refused."""

NEARLY_ALL: Final = 0.95
"""The share of a number that nobody chose from which on it is not worth a word that not all fit."""

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


def raise_limit(max_connections: int, *, chosen: bool) -> int:
    """Raise this process's own limit as far as `max_connections` needs and the system lets it.

    Returns how many connections then fit, at most `max_connections`; logs it when they are fewer: as a warning only if
    somebody has `chosen` that number, and at DEBUG if nobody has and nearly all fit.
    """
    found = limit(max_connections)
    allowed = found.soft
    if allowed is not None and allowed < found.needed:
        wanted = found.needed if found.hard is None else min(found.needed, found.hard)
        if wanted > allowed:
            with suppress(OSError, ValueError):  # macOS says no to some numbers below its hard limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, _get()[1]))
                allowed = wanted
    if allowed is None or allowed >= found.needed:
        return max_connections
    fit = max(1, allowed - BESIDE_SOCKETS)
    _log.log(
        logging.WARNING if chosen else logging.INFO if fit < NEARLY_ALL * max_connections else logging.DEBUG,
        "takes %d connections at most, because %d open files are allowed; for %d raise that limit to %d"
        " (ulimit -Hn, in a unit LimitNOFILE=), or set max_connections = %d",
        fit,
        allowed,
        max_connections,
        found.needed,
        fit,
    )
    return fit


def _get() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
