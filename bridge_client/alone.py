"""One home for each state directory: a second process there would take the hub's link over from the first.

The lock is the system's (`flock`), so it ends with the process that holds it, however that ends.
"""

import fcntl
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

NAME: Final = "home.lock"
MAX_FILE: Final = 16_384


class HomeRuns(Exception):
    """Another process is the home of this state directory; the text says how to see it, and what to do for a second."""


class Holder(Struct):
    """The home of a state directory."""

    pid: Annotated[int, Meta(ge=1)]
    source: str | None
    """What it forwards in place of a store of ours."""
    store: str | None = None
    """The file of its store; None where it has none, and of a home that did not say."""

    def forwards(self, source: str | None, store: Path) -> bool:
        """Whether it is the home of this source, or of this store where that is None."""
        return self.source == source and (source is not None or self.store in (None, str(store.absolute())))


_HOLDER = msgspec.json.Decoder(Holder)


@contextmanager
def alone(state_dir: Path, source: str | None, store: Path | None = None) -> Iterator[None]:
    """Be the one home of `state_dir` (made 0700 when missing). Raises HomeRuns at once when there is one, OSError."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = state_dir / NAME
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeRuns(_told(state_dir, os.read(lock, MAX_FILE))) from None
        here = None if store is None else str(store.absolute())
        _write(lock, msgspec.json.encode(Holder(os.getpid(), source, here)))
        try:
            yield
        finally:
            _write(lock, b"")
    finally:
        os.close(lock)  # not removed: a lock on a removed file would keep nobody out


def holder(state_dir: Path) -> Holder | None:
    """The home of `state_dir`, None when none runs. The lock is left alone: a look must not keep a home from it.

    So it goes by what the home has written and by whether that process is there. Of a home that was killed, another
    process with its number is taken for it.
    """
    try:
        file = os.open(state_dir / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = _HOLDER.decode(os.read(file, MAX_FILE))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    finally:
        os.close(file)
    try:
        os.kill(found.pid, 0)
    except PermissionError:
        pass  # there, and another user's
    except (OSError, OverflowError):
        return None
    return found


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
