"""Ports for programs that have to be told theirs, because they start again on it or cannot choose one."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

# Below what Linux and macOS give to port 0 and to outgoing connections: nobody is handed one of these by chance, not
# even while the program that it is for is down between two lives.
_PORTS = range(20_000, 32_000)

_held: list[IO[bytes]] = []
"""A locked file per port: it keeps other processes of tests off, and is let go of when this process ends."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 on which nothing listens and that no other test is given while this process lives."""
    folder = Path(tempfile.gettempdir(), f"session-bridge-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    for port in random.sample(_PORTS, len(_PORTS)):
        lock = (folder / str(port)).open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return port
    raise AssertionError("every port is taken")
