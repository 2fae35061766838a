"""What an app may ask of a home through the hub: one closed table of routes, and the rules of a path and a body.

Hub and home both read it, so that neither trusts the other to have looked: `check` is the whole of a look. A path has
one spelling only. What some server might read as another path than it seems to be is refused, not repaired.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple
from urllib.parse import unquote

VIEW: Final = "view"
APPROVE: Final = "approve"
CONTROL: Final = "control"

TIMEOUT_SECONDS: Final = 30.0
"""How long the hub waits for a home's answer."""

MAX_IN_FLIGHT: Final = 10
"""Requests of one device that are not answered yet."""

MAX_PATH: Final = 2_048
"""Characters of a path with its query."""

MAX_ID: Final = 128

MAX_BODY_BYTES: Final = 384 * 1024
"""A request's body as JSON: the longest message that a session keeps, and what stands around it."""

MAX_ANSWER_BYTES: Final = 9 << 20
"""An answer's body: the longest page of events or messages, and what stands around it."""

MAX_PART_BYTES: Final = 128 * 1024
"""Most that one `body_part` carries; a home sends less where the hub takes shorter messages (see `part_bytes`)."""


class Route(NamedTuple):
    """A method and a path; `{name}` stands for one segment. `scope` is what a device needs."""

    method: str
    template: str
    scope: str


_SESSION: Final = "/sessions/{session_id}"
_REQUEST: Final = _SESSION + "/requests/{request_id}"

ROUTES: Final = (
    Route("GET", "/events", VIEW),
    Route("GET", "/sessions", VIEW),
    Route("GET", _SESSION, VIEW),
    Route("GET", _SESSION + "/messages", VIEW),
    Route("GET", _SESSION + "/events", VIEW),
    Route("GET", _SESSION + "/notifications", VIEW),
    Route("GET", "/application/notifications", VIEW),
    Route("POST", _REQUEST + "/approvals/{approval_id}", APPROVE),
    Route("POST", _SESSION + "/notifications/{notification_id}/dismiss", APPROVE),
    Route("POST", "/application/notifications/{notification_id}/dismiss", APPROVE),
    Route("POST", "/sessions", CONTROL),
    Route("POST", _SESSION + "/fork", CONTROL),
    Route("POST", _SESSION + "/messages", CONTROL),
    Route("PATCH", _SESSION + "/messages/{index}", CONTROL),
    Route("DELETE", _SESSION + "/messages", CONTROL),
    Route("POST", _SESSION + "/send", CONTROL),
    Route("POST", _REQUEST + "/cancel", CONTROL),
    Route("POST", "/application/notifications", CONTROL),
)
"""Everything there is. A route that is not here can't be reached through the hub, whatever the home serves."""


class RequestRefused(Exception):
    """A request that may not go on. `reason` is `forbidden`, `bad_push` or `too_large`; the text says why."""

    def __init__(self, reason: str, message: str, **details: object) -> None:
        super().__init__(message)
        self.reason = reason
        self.details = details


_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{8,{MAX_ID}}}", re.ASCII)
_PATH: Final = re.compile(r"(?:/(?:[A-Za-z0-9._~:@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)+", re.ASCII)
_QUERY: Final = re.compile(r"(?:[A-Za-z0-9._~:@!$&'()*+,;=/?-]|%[0-9A-Fa-f]{2})*", re.ASCII)


def check(method: str, path: str, scopes: Collection[str], size: int, request_id: str) -> Route:
    """The route of a request that may go on; `size` is that of its body in bytes. Raises RequestRefused.

    Whether the route exists is said before whether the device may take it: the table is public.
    """
    if not _ID.fullmatch(request_id):
        raise RequestRefused("bad_push", f"an id is 8 to {MAX_ID} letters, digits, - and _", field="id")
    route = find(method, path)
    if route.scope not in scopes:
        raise RequestRefused("forbidden", f"{method} {route.template} needs the scope {route.scope}", scope=route.scope)
    if size > MAX_BODY_BYTES:
        raise RequestRefused("too_large", f"a body has at most {MAX_BODY_BYTES} bytes", limit=MAX_BODY_BYTES)
    if method == "GET" and size:
        raise RequestRefused("bad_push", "a GET has no body", field="body")
    return route


def find(method: str, path: str) -> Route:
    """The route of a method and a path with its query. Raises RequestRefused (`bad_push`, `forbidden`)."""
    segments = _segments(method, path)
    for route, pattern in _PATTERNS:
        if route.method == method and _fits(pattern, segments):
            return route
    raise RequestRefused("forbidden", f"no app may ask for {method[:10]} {bare(path)}")


def _fits(pattern: list[str], segments: list[str]) -> bool:
    if len(pattern) != len(segments):
        return False
    return all(name.startswith("{") or name == given for name, given in zip(pattern, segments, strict=True))


def _segments(method: str, path: str) -> list[str]:
    path, mark, query = path.partition("?")
    if len(path) + len(query) > MAX_PATH:
        raise RequestRefused("bad_push", f"a path has at most {MAX_PATH} characters", field="path")
    if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query):
        raise RequestRefused("bad_push", "the path is not one: /segment/segment, as in a URL", field="path")
    if mark and method != "GET":
        raise RequestRefused("bad_push", "only a GET has a query", field="path")
    segments = [_segment(text) for text in path[1:].split("/")]
    if any(segment is None for segment in segments):
        raise RequestRefused("bad_push", "the path has a segment that could be read in two ways", field="path")
    return [segment for segment in segments if segment is not None]


def _segment(text: str) -> str | None:
    """What a segment says, None if another reader might take it for something else."""
    try:
        said = unquote(text, errors="strict")
    except UnicodeDecodeError:
        return None
    if said in (".", "..") or any(mark in said for mark in "/\\%?#;") or not said.isprintable():
        return None
    return None if "%2e" in text.lower() else said


_PATTERNS: Final = [(route, route.template[1:].split("/")) for route in ROUTES]


def bare(path: str) -> str:
    """A path as logs show it: without its query, which may hold what is nobody's business, printable and short."""
    text = path.partition("?")[0][:200]
    return text if text.isprintable() else ascii(text)[1:-1]


def part_bytes(max_event_bytes: int) -> int:
    """How long a part may be at a hub that takes events of that length: escaped it has twice as many bytes."""
    return max(1, min(MAX_PART_BYTES, max_event_bytes // 2))


def parts(text: bytes, size: int) -> Iterator[str]:
    """UTF-8 text in pieces of at most `size` bytes (at least 4), none of which ends within a character."""
    at = 0
    while at < len(text):
        end = min(at + size, len(text))
        while end < len(text) and text[end] & 0xC0 == 0x80:
            end -= 1
        yield text[at:end].decode()
        at = end
