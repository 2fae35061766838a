"""The process groups of the programs that run, written down: a home that was killed could not end them.

A file for each, named by the group, holds when its first process began, so that another one that has got the same
number since is let alone. Whoever starts next ends what is left.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bridge_client.clock import Clock

GRACE: Final = 5.0
"""Seconds between asking what was left behind to end, and killing it."""

_LOOK: Final = 0.05
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


class ProcessGroups:
    """The groups of one home; its `folder` is made (0700) with the first one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def hold(self, group: int) -> Iterator[None]:
        """Remember a group until the block is left. Raises nothing of its own: a disk that is full ends no program."""
        path = self._folder / str(group)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(began(group) or "")
        except OSError as error:
            log.warning("process group %d is not remembered, should the home be killed: %s", group, error)
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()

    async def end_left(self, clock: Clock) -> int:
        """End the groups whose first process still runs, and wait for it; how many. Nobody may hold one meanwhile.

        SIGTERM, and SIGKILL to what is left GRACE seconds later, or as soon as the first process has ended.
        """
        left = [found for path in self._paths() if (found := _remembered(path)) is not None]
        for group, _ in left:
            log.warning("process group %d was left behind by a home that was killed: it is ended", group)
            _send(group, signal.SIGTERM)
        pause = 0.0
        while pause < GRACE and any(began(group) == when for group, when in left):
            await clock.sleep(_LOOK)
            pause += _LOOK
        for group, _ in left:
            _send(group, signal.SIGKILL)
        for path in self._paths():
            with suppress(OSError):
                path.unlink()
        return len(left)

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._folder.iterdir())
        except OSError:
            return []


def began(process: int) -> str | None:
    """What no other process of this number has ever had: when it began; None if it does not run."""
    if _BOOT.exists():
        try:
            # The name, in parentheses, may hold anything; behind it the state is the 3rd field, the start the 22nd.
            fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
            return None if fields[0] in "ZX" else f"{_BOOT.read_text().strip()} {fields[19]}"
        except (OSError, IndexError):
            return None
    command = ["/bin/ps", "-o", "stat=,lstart=", "-p", str(process)]
    try:
        done = subprocess.run(command, env={"LC_ALL": "C", "TZ": "UTC"}, capture_output=True, text=True, timeout=5)  # noqa: S603 - a number
    except (OSError, subprocess.SubprocessError):
        return None
    state, _, when = done.stdout.strip().partition(" ")
    return when.strip() if when and not state.startswith("Z") else None


def _remembered(path: Path) -> tuple[int, str] | None:
    """The group that the file names and when it began, if it still runs; None for any other."""
    try:
        group, when = int(path.name), path.read_text(errors="replace")
    except (OSError, ValueError):
        return None
    # Never our own group, nor a number that `kill` takes for everybody.
    return (group, when) if group > 1 and group != os.getpgrp() and when and began(group) == when else None


def _send(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
