"""What the routes of the home's API have in common: bodies that are JSON objects, answers, parameters."""

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from bridge_client import session_rules as rules
from bridge_client.api import ApiError, parameters
from bridge_client.api.patience import BODY_SECONDS
from protocol.codec import MAX_EVENT_DEPTH, open_json
from protocol.errors import ProtocolError

T = TypeVar("T")


async def text_of(request: web.Request) -> bytes:
    """The body as it came. Raises ApiError."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, "timeout", f"the body took longer than {BODY_SECONDS:.0f} s") from None
    except web.RequestPayloadError:
        raise ApiError(400, "bad_body", "the body is not in the chunks that its head announces") from None


async def read(request: web.Request, kind: type[T]) -> T:
    """The body; an empty one is `{}`. Raises ApiError."""
    text = await text_of(request)
    try:
        return open_json(msgspec.json.Decoder(kind), text or b"{}", MAX_EVENT_DEPTH - 4)
    except ProtocolError as error:
        reason = error.reason if text else f"a JSON body is needed: {error.reason}"
        raise ApiError(400, "bad_body", reason) from None


def answer(members: Mapping[str, Any], status: int = 200) -> web.Response:
    """An answer with these members."""
    return web.Response(body=msgspec.json.encode(members), status=status, content_type="application/json")


def session_of(request: web.Request) -> str:
    """The session in the path. Raises NoSuchSession for what can't be the id of one."""
    session_id = request.match_info["session_id"]
    try:
        return rules.check_id(session_id)
    except rules.BadSession:
        raise rules.NoSuchSession(session_id) from None


def flag(request: web.Request, name: str) -> bool:
    """A parameter that is `true` or `false`, the default. Raises ApiError."""
    text = parameters.read(list(request.query.items()), (name,)).get(name, "false")
    if text not in ("true", "false"):
        raise ApiError(400, "bad_parameter", f"{name} is {text[:40]!r}; it may be true or false", parameter=name)
    return text == "true"
