"""What a model may call through the home: a contract, and two tools that only read, under one folder."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

MAX_FILE: Final = 96 << 10
"""Bytes of a file that one call reads; `offset` goes on."""

MAX_ENTRIES: Final = 1_000
MAX_OFFSET: Final = 1 << 40

Schema = Mapping[str, Any]


class ToolFailed(Exception):
    """The tool could not do it; the text is for the model."""


class Tool(Protocol):
    """Something a model may call."""

    name: str
    description: str
    parameters: Schema
    """The JSON schema of its input, an object."""
    ask: bool
    """Whether a person approves each call first."""

    def run(self, given: Mapping[str, Any]) -> AsyncIterator[str]:
        """Do it, with the input a model made up. Yields pieces of text that add up to the result. Raises ToolFailed.

        Cancelled, it stops. Whoever runs it bounds its time and its output.
        """


_FILE: Final[Schema] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "relative to the project's folder"},
        "offset": {"type": "integer", "minimum": 0, "description": "bytes to leave out at the start"},
    },
    "required": ["path"],
}
_FOLDER: Final[Schema] = {
    "type": "object",
    "properties": {"path": {"type": "string", "description": "relative to the project's folder; . is that itself"}},
    "required": ["path"],
}


class ReadFile:
    """Reads a regular file under `root`; nothing outside, whatever links there are."""

    name = "read_file"
    description = "Read a text file of the project. Long files come in parts: ask again with the offset that is named."
    parameters = _FILE

    def __init__(self, root: Path, *, ask: bool = True) -> None:
        self._root = root
        self.ask = ask

    async def run(self, given: Mapping[str, Any]) -> AsyncIterator[str]:
        offset = given.get("offset", 0)
        if type(offset) is not int or not 0 <= offset <= MAX_OFFSET:
            raise ToolFailed("offset: must be a whole number of bytes, 0 or more")
        yield await asyncio.to_thread(self._read, given.get("path"), offset)

    def _read(self, path: Any, offset: int) -> str:
        file = inside(self._root, path)
        # Not waiting for the other end of a pipe, and looking at what was opened, not at what stood there before.
        with _problems(path):
            handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as opened:
                about = os.fstat(handle)
                if not stat.S_ISREG(about.st_mode):
                    raise ToolFailed(f"{path}: is no regular file")
                opened.seek(offset)
                data = opened.read(MAX_FILE)
        text = data.decode("utf-8", "replace")
        end = offset + len(data)
        left = about.st_size - end
        return f"{text}\n[{left} more bytes; go on with offset {end}]" if left > 0 else text


class ListFiles:
    """Names what is in a folder under `root`."""

    name = "list_files"
    description = "List a folder of the project, one name a line; folders end in a slash."
    parameters = _FOLDER

    def __init__(self, root: Path, *, ask: bool = True) -> None:
        self._root = root
        self.ask = ask

    async def run(self, given: Mapping[str, Any]) -> AsyncIterator[str]:
        names = await asyncio.to_thread(self._list, given.get("path"))
        for start in range(0, len(names), 100):
            yield "".join(f"{name}\n" for name in names[start : start + 100])

    def _list(self, path: Any) -> Sequence[str]:
        folder = inside(self._root, path)
        names = []
        with _problems(path), os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""))
                if len(names) > MAX_ENTRIES:
                    break
        more = [f"[more than {MAX_ENTRIES} names; the others are left out]"] if len(names) > MAX_ENTRIES else []
        return sorted(names[:MAX_ENTRIES]) + more


def inside(root: Path, path: Any) -> Path:
    """The real place of a relative path, which must be under `root`. Raises ToolFailed."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise ToolFailed("path: must be the name of a file, relative to the project's folder")
    with _problems(path):
        top = Path(os.path.realpath(root))
        place = Path(os.path.realpath(top / path))
        if not place.is_relative_to(top):
            raise ToolFailed(f"{path}: is outside the project's folder")
        return place


@contextmanager
def _problems(path: object) -> Iterator[None]:
    """What the system refuses, in words for the model."""
    try:
        yield
    except OSError as error:
        raise ToolFailed(f"{path}: {error.strerror or error}") from None
