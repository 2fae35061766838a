"""What a topic does: the Channel contract, public for whoever embeds the hub.

A `Channel` is one join of one topic by one peer. The hub calls `join`, then (if that was `Ok`) `joined` once the reply
is on its way, `handle_in` for each message in arrival order, and `terminate` once at the end, whatever ended it.

`join` and `handle_in` are plain functions when they can answer at once, and coroutine functions when they must wait: a
waiting `handle_in` holds up its own channel only, a waiting `join` its whole socket (Phoenix rules 19 and 23). What
they raise ends in the log, and for the peer in `join crashed` or `phx_error {"reason": "channel_crash"}`; never in a
traceback.

What several channels share is handed to their factory: a hub's `topics` to publish and its `presence` (see
`presence.py`) to show who is there.
"""

import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, Protocol

from bridge_server.auth import Identity
from bridge_server.hub import Listener
from bridge_server.message import EVERYTHING, Filter
from protocol.frames import EMPTY, Payload
from protocol.server import rate_limited
from protocol.topics import matches


class Ok(NamedTuple):
    """The topic is joined; `response` (JSON object, or anything msgspec encodes to one, or a Binary) is the reply."""

    response: Any = EMPTY


class Refuse(NamedTuple):
    """The topic is not joined; `response` says why: `{"reason": …}`, or a Binary for a binary reply."""

    response: Any


def bad_join(error: Exception) -> Refuse:
    """The refusal of a join payload that could not be decoded: `field` is the one at fault, or `payload`."""
    field = re.search(r"at `\$\.(\w+)", str(error))
    return Refuse({"reason": "bad_join", "field": field[1] if field else "payload"})


class Reply(NamedTuple):
    """The answer to a message. `response` is anything msgspec encodes, a Raw, or a Binary for a binary reply."""

    status: str = "ok"
    response: Any = EMPTY


class Stop(NamedTuple):
    """The channel ends in order, after `reply` if there is one."""

    reply: Reply | None = None


Joined = Ok | Refuse
Handled = Reply | Stop | None

UNKNOWN_EVENT = Reply("error", {"reason": "unknown event"})


class Socket(Protocol):
    """What a channel may do with the peer it belongs to. After the channel's end every call is ignored."""

    topic: str

    @property
    def identity(self) -> Identity | None:
        """Who the peer is; None on a mount that asks for no credential."""

    @property
    def query(self) -> dict[str, str]:
        """The query of the peer's upgrade request."""

    def push(self, event: str, payload: Any) -> None:
        """Send an event to this peer.

        Raises ValueError for a payload that is no object, or a name no client can take.
        """

    def reply(self, ref: Any, reply: Reply) -> None:
        """Answer a message later; `ref` is what `handle_in` got."""

    def listen(self, pubsub_topic: str, filter: Filter = EVERYTHING) -> Listener:
        """Register for a PubSub topic; nothing comes before `Listener.go_live`. Ends with the channel."""

    def send_events(self, listener: Listener, frames: bytes) -> None:
        """Send events as finished wire bytes made with the listener's form, in the channel's order."""

    async def drained(self) -> None:
        """Wait until the peer takes more."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task that ends with the channel; if it raises, the channel crashes."""

    def at_end(self, call: Callable[[str], None]) -> None:
        """Call `call(reason)` once when the channel has ended, whatever its `terminate` did; at once if it has."""

    def close(self) -> None:
        """End the channel in order (`phx_close`): the client stays away."""

    def fail(self, reason: str) -> None:
        """End the channel with `phx_error`: the client joins again by itself."""


class Channel:
    """Base of all channels: joins nobody's events and knows no message. Override what the topic does."""

    __slots__ = ("socket",)

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    def join(self, payload: Payload) -> Joined | Awaitable[Joined]:
        """Decide on the join."""
        return Ok()

    def joined(self) -> None:
        """The join's reply is on its way; pushes from here on come after it."""

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled | Awaitable[Handled]:
        """Handle one message."""
        return UNKNOWN_EVENT

    def too_soon(self, retry_after_ms: int) -> Reply:
        """The answer to a message over the peer's limit, in its turn; `handle_in` never sees that message."""
        return Reply("error", rate_limited(retry_after_ms))

    def terminate(self, reason: str) -> None:
        """The channel ends.

        `left`, `replaced`, `closed` (the socket is gone), `idle` (the same, after it was silent for too long),
        `stopped`, `failed`, or `refused` (its join). Pushes made here still go out while the socket is there.
        """


Factory = Callable[[Socket], Channel]


class Router:
    """Which channel a topic belongs to. The first registered pattern that matches wins (Phoenix rule 28)."""

    def __init__(self) -> None:
        self._routes: list[tuple[str, Factory]] = []

    def add(self, pattern: str, factory: Factory) -> None:
        """Serve topics that equal `pattern`, or start with it when it ends in `*`."""
        self._routes.append((pattern, factory))

    def match(self, topic: str) -> Factory | None:
        """The factory for a topic, or None."""
        return next((factory for pattern, factory in self._routes if matches(pattern, topic)), None)
