"""What the hub answers over HTTP, as OpenAPI: the table of its operations, and the route that serves it.

The pages and files of the viewer, preflights and HEAD are left out. Served is what this hub's router has: without local
enrolment, for one, those operations are missing.
"""

from collections.abc import Mapping
from importlib.metadata import version
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from protocol import pairing as p
from protocol.errors import API_ERRORS, REFUSALS
from protocol.openapi import Json, Media, Operation, Parameter, Problem, document

PATH: Final = "/api/openapi.json"

_WIRE: Final = "docs/wire.md describes it"


class Health(Struct):
    """The process answers."""

    status: Literal["ok"]


class Ready(Struct):
    """Whether new connections are welcome."""

    status: Literal["ready", "draining", "failing"]


class Poll(Struct):
    """The answer of long polling: `status` counts, not the HTTP status."""

    status: Annotated[int, Meta(description="as docs/wire.md, Long polling, lists them for a poll and for a POST")]
    messages: list[str] | UnsetType = UNSET
    token: str | None | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    message: str | UnsetType = UNSET


def _api(codes: str) -> list[Problem]:
    rows = [API_ERRORS[code] for code in codes.split()]
    return [Problem(row.status, row.code, row.meaning, again=row.status in (429, 503)) for row in rows]


_LONG_HEAD: Final = Problem(431, "bad_request", "the head of the request is too long", "reason")
_REFUSED: Final = [
    Problem(row.status, row.reason, row.meaning, "reason", row.status in (429, 503))
    for row in REFUSALS.values()
    if row.where == "upgrade"
]
_ANY: Final = [
    *_api("bad_request bad_host bad_origin unsupported_media_type internal"),
    *(refusal for refusal in _REFUSED if refusal.code == "too_many_connections"),
    _LONG_HEAD,
]
_POLLED: Final = [*(refusal for refusal in _REFUSED if refusal.status not in (403, 404)), _LONG_HEAD]
_WHO: Final = "credential_missing credential_invalid credential_revoked credential_in_query "
_HERE: Final = [
    Problem(403, "forwarded", "a proxy stands between"),
    Problem(403, "not_local", "the request comes from another machine"),
    Problem(403, "proof_refused", "the proof fits no open challenge"),
]


def _open(
    method: str, path: str, says: str, answers: Mapping[int, Any], codes: str = "", body: Any = None, **more: Any
) -> Operation:
    codes += " timeout too_large" if body is not None else ""
    problems = [*_ANY, *_api(codes), *more.pop("problems", ())]
    return Operation(method, path, says, answers, problems, body, **more)


def _asked(method: str, path: str, says: str, answers: Mapping[int, Any], codes: str, body: Any = None) -> Operation:
    return _open(method, path, says, answers, _WHO + codes, body, security=_CREDENTIAL)


_CREDENTIAL: Final = ("bearer", "apiKey")
_ID: Final = Annotated[str, Meta(pattern="^[0-9a-z]{1,64}$")]
_OF_HOME: Final = "unauthorized overloaded "
_CODE: Final = p.PAIRING_CODES_PATH + "/{pairing_id}"
_DEVICES: Final = p.SERVERS_PATH + "/{server_id}/devices"
_POLL: Final = "/socket/longpoll"
_VSN: Final = Parameter("vsn", "the Phoenix serializer; 1.0.0 if left out", Literal["1.0.0", "2.0.0"])
_SESSION: Final = Parameter("X-Phoenix-LongPoll-Token", "names the session; a GET without begins one", str, "header")
_LIVE: Final = [_VSN, _SESSION]
_TOKEN: Final = f"The credential is asked when a session begins. {_WIRE}."
_BODIES: Final = [Media("application/json", Any), Media("application/x-ndjson", str)]
_PAIRED: Final = "bad_name malformed wrong expired reused rate_limited overloaded"
_FACTS: Final = p.DeviceFacts | p.ServerFacts | p.OperatorFacts

