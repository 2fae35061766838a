"""How an owner names a source that is not our own store: `--source http://...` or `--source sqlite:PATH?table=...`.

http://127.0.0.1:8000/events             another server's GET /events (no path: /events)
sqlite:agent.db?table=events             columns `id` and `body`, which holds the event as a JSON object
    &id=seq&body=event                   other columns; id=rowid for a table without one
    &map=type:kind,session_id:session    instead of body: the event's members from columns
    &json=payload                        columns of `map` that hold JSON, not text
    &type=note                           the `type` of every event that has none
    &dense=no                            ids have holes by nature: don't wait a second for what may fill them
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qsl, urlsplit, urlunsplit


@dataclass(frozen=True, slots=True)
class HttpSpec:
    """Another server's event endpoint."""

    url: str


@dataclass(frozen=True, slots=True)
class SqliteSpec:
    """A table or view of somebody else's SQLite file. `members` is empty when `body` holds the whole event."""

    path: Path
    table: str
    id_column: str = "id"
    body: str = "body"
    members: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Member of the event -> column."""
    json_columns: frozenset[str] = frozenset()
    type: str | None = None
    dense: bool = True


def parse(text: str) -> HttpSpec | SqliteSpec:
    """Read a source as its owner wrote it. Raises ValueError saying what would do."""
    if text.startswith(("http://", "https://")):
        return _http(text)
    if text.startswith("sqlite:"):
        return _sqlite(text.removeprefix("sqlite:"))
    raise ValueError("must be http://HOST/events, https://HOST/events or sqlite:PATH?table=NAME")


def _http(text: str) -> HttpSpec:
    try:
        parts = urlsplit(text)
        if not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"{text!r} names no host; write http://HOST:PORT/events") from None
    if "@" in parts.netloc:
        raise ValueError("holds a password; put the token into a file and name that: --source-token-file")
    if parts.query or parts.fragment:
        raise ValueError("has a query: the forwarder asks for every event, and adds what it needs itself")
    return HttpSpec(urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/") or "/events", "", "")))


def _sqlite(text: str) -> SqliteSpec:
    name, _, query = text.partition("?")
    if not name:
        raise ValueError("names no file; write sqlite:PATH?table=NAME")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError(f"{query!r} can't be read; write name=value, joined by &") from None
    found = dict(pairs)
    known = ("table", "id", "body", "map", "json", "type", "dense")
    if len(found) != len(pairs) or (unknown := [name for name in found if name not in known]) or "" in found.values():
        wrong = "something twice or without a value" if len(found) != len(pairs) or not unknown else repr(unknown[0])
        raise ValueError(f"holds {wrong}; after the ? may stand {', '.join(known)}, each once")
    if "table" not in found:
        raise ValueError("names no table; write sqlite:PATH?table=NAME")
    if found.get("dense", "yes") not in ("yes", "no"):
        raise ValueError("dense is yes or no")
    if "map" in found and "body" in found:
        raise ValueError("has both body and map; the event is either one column or made of several")
    members = dict(_member(part) for part in found["map"].split(",")) if "map" in found else {}
    json_columns = frozenset(found["json"].split(",")) if "json" in found else frozenset[str]()
    if stray := sorted(json_columns - set(members.values())):
        raise ValueError(f"json names {stray[0]!r}, which is no column of map")
    if members and "type" not in members and "type" not in found:
        raise ValueError("gives the events no type; add type:COLUMN to map, or type=NAME")
    return SqliteSpec(
        Path(name).expanduser(),
        found["table"],
        found.get("id", "id"),
        found.get("body", "body"),
        MappingProxyType(members),
        json_columns,
        found.get("type"),
        found.get("dense", "yes") == "yes",
    )


def _member(part: str) -> tuple[str, str]:
    member, colon, column = part.partition(":")
    if not (member and colon and column) or member == "event_id":
        raise ValueError(f"map holds {part!r}; write MEMBER:COLUMN, joined by commas (event_id comes from id)")
    return member, column
