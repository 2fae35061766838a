"""The forwarder's cursor: the last event the hub has acknowledged, kept over crashes.

The file is always whole: written beside itself, synced, renamed over the old one, its directory synced. It may be a few
acknowledgements old, at most `INTERVAL` while the disk takes them: what is sent again then has the same ids, which the
hub takes for repeats. It is never ahead of what was saved.
"""

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from bridge_client.sources import Mark
from protocol import event_id as ids
from protocol.errors import BadEventId

INTERVAL: Final = 0.25
"""Seconds between two writes while saves keep coming: each costs two syncs of the disk the event store is on."""

_LOG = logging.getLogger(__name__)
_FORMAT: Final = 1


class DamagedCursor(Exception):
    """The cursor file can't be understood; the text says why. Going on from the beginning loses nothing."""


class SavedCursor(Struct, frozen=True):
    """How far one hub has acknowledged one store's events."""

    epoch: str
    event_id: int
    hub_epoch: str | None
    hub_url: str
    server_id: str
    """A cursor holds only for the hub and the server id it was saved for: whoever loads it compares."""
    mark: Mark | None = None
    """An acknowledged event, the last one or one soon before it, by which the store is known again."""

    def foreign_to(self, hub_url: str, server_id: str, epoch: str) -> str | None:
        """What it belongs to another one of, in words; None when it can be used."""
        if self.hub_url != hub_url:
            return "hub"
        if self.server_id != server_id:
            return "home"
        return None if self.epoch == epoch else "event store, or to an earlier epoch of this one"


class CursorStore(Protocol):
    """Where the cursor survives a crash: `CursorFile`, or a stand-in."""

    def load(self) -> SavedCursor | None:
        """The cursor kept. Raises DamagedCursor, OSError."""

    def save(self, cursor: SavedCursor) -> None:
        """Have `cursor` kept soon; the one saved last wins. Never blocks."""

    async def flush(self) -> None:
        """Return once what was saved is kept. Raises OSError."""


class _File(Struct):
    format: int
    epoch: str
    event_id: str
    hub_epoch: str | None
    hub_url: str
    server_id: str
    mark: Mark | None = None  # a file of an older version has none


class CursorFile:
    """One cursor in one file (0600, in a directory made 0700). Belongs to the event loop that saves first."""

    def __init__(self, path: Path | str, *, interval: float = INTERVAL) -> None:
        self._path = Path(path)
        self._interval = interval
        self._latest: SavedCursor | None = None
        self._saves = 0
        self._saves_on_disk = 0
        self._writing: asyncio.Future[None] | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cursor-writer")

    def load(self) -> SavedCursor | None:
        """The cursor on disk, None if there is none. Raises DamagedCursor, OSError if the file can't be read."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        return _decode(self._path, data)

    def save(self, cursor: SavedCursor) -> None:
        """Have `cursor` written soon; never blocks. Of saves that come faster than `interval` only the last is written.

        A write that fails is logged and tried again after `interval`, for as long as it takes.
        """
        self._latest = cursor
        self._saves += 1
        if self._writing is None and self._rest is None:
            self._write()

    async def flush(self) -> None:
        """Return once the last cursor saved before this call, or a later one, is on disk. Or raises OSError."""
        saves = self._saves
        while self._saves_on_disk < saves:
            if self._writing is None:
                self._write()
            if self._writing is not None:
                await asyncio.wait([self._writing])
            if self._failure is not None:
                raise self._failure

    async def close(self) -> None:
        """Flush, and stop trying."""
        try:
            await self.flush()
        finally:
            if self._rest is not None:
                self._rest.cancel()
            self._thread.shutdown(wait=False)

    def _write(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
        if self._latest is not None and self._saves_on_disk < self._saves:
            saves, data = self._saves, _encode(self._latest)
            writing = asyncio.get_running_loop().run_in_executor(self._thread, _write_whole, self._path, data)
            writing.add_done_callback(lambda writing: self._written(writing, saves))
            self._writing = writing

    def _written(self, writing: asyncio.Future[None], saves: int) -> None:
        self._writing = None
        error = writing.exception()
        if error is None:
            self._saves_on_disk = saves
        elif self._failure is None:
            _LOG.warning("can't save the cursor to %s: %s; trying again", self._path, error)
        self._failure = error
        self._rest = writing.get_loop().call_later(self._interval, self._write)


def _encode(cursor: SavedCursor) -> bytes:
    place = str(cursor.event_id)
    file = _File(_FORMAT, cursor.epoch, place, cursor.hub_epoch, cursor.hub_url, cursor.server_id, cursor.mark)
    return msgspec.json.format(msgspec.json.encode(file)) + b"\n"


def _decode(path: Path, data: bytes) -> SavedCursor:
    try:
        file = msgspec.json.decode(data, type=_File)
        if file.format != _FORMAT:
            raise DamagedCursor(f"{path} has format {file.format}, this version reads {_FORMAT}")
        place = ids.parse(file.event_id)
        return SavedCursor(file.epoch, place, file.hub_epoch, file.hub_url, file.server_id, file.mark)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadEventId) as error:
        raise DamagedCursor(f"{path} is damaged: {error}") from None


def _write_whole(path: Path, data: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")  # another process may be taking over this cursor
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(file, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(file)
    os.replace(beside, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
