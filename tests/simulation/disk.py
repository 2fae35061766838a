"""A virtual disk: what was synced survives a crash, of the rest some of it, torn anywhere.

`Disk` holds files and names, each once as programs see it and once as a crash leaves it. `Volume` stands in for the
parts of `os`, `open` and `Path` that the cursor file uses, so that the real code writes to it: a crash between any two
of its system calls is a crash here. `StoreFile` is the event store's file: a commit is durable when it returns.
"""

import asyncio
import errno
import os as real_os
from collections.abc import Callable
from contextlib import suppress
from random import Random
from secrets import token_hex
from typing import Any

import bridge_client.cursor
from bridge_client.store import Stored, StoreError
from bridge_client.store.admission import admit
from bridge_client.store.memory import MemoryStore


class PowerCut(BaseException):
    """The process ended in the middle of a system call."""


class _File:
    def __init__(self) -> None:
        self.seen = b""
        self.synced = b""


class Disk:
    """One machine's files. `full` and `failing` make its writes and syncs raise."""

    def __init__(self, random: Random) -> None:
        self.full = False
        self.failing = False
        self.calls_left: int | None = None
        self._random = random
        self._names: dict[str, _File] = {}
        self._synced: dict[str, _File] = {}
        self._steps: list[dict[str, _File]] = []  # each state of the directory since it was synced

    def call(self, *, writes: bool = False) -> None:
        """One system call. Raises OSError, or PowerCut when the power is gone."""
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise PowerCut
        if writes and self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        if writes and self.failing and self._random.random() < 0.5:
            raise OSError(errno.EIO, "Input/output error")

    def create(self, name: str) -> _File:
        self.call(writes=True)
        file = self._names.get(name)
        if file is None:
            file = _File()
            self._change({**self._names, name: file})
        file.seen = b""
        return file

    def read(self, name: str) -> bytes:
        self.call()
        if name not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return self._names[name].seen

    def replace(self, old: str, new: str) -> None:
        self.call()
        names = dict(self._names)
        names[new] = names.pop(old)
        self._change(names)

    def sync(self, file: _File) -> None:
        self.call(writes=True)
        file.synced = file.seen

    def sync_names(self) -> None:
        self.call()
        self._synced, self._steps = self._names, []

    def _change(self, names: dict[str, _File]) -> None:
        self._names = names
        self._steps.append(names)

    def crash(self) -> None:
        """The power goes and comes back: changes of names survive in order, so far; unsynced data in part."""
        survivors = [self._synced, *self._steps]
        self._names = self._synced = self._random.choice(survivors)
        self._steps = []
        for file in self._names.values():
            if file.seen != file.synced:
                torn = file.seen[: self._random.randint(0, len(file.seen))]
                file.seen = file.synced = self._random.choice((file.synced, torn, file.seen))
        self.calls_left = None

    def finish(self, jobs: list[Callable[[], object]]) -> None:
        """What threads were doing when their process was killed: some of their system calls still happened."""
        for job in jobs:
            self.calls_left = self._random.randint(0, 9)
            with suppress(PowerCut, OSError):
                job()
            self.calls_left = None


class VirtualPath:
    """A file of a virtual disk, as far as `CursorFile` needs a path."""

    def __init__(self, disk: Disk, name: str) -> None:
        self.disk = disk
        self.name = name

    @property
    def parent(self) -> "VirtualPath":
        return VirtualPath(self.disk, "")

    def __str__(self) -> str:
        return self.name

    def with_name(self, name: str) -> "VirtualPath":
        return VirtualPath(self.disk, name)

    def mkdir(self, **options: object) -> None:
        self.disk.call()

    def read_bytes(self) -> bytes:
        return self.disk.read(self.name)


