"""One home for each state directory: a second process there would take the hub's link over from the first.

The lock is the system's (`flock`), so it ends with the process that holds it, however that ends.
"""

import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

NAME: Final = "home.lock"
MAX_FILE: Final = 16_384


class HomeRuns(Exception):
    """Another process is the home of this state directory; the text says how to see it, and what to do for a second."""


class _Holder(Struct):
    pid: int
    source: str | None
    """What it forwards in place of a store of ours."""


_HOLDER = msgspec.json.Decoder(_Holder)


@contextmanager
def alone(state_dir: Path, source: str | None) -> Iterator[None]:
    """Be the one home of `state_dir` (made 0700 when missing). Raises HomeRuns at once when there is one, OSError."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = state_dir / NAME
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeRuns(_told(state_dir, os.read(lock, MAX_FILE))) from None
        _write(lock, msgspec.json.encode(_Holder(os.getpid(), source)))
        try:
            yield
        finally:
            _write(lock, b"")
    finally:
        os.close(lock)  # not removed: a lock on a removed file would keep nobody out


def _write(file: int, data: bytes) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, data, 0)


def _told(state_dir: Path, data: bytes) -> str:
    try:
        holder = _HOLDER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        who, source = "another process", None  # it has only just begun, or is about to end
    else:
        who, source = f"process {holder.pid}", holder.source
    look = f"bridge-client status --state-dir {shlex.quote(str(state_dir))}"
    look += f" --source {shlex.quote(source)}" if source is not None else ""
    return (
        f"a home already runs here: {who} has the state directory {state_dir}; look at it with: {look}\n"
        "A second home beside it needs a directory of its own: SESSION_BRIDGE_STATE_DIR=DIR, or --state-dir DIR"
    )
