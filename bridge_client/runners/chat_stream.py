"""One streamed chat completion: asked for over HTTP, tried again where that may help, its lines as they come."""

import asyncio
import email.utils
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from bridge_client.clock import Clock
from bridge_client.lines import Lines
from bridge_client.runners.redaction import Redaction
from bridge_client.runners.translation import reason_of
from protocol.events.truncation import cut_chars

log = logging.getLogger(__name__)

MAX_LINE: Final = 8 << 20
MAX_ANSWER: Final = 16 << 20
"""Bytes of an answer that is not streamed."""
MAX_ERROR: Final = 64 << 10
MAX_SAID_CHARS: Final = 500
"""Of what an endpoint says when it refuses."""
TRIES: Final = 4
LONGEST_WAIT: Final = 60.0
"""Seconds that an endpoint may ask for before another try; one that asks for more has refused."""
_CONNECT: Final = 30.0
_DAY: Final = 86_400.0
_PAGES: Final = ("text/html", "application/xhtml+xml")
_AGAIN: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class Endpoint(NamedTuple):
    """Where completions are asked for."""

    base_url: str
    """What `/chat/completions` is put behind, such as `https://api.openai.com/v1`."""
    api_key: str = ""
    silence: float = 120.0
    """Seconds for which a stream may be silent, its beginning included."""


class EndpointFailed(Exception):
    """No completion, or none that is whole. `kind` is one of `protocol.events.provider_error.KINDS`."""

    def __init__(
        self, message: str, kind: str, *, wait: float | None = None, again: bool = False, **details: Any
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.wait = wait
        """Seconds that the endpoint asks to wait before another try."""
        self.again = again
        """Whether another try may do better."""
        self.details = details


@asynccontextmanager
async def completion(
    endpoint: Endpoint, body: dict[str, Any], http: aiohttp.ClientSession, clock: Clock
) -> AsyncIterator[AsyncIterator[bytes]]:
    """The lines of the answer. Tried again, up to TRIES times, until an answer begins. Raises EndpointFailed."""
    retrying = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, EndpointFailed) and error.again),
        wait=_pause,
        stop=stop_after_attempt(TRIES),
        sleep=clock.sleep,
        before_sleep=_tell,
        reraise=True,
    )
    data = msgspec.json.encode(body)
    response: aiohttp.ClientResponse = await retrying(_ask, endpoint, data, http, clock)
    try:
        yield _lines(response, endpoint)
    finally:
        response.close()


async def _ask(endpoint: Endpoint, data: bytes, http: aiohttp.ClientSession, clock: Clock) -> aiohttp.ClientResponse:
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
    redaction = Redaction(endpoint.api_key)
    url = endpoint.base_url.rstrip("/") + "/chat/completions"
    timeout = aiohttp.ClientTimeout(total=None, connect=_CONNECT, sock_connect=_CONNECT, sock_read=endpoint.silence)
    try:
        # Not following where it redirects to: the key is for this endpoint alone.
        response = await http.post(url, data=data, headers=headers, timeout=timeout, allow_redirects=False)
    except TimeoutError:
        raise EndpointFailed(f"{url} does not answer", "timeout", again=True) from None
    except aiohttp.ClientError as error:
        raise EndpointFailed(
            redaction.error(f"{url} can't be reached: {error or type(error).__name__}"), "transport_exit", again=True
        ) from None
    if response.status == 200:
        return response
    try:
        async with asyncio.timeout(_CONNECT):
            body = await _beginning(response)
        said = cut_chars(redaction.error(_reason(body)), MAX_SAID_CHARS)  # cut after it: no part of the key is left
    except (aiohttp.ClientError, TimeoutError):
        said = ""
    response.close()
    wait = retry_after(response.headers.get("Retry-After"), clock.wall())
    again = response.status in _AGAIN and (wait or 0) <= LONGEST_WAIT
    asked = f"; it asks to wait {_how_long(wait, clock.wall())}" if wait is not None and wait > LONGEST_WAIT else ""
    raise EndpointFailed(
        f"{url} answers {response.status}{f': {said}' if said else ''}{asked}",
        "process_error",
        wait=wait,
        again=again,
        status=response.status,
    )


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    """The body, of a long one the first MAX_ERROR bytes or a little more."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) >= MAX_ERROR:
            break
    return bytes(body)


async def _lines(response: aiohttp.ClientResponse, endpoint: Endpoint) -> AsyncIterator[bytes]:
    """The lines of the body; of one that is no stream the whole, as one line. Raises EndpointFailed when it is cut."""
    lines = Lines(MAX_LINE)
    if response.content_type in _PAGES:
        raise EndpointFailed(
            f"{response.url} answers with a page ({response.content_type}), not with a stream of events:"
            " is it the address of an API?",
            "protocol_error",
        )
    try:
        if response.content_type == "application/json":
            whole = bytearray()
            async for chunk in response.content.iter_any():
                whole += chunk
                if len(whole) > MAX_ANSWER:
                    raise EndpointFailed(f"the answer is longer than {MAX_ANSWER} bytes", "protocol_error")
            yield bytes(whole).replace(b"\n", b" ")
            return
        async for chunk in response.content.iter_any():
            for line in lines.feed(chunk):
                if line.excess:
                    raise _overlong()
                yield line.text
            if lines.overlong:
                raise _overlong()
        for line in lines.end():
            yield line.text
    except TimeoutError:
        raise EndpointFailed(f"the stream stalled: nothing came for {endpoint.silence:g} s", "timeout") from None
    except aiohttp.ClientError as error:
        raise EndpointFailed(f"the stream was cut: {error or type(error).__name__}", "transport_exit") from None


def _overlong() -> EndpointFailed:
    return EndpointFailed(f"a line of the stream is longer than {MAX_LINE} bytes", "protocol_error")


def _how_long(wait: float, now: float) -> str:
    if wait < _DAY:
        return f"for {wait:g} s"
    return f"until {datetime.fromtimestamp(now, UTC) + timedelta(seconds=wait):%Y-%m-%d %H:%M} UTC"


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait, of a Retry-After header: a number or a date (RFC 9110 section 10.2.3); None if it is neither."""
    if value is None:
        return None
    if value.strip().isdecimal() and value.isascii() and len(value) < 10:
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked = error.wait if isinstance(error, EndpointFailed) else None
    # Many requests that were refused together do not come back together.
    return (asked or 0.0) + random.uniform(0, min(8.0, 0.5 * 2**state.attempt_number))  # noqa: S311 - no secret


def _tell(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    log.warning("%s; trying again in %.1f s", error, state.upcoming_sleep)


def _reason(body: bytes) -> str:
    """What an error's body says, in a sentence."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return body.decode("utf-8", "replace").strip()
    return reason_of(value.get("error", value) if isinstance(value, dict) else value)
