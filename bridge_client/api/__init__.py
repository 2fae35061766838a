"""The home's HTTP API: what programs on this machine may ask of it (docs/home-api.md).

    server.py    the listener: who may ask, what an error looks like, /health
    events.py    GET /events: pages of the store, and waiting for the next event
    sessions.py, notifications.py    /sessions and what is below, /application/notifications
    session_events.py    GET /sessions/{session_id}/events: a session's events by their places in it
    openapi.py, answers.py    GET /openapi.json: all of this described
    patience.py    how long a request may take to come
    status.py    GET /status: how far forwarding has come

Every request passes the same gate before it is routed: `Host` and `Origin` name this machine or an origin the owner
listed, a body is JSON, and everything but /health carries the local token. Errors are
`{"error": {"code", "message", ...}}`. Nothing an answer holds may be cached.
"""

from typing import Any, Final

PROGRAM: Final = "bridge-client"
"""What /health says answers: so that another home can be told from another program."""


class ApiError(Exception):
    """An answer other than success: the HTTP status, a code for programs, a sentence for people, further members."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
