"""The hub's half of one Phoenix socket, as a state machine without I/O.

Two rules:
  1. Everything the protocol says about *which* messages are answered, ignored or passed on is decided here; what a
     topic *does* is decided by whoever drives this machine.
  2. The driver feeds messages with `receive`, takes events with `next_event` until it returns None, answers each with a
     command, and sends what `data_to_send` returns, in that order.

While a join is undecided `next_event` returns None and later messages wait (Phoenix rule 19: a slow join blocks its
socket, and only that); the driver stops reading meanwhile, so what waits is bounded by what it had already read.
"""

from collections import deque
from typing import Any, NamedTuple

from msgspec import Raw

from protocol import frames
from protocol.codec import Codec, Encoded
from protocol.frames import EMPTY, Frame, Payload, same_ref


class Channel:
    """One join of one topic on one socket: what its messages must carry. Two joins of a topic are two of these."""

    __slots__ = ("head", "join_ref", "topic")

    def __init__(self, topic: str, join_ref: Any, head: bytes) -> None:
        self.topic = topic
        self.join_ref = join_ref
        self.head = head  # the encoded start of every push, to be put before a shared tail


class JoinRequested(NamedTuple):
    """A topic is to be joined.

    Answer with `accept` or `refuse`. `replaced` is the join whose place it takes, gone already. With `retry_after_ms`
    it came too soon, and is to be refused.
    """

    channel: Channel
    ref: Any
    payload: Payload
    replaced: Channel | None
    retry_after_ms: int = 0


class LeaveRequested(NamedTuple):
    """A channel is to be left; answer with `left`."""

    channel: Channel
    ref: Any


class PushReceived(NamedTuple):
    """A message for a joined channel.

    Answer with `reply` or not at all. `event` is no string when the peer sent nonsense. With `retry_after_ms` it came
    too soon, and is to be answered with an error.
    """

    channel: Channel
    ref: Any
    event: Any
    payload: Payload
    retry_after_ms: int = 0


Event = JoinRequested | LeaveRequested | PushReceived


class Outgoing(NamedTuple):
    """One message to send. Those of one channel keep their order; with `channel` None it may overtake any other."""

    channel: Channel | None
    message: Encoded


def rate_limited(retry_after_ms: int) -> dict[str, Any]:
    """The response to a join or push that came too soon."""
    return {"reason": "rate_limited", "retry_after_ms": retry_after_ms}