class _Handle:
    """A file descriptor, and the stream over it."""

    def __init__(self, path: VirtualPath, file: _File | None) -> None:
        self.path = path
        self.file = file
        self._written = b""

    def __enter__(self) -> "_Handle":
        return self

    def __exit__(self, *ending: object) -> None:
        pass

    def write(self, data: bytes) -> None:
        self._written += data

    def flush(self) -> None:
        self.path.disk.call(writes=True)
        assert self.file is not None
        self.file.seen += self._written
        self._written = b""


class VirtualOs:
    """The calls of `os` that `bridge_client.cursor` makes, on virtual disks."""

    O_WRONLY, O_CREAT, O_TRUNC = real_os.O_WRONLY, real_os.O_CREAT, real_os.O_TRUNC
    O_NOFOLLOW, O_RDONLY = real_os.O_NOFOLLOW, real_os.O_RDONLY

    def getpid(self) -> int:
        return 1

    def open(self, path: VirtualPath, flags: int, mode: int = 0) -> _Handle:
        if path.name and flags & self.O_CREAT:
            return _Handle(path, path.disk.create(path.name))
        path.disk.call()
        return _Handle(path, None)

    def fsync(self, handle: _Handle) -> None:
        if handle.file is None:
            handle.path.disk.sync_names()
        else:
            handle.path.disk.sync(handle.file)

    def replace(self, old: VirtualPath, new: VirtualPath) -> None:
        old.disk.replace(old.name, new.name)

    def close(self, handle: _Handle) -> None:
        pass


def install(patch: Callable[[object, str, object], None]) -> None:
    """Have the cursor file written to virtual disks."""
    patch(bridge_client.cursor, "os", VirtualOs())
    patch(bridge_client.cursor, "open", lambda handle, mode: handle)
    patch(bridge_client.cursor, "Path", lambda path: path)


class StoreFile:
    """The events of one home on its disk, shared by the processes that open it. `committed` is told of each event."""

    def __init__(self, disk: Disk, committed: Callable[["StoreFile", Stored], None]) -> None:
        self.disk = disk
        self.epoch = token_hex(8)
        self.ids: list[int] = []
        self.events: list[Any] = []
        self.changed = asyncio.Event()
        self.committed = committed
        self.renewed: Callable[[StoreFile], None] = lambda file: None

    def copy(self) -> tuple[str, list[int], list[Any]]:
        """A backup."""
        return self.epoch, list(self.ids), list(self.events)

    def restore(self, backup: tuple[str, list[int], list[Any]]) -> None:
        """Put a backup in the place of what is there."""
        self.epoch, self.ids, self.events = backup[0], list(backup[1]), list(backup[2])

    def wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class DiskStore(MemoryStore):
    """The memory store over such a file: `publish` returns once the event is in it."""

    def __init__(self, file: StoreFile) -> None:
        super().__init__()
        self._file = file
        self._order = asyncio.Lock()
        self._ids, self._events = file.ids, file.events
        self._changed = file.changed

    @property
    def epoch(self) -> str:
        return self._file.epoch

    async def publish(self, event: Any) -> Stored:
        self._check_open()
        admitted = admit(event, self._max_event_bytes)
        async with self._order:
            await asyncio.sleep(0.002)
            try:
                self._file.disk.call(writes=True)
            except OSError as error:
                raise StoreError(f"can't write to the event store: {error}") from error
            stored = admitted.stored(self._ids[-1] + 1 if self._ids else 1, None)
            self._ids.append(stored.event_id)
            self._events.append((stored, admitted.session_id, admitted.request_id))
            self._file.committed(self._file, stored)
        self._file.wake()
        return stored

    async def wait(self, after: int) -> None:
        self._check_open()
        while not self._ids or self._ids[-1] <= after:
            await self._file.changed.wait()
            self._check_open()

    async def renew_epoch(self) -> str:
        self._check_open()
        await asyncio.sleep(0.002)
        self._file.epoch = token_hex(8)
        self._file.renewed(self._file)
        return self._file.epoch

    def _wake(self) -> None:
        self._file.wake()
