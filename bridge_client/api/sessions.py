"""The routes of sessions: `/sessions` and what is below (rows A40, A44, A91, A100 to A108).

Bodies are JSON objects whose members are those of the structs below and no others. Event ids and cursors are decimal
strings, as everywhere. What each answer holds is in docs/home-api.md.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from bridge_client import session_rules as rules
from bridge_client.api import ApiError, parameters
from bridge_client.api.json_bodies import answer, read, session_of
from bridge_client.request_execution import RequestExecution
from bridge_client.runners import Message, Runner
from bridge_client.running_request import AlreadyDecided, NoSuchApproval, NotRunning, RequestIdTaken, TooManyRequests
from bridge_client.session_records import SessionRecord
from bridge_client.sessions import DEFAULT_AGENT, MAX_PAGE_MESSAGES, Sessions
from protocol import event_id as ids
from protocol.errors import BadEventId, InvalidEvent

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1_000
"""Sessions in one answer."""

Json = dict[str, Any]


class _Body(Struct, forbid_unknown_fields=True):
    pass


class NewSession(_Body):
    """POST /sessions"""

    agent_id: str = DEFAULT_AGENT
    session_id: str | None = None
    metadata: Json = {}


class Fork(_Body):
    """POST /sessions/{session_id}/fork"""

    session_id: str | None = None


class NewMessage(_Body):
    """POST /sessions/{session_id}/messages"""

    role: str
    content: str | list[Any]
    metadata: Json = {}


class NewContent(_Body):
    """PATCH /sessions/{session_id}/messages/{index}"""

    content: str | list[Any]
    expected_cursor_event_id: str | None = None


class Deletion(_Body):
    """DELETE /sessions/{session_id}/messages"""

    indices: list[int]
    expected_cursor_event_id: str | None = None


class Sent(_Body):
    """POST /sessions/{session_id}/send"""

    content: str | list[Any]
    metadata: Json = {}
    request_id: str | None = None
    stream: bool = True
    stream_tools: bool = True


class Decision(_Body):
    """POST /sessions/{session_id}/requests/{request_id}/approvals/{approval_id}"""

    decision: Literal["allow", "deny"]


class SessionRoutes:
    """Answers for the sessions of one home. Without a `runner`, `send` is refused."""

    def __init__(
        self, sessions: Sessions, requests: RequestExecution, epoch: Callable[[], str], runner: Runner | None
    ) -> None:
        self._sessions = sessions
        self._requests = requests
        self._epoch = epoch
        self._runner = runner

    def routes(self) -> list[web.RouteDef]:
        """Everything below /sessions."""
        one = "/sessions/{session_id}"
        request = one + "/requests/{request_id}"
        table: list[tuple[str, str, Callable[[web.Request], Awaitable[web.Response]]]] = [
            ("POST", "/sessions", self.create),
            ("GET", "/sessions", self.listing),
            ("GET", one, self.get),
            ("POST", one + "/fork", self.fork),
            ("GET", one + "/messages", self.messages),
            ("POST", one + "/messages", self.append),
            ("DELETE", one + "/messages", self.delete),
            ("PATCH", one + "/messages/{index}", self.modify),
            ("POST", one + "/send", self.send),
            ("POST", request + "/cancel", self.cancel),
            ("POST", request + "/approvals/{approval_id}", self.decide),
        ]
        return [web.route(method, path, _explaining(handler)) for method, path, handler in table]

    async def create(self, request: web.Request) -> web.Response:
        body = await read(request, NewSession)
        record, shown = await self._sessions.create(
            agent_id=body.agent_id, session_id=body.session_id, metadata=body.metadata
        )
        return answer({"session": shown, **self._place(record)}, 201)

    async def fork(self, request: web.Request) -> web.Response:
        body = await read(request, Fork)
        record, shown = await self._sessions.fork(session_of(request), session_id=body.session_id)
        return answer({"session": shown, **self._place(record)}, 201)

    async def listing(self, request: web.Request) -> web.Response:
        limit = _whole(request, "limit", DEFAULT_PAGE, 1, MAX_PAGE)
        found = await self._sessions.list(before=_cursor(_given(request, "before"), "before"), limit=limit)
        shown = [self._shown(record) for record in found]
        before = str(found[-1].cursor_event_id) if len(found) == limit else None
        runner = self._runner.name if self._runner else None
        return answer({"sessions": shown, "next_before": before, "epoch": self._epoch(), "runner": runner})

    async def get(self, request: web.Request) -> web.Response:
        record = await self._sessions.get(session_of(request))
        return answer({"session": self._shown(record), **self._place(record)})

    async def messages(self, request: web.Request) -> web.Response:
        name = "expected_cursor_event_id"
        page = await self._sessions.page(
            session_of(request),
            offset=_whole(request, "offset", 0, -rules.MAX_MESSAGES, rules.MAX_MESSAGES),
            limit=_whole(request, "limit", MAX_PAGE_MESSAGES, 1, MAX_PAGE_MESSAGES),
            expected=_cursor(_given(request, name), name),
        )
        about = {
            "session_id": page.record.session_id,
            "messages": [msgspec.Raw(message) for message in page.messages],
            "offset": page.offset,
            "next_offset": page.next_offset,
            "message_count": page.record.message_count,
            "request": self._request(page.record),
        }
        return answer({**about, **self._place(page.record)})

    async def append(self, request: web.Request) -> web.Response:
        body = await read(request, NewMessage)
        message = Message(role=body.role, content=body.content, metadata=body.metadata)
        record, index = await self._sessions.append(session_of(request), message)
        return answer({"index": index, "message": message, **self._place(record)}, 201)

    async def modify(self, request: web.Request) -> web.Response:
        text = request.match_info["index"]
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and text == str(int(text))):
            raise rules.NoSuchMessage(f"{text[:40]!r} is no index of a message: a whole number, from 0 on")
        body = await read(request, NewContent)
        name = "expected_cursor_event_id"
        record, message = await self._sessions.modify(
            session_of(request), int(text), body.content, expected=_cursor(body.expected_cursor_event_id, name)
        )
        return answer({"index": int(text), "message": message, **self._place(record)})

    async def delete(self, request: web.Request) -> web.Response:
        body = await read(request, Deletion)
        expected = _cursor(body.expected_cursor_event_id, "expected_cursor_event_id")
        record = await self._sessions.delete(session_of(request), body.indices, expected=expected)
        return answer(
            {"indices": sorted(set(body.indices)), "message_count": record.message_count, **self._place(record)}
        )

    async def send(self, request: web.Request) -> web.Response:
        body = await read(request, Sent)
        if self._runner is None:
            raise ApiError(503, "no_runner", "nobody answers messages here: the setting runner says who is to")
        session_id = session_of(request)
        request_id = await self._requests.start(
            session_id,
            Message(role="user", content=body.content, metadata=body.metadata),
            runner=self._runner,
            stream=body.stream,
            stream_tools=body.stream_tools,
            request_id=body.request_id,
        )
        return answer({"session_id": session_id, "request_id": request_id}, 202)

    async def cancel(self, request: web.Request) -> web.Response:
        session_id, request_id = session_of(request), request.match_info["request_id"]
        self._requests.cancel(session_id, request_id)
        return answer({"session_id": session_id, "request_id": request_id}, 202)

    async def decide(self, request: web.Request) -> web.Response:
        body = await read(request, Decision)
        approval_id = request.match_info["approval_id"]
        self._requests.decide(
            session_of(request), request.match_info["request_id"], approval_id, body.decision == "allow"
        )
        return answer({"approval_id": approval_id, "decision": body.decision})

    def _place(self, record: SessionRecord) -> Json:
        """Where events go on behind this answer."""
        return {"cursor_event_id": str(record.cursor_event_id), "epoch": self._epoch()}

    def _shown(self, record: SessionRecord) -> Json:
        cursor = {"cursor_event_id": str(record.cursor_event_id), "request": self._request(record)}
        return {**rules.about(record), **cursor}

    def _request(self, record: SessionRecord) -> Json | None:
        """The request under way, and what it has asked."""
        if record.request_id is None:
            return None
        running = self._requests.running(record.session_id)
        asked = running.approvals if running is not None and running.request_id == record.request_id else []
        return {"request_id": record.request_id, "approvals": asked}


def _explaining(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def explained(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except (rules.SessionError, InvalidEvent) as error:
            raise explain(error) from None

    return explained


def explain(error: Exception) -> ApiError:
    """The answer to what can't be: a SessionError, or an event that can't be stored."""
    match error:
        case rules.NoSuchSession():
            return ApiError(404, "no_such_session", str(error))
        case rules.NoSuchMessage():
            return ApiError(404, "no_such_message", str(error))
        case NotRunning():
            return ApiError(404, "no_such_request", str(error))
        case NoSuchApproval():
            return ApiError(404, "no_such_approval", str(error))
        case rules.SessionExists():
            return ApiError(409, "session_exists", str(error))
        case rules.RequestRunning():
            return ApiError(409, "request_running", str(error), request_id=error.request_id)
        case rules.SessionChanged():
            return ApiError(409, "session_changed", str(error), cursor_event_id=str(error.cursor_event_id))
        case RequestIdTaken():
            return ApiError(409, "request_id_taken", str(error))
        case AlreadyDecided():
            return ApiError(409, "already_decided", str(error))
        case rules.SessionFull():
            return ApiError(409, "session_full", str(error))
        case TooManyRequests():
            return ApiError(429, "too_many_requests", str(error))
        case rules.TooLarge():
            return ApiError(413, "content_too_large", str(error))
    return ApiError(400, "bad_body", str(error))


def _given(request: web.Request, name: str) -> str | None:
    return parameters.read(list(request.query.items()), (name,)).get(name)


def _cursor(text: str | None, name: str) -> int | None:
    try:
        return None if text is None else ids.parse(text)
    except BadEventId as error:
        raise ApiError(400, "bad_parameter", f"{name} is {error}", parameter=name) from None


def _whole(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    text = _given(request, name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9 and least <= int(text) <= most):
        raise ApiError(400, "bad_parameter", f"{name} is {text[:40]!r}; it may be {least} to {most}", parameter=name)
    return int(text)
