"""Long polling over HTTP: which session a request means, and what it is answered.

`longpoll_session.py` is one client, `longpoll_wire.py` what requests and answers look like. Every answer on this path
has a `status` in its body, refusals too: clients of Phoenix read nothing else.
"""

import asyncio
import logging
import secrets
from base64 import b64encode
from collections.abc import Callable
from typing import Final

from aiohttp import web
from websockets.datastructures import Headers

from bridge_server.auth import BEARER_SUBPROTOCOL, Identity
from bridge_server.transports import longpoll_wire as wire
from bridge_server.transports.handshake import Accepted, HttpRefusal, Mount, admit, bad_site, parse_query, same_path
from bridge_server.transports.longpoll_session import Session
from bridge_server.transports.longpoll_wire import Status
from bridge_server.transports.port import Port

log = logging.getLogger("bridge_server.longpoll")

BODY_SECONDS: Final = 10.0

MAX_POSTS: Final = 4
"""POSTs of one session that may be under way at a time."""

PREFLIGHT_SECONDS: Final = 3600

_SESSION_HEADER: Final = "X-Phoenix-LongPoll-Token"
_CREDENTIAL_HEADER: Final = "X-Phoenix-AuthToken"
_IN_QUERY: Final = "token"


class LongPolling:
    """The HTTP side of all sessions of a port.

    `stands` says whether the credential behind an identity is still good; it is asked at every request of a session.
    """

    def __init__(self, port: Port, stands: Callable[[Identity], bool]) -> None:
        self.sessions: dict[bytes, Session] = {}
        self._port = port
        self._stands = stands
        self._tokens = wire.Tokens(secrets.token_bytes(32))

    def mount(self, request: web.Request) -> Mount | None:
        """The mount whose long-poll path is asked for."""
        path = request.rel_url.raw_path
        return next((mount for mount in self._port.mounts if same_path(path, mount.path + "/longpoll")), None)

    async def answer(self, request: web.Request, mount: Mount) -> web.StreamResponse:
        """Answer one request. Raises nothing but cancellation, and ConnectionError when the client is gone."""
        headers = Headers()
        for name, value in request.headers.items():
            # What is no ASCII (a cookie, say) as the bytes that came: that is all that these headers take.
            headers[name] = value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("latin-1")
        # Who may read the answer: Phoenix lets every site.
        shared = {"Vary": "Origin"}
        try:
            if reason := bad_site(headers, mount, self._port.hosts):
                return self._refuse(request, HttpRefusal(403, reason), shared)
            if origin := request.headers.get("Origin"):
                shared["Access-Control-Allow-Origin"] = origin
            if request.method == "OPTIONS":
                return _preflight(headers, shared)
            if request.method == "GET":
                return await self._get(request, headers, mount, shared)
            if request.method == "POST":
                return await self._post(request, mount, shared)
            return web.Response(status=400, headers=shared)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("a long-poll request failed")
            return self._refuse(request, HttpRefusal(500, "internal"), shared)

    async def _get(
        self, request: web.Request, headers: Headers, mount: Mount, shared: dict[str, str]
    ) -> web.StreamResponse:
        session, token = self._find(request, mount)
        if session is not None and session.writing is not None:
            # Who polls again before it has the whole answer has lost it. (A POST may well come meanwhile.)
            session.close(1001, "an answer was lost")
            session = None
        if session is None:
            return self._connect(request, headers, mount, shared)
        ready = await session.poll()
        if session.ended is not None:
            return _json(wire.no_messages(Status.GONE, None), shared)
        if not ready:
            return _json(wire.no_messages(Status.NO_CONTENT, token), shared)
        return await _deliver(request, session, token, shared)

    def _find(self, request: web.Request, mount: Mount) -> tuple[Session | None, str]:
        """The session that a request names, if it lives and its credential stands."""
        in_query = (value for value in request.query.getall(_IN_QUERY, ()) if wire.is_token(value))
        token = request.headers.get(_SESSION_HEADER) or next(in_query, "")
        session_id = self._tokens.read(token, self._port.clock.now())
        session = self.sessions.get(session_id) if session_id is not None else None
        if session is None or session.mount is not mount:
            return None, token
        identity = session.peer.identity if session.peer is not None else None
        if identity is not None and not self._stands(identity):
            session.close(1001, "credential_revoked")
        return (None if session.ended else session), token

    def _connect(
        self, request: web.Request, headers: Headers, mount: Mount, shared: dict[str, str]
    ) -> web.StreamResponse:
        if busy := self._port.busy():
            return self._refuse(request, busy, shared)
        decision = self._port.within_limits(
            self._decide(request, headers, mount), _peername(request), headers.raw_items()
        )
        if isinstance(decision, HttpRefusal):
            return self._refuse(request, decision, shared)
        session = Session(self._port, mount, self._gone)
        session.started(self._port.connected(session, decision))
        self.sessions[session.id] = session
        return _json(wire.no_messages(Status.GONE, self._tokens.sign(session.id, self._port.clock.now())), shared)

    def _gone(self, session: Session) -> None:
        self.sessions.pop(session.id, None)
        self._port.drivers.discard(session)

    @staticmethod
    def _decide(request: web.Request, headers: Headers, mount: Mount) -> Accepted | HttpRefusal:
        if not request.raw_path.isascii():
            return HttpRefusal(400, "bad_request", "the path and query are ASCII; write other characters as %XX")
        query = parse_query(request.rel_url.raw_query_string)
        if not isinstance(query, HttpRefusal):
            # phoenix.js sends its session's token under the name that credentials have.
            query = [(name, value) for name, value in query if name != _IN_QUERY or not wire.is_token(value)]
        credentials = headers.get_all(_CREDENTIAL_HEADER)
        offered = [BEARER_SUBPROTOCOL + b64encode(value.encode()).decode() for value in credentials]
        return admit(headers, offered, query, mount)

    def _refuse(self, request: web.Request, refusal: HttpRefusal, shared: dict[str, str]) -> web.StreamResponse:
        self._port.refused(refusal, _peername(request), request.headers.items())
        more = {"reason": refusal.reason} | ({"message": refusal.hint} if refusal.hint else {})
        if refusal.status in (429, 503):
            shared["Retry-After"] = str(refusal.retry_after)
        final = refusal.status in (400, 403)
        return _json(
            wire.answer(Status.REFUSED if final else Status.FAILED, **more),
            shared,
            200 if refusal.status == 403 else refusal.status,
        )

    async def _post(self, request: web.Request, mount: Mount, shared: dict[str, str]) -> web.StreamResponse:
        session, _ = self._find(request, mount)
        if session is None:
            return _json(wire.answer(Status.GONE), shared)
        kind = request.headers.get("Content-Type", "application/json").partition(";")[0].strip().lower()
        if kind not in ("application/json", "application/x-ndjson", "") or "Content-Encoding" in request.headers:
            return _json(wire.answer(Status.UNSUPPORTED, reason="unsupported_media_type"), shared)
        if session.posts >= MAX_POSTS:
            return _json(wire.answer(Status.TOO_MANY, reason="rate_limited"), shared)
        session.posts += 1
        try:
            # In base64 a message of the longest size is a third longer.
            body = await _read(request, mount.max_frame_bytes * 4 // 3 + wire.MAX_LINES)
            if body is None:
                return _json(wire.answer(Status.TOO_LARGE, reason="too_large"), shared)
            await session.receive(body, ndjson=kind == "application/x-ndjson")
        except TimeoutError:
            return _json(wire.answer(Status.TIMED_OUT, reason="timeout"), shared)
        except wire.TooManyLines:
            return _json(wire.answer(Status.TOO_LARGE, reason="too_large"), shared)
        finally:
            session.posts -= 1
        if session.ended is None:
            return _json(wire.answer(Status.OK), shared)
        code, reason = session.ended
        status = Status.GONE if code < 1002 or code > 1011 else Status.TOO_LARGE if code == 1009 else Status.BAD_MESSAGE
        return _json(wire.answer(status, reason=reason), shared)


def _peername(request: web.Request) -> object:
    return request.transport.get_extra_info("peername") if request.transport is not None else None


async def _deliver(request: web.Request, session: Session, token: str, shared: dict[str, str]) -> web.StreamResponse:
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("the client of a poll is gone")
    response = _json(wire.batch(session.take(), token), shared)
    session.answering(transport)
    try:
        await response.prepare(request)
        await response.write_eof()
    except BaseException:
        session.close(1001, "an answer was lost")
        raise
    finally:
        session.answered()
    return response


async def _read(request: web.Request, limit: int) -> bytes | None:
    """The whole body; None if it is longer than `limit`. Raises TimeoutError."""
    if (request.content_length or 0) > limit:
        return None
    parts: list[bytes] = []
    size = 0
    async with asyncio.timeout(BODY_SECONDS):
        async for part in request.content.iter_any():
            size += len(part)
            if size > limit:
                return None
            parts.append(part)
    return b"".join(parts)


def _json(body: bytes, headers: dict[str, str], status: int = 200) -> web.Response:
    fixed = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(
        body=body, status=status, content_type="application/json", charset="utf-8", headers={**headers, **fixed}
    )


def _preflight(headers: Headers, shared: dict[str, str]) -> web.Response:
    allowed = {
        "Access-Control-Allow-Headers": ", ".join(headers.get_all("Access-Control-Request-Headers"))[:1024],
        "Access-Control-Allow-Methods": "get, post, options",
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
    }
    return web.Response(headers={**shared, **allowed})
