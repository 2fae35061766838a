"""`server:<server_id>`: a home states its store, pushes its events (A200 to A202), and is asked for older ones."""

import asyncio
import logging
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.json import Decoder

from bridge_server.auth import Server, clean_name
from bridge_server.channels import UNKNOWN_EVENT, Channel, Handled, Joined, Ok, Refuse, Reply, Socket, bad_join
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.history import Kept
from bridge_server.home import Home, Homes, Refused
from bridge_server.hub import Hub
from bridge_server.message import Message
from protocol import event_id
from protocol.errors import BadEventId
from protocol.frames import Binary, Payload
from protocol.topics import events_topic, server_topic

log = logging.getLogger("bridge_server.home")

MAX_JOIN_BYTES: Final = 8 * 1024
MAX_BATCH_EVENTS: Final = 200
MAX_BATCH_BYTES: Final = 256 * 1024


_Short = Annotated[str, Meta(min_length=1, max_length=128)]


class _Join(Struct):
    protocol: int = 1
    epoch: _Short | None = None
    head_id: Any = None
    name: str | None = None
    instance: _Short | None = None
    backfill: bool = False
    requests: bool = False


class _Event(Struct):
    event: Raw
    prev_id: str | None | UnsetType = UNSET


class _Events(Struct):
    events: list[Raw]
    prev_id: str | None | UnsetType = UNSET


class _Page(Struct):
    id: str
    events: list[Raw] = []
    floor: str | None = None
    error: str | None = None


_JOIN = Decoder(_Join)
_EVENT = Decoder(_Event)
_EVENTS = Decoder(_Events)
_PAGE = Decoder(_Page)


