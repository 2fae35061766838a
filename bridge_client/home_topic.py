"""The payloads of a home's topic as the forwarder reads and writes them. What it does not use is passed over."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from bridge_client.dial import Stopped
from bridge_client.sources import SourceEvent


class Replaced(Stopped):
    """Another forwarder serves this home now."""

    def __init__(self, instance: str | None) -> None:
        super().__init__(f"replaced by another forwarder of this home (instance {instance!r}): only one may run")
        self.instance = instance


class EventRefused(Stopped):
    """The hub will take neither an event nor its tombstone. They are in the source; the cursor stands before them."""

    def __init__(self, event_id: int, reason: str) -> None:
        super().__init__(f"the hub refuses even a tombstone for event {event_id} ({reason}); nothing after it is sent")
        self.event_id = event_id
        self.reason = reason


class WindowLimits(Struct):
    """How much the hub lets be unanswered."""

    events: int = 1_000
    bytes: int = 1 << 20


class Joined(Struct):
    """The reply to our join."""

    hub_epoch: str | None = None
    resume_from: str | None = None
    resume_digest: str | None = None
    window: WindowLimits = msgspec.field(default_factory=WindowLimits)
    max_event_bytes: int = 1 << 20


class Answer(Struct):
    """The reply to a push of events, or the reason of a `phx_error`."""

    acked_id: str | None = None
    reason: str = ""
    id: str | None = None
    limit: int | None = None
    message: str = ""
    resume_from: str | None = None
    retry_after_ms: float = 1_000.0

    @property
    def words(self) -> str:
        """Why events were refused, for people."""
        if self.reason == "too_large":
            return too_large(None, self.limit)
        return f"{self.reason}: {self.message[:100]}" if self.message else self.reason


class Notice(Struct):
    """What comes with `replaced`."""

    instance: str | None = None


JOINED: Final = msgspec.json.Decoder(Joined)
ANSWER: Final = msgspec.json.Decoder(Answer)
NOTICE: Final = msgspec.json.Decoder(Notice)


def too_large(size: int | None, limit: int | None) -> str:
    """What is said of an event that is too large, with as much as is known."""
    return "too_large" + (f": {size} bytes" if size else "") + (f", the hub takes {limit}" if limit is not None else "")


def push_of(batch: Sequence[SourceEvent], previous: int | None) -> tuple[str, bytes]:
    """The push that carries `batch`, which follows the event `previous`: its name and its payload."""
    prev_id = b"null" if previous is None else b'"%d"' % previous
    if len(batch) == 1:
        name, events = "session_event", b'"event":' + batch[0].data
    else:
        name, events = "session_events", b'"events":[%b]' % b",".join([event.data for event in batch])
    return name, b'{%b,"prev_id":%b}' % (events, prev_id)
