"""`app:<server_id>`: an app receives the events of one home, live and after a drop (A203 to A206)."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder

from bridge_server.auth import Device
from bridge_server.channels import Channel, Joined, Ok, Refuse, Socket, bad_join
from bridge_server.channels.presence import Presence
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.history import Kept, Log
from bridge_server.home import RECOVERED, Gap, Home, Homes, Verdict
from bridge_server.hub import Listener
from bridge_server.merging import merged_page
from bridge_server.message import EVERYTHING, Filter, event_payload
from bridge_server.replay import replay
from protocol import event_id
from protocol.codec import Encoded
from protocol.errors import BadEventId
from protocol.frames import Binary, Payload
from protocol.topics import app_topic, events_topic

MAX_JOIN_BYTES: Final = 8 * 1024

HOME_KEY: Final = "home"
"""The home's own key among the presences of its app topic. A device's is its id, which is 16 characters long."""

BAD_CURSOR: Final = Refuse({"reason": "bad_cursor"})


class _Join(Struct):
    since_id: Any = None
    epoch: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    session_id: str | None = None
    types: Annotated[list[str], Meta(max_length=64)] | None = None
    partials: Literal["all", "merged", "none"] = "all"
    presence: bool = False


_JOIN = Decoder(_Join)


class AppChannel(Channel):
    """One join of an app. Its listener is held until the app has had what it missed, or was told that it can't.

    The verdict is `_open` while only the home can settle it. An app without a cursor at a hub that does not hold the
    home's head is `_unplaced`: its `_place` is the head the home states, None until it does, and it goes live there.
    """

    __slots__ = (
        "_clock",
        "_config",
        "_epoch",
        "_home",
        "_homes",
        "_listener",
        "_open",
        "_place",
        "_presence",
        "_reset_told",
        "_since",
        "_unplaced",
        "_verdict",
        "_watches",
    )

    _home: Home
    _listener: Listener
    _since: int | None
    _epoch: str | None
    _verdict: Verdict
    _watches: bool

    def __init__(self, socket: Socket, homes: Homes, presence: Presence, config: Config, clock: Clock) -> None:
        super().__init__(socket)
        self._homes = homes
        self._presence = presence
        self._config = config
        self._clock = clock
        self._open = False
        self._unplaced = False
        self._place: int | None = None
        self._reset_told = False

    def join(self, payload: Payload) -> Joined:
        """`{since_id?, epoch?, session_id?, types?, partials?, presence?}` → the verdict, the place, and the home."""
        identity = self.socket.identity
        if not isinstance(identity, Device) or self.socket.topic != app_topic(identity.server_id):
            return Refuse({"reason": "unauthorized"})
        if isinstance(payload, Binary) or len(bytes(payload)) > MAX_JOIN_BYTES:
            return Refuse({"reason": "bad_join", "field": "payload"})
        try:
            request = _Join() if bytes(payload) == b"null" else _JOIN.decode(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            refusal = bad_join(error)  # a number beyond every id does not even decode
            return BAD_CURSOR if refusal.response["field"] == "since_id" else refusal
        try:
            self._since = None if request.since_id is None else event_id.parse_since(request.since_id)
        except BadEventId:
            return BAD_CURSOR
        self._epoch, self._watches = request.epoch, request.presence
        home = self._home = self._homes.get(identity.server_id)
        self._listener = self.socket.listen(events_topic(identity.server_id), _filter(request))
        home.watchers[self] = None
        self._verdict = self._judge()
        # Of a home that may have another store when it comes no place is named: an app would go on from there.
        reset = self._verdict.gap is not None and self._verdict.gap.reason == "hub_reset"
        return Ok(
            {
                "epoch": None if reset else home.epoch,
                "head_id": None if reset else _text(home.place),
                "recovered": self._verdict.recovered,
                "gap": self._verdict.gap,
                "server": {
                    "online": home.shown_online,
                    "since": self._clock.shown(home.shown_since),
                    "name": home.name,
                },
            }
        )

    def joined(self) -> None:
        """Be seen, and start what the verdict promised."""
        self._show()
        verdict = self._verdict
        if verdict.recovered is None:
            self._open = True
            self._home.waiting[self] = None
            self._await_home()
        elif verdict.gap is not None and verdict.gap.reason == "hub_reset":
            self._reset_told = True
            self._complete(None, verdict)
        elif not verdict.recovered:
            self._complete(self._home.place, verdict)
            self._listener.go_live()
        elif self._since is None:
            self._start_at_head()
        else:
            self._replay()

    def terminate(self, reason: str) -> None:
        """The app is gone; what it listened to ends with the channel."""
        home = getattr(self, "_home", None)
        if home is not None:
            home.watchers.pop(self, None)
            home.waiting.pop(self, None)

    # What the home does.

    def home_joined(self, epoch_changed: bool) -> None:
        """The ground may have moved: who gave a cursor joins again and is judged afresh."""
        if self._since is not None and epoch_changed and not self._open:
            self.socket.fail("epoch_changed")
        elif self._reset_told:
            self.socket.fail("hub_reset")
        else:
            if epoch_changed and self._since is None:
                self._listener.hold()
                self._wait_for_place(self._home.stated_head or 0)
                self.status_changed()  # it names the place from which the next events come
            elif self._unplaced and self._place is None:
                self._place = self._home.stated_head or 0
                if self._home.shown_online:
                    self.status_changed()  # else it follows
            self.home_advanced()

    def home_advanced(self) -> None:
        """Once the hub holds what the home stated the open verdict is given, and who has no place starts there."""
        home = self._home
        if self._open:
            if home.refilled:
                self._settle()
        elif self._unplaced and (home.refilled if self._place is None else (home.head or 0) >= self._place):
            self._unplaced = False
            home.waiting.pop(self, None)
            self._listener.go_live()

    def history_cut(self) -> None:
        """Who was live while nothing was held has missed what came before the first event."""
        if self._listener.live:
            self.socket.fail("expired")

    def home_left(self) -> None:
        """An open verdict waits for the home only so long."""
        if self._open:
            self._await_home()

    def nobody_came(self) -> None:
        """The time is up."""
        if self._open:
            self._settle()

    def status_changed(self) -> None:
        """Tell the app whether its home is there; and its place, if it joined without a cursor.

        Who joined a cold hub has not heard its place yet, and would come back from a drop without one.
        """
        home = self._home
        self.socket.push(
            "server_status",
            {
                "online": home.shown_online,
                "since": self._clock.shown(home.shown_since),
                "last_event_at": self._clock.shown(home.last_event_at),
                "epoch": home.epoch,
                "head_id": _text(self._place) if self._since is None else None,
            },
        )

    def _show(self) -> None:
        device = self.socket.identity
        if isinstance(device, Device):
            meta = {"name": device.name, "online_at": self._clock.shown(self._clock.now())}
            self._presence.track(self.socket, device.device_id, meta)
        if self._watches:
            self._presence.watch(self.socket)

    # The verdict and what follows from it.

    def _judge(self) -> Verdict:
        return self._home.judge(self._epoch, self._since, self._clock.now(), self._config.cold_wait)

    def _await_home(self) -> None:
        home = self._home
        if home.absent_since is not None and home.alarm is None:
            # A timer may go off early by its clock's resolution, and would then find that the time is not up.
            wait = home.absent_since + self._config.cold_wait - self._clock.now() + 0.001
            home.alarm = asyncio.get_running_loop().call_later(wait, home.nobody_came)

    def _settle(self) -> None:
        verdict = self._judge()
        if verdict.recovered is None:
            self._await_home()
            return
        self._open = False
        self._home.waiting.pop(self, None)
        if verdict.recovered:
            self._replay()
            return
        assert verdict.gap is not None
        told_nothing = verdict.gap.reason == "hub_reset"
        self._complete(None if told_nothing else self._home.place, verdict)
        # A client that ignores replay_complete would miss this: it joins again and reads the verdict in the reply.
        self.socket.fail(verdict.gap.reason)

    def _start_at_head(self) -> None:
        home = self._home
        if home.refilled or (home.log is not None and not home.online):
            self._complete(home.place, RECOVERED)
            self._listener.go_live()
        else:
            place = (home.stated_head or 0) if home.online else None
            self._complete(place, RECOVERED)
            self._wait_for_place(place)

    def _wait_for_place(self, place: int | None) -> None:
        self._unplaced, self._place = True, place
        self._home.waiting[self] = None

    def _replay(self) -> None:
        log, since = self._home.log, self._since
        if log is None or since is None or since == log.head:  # nothing is missing; no log: the home's store is empty
            self._complete(self._home.place, RECOVERED)
            self._listener.go_live()
        else:
            self.socket.spawn(self._catch_up(log, since, log.head))

    async def _catch_up(self, log: Log, since: int, to: int) -> None:
        caught_up = await replay(log, since, to, send=self._send, drained=self.socket.drained, complete=self._replayed)
        if caught_up:
            self._listener.go_live()
        else:
            self.socket.fail("expired")

    def _replayed(self, to: int, recovered: bool, last_sent: int) -> bool:
        self._complete(to, RECOVERED if recovered else self._home.expired(last_sent))
        if not recovered:
            # The reply promised these events, or nothing yet: who reads no `replay_complete` must not miss it.
            self.socket.fail("expired")
        return recovered

    def _send(self, page: Sequence[Kept]) -> None:
        form, filter = self._listener.form, self._listener.filter
        tail = form.codec.tail
        wanted: Sequence[Kept] = [event for event in page if filter.wants(event.type, event.session_id)]
        if filter.merged:
            wanted = merged_page(wanted)
        frames = [
            form.wrap(Encoded(form.head + tail(form.topic, "session_event", event_payload(event.data))))
            for event in wanted
        ]
        if frames:
            self.socket.send_events(self._listener, b"".join(frames))

    def _complete(self, to: int | None, verdict: Verdict) -> None:
        gap: Gap | None = verdict.gap
        told_nothing = gap is not None and gap.reason == "hub_reset"
        self.socket.push(
            "replay_complete",
            {
                "epoch": None if told_nothing else self._home.epoch,
                "to_id": _text(to),
                "recovered": verdict.recovered,
                "gap": gap,
            },
        )


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _filter(request: _Join) -> Filter:
    if request.session_id is None and request.types is None and request.partials == "all":
        return EVERYTHING
    types = None if request.types is None else frozenset(request.types)
    return Filter(request.session_id, types, request.partials != "none", request.partials == "merged")


def show_home(home: Home, presence: Presence, clock: Clock) -> None:
    """Let the home's own presence on its app topic follow what its apps are told of it."""
    topic = app_topic(home.server_id)
    meta = {"name": home.name, "since": clock.shown(home.shown_since)}
    if not home.shown_online:
        presence.leave(home, topic)
    elif not presence.change(home, topic, meta):
        presence.enter(home, topic, HOME_KEY, meta, always=True)
