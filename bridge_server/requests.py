"""What the apps of one home have asked it: checked, handed on, and answered once.

Nothing is kept for a home that is away, and of an answer only the part that is on its way: the home sends the next one
when the app has taken this one. An app that leaves, or whose credential was revoked, is owed no answer any more.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from bridge_server.auth import Device
from bridge_server.channels import Reply, Socket
from protocol import requests as rules
from protocol.frames import Binary, Payload
from protocol.server import rate_limited

RETRY_MS: Final = 1_000
"""When to come back with one more request than a device may have in flight."""

PASSED_ON: Final = frozenset({"forbidden", "idempotency_mismatch", "too_large", "timeout", "rate_limited", "bad_push"})
"""What a home may say instead of an answer."""

_MAX_HEADERS: Final = 16


class _Ask(Struct):
    id: str
    method: str
    path: str
    body: Raw = Raw(b"null")


class _Answer(Struct):
    call: int
    status: Annotated[int, Meta(ge=200, le=599)] = 200
    headers: Annotated[dict[str, str], Meta(max_length=_MAX_HEADERS)] = {}
    body: Raw = Raw(b"null")
    parts: Annotated[int, Meta(ge=1)] | None = None
    error: str | None = None
    message: str | None = None
    scope: str | None = None
    limit: int | None = None
    retry_after_ms: int | None = None


class _Part(Struct):
    call: int
    index: int
    text: str


_ASK: Final = msgspec.json.Decoder(_Ask)
_ANSWER: Final = msgspec.json.Decoder(_Answer)
_PART: Final = msgspec.json.Decoder(_Part)

GONE: Final = Reply("error", {"reason": "gone"})
BAD_PUSH: Final = Reply("error", {"reason": "bad_push"})


class _Asker(NamedTuple):
    """Who waits for an answer: one message of a device on one channel."""

    socket: Socket
    ref: Any
    device_id: str
    request_id: str


class _Call:
    """A request that the home has."""

    __slots__ = ("asker", "deadline", "next_part", "passed", "size")

    def __init__(self, asker: _Asker) -> None:
        self.asker = asker
        self.deadline: asyncio.TimerHandle | None = None
        self.next_part = 0
        self.size = 0
        self.passed: Callable[[Reply], None] | None = None  # answers the home's last part, once the app has it


class Requests:
    """The requests to one home. Not thread-safe; `timeout` in seconds, begun anew by each part of an answer."""

    def __init__(self, timeout: float = rules.TIMEOUT_SECONDS) -> None:
        self.able = False
        """Whether the home said at its last join that it answers."""
        self._timeout = timeout
        self._push: Callable[[str, Any], None] | None = None
        self._calls: dict[int, _Call] = {}
        self._last_call = 0

    def __len__(self) -> int:
        return len(self._calls)

    # The home.

    def opened(self, push: Callable[[str, Any], None]) -> None:
        """The home is joined and takes pushes."""
        self._push = push

    def lost(self) -> None:
        """The home's link is over; what it may have done meanwhile nobody knows here."""
        self._push = None
        for number in list(self._calls):
            self._end(number, _error("server_offline", sent=True))

    def answered(self, payload: Payload) -> Reply:
        """The home's `response`; returns what the home is told."""
        try:
            answer = _ANSWER.decode(_json(payload))
        except (msgspec.MsgspecError, RecursionError):
            return BAD_PUSH
        call = self._calls.get(answer.call)
        if call is None:
            return GONE
        if answer.error is not None:
            if answer.error not in PASSED_ON:
                self._end(answer.call, _error("bad_answer"))
                return BAD_PUSH
            names = ("message", "scope", "limit", "retry_after_ms")
            details = {name: value for name in names if (value := getattr(answer, name)) is not None}
            self._end(answer.call, _error(answer.error, **details))
        elif (answer.parts or 0) != call.next_part:
            self._end(answer.call, _error("bad_answer"))
            return BAD_PUSH
        else:
            body: dict[str, Any] = {"body": answer.body} if answer.parts is None else {"parts": answer.parts}
            self._end(answer.call, Reply("ok", {"status": answer.status, "headers": answer.headers, **body}))
        return Reply()

    def part(self, payload: Payload, tell: Callable[[Reply], None]) -> Reply | None:
        """The home's `body_part`. What the home is told; None: `tell` is called with it once the app has taken it."""
        try:
            part = _PART.decode(_json(payload))
        except (msgspec.MsgspecError, RecursionError):
            return BAD_PUSH
        call = self._calls.get(part.call)
        if call is None:
            return GONE
        size = len(part.text.encode())
        call.size += size
        early = call.passed is not None  # the home did not wait for the app
        if early or part.index != call.next_part or size > rules.MAX_PART_BYTES or call.size > rules.MAX_ANSWER_BYTES:
            self._end(part.call, _error("bad_answer"))
            return BAD_PUSH
        call.next_part += 1
        call.passed = tell
        self._set_deadline(part.call)
        asker = call.asker
        asker.socket.push("body_part", {"id": asker.request_id, "index": part.index, "text": part.text})
        asker.socket.spawn(self._pass(call))
        return None

    async def _pass(self, call: _Call) -> None:
        await call.asker.socket.drained()
        _tell(call, Reply())

    # Apps.

    def ask(self, socket: Socket, device: Device, payload: Payload, ref: Any) -> Reply | None:
        """An app's `request`. Its answer, None when that comes later under `ref`."""
        try:
            asked = _ASK.decode(_json(payload))
        except (msgspec.MsgspecError, RecursionError):
            return BAD_PUSH
        body = bytes(asked.body)
        size = 0 if body == b"null" else len(body)
        try:
            rules.check(asked.method, asked.path, device.scopes, size, asked.id)
        except rules.RequestRefused as refused:
            return _error(refused.reason, message=str(refused), **refused.details)
        if self._push is None:
            return _error("server_offline", sent=False)
        if not self.able:
            return _error("unsupported")
        mine = [call.asker for call in self._calls.values() if call.asker.device_id == device.device_id]
        if len(mine) >= rules.MAX_IN_FLIGHT:
            return Reply("error", rate_limited(RETRY_MS))
        asker = _Asker(socket, ref, device.device_id, asked.id)
        if any(other.socket is socket and other.request_id == asked.id for other in mine):
            return _error("in_flight")
        self._last_call += 1
        self._calls[self._last_call] = _Call(asker)
        self._set_deadline(self._last_call)
        self._push(
            "request",
            {
                "id": asked.id,
                "call": self._last_call,
                "device_id": device.device_id,
                "scopes": sorted(device.scopes),
                "method": asked.method,
                "path": asked.path,
                "body": asked.body,
                "expires_in": self._timeout,
            },
        )
        return None

    def left(self, socket: Socket) -> None:
        """A channel has ended: nobody waits there."""
        for number, call in list(self._calls.items()):
            if call.asker.socket is socket:
                self._end(number, None)

    # Ends.

    def _set_deadline(self, number: int) -> None:
        call = self._calls[number]
        if call.deadline is not None:
            call.deadline.cancel()
        late = _error("timeout")
        call.deadline = asyncio.get_running_loop().call_later(self._timeout, self._end, number, late)

    def _end(self, number: int, reply: Reply | None) -> None:
        call = self._calls.pop(number)
        if call.deadline is not None:
            call.deadline.cancel()
        _tell(call, GONE)
        if reply is not None:
            call.asker.socket.reply(call.asker.ref, reply)


def _tell(call: _Call, reply: Reply) -> None:
    if call.passed is not None:
        passed, call.passed = call.passed, None
        passed(reply)


def _json(payload: Payload) -> bytes:
    if isinstance(payload, Binary):
        raise msgspec.DecodeError("a binary payload")
    return bytes(payload)


def _error(reason: str, **details: object) -> Reply:
    return Reply("error", {"reason": reason, **details})
