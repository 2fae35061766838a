"""What is said to a connection that brings no HTTP request: JSON, as every error, and nothing of what came."""

import asyncio
import logging
from typing import Final

import msgspec
from aiohttp import web

log = logging.getLogger("bridge_server.http")

_UNREADABLE: Final = "this is no HTTP/1.1 request that can be read: one header a line, and one Host among them"
_FAILED: Final = "the hub could not answer; its log says why"


class HttpConnection(web.RequestHandler):
    """aiohttp's end of one connection, but for its own errors: those would repeat, and log, the line that is wrong."""

    __slots__ = ()

    def __init__(self, server: web.Server, logger: logging.Logger) -> None:
        # No line for each request: None means that, whatever the annotation says.
        # Bodies are not encoded here: none is unpacked, and one that says that it is is refused by its head.
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            logger=logger,
            auto_decompress=False,
        )

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer, which ends the connection. Raises ConnectionError when another one has begun."""
        if status >= 500:
            log.error("a connection could not be answered", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        code, said = ("internal", _FAILED) if status >= 500 else ("bad_request", _UNREADABLE)
        body = msgspec.json.encode({"error": {"code": code, "message": said}})
        answer = web.Response(status=status, body=body, content_type="application/json")
        answer.force_close()
        return answer
