"""What the home answers, as OpenAPI: the table of its operations, and the route that serves it.

Preflights and HEAD are left out. Served is what this home's router has: `bridge-client forward` has little of it."""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from bridge_client.api import answers as a
from bridge_client.api import events, sessions
from bridge_client.api.notifications import ENDINGS
from bridge_client.notification_rules import Draft, Ending
from bridge_client.session_rules import ID, MAX_MESSAGES
from bridge_client.sessions import MAX_PAGE_MESSAGES
from protocol.openapi import Json, Operation, Parameter, Problem, document
from protocol.requests import ROUTES

PATH: Final = "/openapi.json"

Name = Annotated[str, Meta(min_length=1)]
Wait = Annotated[int, Meta(ge=0, lt=10**9, extra_json_schema={"default": 0})]


def _whole(least: int, most: int, default: int) -> Any:
    return Annotated[int, Meta(ge=least, le=most, extra_json_schema={"default": default})]


CODES: Final = {
    400: "bad_request bad_body bad_parameter",
    401: "unauthorized",
    403: "bad_host bad_origin",
    404: "no_such_session no_such_message no_such_request no_such_notification no_such_approval",
    408: "timeout",
    409: "session_exists session_changed session_full request_running request_id_taken stale_revision"
    " invalid_transition notifications_full already_decided",
    413: "too_large content_too_large",
    415: "bad_content_type unsupported_encoding",
    429: "too_many_requests",
    500: "internal",
    503: "no_runner store_unavailable",
}
"""Every code that an operation may answer, by status; docs/home-api.md explains each."""

_STATUS: Final = {code: status for status, codes in CODES.items() for code in codes.split()}
_SCOPES: Final = {(method, path): scope for method, path, scope in ROUTES}


def _at(
    route: str,
    says: str,
    answers: Mapping[int, Any],
    codes: str = "",
    body: Any = None,
    query: Iterable[Parameter] = (),
) -> Operation:
    method, path = route.split()
    codes += " bad_request bad_host bad_origin internal"
    if path != "/health":
        codes += " unauthorized unsupported_encoding store_unavailable"
    if method != "GET":
        codes += " bad_content_type"
    if body is not None:
        codes += " bad_body timeout too_large"
    query = list(query)
    if query:
        codes += " bad_parameter"
    problems = [Problem(_STATUS[code], code) for code in codes.split()]
    scope = _SCOPES.get((method, path))
    through = f"Apps reach it through the hub with the scope `{scope}`." if scope else ""
    security = () if path == "/health" else ("localToken",)
    return Operation(method, path, says, answers, problems, body, query, security, through)


_LIMIT: Final = Parameter(
    "limit", "at most so many events, the first", _whole(1, events.MAX_LIMIT, events.DEFAULT_LIMIT)
)
_WAIT: Final = Parameter(
    "wait_timeout_ms", f"wait so long for a first event that matches, at most {events.LONGEST_WAIT_MS}", Wait
)
_EXPECTED: Final = Parameter("expected_cursor_event_id", "refuse unless the session's cursor is there", a.Id)
_ONE: Final = "/sessions/{session_id}"
_MESSAGES: Final = _ONE + "/messages"
_REQUEST: Final = _ONE + "/requests/{request_id}"
_CHANGES: Final = "no_such_session request_running "
_ALONE: Final = "session_changed no_such_message bad_parameter "
_TOO_MUCH: Final = "session_full content_too_large "
_PLACE: Final = Annotated[int, Meta(ge=0, lt=10**16)]
_FALSE: Final = Annotated[bool, Meta(extra_json_schema={"default": False})]
_TRUE: Final = Annotated[bool, Meta(extra_json_schema={"default": True})]


def _notifications(path: str, missing: str, room: str) -> list[Operation]:
    terminal = Parameter("include_terminal", "also those that are over", _FALSE)
    ended = missing + room + "no_such_notification stale_revision invalid_transition"
    return [
        _at(f"GET {path}", "Notifications, the last changed first", {200: a.Notifications}, missing, query=[terminal]),
        _at(
            f"POST {path}",
            "Make a notification, or update the active one of the same key",
            {201: a.OneNotification, 200: a.OneNotification},
            missing + room + "notifications_full",
            Draft,
        ),
        *(
            _at(
                f"POST {path}/{{notification_id}}/{verb}",
                f"End it as {status}",
                {200: a.OneNotification},
                ended,
                Ending,
            )
            for verb, status in ENDINGS.items()
        ),
    ]


