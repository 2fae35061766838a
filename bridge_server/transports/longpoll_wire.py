"""What long polling looks like on the wire: tokens, request bodies, answers. Pure: no I/O, no clock.

The HTTP status says little (nearly always 200): clients read `status` in the JSON body, and know 200, 204, 403, 410 and
500 in the answer to a poll, and 200 in the answer to a POST; some hang for ever on any other.
"""

import hmac
import re
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec

from protocol.codec import Encoded
from protocol.errors import MalformedMessage


class Status(IntEnum):
    """What `status` may say. To a poll only what phoenix.js knows: the first five."""

    OK = 200
    NO_CONTENT = 204
    REFUSED = 403
    GONE = 410
    FAILED = 500
    BAD_MESSAGE = 400
    TIMED_OUT = 408
    TOO_LARGE = 413
    UNSUPPORTED = 415
    TOO_MANY = 429


MAX_LINES: Final = 100
"""Lines of one NDJSON body that are looked at, blank ones included."""

TOKEN_SECONDS: Final = 14 * 86_400.0
"""How long a session's token serves, however busy the session is."""

ID_BYTES: Final = 16

_PREFIX: Final = "lp1."
_TOKEN: Final = re.compile(r"lp1\.([A-Za-z0-9_-]{30})\.([A-Za-z0-9_-]{43})", re.ASCII)

_encode = msgspec.json.encode


class Tokens:
    """Signs and reads the tokens of sessions.

    A token is the session's random id (128 bits) and the second it was made, with an HMAC-SHA256 under a secret of this
    process: whoever has it is the session. `now` is seconds of one clock that never goes back.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, session_id: bytes, now: float) -> str:
        """The token of a session that begins now."""
        body = _text(session_id + int(now).to_bytes(6))
        return f"{_PREFIX}{body}.{self._mac(body)}"

    def read(self, token: str, now: float) -> bytes | None:
        """The session id in a token of ours that still serves; None for any other text."""
        parts = _TOKEN.fullmatch(token)
        if parts is None or not hmac.compare_digest(self._mac(parts[1]), parts[2]):
            return None
        body = urlsafe_b64decode(parts[1] + "==")
        if now - int.from_bytes(body[ID_BYTES:]) >= TOKEN_SECONDS:
            return None
        return body[:ID_BYTES]

    def _mac(self, body: str) -> str:
        return _text(hmac.digest(self._secret, body.encode(), "sha256"))


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def is_token(value: str) -> bool:
    """Whether a query parameter holds a session's token, of this process or another, rather than a credential."""
    return value.startswith(_PREFIX)


# What comes in.


class Line(NamedTuple):
    """One message of a POST."""

    data: bytes
    binary: bool


class TooManyLines(ValueError):
    """An NDJSON body goes on behind its last line that is taken."""


def messages(body: bytes, *, ndjson: bool) -> Iterator[Line]:
    """The messages of a POST in order, each made when it is asked for.

    A body is one text message or, with `ndjson`, lines: JSON is text, anything else base64 of a binary message (Phoenix
    rule 32). Blank lines, a last line end and CRLF mean nothing. Raises MalformedMessage for a line that is neither,
    TooManyLines behind line MAX_LINES.
    """
    if not ndjson:
        yield Line(body, False)
        return
    lines = body.split(b"\n", MAX_LINES)
    for line in lines[:MAX_LINES]:
        text = line.strip(b"\r \t")
        if text.startswith((b"[", b"{")):
            yield Line(text, False)
        elif text:
            yield Line(_unpack(text), True)
    if len(lines) > MAX_LINES and lines[MAX_LINES] and not lines[MAX_LINES].isspace():
        raise TooManyLines


def _unpack(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise MalformedMessage("a line is neither JSON nor base64") from None


# What goes out.


def wrap(message: Encoded) -> bytes:
    """One message as an entry of `messages`: a JSON string and a comma. A binary one is base64."""
    text = b64encode(message.data).decode() if message.binary else message.data.decode()
    return _encode(text) + b","


def batch(entries: bytes, token: str) -> bytes:
    """The answer to a poll that has messages; `entries` were made by `wrap`."""
    return b'{"messages":[%b],"status":200,"token":%b}' % (entries[:-1], _encode(token))


def answer(status: Status, **more: Any) -> bytes:
    """Any other answer."""
    return _encode({"status": status, **more})


def no_messages(status: Status, token: str | None) -> bytes:
    """The answer to a poll that has none: 204 after a quiet window, 410 with the token of a new session or null."""
    return _encode({"messages": [], "status": status, "token": token})
