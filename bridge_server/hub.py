"""Topics and their listeners: what is published reaches every listener, encoded once.

`publish` appends to the topic's pending list, and the first event of a loop turn schedules one flush. The flush joins
the batch once per form (the way a group of listeners reads: serializer, topic, join_ref) and hands that one buffer to
the transport of every listener that is idle; only busy ones are touched one by one. So an event costs one encoding and
one system call a listener at the most, and a burst costs each listener one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from bridge_server.pubsub import PubSub
from protocol.codec import Codec, Encoded
from protocol.server import Channel

log = logging.getLogger("bridge_server.hub")

_SEGMENT = 64 * 1024
_FORMS_CACHED = 4


class Message:
    """One event on its way to many listeners. Shared by all of them; never changed after it was published.

    `event_id` is None for what has no place in a history (status, broadcasts of other channels).
    """

    __slots__ = ("_frames", "_tails", "binary", "event", "event_id", "payload", "session_id", "size", "type")

    def __init__(
        self,
        event: str,
        payload: bytes,
        *,
        event_id: int | None = None,
        type: str = "",
        session_id: str | None = None,
        binary: bool = False,
    ) -> None:
        self.event = event
        self.payload = payload
        self.event_id = event_id
        self.type = type
        self.session_id = session_id
        self.size = len(payload) + 64
        self.binary = binary
        self._tails: dict[tuple[Codec, str], bytes] = {}
        self._frames: dict[Form, bytes] = {}


class Form(NamedTuple):
    """How one listener reads a topic. Listeners with an equal form get the same bytes."""

    codec: Codec
    topic: str
    head: bytes
    wrap: Callable[[Encoded], bytes]

    def frame(self, message: Message) -> bytes:
        """The finished wire bytes of `message`.

        Raises ValueError for a binary message and a serializer that has none.
        """
        frame = message._frames.get(self)
        if frame is None:
            frame = self.wrap(self._encode(message))
            if len(message._frames) < _FORMS_CACHED:
                message._frames[self] = frame
        return frame

    def _encode(self, message: Message) -> Encoded:
        tail = message._tails.get((self.codec, self.topic))
        if tail is None:
            shared = self.codec.broadcast if message.binary else self.codec.tail
            tail = message._tails[self.codec, self.topic] = shared(self.topic, message.event, message.payload)
        return Encoded(tail, True) if message.binary else Encoded(self.head + tail)


class Filter(NamedTuple):
    """What a listener wants to see of the events; None is everything. It narrows a view, it is not a right."""

    session_id: str | None = None
    types: frozenset[str] | None = None
    partials: bool = True

    def wants(self, type: str, session_id: str | None) -> bool:
        """Whether an event with this type and session is shown."""
        return (
            (self.session_id is None or session_id == self.session_id)
            and (self.types is None or type in self.types)
            and (self.partials or type not in PARTIALS)
        )


PARTIALS = frozenset({"partial", "tool_partial", "message_streamed", "LLM_PARTIAL"})
"""Events that carry a piece of a text whose whole comes later."""

EVERYTHING = Filter()


class Outlet(Protocol):
    """The way out of the peer a listener belongs to (see `outbox.py`)."""

    paused: bool
    transport: Any

    def put_message(self, channel: Channel, message: Message, form: Form) -> None:
        """Send, or queue, one message. Raises ValueError for one that `form` can't carry."""

    def flush(self) -> None:
        """Write what was put but not written yet."""