OPERATIONS: Final = (
    _at("GET /health", "Whether the process answers", {200: a.Health}),
    _at(f"GET {PATH}", "This description", {200: dict[str, Any]}),
    _at("GET /status", "Whether events get through", {200: a.Status}),
    _at(
        "GET /events",
        "Events, and waiting for the next",
        {200: a.Page},
        query=[
            Parameter("since_id", "only events after this id", a.Id),
            Parameter("session_id", "only events of this session", Name),
            Parameter("request_id", "only events of this request", Name),
            _LIMIT,
            _WAIT,
            Parameter("compact", "without what the rest of the answer repeats", _TRUE),
        ],
    ),
    _at("POST /sessions", "Make a session", {201: a.Made}, "session_exists " + _TOO_MUCH, sessions.NewSession),
    _at(
        "GET /sessions",
        "Sessions, the last changed first",
        {200: a.Listed},
        query=[
            Parameter("before", "`next_before` of the page before this one", a.Id),
            Parameter("limit", "at most so many", _whole(1, sessions.MAX_PAGE, sessions.DEFAULT_PAGE)),
        ],
    ),
    _at(f"GET {_ONE}", "One session, without its messages", {200: a.Shown}, "no_such_session"),
    _at(
        f"POST {_ONE}/fork",
        "Copy a session",
        {201: a.Made},
        "no_such_session session_exists session_full",
        sessions.Fork,
    ),
    _at(
        f"GET {_MESSAGES}",
        "A session's messages",
        {200: a.Messages},
        "no_such_session session_changed",
        query=[
            Parameter("offset", "the first; negative: from the end", _whole(-MAX_MESSAGES, MAX_MESSAGES, 0)),
            Parameter("limit", "at most so many", _whole(1, MAX_PAGE_MESSAGES, MAX_PAGE_MESSAGES)),
            _EXPECTED,
        ],
    ),
    _at(f"POST {_MESSAGES}", "Append a message", {201: a.Changed}, _CHANGES + _TOO_MUCH, sessions.NewMessage),
    _at(f"DELETE {_MESSAGES}", "Delete messages", {200: a.Deleted}, _CHANGES + _ALONE, sessions.Deletion),
    _at(
        f"PATCH {_MESSAGES}/{{index}}",
        "Change a message's content",
        {200: a.Changed},
        _CHANGES + _ALONE + _TOO_MUCH,
        sessions.NewContent,
    ),
    _at(
        f"POST {_ONE}/send",
        "Ask for an answer, which comes as events",
        {202: a.Accepted},
        _CHANGES + _TOO_MUCH + "request_id_taken too_many_requests no_runner",
        sessions.Sent,
    ),
    _at(f"POST {_REQUEST}/cancel", "Cancel a request", {202: a.Accepted}, "no_such_session no_such_request"),
    _at(
        f"POST {_REQUEST}/approvals/{{approval_id}}",
        "Decide whether a tool may run",
        {200: a.Decided},
        "no_such_session no_such_request no_such_approval already_decided",
        sessions.Decision,
    ),
    _at(
        f"GET {_ONE}/events",
        "A session's events by their places in it",
        {200: a.PlacedPage},
        query=[
            Parameter("after", "only events behind this place, 0 by default", _PLACE),
            Parameter("before", "only events before this place", _PLACE),
            Parameter("run_id", "only events of this run", Name),
            Parameter("type", "only events of this type", Name),
            Parameter("since", "only events of this time or later, ISO 8601; UTC without a zone", Name),
            _LIMIT,
            _WAIT,
        ],
    ),
    *_notifications("/application/notifications", "", ""),
    *_notifications(f"{_ONE}/notifications", "no_such_session ", "content_too_large "),
)
"""Everything that is answered."""


def describe(router: web.UrlDispatcher) -> Json:
    """The description of what `router` has."""
    served = {(route.method, route.resource.canonical) for route in router.routes() if route.resource is not None}
    info = {
        "title": "Session Bridge: the home",
        "version": version("session-bridge"),
        "description": "Sessions, events and notifications of the home on this machine. GET answers HEAD too. Every "
        'error is `{"error": {"code", "message", …}}`.',
    }
    token = {"type": "http", "scheme": "bearer", "description": "the local token of the state directory"}
    segments = {
        "session_id": Annotated[str, Meta(pattern=f"^{ID.pattern}$")],
        "index": Annotated[int, Meta(ge=0)],
        **dict.fromkeys(("request_id", "approval_id", "notification_id"), str),
    }
    operations = [one for one in OPERATIONS if (one.method, one.path) in served]
    return {**document(info, operations, {"localToken": token}, segments), "servers": [{"url": "/"}]}


def route() -> web.RouteDef:
    """What serves the description, made at the first request."""
    text: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        if not text:
            text.append(msgspec.json.encode(describe(request.app.router)))
        return web.Response(body=text[0], content_type="application/json")

    return web.get(PATH, answer)
