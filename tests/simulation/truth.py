"""What is true, and what an app was told: the invariant, checked at each thing the app takes.

A `Life` is one line of a store's events under one epoch; a store that was restored from a backup and written to has two
lives under one epoch, until its forwarder gives it another. An `Account` holds what one app has been given: where it
stands, and in which lives that is true. Every next event must be the next one it may see in one of them, byte for byte;
or a gap is told, which begins where the app stands, and names where true events go on; behind it nothing is missing.

Where parts may be merged, the next event may also be one that stands for several: it says what they say, in their
place, under the id of the last; and parts may be left out whose whole follows and says the same.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from bridge_client.store import Stored

Sees = Callable[[bytes], bool]


@lru_cache(20_000)
def read(data: bytes) -> dict[str, Any]:
    """An event, decoded; never to be changed."""
    value: dict[str, Any] = json.loads(data)
    return value


def _said(event: dict[str, Any]) -> str:
    """The text of a part or a whole."""
    messages = [event["message"]] if "message" in event else event.get("messages", [])
    return "".join(message["content"] for message in messages)


def _reply(event: dict[str, Any]) -> tuple[str, str]:
    return event["session_id"], event["request_id"]


_MARK = re.compile(r"<(\d+)>")
"""What each part begins with: the number that tells it from all others."""


class Breach(AssertionError):
    """The invariant does not hold."""


class Life:
    """The events that one store has had under one epoch, in order."""

    def __init__(self, epoch: str, parent: "Life | None" = None) -> None:
        self.epoch = epoch
        self.ids: list[int] = []
        self.data: dict[int, bytes] = {}
        self.children: list[Life] = []
        self.branch = 0  # the last id that it shares with its parent
        if parent is not None:
            parent.children.append(self)

    def add(self, event_id: int, data: bytes) -> None:
        assert not self.ids or event_id > self.ids[-1]
        self.ids.append(event_id)
        self.data[event_id] = data

    def next(self, place: int, sees: Sees) -> int | None:
        """The first event behind `place` that an app sees."""
        for event_id in self.ids[bisect_right(self.ids, place) :]:
            if sees(self.data[event_id]):
                return event_id
        return None

    def repeated(self, event_id: int, sees: Sees) -> bool:
        """Whether this event is a part that one may do without: a whole follows, which the app sees, and repeats it."""
        part = read(self.data[event_id])
        return part["type"] == "partial" and any(
            (whole := read(self.data[later]))["type"] == "final"
            and _reply(whole) == _reply(part)
            and _said(part) in _said(whole)
            and sees(self.data[later])
            for later in self.ids[bisect_right(self.ids, event_id) :]
        )

    def stands_for(self, place: int | None, event_id: int, data: bytes, sees: Sees) -> bool:
        """Whether `data` is all that is to be seen in `(place, event_id]`, merged into one event or left out."""
        last = read(self.data[event_id])
        event = last if data == self.data[event_id] else read(data)
        numbers = set(_MARK.findall(_said(event))) if event is not last else {str(last["n"])}
        known = self.ids[bisect_right(self.ids, place or 0) : bisect_right(self.ids, event_id)]
        seen = [one for one in known if sees(self.data[one])]
        parts = [one for one in seen if str(read(self.data[one])["n"]) in numbers]
        if not parts or parts[-1] != event_id:
            return False
        if place is None:
            seen = seen[seen.index(parts[0]) :]
        texts = [read(self.data[one]) for one in parts]
        if event is not last and (
            {(text["type"], *_reply(text)) for text in texts} != {("partial", *_reply(last))}
            or event != {**last, "message": {**last["message"], "content": "".join(map(_said, texts))}}
        ):
            return False
        return all(self.repeated(one, sees) for one in seen if one not in parts)

    def has(self, after: int, to: int) -> bool:
        """Whether there are events in `(after, to]`, seen or not."""
        return bisect_right(self.ids, after) < bisect_right(self.ids, to)


class Truth:
    """All lives of one home, the present one last; and how far any hub has taken each epoch's events."""

    def __init__(self) -> None:
        self.lives: list[Life] = []
        self.taken: dict[str, int] = {}

    @property
    def present(self) -> Life:
        return self.lives[-1]

    def begin(self, epoch: str, events: list[Stored], parent: Life | None = None) -> None:
        """The store begins another life with these events in it; `parent` is the one it goes on from, if any."""
        life = Life(epoch, parent)
        for event in events:
            life.add(event.event_id, event.data)
        life.branch = life.ids[-1] if life.ids else 0
        self.lives.append(life)


@dataclass(frozen=True)
class Told:
    """A gap."""

    reason: str
    from_id: int | None
    resume_after: int | None


@dataclass(frozen=True)
class State:
    """Where an app stands; what of it is durable survives its crash."""

    place: int | None
    lives: tuple[Life, ...]
    told: Told | None = None


