"""Who is present on a topic, told in Phoenix's form: `presence_state` once, then `presence_diff`s.

A topic's presences are a map from key to metas, one meta for each connection of that key. A member that watches gets
the whole map (`presence_state`), and from then on each change exactly once (`presence_diff {joins, leaves}`). Every
meta has a `phx_ref` of its own, never used again, not even by another hub; a meta that takes another's place names it
in `phx_ref_prev` and stands in one diff with it, so that a client sees a change and nobody missing (Phoenix rules 24,
63 to 68).

`Roster` is one topic: pure, with the time as an argument. `Presence` is all topics of one hub: it ties presences to
channels, tells the diffs, and keeps the time. Three promises:

- *No ghosts.* A presence ends with its channel, whatever ended that; nobody has to remember it. What is not there when
  the hub starts is not present.
- *No flapping.* Whoever lost the connection stays for `grace` seconds, and who returns meanwhile takes the old place.
  Who left in order, or was silent for the whole idle timeout, goes at once.
- *Bounded.* A topic tells its changes at most once in `window` seconds, whatever comes and goes, and its state to at
  most `NEWCOMERS` at a time. It lists at most `limit` presences; what comes beyond is not listed.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, Final

from msgspec import Raw
from msgspec.json import encode

from bridge_server.channels import Socket
from bridge_server.hub import Hub, Listener
from bridge_server.message import Message

WINDOW_SECONDS: Final = 1.0
"""Changes of one topic are told at most this often; the first after a quiet time at once."""

LIMIT: Final = 256
"""Presences listed on one topic. With names of 64 characters that is a state of some 50 KB."""

NEWCOMERS: Final = 500
"""Watchers of one topic that are told its state in one window: when thousands come back at once, others have a turn."""

_COMES_BACK: Final = frozenset({"closed", "failed", "replaced"})
"""Ends of a channel after which its client joins again by itself."""


class _Meta:
    """One connection of one key, as it is told. Equal only to itself."""

    __slots__ = ("data", "key", "previous", "ref")

    def __init__(self, key: str, fields: Mapping[str, Any], ref: str, previous: str | None) -> None:
        if not isinstance(key, str):
            raise TypeError(f"a presence's key is a text, not {key!r}")  # rule 67
        encode(key)  # raises now what nobody could handle later
        self.key = key
        self.ref = ref
        self.previous = previous
        refs = {"phx_ref": ref} if previous is None else {"phx_ref": ref, "phx_ref_prev": previous}
        self.data = Raw(encode({**fields, **refs}))


class Roster:
    """The presences of one topic, and what of them was not told yet.

    `owner` is whatever a presence belongs to, one each. `refs` makes a new `phx_ref` at each call.
    """

    __slots__ = ("_grace", "_joins", "_leaves", "_leaving", "_limit", "_metas", "_owners", "_refs", "_state")

    def __init__(self, refs: Callable[[], str], *, grace: float, limit: int) -> None:
        self._refs = refs
        self._grace = grace
        self._limit = limit
        self._owners: dict[object, _Meta] = {}
        self._leaving: dict[_Meta, float] = {}  # nobody's any more -> when that is told; the earliest is first
        self._metas: dict[_Meta, None] = {}
        self._joins: dict[_Meta, None] = {}
        self._leaves: dict[_Meta, None] = {}
        self._state: bytes | None = None

    def __len__(self) -> int:
        return len(self._metas)

    @property
    def changed(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._joins or self._leaves)

    @property
    def deadline(self) -> float | None:
        """When the next grace period ends."""
        return next(iter(self._leaving.values()), None)

    def enter(self, owner: object, key: str, fields: Mapping[str, Any], *, always: bool = False) -> bool:
        """Add a presence; False when the topic is full and it is not listed.

        It takes the place of one with the same key whose connection was lost, if there is one. `always` lists it on a
        full topic too. Raises ValueError for an owner that has one already, TypeError or ValueError for no JSON.
        """
        if owner in self._owners:
            raise ValueError("this owner is present already: use update")
        lost = next((meta for meta in self._leaving if meta.key == key), None)
        if lost is None and len(self._metas) >= self._limit and not always:
            return False
        self._owners[owner] = self._replace(lost, key, fields)
        return True

    def update(self, owner: object, fields: Mapping[str, Any]) -> bool:
        """Give a presence another meta; False when the owner has none. Raises as `enter`."""
        meta = self._owners.get(owner)
        if meta is None:
            return False
        self._owners[owner] = self._replace(meta, meta.key, fields)
        return True

    def leave(self, owner: object, now: float, *, at_once: bool) -> None:
        """The owner is gone; its presence too, `at_once` or after the grace period. Ignored when it has none."""
        meta = self._owners.pop(owner, None)
        if meta is None:
            return
        if at_once or self._grace <= 0:
            self._remove(meta)
        else:
            self._leaving[meta] = now + self._grace

    def expel(self, key: str) -> None:
        """End every presence of a key at once."""
        self._owners = {owner: meta for owner, meta in self._owners.items() if meta.key != key}
        for meta in [meta for meta in self._metas if meta.key == key]:
            self._leaving.pop(meta, None)
            self._remove(meta)

    def expire(self, now: float) -> None:
        """End the presences whose grace period is over."""
        for meta, deadline in tuple(self._leaving.items()):
            if deadline > now:
                break
            del self._leaving[meta]
            self._remove(meta)

    def take_diff(self) -> bytes | None:
        """What changed since the last call, as the payload of a `presence_diff`; None when nothing did.

        Who came and went in between is in none.
        """
        if not self.changed:
            return None
        joins, leaves = self._joins, self._leaves
        self._joins, self._leaves = {}, {}
        return encode({"joins": _by_key(joins), "leaves": _by_key(leaves)})

    def forget_diff(self) -> None:
        """Nobody is to be told what changed so far."""
        self._joins.clear()
        self._leaves.clear()

    def state(self) -> bytes:
        """Everybody, as the payload of a `presence_state`. Call `take_diff` before: it is included."""
        if self._state is None:
            self._state = encode(_by_key(self._metas))
        return self._state

    def _replace(self, old: _Meta | None, key: str, fields: Mapping[str, Any]) -> _Meta:
        # A predecessor that was never told is nobody's: the one it replaced is meant then.
        previous = None if old is None else old.previous if old in self._joins else old.ref
        meta = _Meta(key, fields, self._refs(), previous)
        if old is not None:
            self._leaving.pop(old, None)
            self._remove(old)
        self._metas[meta] = self._joins[meta] = None
        self._state = None
        return meta

    def _remove(self, meta: _Meta) -> None:
        del self._metas[meta]
        if meta in self._joins:
            del self._joins[meta]
        else:
            self._leaves[meta] = None
        self._state = None


def _by_key(metas: Iterable[_Meta]) -> dict[str, dict[str, list[Raw]]]:
    keys: dict[str, dict[str, list[Raw]]] = {}
    for meta in metas:
        keys.setdefault(meta.key, {"metas": []})["metas"].append(meta.data)
    return keys


class _Place:
    """A topic with presences or watchers: its roster, who waits for the state, and when it is told again."""

    __slots__ = ("due", "newcomers", "quiet_until", "roster", "timer")

    def __init__(self, roster: Roster) -> None:
        self.roster = roster
        self.newcomers: list[tuple[Socket, Listener]] = []
        self.quiet_until = 0.0
        self.due: float | None = None
        self.timer: asyncio.Handle | None = None


class Presence:
    """The presences of one hub. Every method is synchronous and to be called in the hub's loop."""

    def __init__(
        self,
        topics: Hub,
        now: Callable[[], float],
        *,
        grace: float,
        window: float = WINDOW_SECONDS,
        limit: int = LIMIT,
    ) -> None:
        self._topics = topics
        self._now = now
        self._grace = grace
        self.window = window
        self._limit = limit
        self._places: dict[str, _Place] = {}
        prefix, numbers = secrets.token_urlsafe(6), count(1)
        self._refs = lambda: f"{prefix}{next(numbers):x}"

    # For a channel: its presence lives no longer than it does.

    def track(self, socket: Socket, key: str, fields: Mapping[str, Any]) -> bool:
        """Show this channel as present under `key` on its topic, until it ends; False when the topic is full.

        `fields` is the meta without its refs. Call it in `joined` or later. Raises ValueError when it is present
        already, TypeError or ValueError for what is no JSON.
        """
        topic = socket.topic
        listed = self.enter(socket, topic, key, fields)
        if listed:
            socket.at_end(lambda reason: self.leave(socket, topic, at_once=reason not in _COMES_BACK))
        return listed

    def update(self, socket: Socket, fields: Mapping[str, Any]) -> bool:
        """Change the meta of this channel's presence; False when it is not listed. Raises as `track`."""
        return self.change(socket, socket.topic, fields)

    def untrack(self, socket: Socket) -> None:
        """End this channel's presence at once. Ignored when there is none (Phoenix rule 66)."""
        self.leave(socket, socket.topic)

    def watch(self, socket: Socket) -> None:
        """Push this channel the `presence_state` of its topic, then every `presence_diff`, until it ends.

        Call it once, in `joined` or later. The state comes at the end of this turn of the loop, or when the others get
        their next diff (later still if very many come at once); nothing of presence comes before it.
        """
        place = self._place(socket.topic)
        place.newcomers.append((socket, socket.listen(_pubsub(socket.topic))))
        self._arm(socket.topic, place)

    # For whatever else is present.

    def enter(self, owner: object, topic: str, key: str, fields: Mapping[str, Any], *, always: bool = False) -> bool:
        """Show `owner` as present on `topic` until it leaves; see `Roster.enter`."""
        place = self._place(topic)
        try:
            return place.roster.enter(owner, key, fields, always=always)
        finally:
            self._arm(topic, place)

    def change(self, owner: object, topic: str, fields: Mapping[str, Any]) -> bool:
        """Give `owner` another meta; False when it is not listed."""
        place = self._places.get(topic)
        if place is None or not place.roster.update(owner, fields):
            return False
        self._arm(topic, place)
        return True

    def leave(self, owner: object, topic: str, *, at_once: bool = True) -> None:
        """`owner` is gone. Ignored when it was not listed."""
        if place := self._places.get(topic):
            place.roster.leave(owner, self._now(), at_once=at_once)
            self._arm(topic, place)

    def expel(self, topic: str, key: str) -> None:
        """End every presence of a key at once, those in their grace period too."""
        if place := self._places.get(topic):
            place.roster.expel(key)
            self._arm(topic, place)

    def __len__(self) -> int:
        """Topics with presences or with watchers that wait."""
        return len(self._places)

    # Telling.

    def _place(self, topic: str) -> _Place:
        place = self._places.get(topic)
        if place is None:
            place = self._places[topic] = _Place(Roster(self._refs, grace=self._grace, limit=self._limit))
        return place

    def _arm(self, topic: str, place: _Place) -> None:
        """See to it that the topic is told when it is due, and forgotten when nothing is left of it."""
        roster, due = place.roster, place.roster.deadline
        if not self._topics.heard(_pubsub(topic)):
            roster.forget_diff()
            place.newcomers.clear()
        if roster.changed or place.newcomers:
            due = place.quiet_until if due is None else min(due, place.quiet_until)
        elif due is None and not roster and place.quiet_until > self._now():
            due = place.quiet_until  # forgotten sooner, it would tell the next change too soon
        if place.timer is not None and (due is None or place.due is None or due < place.due):
            place.timer.cancel()
            place.timer = None
        if due is None:
            if not roster and self._places.get(topic) is place:
                del self._places[topic]
        elif place.timer is None:
            place.due = due
            loop, wait = asyncio.get_running_loop(), due - self._now()
            if wait <= 0:
                place.timer = loop.call_soon(self._tell, topic, place)
            else:  # it may go off early by its clock's resolution, and would then find that nothing is due
                place.timer = loop.call_later(wait + 0.001, self._tell, topic, place)

    def _tell(self, topic: str, place: _Place) -> None:
        place.timer = None
        now, roster = self._now(), place.roster
        roster.expire(now)
        waiting = roster.changed or place.newcomers
        if waiting and now >= place.quiet_until and self._topics.heard(_pubsub(topic)):
            place.quiet_until = now + self.window
            if diff := roster.take_diff():
                self._topics.publish(_pubsub(topic), Message("presence_diff", diff))
            # Who has gone meanwhile takes nobody's turn.
            there = [(socket, listener) for socket, listener in place.newcomers if listener in listener.topic.listeners]
            newcomers, place.newcomers = there[:NEWCOMERS], there[NEWCOMERS:]
            state = Raw(roster.state())
            for socket, listener in newcomers:
                socket.push("presence_state", state)
                listener.go_live()  # who is live already gets the diff first
        self._arm(topic, place)


def _pubsub(topic: str) -> str:
    return f"phx_presence:{topic}"
