"""How a socket to the hub is opened: the dialler contract, and the real one over `websockets`.

A dialler takes a URL and headers and returns an open Wire. It alone knows the library: everything that can go wrong
comes out of it as one of two exceptions, Disconnected (try again) or CredentialRefused (don't).

No header is ever logged or put into an exception, and the credential travels in a header only.
"""

import logging
import ssl
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.http11 import Response

from protocol.errors import CLOSE_CODES, REFUSALS

MAX_MESSAGE_BYTES: Final = 4 << 20
"""Default limit of one incoming message: well above the largest event of a hub with default limits."""

_LONGEST_RETRY_AFTER: Final = 3600.0

MAX_PROXY_ANSWER: Final = 65_536
"""Bytes that are read of what may answer in place of a hub."""

PROXY_ALONE: Final = (
    "a proxy answers, the hub behind it does not: start `bridge-server serve` there, or check the proxy's upstream"
)
"""What an answer means that `from_proxy` says is not the hub's."""


class Disconnected(Exception):
    """There is no socket, or no longer one. Coming back can help.

    `code` is the close code the hub sent, None if it sent none; `retry_after` the seconds it asked to wait, None if
    it asked for nothing; `healthy` whether the socket had worked long enough for the next try to count as a first one.
    """

    def __init__(self, why: str, *, code: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.code = code
        self.retry_after = retry_after
        self.healthy = False


class Stopped(Exception):
    """Coming back can't help; somebody has to do something first. The text says what."""


class CredentialRefused(Stopped):
    """The hub does not know the credential, or has revoked it."""

    def __init__(self, reason: str) -> None:
        kind = "revoked" if reason == "credential_revoked" else "not known to the hub"
        super().__init__(f"the credential is {kind} ({reason}): enrol or pair again to get a new one")
        self.reason = reason


class Wire(Protocol):
    """One open socket that carries whole text messages. `recv` and `send` raise Disconnected once it is gone."""

    async def recv(self) -> bytes:
        """The next message. Not calling this holds the hub back. Nothing is lost when it is cancelled."""

    async def send(self, data: bytes) -> None:
        """Send one message; waits while too much is unsent. Messages leave in call order, without delay."""

    async def close(self, code: int = 1000) -> None:
        """End the socket with a closing handshake of at most a few seconds. Never raises."""

    def abort(self) -> None:
        """End the socket at once. May be called at any time, more than once."""


class Dialler(Protocol):
    """Opens sockets."""

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Wire:
        """Raises Disconnected when it failed, CredentialRefused when it would go on failing."""


def socket_url(hub_url: str) -> str:
    """The WebSocket URL of a hub: `http(s)://` becomes `ws(s)://`, and `/socket/websocket` ends the path.

    Raises ValueError for another scheme, a missing host, or user information in the URL (credentials go into a header).
    """
    parts = urlsplit(hub_url)
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
    if scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError("a hub URL looks like https://hub.example.org (http, https, ws or wss)")
    if "@" in parts.netloc:
        raise ValueError("a hub URL holds no user name and no password: the credential goes into a header")
    path = parts.path.rstrip("/")
    if not path.endswith("/websocket"):
        path += "/websocket" if path.endswith("/socket") else "/socket/websocket"
    query = "&".join([part for part in parts.query.split("&") if part and not part.startswith("vsn=")] + ["vsn=2.0.0"])
    return urlunsplit((scheme, parts.netloc, path, query, ""))


class _NoDebug(logging.LoggerAdapter[logging.Logger]):
    """A logger without a DEBUG level, at which `websockets` logs the headers it sends, the credential among them."""

    def isEnabledFor(self, level: int) -> bool:
        return level > logging.DEBUG and super().isEnabledFor(level)


class WebSocketDialler:
    """Dials over TCP or TLS. Nagle's algorithm is off (asyncio's default), and so are compression and library pings."""

    def __init__(
        self,
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        ssl_context: ssl.SSLContext | None = None,
        timeout: float = 10,
    ) -> None:
        self._options: dict[str, Any] = {
            "max_size": max_message_bytes,
            "open_timeout": timeout,
            "close_timeout": 2,
            "ping_interval": None,
            "compression": None,
            "write_limit": 1 << 18,
            "user_agent_header": "session-bridge",
            "logger": _NoDebug(logging.getLogger("bridge_client.websocket"), {}),
        }
        if ssl_context is not None:
            self._options["ssl"] = ssl_context

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Wire:
        try:
            return _WebSocket(await connect(url, additional_headers=headers, **self._options))
        except InvalidStatus as refused:
            raise _refusal(refused.response) from None
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
            raise Disconnected(f"no connection: {error or type(error).__name__}") from None


class _WebSocket:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def recv(self) -> bytes:
        try:
            return await self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send(data, text=True)
        except ConnectionClosed as closed:
            raise _closed(closed) from None

    async def close(self, code: int = 1000) -> None:
        await self._socket.close(code)

    def abort(self) -> None:
        self._socket.transport.abort()


def _closed(closed: ConnectionClosed) -> Disconnected:
    if closed.rcvd is not None and not (closed.sent is not None and closed.rcvd_then_sent is False):
        code, reason = closed.rcvd.code, closed.rcvd.reason
        known = CLOSE_CODES.get(code)
        meaning = f" ({known.meaning})" if known else ""
        return Disconnected(f"the hub closed with {code}{meaning}{f': {reason!r}' if reason else ''}", code=code)
    if closed.sent is not None:
        return Disconnected(f"closed from this side with {closed.sent.code}: {closed.sent.reason!r}")
    cause = closed.__cause__
    return Disconnected(f"the connection broke without a close{f': {cause}' if cause else ''}")


def from_proxy(status: int, body: bytes) -> bool:
    """Whether this is what a proxy answers whose upstream is down: a hub says why or how it is, in JSON."""
    return status in (502, 503, 504) and not any(_member(body, name) for name in ("reason", "status", "error"))


def _refusal(response: Response) -> Exception:
    body = bytes(response.body or b"")
    reason = _reason(body)
    if response.status_code == 403 and reason in ("credential_invalid", "credential_revoked"):
        return CredentialRefused(reason)
    if from_proxy(response.status_code, body):
        return Disconnected(f"{PROXY_ALONE} (HTTP {response.status_code})", retry_after=_retry_after(response))
    known = REFUSALS.get(reason)
    meaning = f": {reason} ({known.meaning})" if known else f": {reason[:100]!r}" if reason else ""
    return Disconnected(
        f"the hub refused the connection with HTTP {response.status_code}{meaning}", retry_after=_retry_after(response)
    )


def _reason(body: bytes) -> str:
    reason = _member(body, "reason")
    return reason if isinstance(reason, str) else ""


def _member(body: bytes, name: str) -> Any:
    try:
        return msgspec.json.decode(body)[name]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        return None  # not our hub: a proxy in between


def _retry_after(response: Response) -> float | None:
    text = response.headers.get("Retry-After", "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _LONGEST_RETRY_AFTER)
    try:  # a date counts from the hub's own `Date`: clocks differ
        seconds = (parsedate_to_datetime(text) - parsedate_to_datetime(response.headers["Date"])).total_seconds()
    except (KeyError, ValueError, TypeError):
        return None
    return min(max(seconds, 0.0), _LONGEST_RETRY_AFTER)
