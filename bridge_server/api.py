"""The hub's HTTP API: pairing, the apps of a home, and who a credential is. JSON in and out.

Who asks is decided from the credential before anything is looked up, and what belongs to another home is answered like
what does not exist: same status, same bytes, same path through the code. Errors are `{"error": {"code", "message"}}`
with the codes of `protocol.errors.API_ERRORS`; docs/pairing.md describes the API for those who write apps.

What touches the disk runs on a thread of its own, so that no attempt of a stranger holds up the events of others.
"""

import asyncio
import logging
import math
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from bridge_server.auth import SCOPES, Credentials, Device, Identity, Refused, Server, clean_name
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.database import try_later
from bridge_server.home import Homes
from bridge_server.pairing import PairingRefused, Pairings
from protocol.codec import open_json
from protocol.errors import API_ERRORS, BadCode, ProtocolError
from protocol.loopback import client_address, listed, normal_origin
from protocol.pairing import (
    ME_PATH,
    PAIRING_CODES_PATH,
    PAIRING_REDEEM_PATH,
    SERVERS_PATH,
    CodeIssued,
    CodeWanted,
    DeviceFacts,
    DeviceList,
    DeviceListed,
    HomeSeen,
    OperatorFacts,
    PairedDevice,
    PairingState,
    Redeem,
    Redeemed,
    ServerFacts,
    pairing_link,
    parse_code,
)

MAX_BODY: Final = 4096
BODY_SECONDS: Final = 5.0

MAX_WAITING: Final = 128
"""Requests that wait for the thread at a time; of strangers, who have no credential, a quarter of it."""

_log = logging.getLogger("bridge_server.api")
_T = TypeVar("_T")
_wanted: Final = msgspec.json.Decoder(CodeWanted)
_redeem: Final = msgspec.json.Decoder(Redeem)


