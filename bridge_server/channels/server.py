"""`server:<server_id>`: a home states its store and pushes its events (A200 to A202)."""

import asyncio
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from bridge_server.auth import Server, clean_name
from bridge_server.channels import UNKNOWN_EVENT, Channel, Handled, Joined, Ok, Refuse, Reply, Socket
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.home import Home, Homes, Refused
from bridge_server.hub import Hub, Message
from protocol import event_id
from protocol.errors import BadEventId
from protocol.frames import Binary, Payload
from protocol.topics import events_topic, server_topic

MAX_JOIN_BYTES: Final = 8 * 1024
MAX_BATCH_EVENTS: Final = 200


class _Join(Struct):
    protocol: int = 1
    epoch: str | None = None
    head_id: Any = UNSET
    name: str | None = None
    instance: str | None = None


class _Event(Struct):
    event: Raw
    prev_id: str | None | UnsetType = UNSET


class _Events(Struct):
    events: list[Raw]
    prev_id: str | None | UnsetType = UNSET


_JOIN = Decoder(_Join)
_EVENT = Decoder(_Event)
_EVENTS = Decoder(_Events)

_BAD_PUSH = Reply("error", {"reason": "bad_push"})


class ServerChannel(Channel):
    """One connection of a home.

    While it is the home's holder, its events enter the live tier and go out to the apps.
    """

    __slots__ = ("_clock", "_config", "_events_topic", "_home", "_homes", "_hub")

    _home: Home

    def __init__(self, socket: Socket, hub: Hub, homes: Homes, config: Config, clock: Clock) -> None:
        super().__init__(socket)
        self._hub = hub
        self._homes = homes
        self._config = config
        self._clock = clock

    def join(self, payload: Payload) -> Joined:
        """`{protocol, epoch, head_id, name, instance}` → `{hub_epoch, link, resume_from, window, max_event_bytes}`."""
        identity = self.socket.identity
        if not isinstance(identity, Server) or self.socket.topic != server_topic(identity.server_id):
            return Refuse({"reason": "unauthorized"})
        try:
            request = _read_join(payload)
            head = None if request.head_id in (None, UNSET) else event_id.parse(request.head_id)
        except BadEventId:
            return Refuse({"reason": "bad_join", "field": "head_id"})
        except ValueError as error:
            return Refuse({"reason": "bad_join", "field": str(error)})
        home = self._homes.get(identity.server_id)
        try:
            changed = home.join(
                self, request.epoch, head, request.name or identity.name, request.instance, self._clock.now()
            )
        except Refused as refusal:
            return Refuse({"reason": refusal.reason, **refusal.details})
        self._home = home
        self._events_topic = events_topic(identity.server_id)
        self._hub.flush(self._events_topic)
        for watcher in tuple(home.watchers):
            watcher.home_joined(changed)
        home.announce()
        return Ok(
            {
                "hub_epoch": self._homes.hub_epoch,
                "link": home.link,
                "resume_from": None if home.head is None else str(home.head),
                "window": {"events": self._config.window_events, "bytes": self._config.window_bytes},
                "max_event_bytes": self._config.max_event_bytes,
            }
        )

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        """`session_event {event, prev_id}` and `session_events {events, prev_id}` → ok `{acked_id}`."""
        if isinstance(payload, Binary):
            return _BAD_PUSH
        try:
            if event == "session_event":
                one = _EVENT.decode(payload)
                return self._take([one.event], one.prev_id)
            if event == "session_events":
                many = _EVENTS.decode(payload)
                if len(many.events) > MAX_BATCH_EVENTS:
                    return Reply("error", {"reason": "bad_push", "message": f"more than {MAX_BATCH_EVENTS} events"})
                return self._take(many.events, many.prev_id)
        except (msgspec.MsgspecError, RecursionError):
            return _BAD_PUSH
        return UNKNOWN_EVENT

    def _take(self, events: list[Raw], prev_id: str | None | UnsetType) -> Reply:
        """Append and publish in order.

        The good prefix stays when one is refused. The ack covers what is in the live tier.
        """
        home = self._home
        if home.holder is not self:
            return Reply("error", {"reason": "stale_link"})
        was_refilled = home.refilled
        try:
            previous = prev_id if prev_id is UNSET or prev_id is None else event_id.parse(prev_id)
            for raw in events:
                data = bytes(raw)
                kept, number = home.append(data, previous, self._config.max_event_bytes, self._clock.now())
                if kept is not None:
                    self._hub.publish(
                        self._events_topic,
                        Message(
                            "session_event",
                            b'{"event":%b}' % data,
                            event_id=number,
                            type=kept.type,
                            session_id=kept.session_id,
                        ),
                    )
                    self._homes.events += 1
                if previous is not UNSET:
                    previous = number
            reply = Reply("ok", Raw(b'{"acked_id":%b}' % self._acked()))
        except BadEventId:
            reply = Reply("error", {"reason": "bad_push", "message": "prev_id is not an event id"})
        except Refused as refusal:
            acked = None if home.head is None else str(home.head)
            reply = Reply("error", {"reason": refusal.reason, **refusal.details, "acked_id": acked})
        if not was_refilled and home.refilled:
            for watcher in tuple(home.watchers):
                watcher.home_refilled()
        return reply

    def _acked(self) -> bytes:
        head = self._home.head
        return b"null" if head is None else b'"%d"' % head

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
            for watcher in tuple(home.watchers):
                watcher.home_left()
            asyncio.get_running_loop().call_later(self._config.status_grace, home.announce)


def _read_join(payload: Payload) -> _Join:
    """Raises ValueError naming the field that is wrong."""
    if isinstance(payload, Binary) or len(bytes(payload)) > MAX_JOIN_BYTES:
        raise ValueError("payload")
    if bytes(payload) == b"null":
        return _Join()
    try:
        request = _JOIN.decode(payload)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error).rpartition("$.")[2].rstrip("`") or "payload") from None
    for field in ("epoch", "instance"):
        value = getattr(request, field)
        if value is not None and not 1 <= len(value) <= 128:
            raise ValueError(field)
    if request.name is not None:
        try:
            request.name = clean_name(request.name)
        except ValueError:
            raise ValueError("name") from None
    return request