OPERATIONS: Final = (
    _asked(
        "POST",
        p.PAIRING_CODES_PATH,
        "A home asks for a code by which an app is paired",
        {201: p.CodeIssued},
        _OF_HOME + "too_many_devices rate_limited",
        p.CodeWanted,
    ),
    _asked("GET", _CODE, "What became of a code", {200: p.PairingState}, _OF_HOME + "not_found"),
    _asked("DELETE", _CODE, "Close a code", {204: None}, _OF_HOME + "not_found"),
    _open("POST", p.PAIRING_REDEEM_PATH, "An app redeems a code", {201: p.Redeemed}, _PAIRED, p.Redeem),
    _asked("GET", _DEVICES, "The apps of a home", {200: p.DeviceList}, _OF_HOME + "not_found"),
    _asked("DELETE", _DEVICES + "/{device_id}", "Revoke an app", {204: None}, _OF_HOME + "not_found"),
    _asked("GET", p.ME_PATH, "Who the credential is, an app's, a home's or an operator's", {200: _FACTS}, ""),
    _open(
        "POST",
        p.LOCAL_CHALLENGE_PATH,
        "Local enrolment: the hub proves itself",
        {200: p.LocalAnswer},
        "rate_limited",
        p.LocalChallenge,
        problems=_HERE[:2],
    ),
    _open(
        "POST",
        p.LOCAL_ENROL_PATH,
        "Local enrolment: the home proves itself",
        {200: p.LocalEnrolled},
        "bad_name overloaded",
        p.LocalEnrol,
        problems=_HERE,
    ),
    _open("GET", PATH, "This description", {200: dict[str, Any]}),
    _open("GET", "/health", "Whether the process answers", {200: Health}),
    _open("GET", "/ready", "Whether new connections are welcome", {200: Ready, 503: Ready}),
    _open(
        "GET",
        "/metrics",
        "Metrics in the Prometheus text format",
        {200: Media("text/plain", str)},
        _WHO + "unauthorized",
        security=("operator", ""),
        details="Without a credential for a client on the hub's own machine and no proxy between.",
    ),
    _open(
        "GET",
        "/socket/websocket",
        "The WebSocket of homes and apps",
        {101: None},
        problems=_REFUSED,
        parameters=[_VSN],
        security=(*_CREDENTIAL, "subprotocol"),
        details=f"An upgrade (RFC 6455); what follows are Phoenix channels: {_WIRE}.",
    ),
    Operation(
        "GET",
        _POLL,
        "Long polling: begin a session, or fetch its messages",
        {200: Poll},
        _POLLED,
        parameters=_LIVE,
        security=(*_CREDENTIAL, "longPoll", ""),
        details=_TOKEN,
    ),
    Operation("POST", _POLL, "Long polling: send messages", {200: Poll}, _POLLED, _BODIES, _LIVE, details=_TOKEN),
)
"""Everything that is answered, but for the viewer."""

UNROUTED: Final = frozenset({_POLL})
"""Answered before the router is asked."""

_SCHEMES: Final[Json] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "the credential of a home or an app"},
    "operator": {"type": "http", "scheme": "bearer", "description": "the credential of an operator"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same"},
    "longPoll": {"type": "apiKey", "in": "header", "name": "X-Phoenix-AuthToken", "description": "the same"},
    "subprotocol": {
        "type": "apiKey",
        "in": "header",
        "name": "Sec-WebSocket-Protocol",
        "description": "`phoenix, base64url.bearer.phx.` and the credential in base64url, without padding",
    },
}


def describe(router: web.UrlDispatcher, public_url: str | None) -> Json:
    """The description of what `router` has, and of long polling."""
    served = {(route.method, route.resource.canonical) for route in router.routes() if route.resource is not None}
    operations = [
        one
        for one in OPERATIONS
        if one.path in UNROUTED or not served.isdisjoint({(one.method, one.path), ("*", one.path)})
    ]
    info = {
        "title": "Session Bridge: the hub",
        "version": version("session-bridge"),
        "description": "Pairing, the apps of a home, and how Phoenix channels begin. GET answers HEAD too. Errors are "
        '`{"error": {"code", "message", …}}`, on sockets and before any route `{"reason", …}`.',
    }
    segments = {"pairing_id": _ID, "server_id": _ID, "device_id": _ID}
    made = document(info, operations, _SCHEMES, segments)
    return {**made, "servers": [{"url": public_url.rstrip("/") if public_url else "/"}]}


def route(public_url: str | None) -> web.RouteDef:
    """What serves the description, made at the first request. It asks for no credential."""
    text: list[bytes] = []

    async def answer(request: web.Request) -> web.Response:
        if not text:
            text.append(msgspec.json.encode(describe(request.app.router, public_url)))
        return web.Response(body=text[0], content_type="application/json")

    return web.get(PATH, answer)