class Problem(Exception):
    """The answer is an error: `code` is a key of API_ERRORS, `message` replaces its meaning."""

    def __init__(self, code: str, message: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.retry_after = retry_after


class Api:
    """The routes of one hub. Between `start` and `close` its thread holds a connection to the database.

    `authenticate` raises auth.Refused; `online` gives the credential ids that hold an open socket now; pages of
    `origins` may read the answers (CORS).
    """

    def __init__(
        self,
        database: Path,
        *,
        authenticate: Callable[[web.Request], Identity],
        server_name: Callable[[str], str],
        online: Callable[[], frozenset[int]],
        homes: Homes,
        clock: Clock,
        config: Config,
        origins: frozenset[str],
    ) -> None:
        self._database = database
        self._authenticate = authenticate
        self._stored_name = server_name
        self._online = online
        self._homes = homes
        self._clock = clock
        self._config = config
        self._origins = origins
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pairing")
        self._credentials: Credentials | None = None
        self._pairings: Pairings | None = None

    async def start(self) -> None:
        """Open the database. Raises database.BadDatabase, and has let go of everything then."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        except BaseException:
            self._thread.shutdown()
            raise

    async def close(self) -> None:
        """Finish what is under way and let go of the database. Closing twice is harmless."""
        if self._credentials is not None:
            credentials, self._credentials = self._credentials, None
            await asyncio.get_running_loop().run_in_executor(self._thread, credentials.close)
        self._thread.shutdown()

    def routes(self) -> list[web.RouteDef]:
        """What to add to the hub's aiohttp application, which checks Host and Origin before it routes."""
        code = PAIRING_CODES_PATH + "/{pairing_id:[0-9a-z]{1,64}}"
        devices = SERVERS_PATH + "/{server_id:[0-9a-z]{1,64}}/devices"
        device = devices + "/{device_id:[0-9a-z]{1,64}}"
        handlers = [
            ("POST", PAIRING_CODES_PATH, self._new_code),
            ("GET", code, self._code),
            ("DELETE", code, self._close_code),
            ("POST", PAIRING_REDEEM_PATH, self._redeem),
            ("GET", devices, self._devices),
            ("DELETE", device, self._revoke_device),
            ("GET", ME_PATH, self._me),
        ]
        routes = [web.route(method, path, _answering(handler)) for method, path, handler in handlers]
        paths = dict.fromkeys(path for _, path, _ in handlers)
        return routes + [web.route("OPTIONS", path, _preflight) for path in paths]

    async def prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        """A hook for `on_response_prepare`: no answer of the API is cached, and only listed origins may read one."""
        if not request.path.startswith("/api/"):
            return
        response.headers["Cache-Control"] = "no-store"
        response.headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin is not None and listed(origin, self._origins):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE"
            response.headers["Access-Control-Allow-Headers"] = "Authorization, X-API-Key, Content-Type"
            response.headers["Access-Control-Expose-Headers"] = "Retry-After"
            response.headers["Access-Control-Max-Age"] = "600"

    # Pairing.

    async def _new_code(self, request: web.Request) -> web.Response:
        home = self._home(request)
        wanted = await _body(request, _wanted) if request.body_exists else CodeWanted()
        scopes = tuple(scope for scope in SCOPES if scope in wanted.scopes)
        issued = await self._run(lambda pairings, _: pairings.open(home.server_id, scopes, wanted.expires_in))
        _log.info("home %s asked for code %s", home.server_id, issued.id)
        link = pairing_link(self._own_url(request), issued.code)
        return _json(201, CodeIssued(issued.id, str(issued.code), _shown(issued.expires_at), list(scopes), link))

    async def _code(self, request: web.Request) -> web.Response:
        home, pairing_id = self._home(request), request.match_info["pairing_id"]
        state, device = await self._run(lambda pairings, _: pairings.find(home.server_id, pairing_id))
        if device is None:
            return _json(200, PairingState(state))
        return _json(200, PairingState(state, PairedDevice(device.device_id, device.name, _sorted(device))))

    async def _close_code(self, request: web.Request) -> web.Response:
        home, pairing_id = self._home(request), request.match_info["pairing_id"]
        await self._run(lambda pairings, _: pairings.close(home.server_id, pairing_id))
        return web.Response(status=204)

    async def _redeem(self, request: web.Request) -> web.Response:
        body = await _body(request, _redeem)
        try:
            code = parse_code(body.code)
        except BadCode as error:
            raise Problem("malformed", str(error)) from None
        try:
            name = clean_name(body.name)
        except ValueError:
            raise Problem("bad_name") from None
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        address = client_address(peer, request.headers.items(), self._config.trusted_proxies)
        device, token, server_name = await self._run(
            lambda pairings, _: pairings.redeem(code, name, address), most=MAX_WAITING // 4
        )
        _log.info(
            "app %s, %r, from %s was paired with home %s", device.device_id, device.name, address, device.server_id
        )
        shown = self._homes.get(device.server_id).name or server_name
        return _json(201, Redeemed(device.device_id, device.server_id, shown, _sorted(device), token))

    # The apps of a home.

    async def _devices(self, request: web.Request) -> web.Response:
        home = self._own_home(request)
        entries = await self._run(lambda _, credentials: credentials.devices(home.server_id))
        online = self._online()
        listed = [
            DeviceListed(
                entry.identity.device_id,
                entry.identity.name,
                _sorted(entry.identity),
                _shown(entry.created_at),
                None if entry.revoked_at is None else _shown(entry.revoked_at),
                entry.identity.credential_id in online,
            )
            for entry in entries
            if isinstance(entry.identity, Device)
        ]
        return _json(200, DeviceList(listed))

    async def _revoke_device(self, request: web.Request) -> web.Response:
        home, device_id = self._own_home(request), request.match_info["device_id"]

        def revoke(_: Pairings, credentials: Credentials) -> int:
            if credentials.device(home.server_id, device_id) is None:
                raise Problem("not_found")
            return credentials.revoke_device(device_id)

        if await self._run(revoke):
            _log.info("home %s revoked app %s", home.server_id, device_id)
        return web.Response(status=204)

    async def _me(self, request: web.Request) -> web.Response:
        identity = self._identify(request)
        if isinstance(identity, Device):
            home = self._homes.get(identity.server_id)
            since = self._clock.shown(home.shown_since)  # what its apps are told on the socket
            try:
                server_name = home.name or self._stored_name(identity.server_id)
            except KeyError:  # the home's credentials were revoked one by one; its apps stand
                server_name = identity.server_id
            facts: DeviceFacts | ServerFacts | OperatorFacts = DeviceFacts(
                identity.device_id,
                identity.name,
                identity.server_id,
                server_name,
                _sorted(identity),
                HomeSeen(home.shown_online, since),
            )
        elif isinstance(identity, Server):
            facts = ServerFacts(identity.server_id, identity.name)
        else:
            facts = OperatorFacts(identity.name)
        return _json(200, facts)

    # Who asks, and where the work is done.

    def _identify(self, request: web.Request) -> Identity:
        try:
            return self._authenticate(request)
        except Refused as refusal:
            raise Problem(refusal.reason) from None

    def _home(self, request: web.Request) -> Server:
        identity = self._identify(request)
        if not isinstance(identity, Server):
            raise Problem("unauthorized", "only a home may do that: send the credential of a home")
        return identity

    def _own_home(self, request: web.Request) -> Server:
        home = self._home(request)
        if home.server_id != request.match_info["server_id"]:
            raise Problem("not_found")
        return home

    def _own_url(self, request: web.Request) -> str:
        # The Host header was checked on loopback; elsewhere the home that sends it only fools itself.
        return self._config.public_url or normal_origin(f"http://{request.host}") or f"http://{self._config.host}"

    async def _run(self, work: Callable[[Pairings, Credentials], _T], most: int = MAX_WAITING) -> _T:
        if self._waiting >= most:
            raise Problem("overloaded", retry_after=1.0)
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)
        # Counted until the thread has done it, also when nobody waits any more.
        future.add_done_callback(self._done)
        try:
            return await asyncio.shield(future)
        except PairingRefused as refusal:
            raise Problem(refusal.code, retry_after=refusal.retry_after) from None
        except sqlite3.Error as failure:
            if not try_later(failure):
                raise
            _log.warning("the database can't be written now: %s", failure)
            raise Problem("overloaded", retry_after=1.0) from None

    def _done(self, future: "asyncio.Future[Any]") -> None:
        self._waiting -= 1
        if not future.cancelled():
            future.exception()  # seen: whoever waited for it may be gone

    def _work(self, work: Callable[[Pairings, Credentials], _T]) -> _T:
        assert self._pairings is not None
        assert self._credentials is not None
        return work(self._pairings, self._credentials)

    def _open(self) -> None:
        credentials = Credentials(self._database, clock=self._clock.wall)
        try:
            self._pairings = Pairings(credentials, clock=self._clock.wall)
        except BaseException:
            credentials.close()
            raise
        self._credentials = credentials


