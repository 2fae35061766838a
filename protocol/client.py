"""The client's half of one Phoenix socket, as a state machine without I/O or clock.

One object lives as long as one socket. The driver calls `join`, `leave` and `push`, feeds whole messages to `receive`,
calls `tick` no later than `next_deadline`, and after each of these sends what `data_to_send` returns, in that order.
Times are seconds of any clock that never goes back.

A channel (one joined topic) is always in one of five states, the same five as in phoenix.js; TRANSITIONS is the whole
of its behaviour.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from protocol import frames
from protocol.codec import V2, Codec, Encoded, open_json
from protocol.errors import MalformedMessage
from protocol.frames import EMPTY, Frame, same_ref

HEARTBEAT_INTERVAL: Final = 30.0
"""Seconds between two heartbeats. A peer from which nothing at all came for twice as long is taken for dead."""

JOIN_TIMEOUT: Final = 10.0
"""Seconds after which an unanswered join is given up (Phoenix rule 72)."""


class State(Enum):
    CLOSED = "closed"
    JOINING = "joining"
    JOINED = "joined"
    LEAVING = "leaving"
    ERRORED = "errored"


class Input(Enum):
    # Commands of ours.
    JOIN = "join"
    LEAVE = "leave"
    PUSH = "push"
    # What the hub says, or fails to say.
    JOIN_OK = "reply ok to the join"
    JOIN_ERROR = "reply error to the join"
    JOIN_TIMEOUT = "no reply to the join"
    LEAVE_REPLY = "reply to the leave"
    REPLY = "reply to a push"
    MESSAGE = "any other event"
    ERROR = "phx_error"
    CLOSE = "phx_close"


class Action(Enum):
    IGNORE = "nothing"
    REFUSE = "raise NotJoined: the caller's mistake"
    SEND = "send it"
    REJOIN = "send the leave of the old join, then the new join"
    GIVE_UP = "send the leave of the unanswered join, and tell the driver"
    TELL = "tell the driver"


_I, _A = Input, Action
_CLOSED, _JOINING, _JOINED, _LEAVING, _ERRORED = State

TRANSITIONS: Final[dict[tuple[State, Input], tuple[State, Action]]] = {
    (_CLOSED, _I.JOIN): (_JOINING, _A.SEND),
    (_CLOSED, _I.LEAVE): (_CLOSED, _A.IGNORE),
    (_CLOSED, _I.PUSH): (_CLOSED, _A.REFUSE),
    (_CLOSED, _I.JOIN_OK): (_CLOSED, _A.IGNORE),
    (_CLOSED, _I.JOIN_ERROR): (_CLOSED, _A.IGNORE),
    (_CLOSED, _I.JOIN_TIMEOUT): (_CLOSED, _A.IGNORE),
    (_CLOSED, _I.LEAVE_REPLY): (_CLOSED, _A.IGNORE),
    (_CLOSED, _I.REPLY): (_CLOSED, _A.IGNORE),
    (_CLOSED, _I.MESSAGE): (_CLOSED, _A.IGNORE),
    (_CLOSED, _I.ERROR): (_CLOSED, _A.IGNORE),
    (_CLOSED, _I.CLOSE): (_CLOSED, _A.IGNORE),
    (_JOINING, _I.JOIN): (_JOINING, _A.REJOIN),
    (_JOINING, _I.LEAVE): (_LEAVING, _A.SEND),
    (_JOINING, _I.PUSH): (_JOINING, _A.REFUSE),
    (_JOINING, _I.JOIN_OK): (_JOINED, _A.TELL),
    (_JOINING, _I.JOIN_ERROR): (_ERRORED, _A.TELL),
    (_JOINING, _I.JOIN_TIMEOUT): (_ERRORED, _A.GIVE_UP),
    (_JOINING, _I.LEAVE_REPLY): (_JOINING, _A.IGNORE),
    (_JOINING, _I.REPLY): (_JOINING, _A.IGNORE),
    (_JOINING, _I.MESSAGE): (_JOINING, _A.TELL),
    (_JOINING, _I.ERROR): (_ERRORED, _A.TELL),
    (_JOINING, _I.CLOSE): (_CLOSED, _A.TELL),
    (_JOINED, _I.JOIN): (_JOINING, _A.REJOIN),
    (_JOINED, _I.LEAVE): (_LEAVING, _A.SEND),
    (_JOINED, _I.PUSH): (_JOINED, _A.SEND),
    (_JOINED, _I.JOIN_OK): (_JOINED, _A.IGNORE),
    (_JOINED, _I.JOIN_ERROR): (_JOINED, _A.IGNORE),
    (_JOINED, _I.JOIN_TIMEOUT): (_JOINED, _A.IGNORE),
    (_JOINED, _I.LEAVE_REPLY): (_JOINED, _A.IGNORE),
    (_JOINED, _I.REPLY): (_JOINED, _A.TELL),
    (_JOINED, _I.MESSAGE): (_JOINED, _A.TELL),
    (_JOINED, _I.ERROR): (_ERRORED, _A.TELL),
    (_JOINED, _I.CLOSE): (_CLOSED, _A.TELL),
    (_LEAVING, _I.JOIN): (_JOINING, _A.SEND),
    (_LEAVING, _I.LEAVE): (_LEAVING, _A.IGNORE),
    (_LEAVING, _I.PUSH): (_LEAVING, _A.REFUSE),
    (_LEAVING, _I.JOIN_OK): (_LEAVING, _A.IGNORE),
    (_LEAVING, _I.JOIN_ERROR): (_LEAVING, _A.IGNORE),
    (_LEAVING, _I.JOIN_TIMEOUT): (_LEAVING, _A.IGNORE),
    (_LEAVING, _I.LEAVE_REPLY): (_CLOSED, _A.TELL),
    (_LEAVING, _I.REPLY): (_LEAVING, _A.IGNORE),
    (_LEAVING, _I.MESSAGE): (_LEAVING, _A.IGNORE),
    (_LEAVING, _I.ERROR): (_CLOSED, _A.TELL),
    (_LEAVING, _I.CLOSE): (_CLOSED, _A.TELL),
    (_ERRORED, _I.JOIN): (_JOINING, _A.SEND),
    (_ERRORED, _I.LEAVE): (_CLOSED, _A.IGNORE),
    (_ERRORED, _I.PUSH): (_ERRORED, _A.REFUSE),
    (_ERRORED, _I.JOIN_OK): (_ERRORED, _A.IGNORE),
    (_ERRORED, _I.JOIN_ERROR): (_ERRORED, _A.IGNORE),
    (_ERRORED, _I.JOIN_TIMEOUT): (_ERRORED, _A.IGNORE),
    (_ERRORED, _I.LEAVE_REPLY): (_ERRORED, _A.IGNORE),
    (_ERRORED, _I.REPLY): (_ERRORED, _A.IGNORE),
    (_ERRORED, _I.MESSAGE): (_ERRORED, _A.IGNORE),
    (_ERRORED, _I.ERROR): (_ERRORED, _A.IGNORE),
    (_ERRORED, _I.CLOSE): (_CLOSED, _A.TELL),
}
"""What each input does to a channel in each state. An input that came with another join's ref never gets here."""


