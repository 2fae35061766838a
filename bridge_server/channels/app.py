"""`app:<server_id>`: an app receives the events of one home, live and after a drop (A203 to A206)."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from bridge_server.auth import Device
from bridge_server.backfill import Reader
from bridge_server.channels import UNKNOWN_EVENT, Channel, Handled, Joined, Ok, Refuse, Reply, Socket
from bridge_server.channels.app_requests import NO_CURSOR, read_cursor, read_join
from bridge_server.channels.presence import Presence
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.device_cursors import DeviceCursors
from bridge_server.history import Kept, Log
from bridge_server.home import RECOVERED, Gap, Home, Homes, Verdict
from bridge_server.hub import Listener
from bridge_server.merging import merged_page
from bridge_server.message import event_payload
from bridge_server.replay import replay
from protocol.codec import Encoded
from protocol.event_id import Cursor
from protocol.frames import Payload
from protocol.topics import app_topic, events_topic

HOME_KEY: Final = "home"
"""The home's own key among the presences of its app topic. A device's is its id, which is 16 characters long."""


class AppChannel(Channel):
    """One join of an app. Its listener is held until the app has had what it missed, or was told that it can't.

    The verdict is `_open` while only the home can settle it. An app without a cursor at a hub that does not hold the
    home's head is `_unplaced`: its `_place` is the head the home states, None until it does, and it goes live there.
    """

    __slots__ = (
        "_clock",
        "_config",
        "_cursors",
        "_device",
        "_epoch",
        "_home",
        "_homes",
        "_listener",
        "_open",
        "_place",
        "_presence",
        "_reading",
        "_reset_told",
        "_sent",
        "_since",
        "_unplaced",
        "_verdict",
        "_watches",
    )

    _device: str
    _home: Home
    _listener: Listener
    _since: int | None
    _epoch: str | None
    _verdict: Verdict
    _watches: bool

    def __init__(
        self,
        socket: Socket,
        homes: Homes,
        presence: Presence,
        config: Config,
        clock: Clock,
        cursors: DeviceCursors,
    ) -> None:
        super().__init__(socket)
        self._cursors = cursors
        self._homes = homes
        self._presence = presence
        self._config = config
        self._clock = clock
        self._open = False
        self._unplaced = False
        self._place: int | None = None
        self._reset_told = False
        self._reading = False  # from the home's store
        self._sent = 0  # the last event of a replay that the app was shown, else its cursor

    def join(self, payload: Payload) -> Joined:
        """`{since_id?, epoch?, cursor?, session_id?, types?, partials?, presence?}` → verdict, place, and the home."""
        identity = self.socket.identity
        if not isinstance(identity, Device) or self.socket.topic != app_topic(identity.server_id):
            return Refuse({"reason": "unauthorized"})
        request = read_join(payload)
        if isinstance(request, Refuse):
            return request
        self._since, self._epoch = request.since, request.epoch
        self._watches, self._device = request.presence, identity.device_id
        if request.stored and (cursor := self._cursors.get(self._device)) is not None:
            self._epoch, self._since = cursor
        home = self._home = self._homes.get(identity.server_id)
        if self._since is not None and self._epoch is None:
            self._epoch = home.epoch  # the current one is that of now, also when the verdict comes later
        self._listener = self.socket.listen(events_topic(identity.server_id), request.filter)
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
                **({"since_id": _text(self._since)} if request.stored else {}),
            }
        )

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        """`cursor {event_id, epoch?}`, how far this device has read → ok. Without an epoch: the one its events have.

        `request {id, method, path, body?}` → ok `{status, headers, body}` (or `parts` in place of it), or error.
        """
        device = self.socket.identity
        if event == "request" and isinstance(device, Device):
            return self._home.requests.ask(self.socket, device, payload, ref)
        if event != "cursor":
            return UNKNOWN_EVENT
        said = read_cursor(payload)
        if isinstance(said, Reply):
            return said
        epoch = said.epoch or self._home.epoch
        if epoch is None:
            return NO_CURSOR  # nobody knows what the id belongs to
        self._cursors.put(self._device, Cursor(epoch, said.event_id))
        return Reply()

    def joined(self) -> None:
        """Be seen, and start what the verdict promised."""
        self._show()
        verdict = self._verdict
        if verdict.fetch:
            self._replay()
        elif verdict.recovered is None:
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
            home.requests.left(self.socket)

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
            elif epoch_changed:
                self.status_changed()  # its verdict is open: without an epoch of its own it is judged in this one
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
        """An open verdict, and a page of its store, wait for the home only so long."""
        if self._open or self._reading:
            self._await_home()

    def nobody_came(self) -> None:
        """The time is up."""
        if self._open:
            self._settle()
        elif self._reading:
            if self._home.away(self._clock.now(), self._config.cold_wait):
                self._home.backfill.give_up()
            else:
                self._await_home()  # it was back meanwhile

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
        if verdict.recovered is None and not verdict.fetch:
            self._await_home()
            return
        self._open = False
        self._home.waiting.pop(self, None)
        if verdict.recovered or verdict.fetch:
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
        self._sent = since
        with Reader(self._home.backfill, self._device) as reader:

            async def fetch(place: int, to: int) -> tuple[Sequence[Kept], int] | None:
                self._reading = True
                self._await_home()
                try:
                    return await reader.read(place, to)
                finally:
                    self._reading = False

            drained = self.socket.drained
            if await replay(log, since, to, send=self._send, drained=drained, complete=self._replayed, fetch=fetch):
                self._listener.go_live()
            else:
                self.socket.fail("expired")

    def _replayed(self, to: int, recovered: bool, reached: int) -> bool:
        # Not `reached`, which may lie behind events that a filter hid: the rejoin of this app will name `_sent`, too.
        self._complete(to, RECOVERED if recovered else self._home.expired(min(reached, self._sent)))
        if not recovered:
            # The reply promised these events, or nothing yet: who reads no `replay_complete` must not miss it.
            self.socket.fail("expired")
        return recovered

    def _send(self, page: Sequence[Kept]) -> None:
        form, filter = self._listener.form, self._listener.filter
        tail = form.codec.tail
        shown: Sequence[Kept] = [event for event in page if filter.wants(event.type, event.session_id)]
        if filter.merged:
            shown = merged_page(shown)
        frames = [
            form.wrap(Encoded(form.head + tail(form.topic, "session_event", event_payload(event.data))))
            for event in shown
        ]
        if frames:
            self._sent = shown[-1].event_id
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


def show_home(home: Home, presence: Presence, clock: Clock) -> None:
    """Let the home's own presence on its app topic follow what its apps are told of it."""
    topic = app_topic(home.server_id)
    meta = {"name": home.name, "since": clock.shown(home.shown_since)}
    if not home.shown_online:
        presence.leave(home, topic)
    elif not presence.change(home, topic, meta):
        presence.enter(home, topic, HOME_KEY, meta, always=True)
