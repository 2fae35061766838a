"""What a session may be: its bounds, the errors of who asks for something else, and how events show it."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from bridge_client.runners import Message
from bridge_client.session_records import RecordMoved, SessionRecord

MAX_SESSIONS: Final = 100_000
MAX_MESSAGES: Final = 10_000
"""Of one session."""
MAX_SESSION_BYTES: Final = 32 << 20
"""All messages of one session, as JSON. A runner holds them in memory."""
MAX_MESSAGE_BYTES: Final = 256 << 10
"""One message as JSON, metadata included: an event holds it twice, and must stay below the store's limit."""
MAX_RUNNER_MESSAGE_BYTES: Final = 1 << 20
"""One message of a runner, which no event holds twice."""
MAX_METADATA_BYTES: Final = 256 << 10
"""The metadata of a session as JSON."""
MAX_SHOWN_BYTES: Final = 256 << 10
"""A history that is larger, with the session's metadata, is left out of the `session` of an event."""

ROLES: Final = ("user", "assistant", "system", "tool")
"""Row A105."""

ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
_encode: Final = msgspec.json.encode


class SessionError(Exception):
    """What was asked of a session can't be; the text says why. Nothing was changed."""


class NoSuchSession(SessionError):
    """There is no session of this id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id[:128]!r}")


class NoSuchMessage(SessionError):
    """The history has no message at this index."""


class SessionExists(SessionError):
    """The id is taken."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is a session {session_id!r} already")


class RequestRunning(SessionError):
    """A request runs, and the history is its own until it ends."""

    def __init__(self, session_id: str, request_id: str) -> None:
        super().__init__(f"request {request_id} runs in session {session_id}: wait for it, or cancel it")
        self.request_id = request_id


class SessionChanged(SessionError):
    """The history is not the one that the caller knows."""

    def __init__(self, cursor_event_id: int) -> None:
        super().__init__(f"the session has changed: its cursor is {cursor_event_id} now; load its messages again")
        self.cursor_event_id = cursor_event_id


class SessionFull(SessionError):
    """One more would be more than is kept."""


class TooLarge(SessionError):
    """A message or metadata of more bytes than one may have."""


class BadSession(SessionError):
    """An id, a role or a content that no session takes."""


def check_id(value: str, name: str = "session_id") -> str:
    """The id, if it is one. Raises BadSession."""
    if not ID.fullmatch(value):
        raise BadSession(
            f"{name} is {value[:40]!r}; it is 1 to 128 letters, digits and any of . _ : - and begins with a letter or"
            " a digit"
        )
    return value


def check_message(message: Message, most: int = MAX_MESSAGE_BYTES, *, roles: Sequence[str] | None = ROLES) -> bytes:
    """The message's JSON; None for `roles`: whatever a provider calls its own. Raises BadSession, TooLarge."""
    if roles is not None and message.role not in roles:
        raise BadSession(f"role is {message.role[:40]!r}; it is one of {', '.join(roles)}")
    try:
        data = _encode(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadSession(f"the message is no JSON: {error}") from None
    check_size("the message", len(data), most)
    return data


def check_metadata(metadata: dict[str, Any]) -> None:
    """Raises TooLarge."""
    check_size("the metadata", len(_encode(metadata)), MAX_METADATA_BYTES)


def check_size(what: str, size: int, most: int) -> None:
    """Raises TooLarge."""
    if size > most:
        raise TooLarge(f"{what} has {size} bytes as JSON; at most {most} are kept")


def check_room(count: int, size: int) -> None:
    """Whether a history may become so long. Raises SessionFull."""
    if count > MAX_MESSAGES:
        raise SessionFull(f"a session keeps at most {MAX_MESSAGES} messages; delete some, or begin another")
    if size > MAX_SESSION_BYTES:
        raise SessionFull(
            f"the messages of a session may have {MAX_SESSION_BYTES} bytes; delete some, or begin another"
        )


def check_index(record: SessionRecord, index: int) -> None:
    """Raises NoSuchMessage."""
    if not 0 <= index < record.message_count:
        raise NoSuchMessage(f"there is no message {index}: the session has {record.message_count}, counted from 0")


def check_expected(record: SessionRecord, cursor_event_id: int | None) -> None:
    """Raises SessionChanged unless the session is as the caller knows it; None: whatever it is."""
    if cursor_event_id is not None and record.cursor_event_id != cursor_event_id:
        raise SessionChanged(record.cursor_event_id)


def check_request(record: SessionRecord, request_id: str) -> None:
    """Raises RecordMoved if the session is not this request's (another process ended it)."""
    if record.request_id != request_id:
        raise RecordMoved(record.session_id)


def show(record: SessionRecord, messages: Sequence[bytes] | None) -> dict[str, Any]:
    """A session as events show it (row A102). None: the history is too large to be repeated; it has to be loaded."""
    shown = about(record)
    if messages is None or sum(map(len, messages), len(_encode(record.metadata))) > MAX_SHOWN_BYTES:
        return {**shown, "messages_omitted": True}
    return {**shown, "messages": [msgspec.json.decode(message) for message in messages]}


def about(record: SessionRecord) -> dict[str, Any]:
    """A session without its messages, as answers and events show it."""
    shown: dict[str, Any] = {"session_id": record.session_id, "agent_id": record.agent_id}
    if record.source_session_id is not None:
        shown["source_session_id"] = record.source_session_id
    times = {"created_at": record.created_at, "updated_at": record.updated_at}
    return {**shown, **times, "metadata": record.metadata, "message_count": record.message_count}
