"""The epoch of a source that is not ours, kept beside the forwarder's cursor.

A foreign source may name its own epoch, or none; and when it went back in time it must get another one, which only the
forwarder knows of. So the file keeps both: what the source says, and what the hub is told.
"""

from pathlib import Path
from secrets import token_hex
from typing import Final

import msgspec
from msgspec import Struct

from bridge_client.keys import BadKeyFile, read_private, write_private
from bridge_client.sources import Mark

LONGEST: Final = 64
"""Characters of an epoch that is taken over from the source; instead of a longer one a random one is used."""


class _File(Struct):
    source: str
    epoch: str
    theirs: str | None = None
    mark: Mark | None = None


_FILE: Final = msgspec.json.Decoder(_File)


class OwnEpoch:
    """The epoch of the source `source` (its name as the owner wrote it), in one 0600 file. Blocks on the disk."""

    def __init__(self, path: Path, source: str) -> None:
        """Read the file; a missing or damaged one, or one of another source, begins a new epoch. Raises BadKeyFile."""
        self._path = path
        self._fresh = True
        self._file = _File(source, token_hex(16))
        try:
            kept = _FILE.decode(read_private(path))
        except FileNotFoundError:
            kept = None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadKeyFile(
                f"{path} is damaged ({error}); remove it: the source is then sent from its start"
            ) from None
        if kept is not None and kept.source == source:
            self._file, self._fresh = kept, False
        else:
            self._save()

    @property
    def value(self) -> str:
        """The epoch that the hub is told."""
        return self._file.epoch

    @property
    def theirs(self) -> str | None:
        """The epoch that the source last said it had."""
        return self._file.theirs

    @property
    def mark(self) -> Mark | None:
        """The event the source was last known by."""
        return self._file.mark

    def follow(self, theirs: str | None) -> bool:
        """The source says that its epoch is `theirs` (None: it says nothing); whether that began another one.

        Only the first is taken over: a source that was restored may come back to an epoch it had before, in which apps
        have read events that are others by now.
        """
        if theirs is None or theirs == self._file.theirs:
            return False
        fresh, self._fresh = self._fresh, False
        self._file.theirs = theirs
        usable = 0 < len(theirs) <= LONGEST and theirs.isprintable()
        self._begin(theirs if fresh and usable else token_hex(16))
        return not fresh

    def renew(self) -> str:
        """Begin another epoch, random, whatever the source says of its own. Returns it, on the disk."""
        self._begin(token_hex(16))
        return self.value

    def remember(self, mark: Mark) -> None:
        """Know the source by `mark` from now on."""
        if mark != self._file.mark:
            self._file.mark = mark
            self._save()

    def _begin(self, epoch: str) -> None:
        self._file.epoch = epoch
        self._file.mark = None
        self._save()

    def _save(self) -> None:
        write_private(self._path, msgspec.json.format(msgspec.json.encode(self._file)) + b"\n")
