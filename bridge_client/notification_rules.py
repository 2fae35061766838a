"""What a notification is and what may become of it: one lifecycle for those of the application and of sessions.

A record is a JSON object, so that what others have written into it stays: `id`, `key`, `revision`, `status`,
`severity`, `title`, `body`, `created_at`, `updated_at`, `source`, `display`, `model_visibility`; once it is over
`ended_at` and perhaps `reason` (rows A137 to A142). All here is pure: no I/O, no clock.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from protocol.codec import open_json
from protocol.errors import ProtocolError
from protocol.events.action_display import (
    APPLICATION_NOTIFICATION,
    SESSION_NOTIFICATION,
    BadDisplay,
    Producer,
    complete,
)

Record = dict[str, Any]
_T = TypeVar("_T")

PENDING: Final = "pending"
TRANSITIONS: Final[Mapping[str, tuple[str, ...]]] = {
    PENDING: ("dismissed", "resolved", "expired"),
    "dismissed": ("dismissed",),
    "resolved": ("resolved",),
    "expired": ("expired",),
}
"""Row A139: each status, and those it may be given. A terminal one only itself again, which changes nothing [2.13]."""

EVENTS: Final[Mapping[str, Mapping[str, str]]] = {
    "application": {
        "created": "application_notification_created",
        "updated": "application_notification_updated",
        "dismissed": "application_notification_dismissed",
        "resolved": "application_notification_updated",
        "expired": "application_notification_expired",
    },
    "session": {
        verb: f"session_notification_{verb}" for verb in ("created", "updated", "dismissed", "resolved", "expired")
    },
}
"""Rows A120, A121: the event that tells what happened. The application has none for `resolved` [2.13]."""

MAX_RECORD_BYTES: Final = 16 << 10
"""A record as JSON, its display included."""
MAX_TITLE: Final = 200
MAX_BODY: Final = 4_000
MAX_KEY: Final = 200
MAX_REASON: Final = 500
"""Characters."""
MAX_DEPTH: Final = 32
"""Of what a producer gives: an event of a session may hold a record seven levels down."""
MAX_ACTIVE: Final = 200
MAX_ENDED: Final = 300
"""Application notifications. The oldest terminal ones beyond this are forgotten (row A129); all fit one answer."""
MAX_SESSION_ACTIVE: Final = 50
MAX_SESSION_ENDED: Final = 50
"""Of one session; fewer where its metadata has no more room."""


class NotificationError(Exception):
    """What was asked of a notification can't be; the text says why. Nothing was changed."""


class BadNotification(NotificationError):
    """A member that no notification has, or of a value that it can't have."""


class NoSuchNotification(NotificationError):
    """There is none of this id or key."""


class NotificationsFull(NotificationError):
    """One more active one would be more than is kept."""


class Conflict(NotificationError):
    """It is not as the caller knows it. `record` is how it stands."""

    def __init__(self, message: str, record: Record) -> None:
        super().__init__(message)
        self.record = record


class StaleRevision(Conflict):
    """Row A166."""


class InvalidTransition(Conflict):
    """Row A167."""