class ServerConnection:
    """The joined topics of one socket, and what is to be sent on it. Not thread-safe."""

    __slots__ = ("_channel_limit", "_codec", "_inbox", "_joining", "_out", "channels")

    def __init__(self, codec: Codec, *, channel_limit: int = 100) -> None:
        self._codec = codec
        self._channel_limit = channel_limit
        self._inbox: deque[tuple[Frame, int]] | None = (
            None  # made when a join makes messages wait: most sockets never need one
        )
        self._joining: JoinRequested | None = None
        self._out: list[Outgoing] = []
        self.channels: dict[str, Channel] = {}

    # What comes in.

    def receive(self, data: bytes, *, binary: bool, retry_after_ms: int = 0) -> Event | None:
        """Take one whole message; the event it makes, or None when it was answered, ignored, or waits behind a join.

        With `retry_after_ms` the peer has sent too much: a join or push may come again that much later and is refused
        now; a heartbeat is answered and a leave done all the same. Raises ProtocolError when it is not a frame; the
        connection is then of no further use.
        """
        frame = self._codec.decode(data, binary=binary)
        if self._joining is not None or self._inbox:
            if self._inbox is None:
                self._inbox = deque()
            self._inbox.append((frame, retry_after_ms))
            return None
        return self._route(frame, retry_after_ms)

    def next_event(self) -> Event | None:
        """The next event among messages that waited behind a join; None when there is none, or a join is undecided."""
        while self._inbox and self._joining is None:
            if event := self._route(*self._inbox.popleft()):
                return event
        if not self._inbox:
            self._inbox = None
        return None

    @property
    def joining(self) -> bool:
        """Whether a join is undecided. Stop reading from the socket meanwhile."""
        return self._joining is not None

    def _route(self, frame: Frame, retry_after_ms: int) -> Event | None:
        topic, event = frame.topic, frame.event
        channel = self.channels.get(topic) if isinstance(topic, str) else None
        if channel is not None and event != frames.JOIN:
            if frame.join_ref is not None and not same_ref(frame.join_ref, channel.join_ref):
                return None  # meant for an earlier join of this topic (rules 12 and 13)
            if event == frames.LEAVE:
                del self.channels[topic]
                return LeaveRequested(channel, frame.ref)
            return PushReceived(channel, frame.ref, event, frame.payload, retry_after_ms)
        if topic == frames.PHOENIX and event == frames.HEARTBEAT:
            self._answer(None, frame, "ok", EMPTY)
        elif event == frames.JOIN and isinstance(topic, str):
            return self._join(frame, retry_after_ms)
        elif event == frames.LEAVE:
            self._answer(frame.join_ref, frame, "ok", EMPTY)
        else:
            why = rate_limited(retry_after_ms) if retry_after_ms else {"reason": "unmatched topic"}
            self._answer(frame.join_ref, frame, "error", frames.raw(why))
        return None

    def _join(self, frame: Frame, retry_after_ms: int) -> Event | None:
        join_ref = frame.join_ref
        if join_ref is None and self._codec.vsn == "2.0.0":
            join_ref = frame.ref
        replaced = self.channels.pop(frame.topic, None)
        if replaced is None and len(self.channels) >= self._channel_limit:
            self._answer(join_ref, frame, "error", frames.raw({"reason": "too many channels joined"}))
            return None
        channel = Channel(frame.topic, join_ref, self._codec.head(join_ref))
        self._joining = JoinRequested(channel, frame.ref, frame.payload, replaced, retry_after_ms)
        return self._joining

    def _answer(self, join_ref: Any, frame: Frame, status: str, response: Raw) -> None:
        self._out.append(Outgoing(None, self._codec.reply(join_ref, frame.ref, frame.topic, status, response)))

    # What goes out.

    def accept(self, join: JoinRequested, response: Payload = EMPTY) -> None:
        """The join succeeded: its reply, then the `phx_close` of the join it replaced (rule 11).

        Raises ValueError for a binary response that can't be carried; the join is then still undecided.
        """
        self.reply(join.channel, join.ref, "ok", response)
        self._joining = None
        self.channels[join.channel.topic] = join.channel
        self._close_replaced(join, join.channel)

    def refuse(self, join: JoinRequested, response: Payload) -> None:
        """The join failed: its reply. The join it replaced is gone all the same. Raises as `accept`."""
        channel = join.channel
        reply = self._codec.reply(channel.join_ref, join.ref, channel.topic, "error", response)
        self._joining = None
        self._out.append(Outgoing(None, reply))
        self._close_replaced(join, None)

    def _close_replaced(self, join: JoinRequested, lane: Channel | None) -> None:
        # V1 clients match by topic alone and would close the new channel.
        if join.replaced is not None and self._codec.vsn != "1.0.0":
            self._end(join.replaced, frames.CLOSE, EMPTY, lane)

    def left(self, leave: LeaveRequested) -> None:
        """The channel was left: reply, then `phx_close` (rule 12)."""
        self.reply(leave.channel, leave.ref, "ok", EMPTY)
        self._end(leave.channel, frames.CLOSE, EMPTY, leave.channel)

    def reply(self, channel: Channel, ref: Any, status: str, response: Payload) -> None:
        """Answer a push. Raises ValueError for a binary response that this client's serializer can't carry."""
        self._out.append(Outgoing(channel, self._codec.reply(channel.join_ref, ref, channel.topic, status, response)))

    def push(self, channel: Channel, event: str, payload: Payload) -> None:
        """Send an event to this client. Raises ValueError if the payload is JSON but no object, or can't be carried."""
        if isinstance(payload, Raw) and not bytes(payload).startswith(b"{"):
            raise ValueError(f"the payload of {event!r} is not a JSON object")
        self._out.append(
            Outgoing(channel, self._codec.encode(Frame(channel.join_ref, None, channel.topic, event, payload)))
        )

    def close(self, channel: Channel) -> None:
        """End a channel in order; the client stays away (rule 16). Nothing happens if it is gone already."""
        if self._forget(channel):
            self._end(channel, frames.CLOSE, EMPTY, channel)

    def fail(self, channel: Channel, reason: str) -> None:
        """End a channel with `phx_error`; the client joins again by itself (rule 15). Ignored if it is gone already."""
        if self._forget(channel):
            self._end(channel, frames.ERROR, frames.raw({"reason": reason}), channel)

    def _forget(self, channel: Channel) -> bool:
        if self.channels.get(channel.topic) is not channel:
            return False
        del self.channels[channel.topic]
        return True

    def _end(self, channel: Channel, event: str, payload: Raw, lane: Channel | None) -> None:
        frame = Frame(channel.join_ref, channel.join_ref, channel.topic, event, payload)
        self._out.append(Outgoing(lane, self._codec.encode(frame)))

    def data_to_send(self) -> list[Outgoing]:
        """What to send since the last call, in order. Not to be changed by the caller."""
        out = self._out
        if out:
            self._out = []
        return out
