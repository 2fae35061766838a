"""What travels to many listeners, how a listener reads it, and which of it a listener wants."""

from collections.abc import Callable
from typing import Final, NamedTuple

from protocol.codec import Codec, Encoded
from protocol.events.compaction import PARTS

_FORMS_CACHED: Final = 4

_OVERHEAD: Final = 128
"""Bytes a message that waits costs in each queue beside its payload, which is shared: its place there."""

_EVENT_HEAD: Final = b'{"event":'


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
        self.size = len(payload) + _OVERHEAD
        self.binary = binary
        self._tails: dict[tuple[Codec, str], bytes] | None = None
        self._frames: dict[Form, bytes] | None = None

    @classmethod
    def of_event(cls, event_id: int, data: bytes, type: str, session_id: str | None) -> "Message":
        """The `session_event` that carries one event of a home, whose JSON text is `data`."""
        return cls("session_event", event_payload(data), event_id=event_id, type=type, session_id=session_id)

    @property
    def data(self) -> bytes:
        """The JSON text of the event that this message carries; only for one with an `event_id`."""
        return self.payload[len(_EVENT_HEAD) : -1]


def event_payload(data: bytes) -> bytes:
    """The payload of a `session_event`: the home's own bytes, wrapped."""
    return b"%b%b}" % (_EVENT_HEAD, data)


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
        frames = message._frames
        if frames is None:
            frames = message._frames = {}
        frame = frames.get(self)
        if frame is None:
            frame = self.wrap(self._encode(message))
            if len(frames) < _FORMS_CACHED:
                frames[self] = frame
        return frame

    def _encode(self, message: Message) -> Encoded:
        tails = message._tails
        if tails is None:
            tails = message._tails = {}
        key = (self.codec, self.topic)
        tail = tails.get(key)
        if tail is None:
            shared = self.codec.broadcast if message.binary else self.codec.tail
            tail = tails[key] = shared(self.topic, message.event, message.payload)
        return Encoded(tail, True) if message.binary else Encoded(self.head + tail)


class Filter(NamedTuple):
    """What a listener wants to see of the events; None is everything. It narrows a view, it is not a right."""

    session_id: str | None = None
    types: frozenset[str] | None = None
    partials: bool = True
    merged: bool = False
    """Whether parts are gathered for a while and come as one (see `merging.py`)."""

    def wants(self, type: str, session_id: str | None) -> bool:
        """Whether an event with this type and session is shown."""
        return (
            (self.session_id is None or session_id == self.session_id)
            and (self.types is None or type in self.types)
            and (self.partials or type not in PARTS)
        )


EVERYTHING = Filter()