class NotJoined(Exception):
    """A push to a topic that is not joined. Join it and wait for `Joined` first."""


class Joined(NamedTuple):
    """The hub accepted a join."""

    topic: str
    response: Raw


class JoinRefused(NamedTuple):
    """The hub refused a join; the response usually holds a `reason`."""

    topic: str
    response: Raw


class JoinTimedOut(NamedTuple):
    """A join went unanswered for JOIN_TIMEOUT; a late answer will be ignored."""

    topic: str


class Replied(NamedTuple):
    """The hub answered the push that `push` returned `ref` for. Each ref is answered at most once."""

    topic: str
    ref: str
    ok: bool
    response: Raw


class Received(NamedTuple):
    """The hub pushed an event on a topic."""

    topic: str
    event: str
    payload: Raw


class ChannelErrored(NamedTuple):
    """The hub ended a channel with `phx_error`: join again. Unanswered pushes stay unanswered."""

    topic: str
    payload: Raw


class ChannelClosed(NamedTuple):
    """A channel is over, after `leave` or because the hub said `phx_close`."""

    topic: str


class HubMute(NamedTuple):
    """Nothing came from the hub for two heartbeat intervals: the socket is dead, whatever TCP says. Drop it."""

    seconds: float


ClientEvent = Joined | JoinRefused | JoinTimedOut | Replied | Received | ChannelErrored | ChannelClosed | HubMute


