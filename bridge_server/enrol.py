"""Local enrolment, the hub's side: a home on this machine gets its credential by proving that it reads a key file.

Automatic by file, never by address: that a request comes from 127.0.0.1 says nothing (any user, any page in a browser,
any tunnel can send one), that its sender reads a 0600 file of this user says everything.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from bridge_server.auth import Credentials
from bridge_server.database import try_later
from protocol.codec import open_json
from protocol.errors import ProtocolError
from protocol.loopback import check_request, expected_hosts, forwarded, is_loopback
from protocol.pairing import (
    KEY_BYTES,
    LOCAL_CHALLENGE_PATH,
    LOCAL_ENROL_PATH,
    LocalAnswer,
    LocalChallenge,
    LocalEnrol,
    LocalEnrolled,
    home_proof,
    hub_proof,
    local_key_name,
    same_proof,
)

CHALLENGE_SECONDS = 30.0
MAX_CHALLENGES = 64
MAX_BODY = 4096
BODY_SECONDS = 5.0
LOCK_SECONDS = 0.1
"""How long an enrolment waits for another process that writes to the database; every socket waits with it."""

RETRY_SECONDS = 1
"""When a home may ask again after the database could not be written."""

_log = logging.getLogger("bridge_server.enrol")

_T = TypeVar("_T")
_challenge_decoder = msgspec.json.Decoder(LocalChallenge)
_enrol_decoder = msgspec.json.Decoder(LocalEnrol)


class EnrolmentRefused(Exception):
    """No credential. `status` is the HTTP status, `code` the machine-readable reason; the text says what to do."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class LocalEnrolment:
    """The open challenges of one hub and the key they are about. `clock` counts seconds and never goes back.

    A challenge serves once, for CHALLENGE_SECONDS; at most MAX_CHALLENGES are open. `credentials` is used on the event
    loop, so from now on its writes wait for LOCK_SECONDS at most.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        clock: Callable[[], float],
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._credentials = credentials
        credentials.database.wait_at_most(LOCK_SECONDS)
        self._clock = clock
        self._random = random
        self._key = random(KEY_BYTES)
        self._open: dict[str, tuple[str, float]] = {}
        self._file: Path | None = None

    def write_key(self, state_dir: Path, port: int) -> Path:
        """Leave the key for homes on this machine: whole, 0600, in place of what an earlier hub on `port` left."""
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = state_dir / local_key_name(port)
        fresh = state_dir / f".{path.name}.{secrets.token_hex(8)}"
        handle = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(self._key.hex().encode() + b"\n")
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        self._file = path
        return path

    def remove_key(self) -> None:
        """Take the key back when the hub stops; nobody can enrol with it any more."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()
            self._file = None

    def challenge(self, home_nonce: str) -> LocalAnswer:
        """Open a challenge and prove that this hub holds the key. Raises EnrolmentRefused when too many are open."""
        now = self._clock()
        self._open = {nonce: entry for nonce, entry in self._open.items() if entry[1] > now}
        if len(self._open) >= MAX_CHALLENGES:
            raise EnrolmentRefused(429, "rate_limited", f"too many open challenges; retry in {CHALLENGE_SECONDS:.0f} s")
        nonce = self._random(KEY_BYTES).hex()
        self._open[nonce] = (home_nonce, now + CHALLENGE_SECONDS)
        return LocalAnswer(nonce, hub_proof(self._key, home_nonce, nonce))

    def enrol(self, nonce: str, proof: str, name: str) -> LocalEnrolled:
        """Close the challenge `nonce` and, if `proof` is right, make a credential. Raises EnrolmentRefused, ValueError.

        A wrong proof closes the challenge too. An unknown, used or expired one is refused like a wrong proof.
        """
        home_nonce, expires = self._open.pop(nonce, ("00" * KEY_BYTES, 0.0))
        right = same_proof(proof, home_proof(self._key, home_nonce, nonce, name))
        if not right or expires <= self._clock():
            raise EnrolmentRefused(403, "proof_refused", "the proof does not fit an open challenge; start over")
        try:
            server, token = self._credentials.add_server(name)
        except sqlite3.Error as error:
            if not try_later(error):
                raise
            _log.warning("a home could not be enrolled: %s", error)
            raise EnrolmentRefused(503, "overloaded", f"the hub's database can't be written now ({error})") from None
        _log.info("home %s enrolled by key file as %r", server.server_id, server.name)
        return LocalEnrolled(server.server_id, token)


def routes(enrolment: LocalEnrolment) -> list[web.RouteDef]:
    """The two requests of local enrolment, for the hub's aiohttp application."""

    async def challenge(request: web.Request) -> web.Response:
        body = await _body(request, _challenge_decoder)
        return _json(200, enrolment.challenge(body.nonce))

    async def enrol(request: web.Request) -> web.Response:
        body = await _body(request, _enrol_decoder)
        try:
            return _json(200, enrolment.enrol(body.nonce, body.proof, body.name))
        except ValueError as error:
            raise EnrolmentRefused(400, "bad_name", str(error)) from None

    return [web.post(LOCAL_CHALLENGE_PATH, _guarded(challenge)), web.post(LOCAL_ENROL_PATH, _guarded(enrol))]


Handler = Callable[[web.Request], Awaitable[web.Response]]


def _guarded(handler: Handler) -> Handler:
    async def guarded(request: web.Request) -> web.Response:
        try:
            _check_caller(request)
            return await handler(request)
        except EnrolmentRefused as refusal:
            answer = _json(refusal.status, {"error": {"code": refusal.code, "message": str(refusal)}})
            if refusal.status == 503:
                answer.headers["Retry-After"] = str(RETRY_SECONDS)
            return answer

    return guarded


def _check_caller(request: web.Request) -> None:
    pairs = list(request.headers.items())
    if forwarded(pairs):
        raise EnrolmentRefused(403, "forwarded", "local enrolment is for this machine, not for what a proxy forwards")
    # No page in a browser enrols a home: no origin is listed.
    reason = check_request(pairs, expected_hosts(), ())
    if reason is not None:
        raise EnrolmentRefused(403, reason, "local enrolment takes requests of this machine's own programs only")
    if request.remote is None or not is_loopback(request.remote):
        raise EnrolmentRefused(403, "not_local", "local enrolment is for this machine")


async def _body(request: web.Request, decoder: msgspec.json.Decoder[_T]) -> _T:
    if request.content_type != "application/json":
        raise EnrolmentRefused(415, "unsupported_media_type", "send application/json")
    if (request.content_length or MAX_BODY + 1) > MAX_BODY:
        raise EnrolmentRefused(413, "too_large", f"send a body with a Content-Length of at most {MAX_BODY} bytes")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return open_json(decoder, await request.read())
    except TimeoutError:
        raise EnrolmentRefused(408, "timeout", f"the body took longer than {BODY_SECONDS:.0f} s") from None
    except ProtocolError as error:
        raise EnrolmentRefused(400, "bad_request", error.reason) from None


def _json(status: int, value: Any) -> web.Response:
    headers = {"Cache-Control": "no-store"}
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )
