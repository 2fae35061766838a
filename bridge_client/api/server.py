"""The listener of the home's API, and the gate in front of it."""

import asyncio
import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from bridge_client import local_token
from bridge_client.api import PROGRAM, ApiError, openapi
from bridge_client.api.patience import HEAD_SECONDS, PatientConnection
from bridge_client.store import StoreError
from protocol.loopback import LOOPBACK_NAMES, check_request, expected_hosts, normal_origin, own_origins

MAX_BODY: Final = 1 << 20

OPEN_PATHS: Final = frozenset({"/health"})
"""What needs no token: says nothing about anybody."""

_LONGEST_GOODBYE: Final = 0.5
_ALLOWED: Final = "GET, POST, PATCH, DELETE"

log = logging.getLogger(__name__)
_http_log = logging.getLogger("bridge_client.api.http")


class Api:
    """One listener: `async with Api(...) as api` serves `routes` from entry to exit; then `port` and `url` are known.

    `host` is the address to listen on, `port` 0 any free one, None: it listens nowhere, and serves this process
    only. `origins` (in the form of `loopback.normal_origin`) are those of pages elsewhere that may ask and read the
    answers. `head_seconds` is how long the head of a request may take. Raises OSError when it can't listen.
    """

    def __init__(
        self,
        routes: Iterable[web.RouteDef],
        token: str,
        *,
        host: str,
        port: int | None,
        origins: Iterable[str] = (),
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        self._routes = [web.get("/health", _health), openapi.route(), *routes]
        self._token = token
        self._host = host
        self._listed = frozenset(origins)
        self._wanted = port
        self._head_seconds = head_seconds
        self._listening: asyncio.Server | None = None
        self.port = 0
        self.url = ""

    async def __aenter__(self) -> "Api":
        app = web.Application(middlewares=[self._gate], client_max_size=MAX_BODY)
        app.add_routes(self._routes)
        app.on_response_prepare.append(self._mark)
        # Waiting requests are cut off at the end: their clients ask again.
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, logger=_http_log, shutdown_timeout=_LONGEST_GOODBYE
        )
        await runner.setup()
        self._runner = runner
        if self._wanted is not None:
            try:
                loop = asyncio.get_running_loop()
                self._listening = await loop.create_server(self.connection, self._host, self._wanted)
            except BaseException:
                await runner.cleanup()
                raise
            self.port = self._listening.sockets[0].getsockname()[1]
        self._hosts = expected_hosts() | {self._host.lower()} if self._host not in _EVERYWHERE else None
        self._origins = own_origins(self.port) | self._listed
        if self.port:
            shown = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"http://{shown}:{self.port}"
            log.info("the home's API listens on %s", self.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()

    def connection(self) -> asyncio.BaseProtocol:
        """The server's end of one more connection, whatever carries it."""
        server = self._runner.server
        assert server is not None
        return PatientConnection(server, _http_log, self._head_seconds)

    @web.middleware
    async def _gate(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, PatientConnection)
        connection.begun()
        try:
            return await self._answer(request, handler)
        finally:
            connection.done()

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._admit(request)
            if request.method == "OPTIONS":
                return web.Response(status=204)
            return await handler(request)
        except ApiError as error:
            return problem(error)
        except web.HTTPException as answer:
            code, message = _EXPLAINED.get(answer.status, (f"http_{answer.status}", answer.reason))
            return problem(ApiError(answer.status, code, message), answer)
        except StoreError as error:
            log.warning("%s %s: %s", request.method, request.path, error)
            return problem(ApiError(503, "store_unavailable", str(error)))
        except Exception:
            log.exception("the handler of %s %s failed", request.method, request.path)
            return problem(ApiError(500, "internal", "the home failed; its log says why"))

    def _admit(self, request: web.Request) -> None:
        """Raises ApiError unless the request may be routed. A browser's preflight carries no token and needs none."""
        reason = check_request(request.headers.items(), self._hosts, self._origins)
        if reason is not None:
            raise ApiError(403, reason, _REFUSED[reason])
        if request.method == "OPTIONS" or request.path in OPEN_PATHS:
            return
        # Also an empty body must not come as a form: that is how a page of another site posts without asking.
        told = "Content-Type" in request.headers
        refused = request.can_read_body or (told and request.content_type in _UNASKED)
        if request.method not in ("GET", "HEAD") and refused and request.content_type != "application/json":
            raise ApiError(415, "bad_content_type", "a body must be application/json")
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise ApiError(415, "unsupported_encoding", "a body is plain JSON, without a Content-Encoding")
        given = request.headers.getall("Authorization", [])
        scheme, _, token = given[0].strip().partition(" ") if len(given) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not local_token.same(token.strip(), self._token):
            raise ApiError(401, "unauthorized", f"send the token in {local_token.NAME} as Authorization: Bearer TOKEN")

    async def _mark(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin is not None and normal_origin(origin) in self._listed:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = _ALLOWED
            response.headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type"
            response.headers["Access-Control-Max-Age"] = "600"


def problem(error: ApiError, answer: web.HTTPException | None = None) -> web.Response:
    """An error as every error looks; `answer` lends its headers that say more (`Allow`)."""
    shown: dict[str, Any] = {"code": error.code, "message": error.message, **error.details}
    headers = {"Allow": answer.headers["Allow"]} if answer is not None and "Allow" in answer.headers else {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    body = msgspec.json.encode({"error": shown})
    return web.Response(body=body, status=error.status, content_type="application/json", headers=headers)


async def _health(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok", "program": PROGRAM})


_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - named in order to be recognised

_UNASKED: Final = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
"""What a page of another site may post without a preflight (Fetch, "CORS-safelisted request-header")."""

_REFUSED: Final = {
    "bad_host": f"the Host header names none of {', '.join(sorted(LOOPBACK_NAMES))}, nor the address listened on",
    "bad_origin": "pages of that origin may not ask; the setting api_origins lists those that may",
}
_EXPLAINED: Final = {
    404: ("not_found", "there is nothing at this path; docs/home-api.md lists what there is"),
    405: ("method_not_allowed", "this path does not take that method"),
    413: ("too_large", f"a body may have at most {MAX_BODY} bytes"),
}