class _Reply(Struct):
    status: str
    response: Raw = EMPTY


_REPLY: Final = msgspec.json.Decoder(_Reply)


@dataclass(slots=True)
class _Channel:
    state: State = State.CLOSED
    join_ref: str = ""
    join_deadline: float = 0.0
    leave_ref: str | None = None
    pending: set[str] = field(default_factory=set)  # refs of unanswered pushes of the current join


class ClientConnection:
    """The channels of one socket. Not thread-safe; never blocks.

    `now` is the time at which the socket opened: the first heartbeat is due one interval later.
    """

    def __init__(
        self,
        now: float,
        *,
        codec: Codec = V2,
        heartbeat_interval: float = HEARTBEAT_INTERVAL,
        join_timeout: float = JOIN_TIMEOUT,
    ) -> None:
        self._codec = codec
        self._interval = heartbeat_interval
        self._join_timeout = join_timeout
        self._channels: dict[str, _Channel] = {}
        self._last_ref = 0
        self._heartbeat_due = now + heartbeat_interval
        self._out: list[Encoded] = []
        self.last_heard = now

    # What goes out.

    def join(self, topic: str, payload: Raw, now: float) -> None:
        """Ask to join a topic; the answer is Joined, JoinRefused or JoinTimedOut.

        A current join of the topic is left first (Phoenix rule 73).
        """
        channel = self._channels.setdefault(topic, _Channel())
        # In version 1.0.0 the end of the old join could not be told from the end of the new one; a join replaces too.
        if self._step(channel, Input.JOIN) is Action.REJOIN and self._codec.vsn != "1.0.0":
            self._send(channel.join_ref, self._ref(), topic, frames.LEAVE, EMPTY)
        channel.join_ref = self._ref()
        channel.join_deadline = now + self._join_timeout
        channel.leave_ref = None
        channel.pending.clear()
        self._send(channel.join_ref, channel.join_ref, topic, frames.JOIN, payload)

    def leave(self, topic: str) -> None:
        """Leave a topic; ChannelClosed follows if it was joined or being joined."""
        channel = self._channels.get(topic)
        if channel is not None and self._step(channel, Input.LEAVE) is Action.SEND:
            channel.leave_ref = self._ref()
            channel.pending.clear()
            self._send(channel.join_ref, channel.leave_ref, topic, frames.LEAVE, EMPTY)

    def push(self, topic: str, event: str, payload: Raw) -> str:
        """Send an event; returns the ref that its Replied will carry. Raises NotJoined."""
        channel = self._channels.get(topic)
        if channel is None or self._step(channel, Input.PUSH) is Action.REFUSE:
            raise NotJoined(f"{topic!r} is not joined: nothing can be pushed to it")
        ref = self._ref()
        channel.pending.add(ref)
        self._send(channel.join_ref, ref, topic, event, payload)
        return ref

    def data_to_send(self) -> list[Encoded]:
        """What to send since the last call, in order."""
        out, self._out = self._out, []
        return out

    def state(self, topic: str) -> State:
        """The state of a topic's channel; CLOSED if it was never joined."""
        channel = self._channels.get(topic)
        return State.CLOSED if channel is None else channel.state

    # What comes in.

    def receive(self, data: bytes, *, binary: bool, now: float) -> list[ClientEvent]:
        """Take one whole message. Raises ProtocolError when it is no frame; close the socket with its code then."""
        self.last_heard = now
        if binary:
            raise MalformedMessage("a binary frame, where this client speaks JSON only")
        frame = self._codec.decode(data, binary=False)
        channel = self._channels.get(frame.topic) if isinstance(frame.topic, str) else None
        if channel is None or not isinstance(frame.event, str) or not isinstance(frame.payload, Raw):
            return []  # a heartbeat's reply, or a topic that was never joined
        if frame.join_ref is not None and not same_ref(frame.join_ref, channel.join_ref):
            return []  # meant for an earlier join
        told = self._told(channel, frame, frame.payload)
        return [] if told is None else [told]

    def _told(self, channel: _Channel, frame: Frame, payload: Raw) -> ClientEvent | None:
        topic: str = frame.topic
        if frame.event == frames.REPLY:
            return self._answered(channel, frame, payload)
        if frame.event in (frames.ERROR, frames.CLOSE):
            if frame.join_ref is None and frame.ref is not None and not same_ref(frame.ref, channel.join_ref):
                return None  # version 1.0.0 has no join_ref, but the ref says which join has ended
            given = Input.ERROR if frame.event == frames.ERROR else Input.CLOSE
            if self._step(channel, given) is not Action.TELL:
                return None
            channel.pending.clear()
            return ChannelErrored(topic, payload) if channel.state is State.ERRORED else ChannelClosed(topic)
        if self._step(channel, Input.MESSAGE) is Action.TELL:
            return Received(topic, frame.event, payload)
        return None

    def _answered(self, channel: _Channel, frame: Frame, payload: Raw) -> ClientEvent | None:
        topic: str = frame.topic
        reply = open_json(_REPLY, bytes(payload))
        ok, ref = reply.status == "ok", frame.ref
        if same_ref(ref, channel.join_ref):
            if self._step(channel, Input.JOIN_OK if ok else Input.JOIN_ERROR) is Action.TELL:
                return Joined(topic, reply.response) if ok else JoinRefused(topic, reply.response)
        elif same_ref(ref, channel.leave_ref):
            if self._step(channel, Input.LEAVE_REPLY) is Action.TELL:
                return ChannelClosed(topic)
        elif isinstance(ref, str) and ref in channel.pending:
            channel.pending.discard(ref)
            if self._step(channel, Input.REPLY) is Action.TELL:
                return Replied(topic, ref, ok, reply.response)
        return None

    # Time.

    @property
    def next_deadline(self) -> float:
        """When `tick` has something to do, at the latest."""
        joins = [channel.join_deadline for channel in self._channels.values() if channel.state is State.JOINING]
        return min(self._heartbeat_due, self.last_heard + 2 * self._interval, *joins)

    def tick(self, now: float) -> list[ClientEvent]:
        """Send the heartbeat that is due; judge joins and the hub by the time gone by."""
        events: list[ClientEvent] = []
        if now - self.last_heard >= 2 * self._interval:
            events.append(HubMute(now - self.last_heard))
        if now >= self._heartbeat_due:
            self._heartbeat_due = now + self._interval
            self._send(None, self._ref(), frames.PHOENIX, frames.HEARTBEAT, EMPTY)
        for topic, channel in self._channels.items():
            if channel.state is State.JOINING and now >= channel.join_deadline:
                self._step(channel, Input.JOIN_TIMEOUT)
                self._send(channel.join_ref, self._ref(), topic, frames.LEAVE, EMPTY)
                channel.join_ref = ""  # so that a late answer is foreign
                events.append(JoinTimedOut(topic))
        return events

    def resumed(self, now: float) -> None:
        """The driver had stopped reading and reads again: the silence until now was its own, not the hub's."""
        self.last_heard = now

    # Small parts.

    def _step(self, channel: _Channel, given: Input) -> Action:
        channel.state, action = TRANSITIONS[channel.state, given]
        return action

    def _ref(self) -> str:
        self._last_ref += 1
        return str(self._last_ref)

    def _send(self, join_ref: str | None, ref: str, topic: str, event: str, payload: Raw) -> None:
        self._out.append(self._codec.encode(Frame(join_ref, ref, topic, event, payload)))
