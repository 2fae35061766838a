"""The routes of notifications, of the application and of sessions (rows A160 to A167): see docs/home-api.md."""

from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from bridge_client import notification_rules as rules
from bridge_client.api import ApiError
from bridge_client.api.json_bodies import answer, flag, session_of, text_of
from bridge_client.api.sessions import explain as explain_session
from bridge_client.notifications import Notifications, SessionNotifications
from bridge_client.session_rules import SessionError
from protocol.errors import InvalidEvent

Handler = Callable[[web.Request], Awaitable[web.Response]]

ENDINGS: Final = {"dismiss": "dismissed", "resolve": "resolved", "expire": "expired"}
"""The last segment of a path, and the status it gives (row A146)."""


class NotificationRoutes:
    """Answers for the notifications of one home."""

    def __init__(self, application: Notifications, sessions: SessionNotifications) -> None:
        self._application = application
        self._sessions = sessions

    def routes(self) -> list[web.RouteDef]:
        """Both owners, the same routes."""
        found: list[web.RouteDef] = []
        for path in ("/application/notifications", "/sessions/{session_id}/notifications"):
            found += [
                web.get(path, _explaining(self.listing)),
                web.post(path, _explaining(self.create)),
                *(
                    web.post(f"{path}/{{notification_id}}/{verb}", _explaining(self._ending(status)))
                    for verb, status in ENDINGS.items()
                ),
            ]
        return found

    def _of(self, request: web.Request) -> Notifications:
        if "session_id" not in request.match_info:
            return self._application
        return self._sessions.of(session_of(request))

    async def listing(self, request: web.Request) -> web.Response:
        found = await self._of(request).list(include_terminal=flag(request, "include_terminal"))
        return answer({"notifications": found})

    async def create(self, request: web.Request) -> web.Response:
        said = rules.read_draft(await text_of(request))
        said.source = said.source or {"kind": "api"}
        outcome = await self._of(request).create(said)
        return answer({"notification": outcome.record}, 201 if outcome.verb == "created" else 200)

    def _ending(self, status: str) -> Handler:
        async def end(request: web.Request) -> web.Response:
            said = rules.read_ending(await text_of(request))
            record = await self._of(request).end(request.match_info["notification_id"], status, said)
            return answer({"notification": record})

        return end


def _explaining(handler: Handler) -> Handler:
    async def explained(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except rules.NotificationError as error:
            raise _explain(error) from None
        except (SessionError, InvalidEvent) as error:
            raise explain_session(error) from None

    return explained


def _explain(error: rules.NotificationError) -> ApiError:
    match error:
        case rules.NoSuchNotification():
            return ApiError(404, "no_such_notification", str(error))
        case rules.StaleRevision():
            return ApiError(409, "stale_revision", str(error), notification=error.record)
        case rules.InvalidTransition():
            return ApiError(409, "invalid_transition", str(error), notification=error.record)
        case rules.NotificationsFull():
            return ApiError(409, "notifications_full", str(error))
    return ApiError(400, "bad_body", str(error))