def error(code: str, message: str | None = None, retry_after: float | None = None) -> web.Response:
    """An error of the API. `retry_after` is seconds."""
    row = API_ERRORS[code]
    content: dict[str, Any] = {"code": code, "message": message or row.meaning}
    headers = {}
    if retry_after is not None:
        content["retry_after_ms"] = math.ceil(retry_after * 1000)
        headers["Retry-After"] = str(math.ceil(retry_after))
    return _json(row.status, {"error": content}, headers)


def _answering(handler: Callable[[web.Request], Awaitable[web.Response]]) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Problem as problem:
            return error(problem.code, problem.message, problem.retry_after)

    return answer


async def _preflight(request: web.Request) -> web.Response:
    return web.Response(status=204)


async def _body(request: web.Request, decoder: msgspec.json.Decoder[_T]) -> _T:
    if request.content_type != "application/json":
        raise Problem("unsupported_media_type")
    if (request.content_length or 0) > MAX_BODY:
        raise Problem("too_large")
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.content.iter_any():
                data += chunk
                if len(data) > MAX_BODY:
                    raise Problem("too_large")
    except TimeoutError:
        raise Problem("timeout") from None
    except web.RequestPayloadError:
        raise Problem("bad_request", "the body can't be read") from None
    try:
        return open_json(decoder, bytes(data))
    except ProtocolError as refusal:
        raise Problem("bad_request", refusal.reason) from None


def _sorted(device: Device) -> list[str]:
    return [scope for scope in SCOPES if scope in device.scopes]


def _shown(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds" if seconds % 1 else "seconds").replace("+00:00", "Z")


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )
