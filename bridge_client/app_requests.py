"""What an app has asked its home and is not answered yet: sent again with the same id after each reconnect."""

import asyncio
import json
import secrets
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from bridge_client.link import Session, read_json
from protocol import requests as rules
from protocol.client import NotJoined
from protocol.errors import REFUSALS

PATIENCE: Final = 60.0
"""Seconds after which a request is given up, reconnecting included."""


class Response:
    """The home's answer. `body` is JSON text, `null` where there is none."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return 200 <= self.status < 300

    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)


class RequestFailed(Exception):
    """There is no answer. `reason` is one of docs/wire.md's; `sent` says whether the home may have done it.

    The same request with the same `request_id` is safe then: it is not done twice.
    """

    def __init__(
        self, reason: str, request_id: str, message: str = "", *, sent: bool, retry_after: float | None = None
    ) -> None:
        known = REFUSALS.get(reason)
        message = message or (known.meaning if known is not None else "")
        super().__init__(f"{reason}: {message}" if message else reason)
        self.reason = reason
        self.request_id = request_id
        self.sent = sent
        self.retry_after = retry_after
        """Seconds to wait before it is tried again, where the hub or the home said so."""


class _Answer(Struct):
    status: int
    headers: dict[str, str] = {}
    body: Raw = Raw(b"null")
    parts: int | None = None


class _Error(Struct):
    reason: str = ""
    message: str = ""
    sent: bool = False
    retry_after_ms: float | None = None


class _Part(Struct):
    id: str
    index: int
    text: str


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_ERROR: Final = msgspec.json.Decoder(_Error)
_PART: Final = msgspec.json.Decoder(_Part)

_MAYBE_DONE: Final = frozenset({"timeout", "bad_answer"})


class Pending:
    """A request that is not answered yet."""

    def __init__(self, request_id: str, payload: bytes) -> None:
        self.request_id = request_id
        self.payload = payload
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.ref: str | None = None
        self.sent = False
        self.parts: list[str] = []


class AppRequests:
    """The requests of one app client, over however many joins of its topic."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._session: Session | None = None
        self._pending: dict[str, Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def ask(self, method: str, path: str, body: Any, request_id: str | None) -> "Pending":
        """Ask, now or at the next join; `wait` for the answer. Raises RequestFailed, ValueError: a body is no JSON."""
        request_id = request_id or secrets.token_urlsafe(18)
        if request_id in self._pending:
            raise ValueError(f"the request {request_id} is under way")
        try:
            text = b"" if body is None else msgspec.json.encode(body)
            # All scopes: which of them this app has, the hub knows.
            rules.check(method, path, (rules.VIEW, rules.APPROVE, rules.CONTROL), len(text), request_id)
        except rules.RequestRefused as refused:
            raise RequestFailed(refused.reason, request_id, str(refused), sent=False) from None
        except (TypeError, RecursionError) as error:
            raise ValueError(f"the body is no JSON: {error}") from None
        asked = {"id": request_id, "method": method, "path": path, **({"body": Raw(text)} if text else {})}
        pending = self._pending[request_id] = Pending(request_id, msgspec.json.encode(asked))
        if self._session is not None:
            self._send(self._session, pending)
        return pending

    async def wait(self, pending: "Pending", patience: float) -> Response:
        """The answer. Raises RequestFailed, `timeout` after `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                return await pending.answer
        except TimeoutError:
            raise RequestFailed("timeout", pending.request_id, sent=pending.sent) from None
        finally:
            del self._pending[pending.request_id]

    def joined(self, session: Session) -> None:
        """The topic is joined: what is not answered is asked (again)."""
        self._session = session
        for pending in self._pending.values():
            self._send(session, pending)

    def left(self) -> None:
        """The topic, or the socket under it, is gone."""
        self._session = None
        for pending in self._pending.values():
            pending.ref = None

    def fail(self, error: Exception) -> None:
        """Nothing will be answered any more."""
        for pending in self._pending.values():
            if not pending.answer.done():
                failed = RequestFailed("closed", pending.request_id, str(error), sent=pending.sent)
                pending.answer.set_exception(failed)

    def replied(self, ref: str, ok: bool, response: Raw) -> None:
        """The hub answered a push. Raises Disconnected if it can't be read."""
        pending = next((one for one in self._pending.values() if one.ref == ref), None)
        if pending is None or pending.answer.done():
            return
        if ok:
            answer = read_json(_ANSWER, response)
            complete = answer.parts is None or answer.parts == len(pending.parts)
            body = bytes(answer.body) if answer.parts is None else "".join(pending.parts).encode()
            if complete:
                pending.answer.set_result(Response(answer.status, answer.headers, body))
                return
            error = _Error("bad_answer")
        else:
            error = read_json(_ERROR, response)
        sent = error.sent or error.reason in _MAYBE_DONE
        wait = None if error.retry_after_ms is None else max(0.0, error.retry_after_ms / 1000)
        pending.answer.set_exception(
            RequestFailed(error.reason, pending.request_id, error.message, sent=sent, retry_after=wait)
        )

    def part(self, payload: Raw) -> None:
        """A piece of an answer. Raises Disconnected if it can't be read."""
        part = read_json(_PART, payload)
        pending = self._pending.get(part.id)
        if pending is not None and part.index == len(pending.parts) and pending.ref is not None:
            pending.parts.append(part.text)

    def _send(self, session: Session, pending: Pending) -> None:
        try:
            pending.ref = session.push(self._topic, "request", pending.payload)
        except NotJoined:
            return  # it has just ended; the next join sends it
        pending.sent, pending.parts = True, []