class ServerChannel(Channel):
    """One connection of a home.

    While it is the home's holder, its events enter the live tier and go out to the apps.
    """

    __slots__ = ("_clock", "_config", "_events_topic", "_home", "_homes", "_hub", "_last")

    _home: Home

    def __init__(self, socket: Socket, hub: Hub, homes: Homes, config: Config, clock: Clock) -> None:
        super().__init__(socket)
        self._hub = hub
        self._homes = homes
        self._config = config
        self._clock = clock
        self._last: tuple[str, int] | None = None  # the head, as it was last acknowledged: mostly what is named next

    def join(self, payload: Payload) -> Joined:
        """`{protocol, epoch, head_id, name, instance, backfill}` → where to go on, and the limits."""
        identity = self.socket.identity
        if not isinstance(identity, Server) or self.socket.topic != server_topic(identity.server_id):
            return Refuse({"reason": "unauthorized"})
        if isinstance(payload, Binary) or len(bytes(payload)) > MAX_JOIN_BYTES:
            return Refuse({"reason": "bad_join", "field": "payload"})
        try:
            request = _Join() if bytes(payload) == b"null" else _JOIN.decode(payload)
        except (msgspec.MsgspecError, RecursionError) as error:
            return bad_join(error)
        try:
            head = None if request.head_id is None else event_id.parse(request.head_id)
        except BadEventId:
            return Refuse({"reason": "bad_join", "field": "head_id"})
        try:
            name = identity.name if request.name is None else clean_name(request.name)
        except ValueError:
            return Refuse({"reason": "bad_join", "field": "name"})
        home = self._homes.get(identity.server_id)
        now = self._clock.now()
        try:
            changed = home.join(self, request.epoch, head, name, request.instance, now, backfill=request.backfill)
        except Refused as refusal:
            return Refuse({"reason": refusal.reason, **refusal.details})
        home.requests.lost()  # of the link that it takes over
        home.requests.able = request.requests
        self._home = home
        self._events_topic = events_topic(identity.server_id)
        self._hub.flush(self._events_topic)
        for watcher in tuple(home.watchers):
            watcher.home_joined(changed)
        home.show_online(now)
        digest = home.digest
        return Ok(
            {
                "hub_epoch": self._homes.hub_epoch,
                "link": home.link,
                "resume_from": None if home.head is None else str(home.head),
                **({} if digest is None else {"resume_digest": digest}),
                "window": {"events": self._config.window_events, "bytes": self._config.window_bytes},
                "max_event_bytes": self._config.max_event_bytes,
            }
        )

    def joined(self) -> None:
        """The home has its answer: from now on it may be asked, at once for what its apps wait for."""
        backfill = self._home.backfill
        if self._home.holder is not self:
            return  # somebody took over meanwhile
        self._home.requests.opened(self.socket.push)
        if backfill.able:
            backfill.opened(self._ask)
        else:
            backfill.give_up()

    def _ask(self, page_id: str, after: int, to: int, limit: int) -> None:
        page = {"id": page_id, "epoch": self._home.epoch, "after_id": str(after), "to_id": str(to), "limit": limit}
        self.socket.push("backfill", page)

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        """`session_event {event, prev_id}` and `session_events {events, prev_id}` → ok `{acked_id}`.

        `backfill_page {id, events, floor}` or `{id, error}`, the answer to our push `backfill` → ok.
        `response` and `body_part`, the answer to our push `request` → ok, or error `gone` when nobody waits for it.
        """
        if isinstance(payload, Binary):
            return self._refused("bad_push")
        try:
            if event == "session_event":
                one = _EVENT.decode(payload)
                return self._take([one.event], one.prev_id)
            if event == "session_events":
                many = _EVENTS.decode(payload)
                if len(many.events) > MAX_BATCH_EVENTS:
                    return self._refused("bad_push", message=f"more than {MAX_BATCH_EVENTS} events")
                if len(many.events) > 1 and sum(map(len, map(bytes, many.events))) > MAX_BATCH_BYTES:
                    return self._refused("bad_push", message=f"more than {MAX_BATCH_BYTES} bytes of events")
                return self._take(many.events, many.prev_id)
            if event == "backfill_page":
                return self._take_page(_PAGE.decode(payload))
        except (msgspec.MsgspecError, RecursionError):
            return self._refused("bad_push")
        if event in ("response", "body_part"):
            return self._answer(event, payload, ref)
        return UNKNOWN_EVENT

    def _answer(self, event: str, payload: Payload, ref: Any) -> Handled:
        requests = self._home.requests
        if self._home.holder is not self:
            return self._refused("stale_link")
        if event == "response":
            return requests.answered(payload)
        return requests.part(payload, lambda reply: self.socket.reply(ref, reply))

    def too_soon(self, retry_after_ms: int) -> Reply:
        """The forwarder waits, and goes on behind `acked_id`."""
        return self._refused("rate_limited", retry_after_ms=retry_after_ms)

    def _take(self, events: list[Raw], prev_id: str | None | UnsetType) -> Reply:
        """Append and publish in order.

        The good prefix stays when one is refused. The ack covers what is in the live tier.
        """
        home = self._home
        if home.holder is not self:
            return self._refused("stale_link")
        try:
            last = self._last
            if prev_id is UNSET or prev_id is None:
                previous: int | None | UnsetType = prev_id
            elif last is not None and prev_id == last[0]:
                previous = last[1]
            else:
                previous = event_id.parse(prev_id)
            for raw in events:
                data = bytes(raw)
                first = home.log is None
                kept, number = home.append(data, previous, self._config.max_event_bytes, self._clock.now())
                if kept is not None:
                    if first and previous is not UNSET and previous:
                        for watcher in tuple(home.watchers):
                            watcher.history_cut()
                    self._publish(kept)
                if previous is not UNSET:
                    previous = number
        except BadEventId:
            return self._refused("bad_push", message="prev_id is not an event id")
        except Refused as refusal:
            return self._refused(refusal.reason, **refusal.details)
        head = home.head
        if head is None:
            return Reply("ok", Raw(b'{"acked_id":null}'))
        shown = str(head)
        self._last = (shown, head)
        return Reply("ok", Raw(b'{"acked_id":"%b"}' % shown.encode()))

    def _take_page(self, page: _Page) -> Reply:
        home = self._home
        if home.holder is not self:
            return self._refused("stale_link")
        wrong = home.backfill.answered(page.id, page.events, page.floor, page.error, self._config.max_event_bytes)
        if wrong is None:
            return Reply()
        log.warning("home %s answered a backfill with what was not asked for: %s", home.server_id, wrong)
        return self._refused("bad_push", message=wrong)

    def _publish(self, kept: Kept) -> None:
        message = Message.of_event(kept.event_id, kept.data, kept.type, kept.session_id)
        self._hub.publish(self._events_topic, message)
        self._homes.events += 1
        self._home.advanced()

    def _refused(self, reason: str, **details: object) -> Reply:
        # What the hub holds acknowledges nothing to a link that is not the current one: its store may be another.
        home = self._home
        acked = None if home.head is None or home.holder is not self else str(home.head)
        return Reply("error", {"reason": reason, **details, "acked_id": acked})

    def replaced_by(self, instance: str | None) -> None:
        """Another connection of this home took over: say so and end."""
        self.socket.push("replaced", {"instance": instance})
        self.socket.close()

    def terminate(self, reason: str) -> None:
        """The connection is over.

        If it was the holder, the home is away, and after a grace period its apps are told.
        """
        home = getattr(self, "_home", None)
        if home is not None and home.leave(self, self._clock.now()):
            home.requests.lost()
            for watcher in tuple(home.watchers):
                watcher.home_left()
            asyncio.get_running_loop().call_later(self._config.status_grace, home.show_absence, home.link)
