"""What waits for one busy peer, in one order: events as references, everything else as finished bytes.

It is measured against marks. Past the first, parts of texts are merged; past the second they are also held back: none
leaves together with what stands before it, so that it may still grow, or vanish into the whole that repeats it.
Merging goes over all that waits, so it is done when that has doubled since the last time, not for every event.
"""

from collections import deque
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from bridge_server.config import Config
from bridge_server.merging import condense, replaced
from bridge_server.message import Form, Message
from protocol.events.compaction import PARTS
from protocol.server import Channel


class Marks(NamedTuple):
    """How much (bytes) and how long (seconds) may wait for one peer before something is done about it."""

    handover_bytes: int = 64 * 1024
    """Bytes handed to a transport at a time; what it holds can't be taken back, or counted under TLS."""
    merge_bytes: int = 256 * 1024
    merge_seconds: float = 1.0
    hold_bytes: int = 2**20
    hold_seconds: float = 5.0
    cut_bytes: int = 4 * 2**20
    cut_seconds: float = 15.0
    """A busy peer that takes nothing for this long is cut."""

    @classmethod
    def of(cls, config: Config) -> "Marks":
        """Those an operator has chosen."""
        return cls(*(getattr(config, f"queue_{name}") for name in cls._fields))


class Level(IntEnum):
    """Which mark has been passed."""

    NONE = 0
    MERGE = 1
    HOLD = 2


class Entry(NamedTuple):
    """Whose it is, a shared message or finished bytes, the form of an event (None: no event), its size, since when."""

    channel: Channel
    item: Message | bytes
    form: Form | None
    size: int
    at: float

    @property
    def event(self) -> Message | None:
        """The message, if it carries an event of a home."""
        return self.item if isinstance(self.item, Message) and self.item.event_id is not None else None

    @property
    def is_part(self) -> bool:
        """Whether it carries a piece of a text."""
        return self.event is not None and self.event.type in PARTS


class Shrunk(NamedTuple):
    """What one merging did: bytes freed, parts that are gone into others, and the mark that had been passed."""

    freed: int
    parts: int
    level: Level


_NOTHING: Final = Shrunk(0, 0, Level.NONE)


class Backlog:
    """The queue. Times are those of one monotonic clock, handed in."""

    __slots__ = ("_again_bytes", "_again_time", "_entries", "_marks", "bytes", "level")

    def __init__(self, marks: Marks) -> None:
        self.bytes = 0
        self.level = Level.NONE
        """The highest mark passed since this queue began."""
        self._marks = marks
        self._entries: deque[Entry] = deque()
        self._again_bytes = marks.merge_bytes
        self._again_time = 0.0

    def __bool__(self) -> bool:
        return bool(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def add(self, entry: Entry) -> None:
        """Queue one entry."""
        self._entries.append(entry)
        self.bytes += entry.size

    @property
    def is_due(self) -> bool:
        """Whether so much has come since the last merging that another is worth its time."""
        return self.bytes >= self._again_bytes

    def _passed(self, now: float) -> Level:
        marks, age = self._marks, now - self._entries[0].at if self._entries else 0.0
        if self.bytes >= marks.hold_bytes or age > marks.hold_seconds:
            return Level.HOLD
        if self.bytes >= marks.merge_bytes or age > marks.merge_seconds:
            return Level.MERGE
        return Level.NONE

    def shrink(self, now: float) -> Shrunk:
        """Merge adjacent parts if a mark is passed, at most once in `merge_seconds` for their age alone."""
        level = self._passed(now)
        if level is Level.NONE or not (self.is_due or now >= self._again_time):
            return _NOTHING
        self.level = max(self.level, level)
        before, parts = self.bytes, sum(entry.is_part for entry in self._entries)
        if parts:
            self._merge(repeated=level is Level.HOLD)
        marks = self._marks
        self._again_time = now + marks.merge_seconds
        again = max(marks.merge_bytes, 2 * self.bytes)
        self._again_bytes = marks.hold_bytes if self.bytes < marks.hold_bytes < again else again
        return Shrunk(before - self.bytes, parts - sum(entry.is_part for entry in self._entries), level)

    def _merge(self, *, repeated: bool) -> None:
        entries = list(self._entries)
        events = [("", b"") if entry.event is None else (entry.event.type, entry.event.data) for entry in entries]
        self._entries.clear()
        self.bytes = 0
        for index, data in condense(events, repeated=repeated):
            entry = entries[index]
            if data is not None and entry.event is not None:
                message = replaced(entry.event, data)
                entry = entry._replace(item=message, size=message.size)
            self.add(entry)

    def held(self, now: float) -> int:
        """How many entries at the end are held back now: parts, past the second mark, with something before them."""
        if self._passed(now) is not Level.HOLD:
            return 0
        for count, entry in enumerate(reversed(self._entries)):
            if not entry.is_part:
                return count
        return 0  # nothing stands before them: they go while there is room

    def take(self, most: int, held: int) -> list[bytes]:
        """The next entries as bytes, about `most` of them but at least one entry, without the last `held`."""
        parts: list[bytes] = []
        size = 0
        entries = self._entries
        while len(entries) > held and (not size or size + entries[0].size <= most):
            _, item, form, counted, _ = entries.popleft()
            data = item if isinstance(item, bytes) else form.frame(item)  # type: ignore[union-attr]
            parts.append(data)
            size += len(data)
            self.bytes -= counted
        return parts

    def purge(self, channel: Channel) -> int:
        """Forget the events of a channel that ends, and what stands behind them for it; the bytes freed.

        What follows an event may vouch for it (a cursor, an answer), so it must not outlive it; what stands before the
        first event is kept.
        """
        kept: deque[Entry] = deque()
        before, self.bytes = self.bytes, 0
        purging = False
        for entry in self._entries:
            mine = entry.channel is channel
            purging = purging or (mine and entry.form is not None)
            if not (mine and purging):
                kept.append(entry)
                self.bytes += entry.size
        self._entries = kept
        return before - self.bytes