class Account:
    """What one app was given. `since` None: it began live.

    Parts of texts may come merged, or not at all if their whole does: to who asked for that, and to who is slow.
    `moves_along`: as long as it names no cursor it may find itself in another epoch, which it is told, but not what it
    misses there.
    """

    def __init__(self, name: str, truth: Truth, since: int | None, sees: Sees, *, moves_along: bool = True) -> None:
        self.name = name
        self.sees = sees
        self.live_only = since is None
        self.merged = 0
        self._moves_along = moves_along
        self.gaps: list[Told] = []
        self.events = 0
        self.state = State(since, ())  # no lives: any
        self._truth = truth

    def _lives(self, state: State) -> list[Life]:
        """Those in which it may stand: what branched off behind its place counts, too."""
        lives = list(state.lives or self._truth.lives)
        for life in lives:  # grows while it is gone through
            lives += [child for child in life.children if child.branch >= (state.place or 0) and child not in lives]
        return lives

    def _starts(self, epoch: str | None) -> list[tuple[Life, int | None]]:
        state = self.state
        starts: list[tuple[Life, int | None]] = [(life, state.place) for life in self._lives(state)]
        if state.told is not None and state.told.resume_after is not None:
            starts = [(life, state.told.resume_after) for life in self._truth.lives]
        elif state.told is not None and state.told.reason != "hub_reset":
            starts = [(life, None) for life in self._truth.lives]
        return [(life, place) for life, place in starts if epoch in (None, life.epoch)]

    def event(self, epoch: str | None, event_id: int, data: bytes) -> None:
        """An event came, in an epoch if the app knows which."""
        starts = self._starts(epoch)
        fits = [life for life, place in starts if self._follows(life, place, event_id, data)]
        if not fits and self._free and self.state.told is None:
            known = {life.epoch for life in self.state.lives}
            others = [life for life in self._truth.lives if life.epoch not in known]
            fits = [life for life in others if self._follows(life, None, event_id, data)]
        if not fits:
            wanted = [(life.epoch, None if place is None else life.next(place, self.sees)) for life, place in starts]
            raise Breach(f"{self.name}: behind {self.shown} came {epoch} {event_id}, expected one of {wanted}")
        if not self.sees(data):
            raise Breach(f"{self.name}: {event_id} was not asked for")
        self.events += 1
        self.merged += all(life.data[event_id] != data for life in fits)
        self.state = State(event_id, tuple(fits))

    @property
    def _free(self) -> bool:
        return self.live_only and (self._moves_along or not self.state.lives)

    def _follows(self, life: Life, place: int | None, event_id: int, data: bytes) -> bool:
        """Whether this may come next in this life."""
        if life.data.get(event_id) == data and (place is None or life.next(place, self.sees) == event_id):
            return True
        return event_id in life.data and life.stands_for(place, event_id, data, self.sees)

    def rewind(self, place: int | None, epochs: Collection[str] = ()) -> None:
        """The app asks for everything behind `place` again; in one of these epochs, if it says which."""
        self.state = State(place, tuple(life for life in self._truth.lives if life.epoch in epochs))

    def gap(self, reason: str, from_id: int | None, resume_after: int | None) -> None:
        """A gap was told."""
        state = self.state
        told = Told(reason, from_id, resume_after)
        if state.told is not None and state.told.resume_after is not None and from_id == state.told.resume_after:
            state = State(from_id, ())
        if state.place is not None and from_id != state.place:
            raise Breach(f"{self.name}: a gap from {from_id}, but it stands at {self.shown}: {told}")
        if reason not in ("expired", "epoch_changed", "ahead", "hub_reset"):
            raise Breach(f"{self.name}: {told}")
        lives = self._lives(state)
        if reason == "expired" and not (
            resume_after is not None and from_id is not None and any(life.has(from_id, resume_after) for life in lives)
        ):
            raise Breach(f"{self.name}: a gap in which nothing is missing: {told}, it stood at {self.shown}")
        if reason == "epoch_changed" and len({life.epoch for life in self._truth.lives}) < 2:
            raise Breach(f"{self.name}: there was only one epoch: {told}")
        if reason == "ahead" and len(self._truth.lives) < 2:
            raise Breach(f"{self.name}: the store never went back: {told}")
        self.gaps.append(told)
        self.state = replace(state, told=told)

    def moved(self, epoch: str | None, place: int) -> None:
        """The app's cursor was set, with nothing it may see on the way."""
        starts = self._starts(epoch)
        fits = []
        for life, start in starts:
            following = None if start is None else life.next(start, self.sees)
            if start is None or (start <= place and (following is None or following > place)):
                fits.append(life)
        if not fits and self._free:
            fits = [life for life in self._truth.lives if life.epoch == epoch]
        if not fits:
            raise Breach(f"{self.name}: moved from {self.shown} to {epoch} {place} over events it may see")
        self.state = State(place, tuple(fits))

    @property
    def shown(self) -> str:
        state = self.state
        return f"{state.place} in {[life.epoch for life in state.lives]}{f', told {state.told}' if state.told else ''}"

    def lacks(self) -> str | None:
        """What keeps the app from having everything of the present store; None when nothing does."""
        life = self._truth.present
        for other, place in self._starts(life.epoch):
            if other is life and place is not None and life.next(place, self.sees) is None:
                return None
        if (not life.ids or self._free) and self.state == State(None, ()):
            return None  # it began live, and nothing that it may see has come since
        if not life.ids and self.state.place in (None, 0):
            return None
        return f"{self.name} stands at {self.shown}, the store at {life.epoch} {life.ids[-1:]}"
