"""Topics and their listeners: what is published reaches every listener, encoded once.

`publish` appends to the topic's pending list, and the first event of a loop turn schedules one flush. The flush joins
the batch once per form (the way a group of listeners reads: serializer, topic, join_ref) and hands that one buffer to
the transport of every listener that is idle; only busy ones are touched one by one. So an event costs one encoding and
one system call a listener at the most, and a burst costs each listener one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from bridge_server.merging import merged
from bridge_server.message import EVERYTHING, Filter, Form, Message
from bridge_server.pubsub import PubSub
from protocol.events.compaction import PARTS
from protocol.server import Channel

log = logging.getLogger("bridge_server.hub")


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
        if self.topic.due:
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
    """Live listeners with the same form and filter.

    If they want merged parts, what comes behind the last message that is no part waits in a *window* until the next
    such message, or for the hub's `merge_window` at most; so what leaves has no gaps, and nobody waits for an end.
    """

    __slots__ = ("_timer", "_topic", "_window", "_window_bytes", "_writes", "busy", "filter", "form", "idle")

    def __init__(self, topic: "Topic", form: Form, filter: Filter) -> None:
        self.form = form
        self.filter = filter
        self._topic = topic
        self._window: list[Message] = []
        self._window_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
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
        """Send a batch to every listener, in order, or let its end wait in the window; the number of deliveries."""
        if self.filter is not EVERYTHING:
            batch = [
                message
                for message in batch
                if message.event_id is None or self.filter.wants(message.type, message.session_id)
            ]
        if self.filter.merged:
            batch = self._gather(batch)
        return self._send(batch)

    def _gather(self, batch: list[Message]) -> list[Message]:
        """Put a batch into the window, and take out what leaves now."""
        for index in range(len(batch), 0, -1):
            if batch[index - 1].type not in PARTS:
                leaving, self._window = merged(self._window + batch[:index]), batch[index:]
                self._window_bytes = sum(message.size for message in self._window)
                break
        else:
            leaving = []
            self._window += batch
            self._window_bytes += sum(message.size for message in batch)
        if self._window_bytes > self._topic.hub.segment_bytes:
            leaving += self._taken()
        if self._window:
            self._topic.windows[self] = None
            if self._timer is None:
                wait = self._topic.hub.merge_window
                self._timer = asyncio.get_running_loop().call_later(wait, self._window_ended)
        else:
            self._topic.windows.pop(self, None)
        return leaving

    def _taken(self) -> list[Message]:
        window, self._window, self._window_bytes = self._window, [], 0
        return merged(window)

    def _window_ended(self) -> None:
        self._timer = None
        try:
            self._topic.hub.deliveries += self.close_window()
        except Exception:
            log.exception("delivering on %s failed", self._topic.name)

    def close_window(self) -> int:
        """Send what waits; the number of deliveries."""
        self._topic.windows.pop(self, None)
        return self._send(self._taken())

    def ended(self) -> None:
        """Nobody is left in the group."""
        self._topic.windows.pop(self, None)
        self._window = []
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, batch: list[Message]) -> int:
        if not self.busy and len(batch) == 1:
            self._write(batch)
            return len(self.idle) + len(self.busy)
        for messages in _segments(batch, self._topic.hub.segment_bytes):
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


def _segments(batch: list[Message], most: int) -> Iterable[list[Message]]:
    """Cut a batch so that a transport is handed at most about `most` bytes at a time."""
    total = 0
    start = 0
    for index, message in enumerate(batch):
        if total and total + message.size > most:
            yield batch[start:index]
            start, total = index, 0
        total += message.size
    if start < len(batch):
        yield batch[start:]


class Topic:
    """One PubSub topic with listeners on this hub."""

    __slots__ = ("_groups", "hub", "listeners", "name", "pending", "windows")

    def __init__(self, hub: "Hub", name: str) -> None:
        self.name = name
        self.pending: list[Message] = []
        self.listeners: dict[Listener, None] = {}
        self.hub = hub
        self.windows: dict[Group, None] = {}
        """The groups in whose windows something waits."""
        self._groups: dict[tuple[Form, Filter], Group] = {}

    def receive(self, message: Message) -> None:
        """Take a published message; it leaves at the end of this loop turn together with all others of the turn."""
        if not self.pending:
            self.hub.flush_later(self)
        self.pending.append(message)

    @property
    def due(self) -> bool:
        """Whether anything published has not been delivered yet."""
        return bool(self.pending or self.windows)

    def deliver(self) -> None:
        """Deliver what is pending; parts may wait in a window."""
        if self.pending:
            batch, self.pending = self.pending, []
            for group in tuple(self._groups.values()):
                self.hub.deliveries += group.deliver(batch)

    def flush(self) -> None:
        """Deliver everything now. Called before anything that must come after it on some channel."""
        self.deliver()
        for group in tuple(self.windows):
            self.hub.deliveries += group.close_window()

    def group(self, listener: Listener) -> Group:
        """The group of a live listener."""
        key = (listener.form, listener.filter)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(self, listener.form, listener.filter)
        return group

    def leave_group(self, listener: Listener) -> None:
        """Take a listener out of its group."""
        key = (listener.form, listener.filter)
        group = self._groups.get(key)
        if group is not None:
            group.remove(listener)
            if not group.idle and not group.busy:
                del self._groups[key]
                group.ended()


class Hub:
    """The topics of this process.

    `segment_bytes` is about the most written to a transport at a time, `merge_window` how long (seconds) parts wait for
    further ones on their way to an app that wants them merged.
    """

    def __init__(self, pubsub: PubSub, *, segment_bytes: int = 64 * 1024, merge_window: float = 0.25) -> None:
        self.deliveries = 0
        self.segment_bytes = segment_bytes
        self.merge_window = merge_window
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
                topic.deliver()
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