class Draft(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a producer says of a notification."""

    title: Annotated[str, Meta(min_length=1, max_length=MAX_TITLE)]
    """One line: line breaks become spaces."""
    body: Annotated[str, Meta(max_length=MAX_BODY)] = ""
    severity: Literal["info", "success", "warning", "error"] = "info"
    key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY)] | None = None
    """While a notification of this key is active, creating means updating it (row A144). None: its own."""
    source: dict[str, Any] = {}
    """Where it comes from (row A141)."""
    display: dict[str, Any] = {}
    """`protocol.events.action_display`."""


class Ending(Struct, forbid_unknown_fields=True, kw_only=True):
    """What somebody says who ends one; both may be absent (row A165)."""

    expected_revision: int | Annotated[str, Meta(max_length=64)] | None = None
    """The revision they know; for a record without one its `updated_at` (row A147)."""
    reason: Annotated[str, Meta(max_length=MAX_REASON)] | None = None


class Outcome(NamedTuple):
    """A record as it is to be, and the verb of EVENTS that tells it; None: nothing changes."""

    record: Record
    verb: str | None


_DRAFT: Final = msgspec.json.Decoder(Draft)
_ENDING: Final = msgspec.json.Decoder(Ending)


def read_draft(text: bytes) -> Draft:
    """Raises BadNotification."""
    if not text:
        raise BadNotification("a JSON body is needed, with a title")
    said = _read(_DRAFT, text)
    lines = said.title.splitlines()
    if len(lines) != 1 or lines[0] != said.title:
        said.title = " ".join(filter(None, map(str.strip, lines)))
        if not said.title:
            raise BadNotification("$.title: it has nothing but line breaks")
    return said


def read_ending(text: bytes) -> Ending:
    """An empty text says nothing, as `{}` does. Raises BadNotification."""
    return _read(_ENDING, text or b"{}")


def draft(members: Mapping[str, Any]) -> Draft:
    """What a producer in this process says. Raises BadNotification."""
    try:
        return read_draft(msgspec.json.encode(dict(members)))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadNotification(f"a notification is JSON: {error}") from None


def _read(decoder: "msgspec.json.Decoder[_T]", text: bytes) -> _T:
    try:
        return open_json(decoder, text, MAX_DEPTH)
    except ProtocolError as error:
        raise BadNotification(error.reason) from None


def status(record: Record) -> str:
    """Whoever wrote it: one of TRANSITIONS."""
    known = record.get("status")
    return known if isinstance(known, str) and known in TRANSITIONS else PENDING


def is_active(record: Record) -> bool:
    """Whether it is not over."""
    return status(record) == PENDING


def revision(record: Record) -> int | None:
    """None for a record without one (row A147)."""
    known = record.get("revision")
    return known if isinstance(known, int) and not isinstance(known, bool) else None


def token(record: Record) -> int | str | None:
    """What names this state of the record: its revision, else its `updated_at` (row A147)."""
    known, updated = revision(record), record.get("updated_at")
    return known if known is not None else updated if isinstance(updated, str) else None


def create(
    said: Draft, active: Record | None, *, session_id: str | None, now: str, new_id: Callable[[], str]
) -> Outcome:
    """A new record, or the active one of the same key with what is said now (rows A144, A145).

    `now` is RFC 3339. Raises BadNotification.
    """
    producer: Producer = APPLICATION_NOTIFICATION if session_id is None else SESSION_NOTIFICATION
    try:
        display = complete(said.display, producer, session_id)
    except BadDisplay as error:
        raise BadNotification(f"$.{error}") from None
    told: Record = {
        "severity": said.severity,
        "title": said.title,
        "body": said.body,
        "updated_at": now,
        "source": said.source,
        "display": display,
        "model_visibility": "hidden",
    }
    if active is not None:
        record = {**active, "revision": _next(active), "status": PENDING, **told}
    else:
        id = new_id()
        record = {"id": id, "key": said.key or id, "revision": 1, "status": PENDING, "created_at": now, **told}
    size = len(msgspec.json.encode(record))
    if size > MAX_RECORD_BYTES:
        raise BadNotification(f"$: the notification has {size} bytes as JSON; at most {MAX_RECORD_BYTES} are kept")
    return Outcome(record, "created" if active is None else "updated")


def end(record: Record, into: str, said: Ending, now: str) -> Outcome:
    """The record with a terminal status (row A146). Raises StaleRevision, InvalidTransition."""
    known, expected = token(record), said.expected_revision
    if expected is not None and (type(expected) is not type(known) or expected != known):
        raise StaleRevision(
            f"the notification is at revision {known!r} now, not at {expected!r}: look at it again", record
        )
    before = status(record)
    if into not in TRANSITIONS[before]:
        raise InvalidTransition(f"the notification is {before} already, and can't become {into}", record)
    if before == into:
        return Outcome(record, None)
    ended = {**record, "revision": _next(record), "status": into, "updated_at": now, "ended_at": now}
    return Outcome(ended if said.reason is None else {**ended, "reason": said.reason}, into)


def _next(record: Record) -> int:
    """Row A148: a record that had none begins with 1."""
    return (revision(record) or 0) + 1


def check_room(active: int) -> None:
    """Whether one more application notification may become active beside so many. Raises NotificationsFull."""
    if active >= MAX_ACTIVE:
        raise NotificationsFull(f"there are {MAX_ACTIVE} active notifications already: dismiss some")


def event(owner: str, verb: str, record: Record) -> dict[str, Any]:
    """The event that tells it (row A122); `owner` is a key of EVENTS."""
    given = record.get("display")
    shown = {name: record[name] for name in ("title", "body", "severity") if name in record}
    display = {**shown, **(given if isinstance(given, dict) else {})}
    return {"type": EVENTS[owner][verb], "notification": record, "display": display}


# Those of a session, in its metadata (row A134): {"notifications": {"items": [record, ...]}}, the last changed last.

METADATA: Final = "notifications"


def items(metadata: Mapping[str, Any]) -> list[Record]:
    """The records in a session's metadata; what is none of them is passed over."""
    kept = metadata.get(METADATA)
    found = kept.get("items") if isinstance(kept, dict) else None
    return [item for item in found if is_record(item)] if isinstance(found, list) else []


def misshapen(metadata: Mapping[str, Any]) -> bool:
    """Whether it has a `notifications` that is no {"items": [...]}."""
    kept = metadata.get(METADATA, {})
    return not isinstance(kept, dict) or not isinstance(kept.get("items", []), list)


def check_given(metadata: Mapping[str, Any]) -> None:
    """Whether a new session may have this metadata. Raises BadNotification."""
    if misshapen(metadata) or not all(map(is_record, metadata.get(METADATA, {}).get("items", []))):
        raise BadNotification(
            '$.metadata.notifications: it is where the home keeps the session\'s notifications, {"items": [...]} of'
            ' objects with an "id"; give other data another name'
        )


def put(metadata: dict[str, Any], record: Record, room: int) -> None:
    """Keep this record in the metadata, in place of the one with its id; what is terminal and oldest makes room.

    A `notifications` that is misshapen stays, as `replaced` within the new one. `room` is what the metadata may have in
    bytes as JSON. Raises NotificationsFull.
    """
    if misshapen(metadata):
        metadata[METADATA] = {"replaced": metadata[METADATA]}
    found = metadata.setdefault(METADATA, {}).setdefault("items", [])
    found[:] = [item for item in found if not is_record(item) or item["id"] != record["id"]] + [record]
    ended = [item for item in found if is_record(item) and not is_active(item)]
    active = sum(1 for item in found if is_record(item) and is_active(item))
    if is_active(record) and active > MAX_SESSION_ACTIVE:
        raise NotificationsFull(f"a session has at most {MAX_SESSION_ACTIVE} active notifications: dismiss some")
    for number, oldest in enumerate(ended):
        if len(ended) - number <= MAX_SESSION_ENDED and len(msgspec.json.encode(metadata)) <= room:
            break
        found.remove(oldest)
    if is_active(record) and len(msgspec.json.encode(metadata)) > room:
        raise NotificationsFull("the session's metadata has no room for another notification: dismiss some")


def without(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata for those who are not to see notifications (row A136)."""
    return {name: value for name, value in metadata.items() if name != METADATA}


def is_record(item: object) -> bool:
    """Whether it can be told from others."""
    return isinstance(item, dict) and isinstance(item.get("id"), str)


def listed(records: Sequence[Record], *, include_terminal: bool) -> list[Record]:
    """Those that are active, or all (row A164), the last changed first."""
    return [record for record in reversed(records) if include_terminal or is_active(record)]
