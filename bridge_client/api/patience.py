"""How long the home's API waits for a request to be complete: whoever stops in the middle of one is let go.

Each half-sent request would hold a connection, and a home has few; it takes no token to send one. aiohttp itself has
no bound for a head.
"""

import asyncio
import logging
from typing import Final

from aiohttp import web

from bridge_client.api.unreadable import HttpConnection

HEAD_SECONDS: Final = 10.0
"""From the connection, or the first byte of a further request, to the end of the head."""
BODY_SECONDS: Final = 30.0
"""From the head to the end of the body."""
IDLE_SECONDS: Final = 75.0
"""Between two requests of a connection."""


class PatientConnection(HttpConnection):
    """A connection that ends when a head takes longer than `head_seconds`. `begun` and `done` frame each request."""

    __slots__ = ("_answering", "_head_seconds", "_timer")

    def __init__(self, server: web.Server, logger: logging.Logger, head_seconds: float = HEAD_SECONDS) -> None:
        super().__init__(server, logger, keepalive_timeout=IDLE_SECONDS)
        self._head_seconds = head_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A new connection."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Part of a request. More of the same head gains no time."""
        if self._timer is None and not self._answering:
            self._await_head()
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection ended."""
        self._stop()
        super().connection_lost(exc)

    def begun(self) -> None:
        """A head is complete."""
        self._answering = True
        self._stop()

    def done(self) -> None:
        """Its request has an answer. Of a next one nothing has come, or IDLE_SECONDS bound the rest of it."""
        self._answering = False

    def _await_head(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._head_seconds, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if self.transport is not None:
            self.transport.abort()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
