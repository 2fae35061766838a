"""Ids that are missing between others: whether they may still come, and which came too late.

Where several write at once, an id can become readable after a greater one. An event behind a hole is therefore held
back until it has been readable for `patience` seconds: then what would have filled the hole has had that long. Pure:
the time is an argument.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from bridge_client.sources import SourceEvent

PATIENCE: Final = 1.0
"""Seconds that a hole is waited for."""

_REMEMBERED: Final = 64


class Holes:
    """What is known of the ids of one source in one epoch."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._settled = 0
        self._heads: deque[tuple[float, int]] = deque()
        self._passed: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def restart(self, head: int) -> None:
        """Take everything up to `head` as settled: it was there before anybody looked."""
        self._settled = head
        self._heads.clear()
        self._passed.clear()

    def note(self, head: int, now: float) -> None:
        """`head` is readable at `now`. Times never go back."""
        if head > (self._heads[-1][1] if self._heads else self._settled):
            self._heads.append((now, head))
        while self._heads and self._heads[0][0] <= now - self._patience:
            self._settled = self._heads.popleft()[1]

    def ready(self, after: int, events: Sequence[SourceEvent]) -> list[SourceEvent]:
        """Those of `events` (ascending, all that is readable behind `after`) in front of the first open hole."""
        ready: list[SourceEvent] = []
        last = after
        for event in events:
            if event.event_id != last + 1 and event.event_id > self._settled:
                break
            ready.append(event)
            last = event.event_id
        return ready

    def passed(self, after: int, events: Sequence[SourceEvent]) -> None:
        """`events` went out behind `after`: the holes between them are closed now."""
        for event in events:
            if event.event_id > after + 1:
                self._passed.append((after + 1, event.event_id - 1))
            after = event.event_id

    @property
    def closed(self) -> list[tuple[int, int]]:
        """The last holes passed, each as its first and last id: what turns up there came too late."""
        return list(self._passed)

    def late(self, event_id: int) -> None:
        """An event turned up in a closed hole: it is known, and not looked for again."""
        for place, (first, last) in enumerate(self._passed):
            if first <= event_id <= last:
                parts = [part for part in ((first, event_id - 1), (event_id + 1, last)) if part[0] <= part[1]]
                rest = [*list(self._passed)[:place], *parts, *list(self._passed)[place + 1 :]]
                self._passed = deque(rest, maxlen=_REMEMBERED)
                return
