"""Where the API of a running home listens, in a file beside its store: for commands that don't know its port."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from bridge_client.keys import BadKeyFile, read_private, write_private


class _Address(Struct):
    url: str
    pid: int


_ADDRESS = msgspec.json.Decoder(_Address)


def write(path: Path, url: str) -> None:
    """Say that this process answers at `url`."""
    write_private(path, msgspec.json.encode(_Address(url, os.getpid())) + b"\n")


def remove(path: Path) -> None:
    """Take it back, unless another process has said something since."""
    found = _read(path)
    if found is not None and found.pid == os.getpid():
        path.unlink(missing_ok=True)


def find(path: Path) -> str | None:
    """Where the home listens, None when none runs: the file of one that was killed does not count."""
    found = _read(path)
    if found is None:
        return None
    try:
        os.kill(found.pid, 0)
    except OSError:
        return None
    return found.url


def _read(path: Path) -> _Address | None:
    try:
        return _ADDRESS.decode(read_private(path))
    except (FileNotFoundError, BadKeyFile, msgspec.MsgspecError, UnicodeDecodeError):
        return None