class Listener:
    """One joined channel that listens to one topic.

    It is *live* when it has had everything up to the topic's last flush, and *held* while a replay brings it there or
    its verdict is open; a held listener gets nothing from the topic. A live listener is *idle* while its peer takes
    all it is given, else *busy*.
    """

    __slots__ = ("channel", "filter", "form", "live", "on_refused", "outbox", "topic")

    def __init__(
        self,
        topic: "Topic",
        channel: Channel,
        form: Form,
        outbox: Outlet,
        filter: Filter = EVERYTHING,
        on_refused: Callable[[], None] | None = None,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.form = form
        self.outbox = outbox
        self.filter = filter
        self.live = False
        self.on_refused = on_refused  # called when a message can't be put into this listener's form

    def go_live(self) -> None:
        """From here on every published message is delivered. The listener has had everything before.

        Nothing happens once it was forgotten.
        """
        self._flush_topic()
        if not self.live and self in self.topic.listeners:
            self.live = True
            self.topic.group(self).add(self)

    def hold(self) -> None:
        """Deliver nothing until `go_live`."""
        if self.live:
            self._flush_topic()
            self.live = False
            self.topic.leave_group(self)

    def _flush_topic(self) -> None:
        if self.topic.pending:
            # Another channel of this peer may listen here too: what it was sent before is still corked.
            self.outbox.flush()
            self.topic.flush()

    def became_busy(self) -> None:
        """The peer stopped taking: called by its outbox."""
        if self.live:
            self.topic.group(self).move(self)

    def became_idle(self) -> None:
        """The peer takes again, and its queue is empty."""
        if self.live:
            self.topic.group(self).move(self)


class Group:
    """Live listeners with the same form and filter."""

    __slots__ = ("_writes", "busy", "filter", "form", "idle")

    def __init__(self, form: Form, filter: Filter) -> None:
        self.form = form
        self.filter = filter
        self.idle: dict[Listener, None] = {}
        self.busy: dict[Listener, None] = {}
        self._writes: tuple[Callable[[bytes], None], ...] | None = None

    def add(self, listener: Listener) -> None:
        """Take in a listener that became live."""
        (self.busy if listener.outbox.paused else self.idle)[listener] = None
        self._writes = None

    def remove(self, listener: Listener) -> None:
        """Forget a listener."""
        self.idle.pop(listener, None)
        self.busy.pop(listener, None)
        self._writes = None

    def move(self, listener: Listener) -> None:
        """Put a listener where its outbox says it belongs."""
        self.remove(listener)
        self.add(listener)

    def deliver(self, batch: list[Message]) -> int:
        """Send a batch to every listener, in order; the number of deliveries."""
        if self.filter is not EVERYTHING:
            batch = [
                message
                for message in batch
                if message.event_id is None or self.filter.wants(message.type, message.session_id)
            ]
        for messages in _segments(batch):
            late = tuple(self.busy)  # who becomes busy while this segment is written has had it
            if self.idle:
                self._write(messages)
            for listener in late:
                for message in messages:
                    self._queue(listener, message)
        return len(batch) * (len(self.idle) + len(self.busy))

    def _write(self, messages: list[Message]) -> None:
        try:
            frames = [self.form.frame(message) for message in messages]
        except ValueError:
            for listener in tuple(self.idle):
                for message in messages:
                    self._queue(listener, message)
            return
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        if self._writes is None:
            self._writes = tuple(listener.outbox.transport.write for listener in self.idle)
        for write in self._writes:
            write(data)

    def _queue(self, listener: Listener, message: Message) -> None:
        if not listener.live:
            return  # its channel ended inside this flush
        try:
            listener.outbox.put_message(listener.channel, message, self.form)
        except ValueError:
            if listener.on_refused is not None:
                listener.on_refused()


def _segments(batch: list[Message]) -> Iterable[list[Message]]:
    """Cut a batch so that a transport is handed at most about 64 KiB at a time."""
    total = 0
    start = 0
    for index, message in enumerate(batch):
        if total and total + message.size > _SEGMENT:
            yield batch[start:index]
            start, total = index, 0
        total += message.size
    if start < len(batch):
        yield batch[start:]


class Topic:
    """One PubSub topic with listeners on this hub."""

    __slots__ = ("_groups", "_hub", "listeners", "name", "pending")

    def __init__(self, hub: "Hub", name: str) -> None:
        self.name = name
        self.pending: list[Message] = []
        self.listeners: dict[Listener, None] = {}
        self._hub = hub
        self._groups: dict[tuple[Form, Filter], Group] = {}

    def receive(self, message: Message) -> None:
        """Take a published message; it leaves at the end of this loop turn together with all others of the turn."""
        if not self.pending:
            self._hub.flush_later(self)
        self.pending.append(message)

    def flush(self) -> None:
        """Deliver what is pending now. Called before anything that must come after it on some channel."""
        if self.pending:
            batch, self.pending = self.pending, []
            for group in tuple(self._groups.values()):
                self._hub.deliveries += group.deliver(batch)

    def group(self, listener: Listener) -> Group:
        """The group of a live listener."""
        key = (listener.form, listener.filter)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(listener.form, listener.filter)
        return group

    def leave_group(self, listener: Listener) -> None:
        """Take a listener out of its group."""
        key = (listener.form, listener.filter)
        group = self._groups.get(key)
        if group is not None:
            group.remove(listener)
            if not group.idle and not group.busy:
                del self._groups[key]


class Hub:
    """The topics of this process."""

    def __init__(self, pubsub: PubSub) -> None:
        self.deliveries = 0
        self._pubsub = pubsub
        self._topics: dict[str, Topic] = {}
        self._due: list[Topic] = []

    def flush_later(self, topic: Topic) -> None:
        """Flush a topic at the end of this loop turn; one call of the loop's serves all topics."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._turn_ended)
        self._due.append(topic)

    def _turn_ended(self) -> None:
        due, self._due = self._due, []
        for topic in due:
            try:
                topic.flush()
            except Exception:
                log.exception("delivering on %s failed", topic.name)

    def listen(
        self,
        topic: str,
        channel: Channel,
        form: Form,
        outbox: Outlet,
        filter: Filter = EVERYTHING,
        on_refused: Callable[[], None] | None = None,
    ) -> Listener:
        """Register a listener, held until its `go_live`. What was published before never reaches it."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = Topic(self, topic)
            self._pubsub.subscribe(topic, found.receive)
        listener = Listener(found, channel, form, outbox, filter, on_refused)
        found.listeners[listener] = None
        return listener

    def forget(self, listener: Listener) -> None:
        """End a listener; nothing reaches it any more, pending messages included."""
        topic = listener.topic
        if listener.live:
            listener.live = False
            topic.leave_group(listener)
        topic.listeners.pop(listener, None)
        if not topic.listeners and self._topics.get(topic.name) is topic:
            del self._topics[topic.name]
            self._pubsub.unsubscribe(topic.name, topic.receive)

    def publish(self, topic: str, message: Message) -> None:
        """Send a message to every listener of a topic, in the order of the calls."""
        self._pubsub.publish(topic, message)

    def heard(self, topic: str) -> bool:
        """Whether a topic has a listener on this hub, live or held."""
        return topic in self._topics

    def listeners(self, topic: str) -> tuple[Listener, ...]:
        """The listeners of a topic on this hub."""
        found = self._topics.get(topic)
        return tuple(found.listeners) if found else ()

    def flush(self, topic: str) -> None:
        """Deliver what is pending on a topic now."""
        found = self._topics.get(topic)
        if found is not None:
            found.flush()
