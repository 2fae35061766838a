"""The hub put together: the only module that names concrete backends, and the only one that knows all the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final

from aiohttp import web

from bridge_server import enrol, openapi
from bridge_server.api import Api, error
from bridge_server.auth import Credentials, Device, Identity, Operator, Refused, credential
from bridge_server.backlog import Marks
from bridge_server.channels import Router, Socket
from bridge_server.channels.app import AppChannel, show_home
from bridge_server.channels.presence import Presence
from bridge_server.channels.server import ServerChannel
from bridge_server.clock import Clock
from bridge_server.config import Config
from bridge_server.database import BadDatabase
from bridge_server.device_cursors import DeviceCursors
from bridge_server.history.memory import MemoryHistory
from bridge_server.home import Homes
from bridge_server.hub import Hub as Topics
from bridge_server.limits import Limits
from bridge_server.listening import Listening, url_of
from bridge_server.metrics import Metrics
from bridge_server.outbox import Budget
from bridge_server.pubsub.memory import MemoryPubSub
from bridge_server.readings import readings
from bridge_server.transports.handshake import Mount, Pairs
from bridge_server.transports.longpoll import LongPolling
from bridge_server.transports.port import GOODBYE_SECONDS, Port
from bridge_server.transports.unreadable import HttpConnection
from bridge_server.web import routes as viewer
from protocol import loopback
from protocol.errors import API_ERRORS
from protocol.topics import app_topic

log = logging.getLogger("bridge_server")
_http_log = logging.getLogger("bridge_server.silent")

REVOCATION_SECONDS: Final = 0.2
"""How often revocations are looked for.

An open socket of a revoked credential lives no longer than this and its goodbye.
"""

EXPIRY_SECONDS: Final = 60.0


class Hub:
    """One hub: `async with Hub(config) as hub` listens on entry and ends every connection on exit.

    `router` may be given channels of an embedder before entry; ours are `server:*` and `app:*`. Such channels publish
    through `topics` and show who is there through `presence`. `mounts` adds further paths beside `/socket`.
    """

    def __init__(
        self,
        config: Config | None = None,
        credentials: Credentials | None = None,
        *,
        clock: Clock | None = None,
        mounts: tuple[Mount, ...] = (),
    ) -> None:
        self.config = config or Config()
        self.clock = clock or Clock()
        self.credentials = credentials or Credentials(self.config.database_path)
        self.router = Router()
        self.topics = Topics(
            MemoryPubSub(),
            segment_bytes=self.config.queue_handover_bytes,
            merge_window=self.config.merge_window,
        )
        self.presence = Presence(self.topics, self.clock.now, grace=self.config.presence_grace)
        self.homes = Homes(
            MemoryHistory(self.config.history_events, self.config.history_bytes, self.config.history_seconds),
            self.clock.now,
            lambda home: show_home(home, self.presence, self.clock),
        )
        self.device_cursors = DeviceCursors(self.credentials.database)
        self.budget = Budget(self.config.queue_total_bytes, Marks.of(self.config), self.clock.now)
        self.limits = Limits(self.config)
        self.port = 0
        self.url = ""
        self._origins = frozenset(origin for text in self.config.origins if (origin := loopback.origin_entry(text)))
        self._enrolment: enrol.LocalEnrolment | None = None
        self._own_credentials = credentials is None
        self._listening: Listening | None = None
        self._extra_mounts = mounts
        self._tasks: list[asyncio.Task[None]] = []
        self._failing = False  # revocations can't be read
        self._closed = asyncio.Event()
        self.longpoll: LongPolling | None = None
        self._listener: Port | None = None
        self._runner: web.AppRunner | None = None
        self._api: Api | None = None

    async def __aenter__(self) -> "Hub":
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def _open(self) -> None:
        config = self.config
        on_loopback = config.host in loopback.LOOPBACK_NAMES
        hosts = loopback.expected_hosts(config.public_url) if on_loopback else None
        self.router.add("server:*", lambda socket: ServerChannel(socket, self.topics, self.homes, config, self.clock))
        self.router.add("app:*", lambda socket: self._app_channel(socket))
        mount = Mount(
            "/socket",
            self.router,
            self._authenticate,
            idle_timeout=config.idle_timeout,
            max_frame_bytes=config.max_frame_bytes,
            channel_limit=config.channel_limit,
            ping_interval=config.ping_interval,
            compression=config.compression,
            origins=self._origins,
            poll_window=config.poll_window,
        )
        self._api = Api(
            self.credentials.database.path,
            authenticate=lambda request: self._authenticate(
                list(request.headers.items()), (), list(request.query.items())
            ),
            server_name=self.credentials.server_name,
            online=self._online,
            homes=self.homes,
            clock=self.clock,
            config=config,
            origins=self._origins,
        )
        await self._api.start()
        self._runner = web.AppRunner(
            self._http(hosts),
            handler_cancellation=True,
            access_log=None,
            logger=_http_log,
            shutdown_timeout=GOODBYE_SECONDS,
        )
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._listener = Port(
            (mount, *self._extra_mounts),
            lambda: HttpConnection(server, _http_log),
            hub=self.topics,
            budget=self.budget,
            clock=self.clock,
            hosts=hosts,
            max_connections=config.max_connections,
            handshake_timeout=config.handshake_timeout,
            limits=self.limits,
            trusted_proxies=config.trusted_proxies,
        )
        self.longpoll = LongPolling(self._listener, self.credentials.is_live)
        address, self.port = await self._listener.open(config.host, config.port)
        shown = f"[{address}]" if ":" in address else address
        self.url = f"http://{shown}:{self.port}"
        if self._enrolment is not None:
            self._enrolment.write_key(config.state_dir, self.port)
        if self._own_credentials:
            try:
                url = config.public_url or url_of(config.host, self.port)
                self._listening = Listening.say(config.database_path, url)
            except OSError as error:
                log.warning("credentials made from now on need --hub-url, this hub's address can't be kept: %s", error)
        self.metrics = Metrics(
            readings(
                self._listener.drivers,
                self._listener.refusals.counts,
                self.homes,
                self.topics,
                self.budget,
                self.limits,
                self.longpoll.sessions,
            )
        )
        loop = asyncio.get_running_loop()
        work = (self._watch_revocations(), self._expire(), self.device_cursors.run())
        self._tasks = [loop.create_task(task) for task in work]
        log.info("listening on %s", self.url)

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def drain(self) -> None:
        """End every socket with the configured code, spread over the configured time; its client comes back."""
        code = None if self.config.drain_code == "abort" else self.config.drain_code
        if self._listener is not None:
            await self._listener.drain(self.config.drain_seconds, code)

    async def wait_closed(self) -> None:
        """Wait until `close` has run."""
        await self._closed.wait()

    async def close(self) -> None:
        """End every connection, stop listening, let go of the files. Closing twice is harmless."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            await self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        if self._api is not None:
            await self._api.close()
        if self._enrolment is not None:
            self._enrolment.remove_key()
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        await self.device_cursors.close()
        if self._own_credentials:
            self.credentials.close()
        self._closed.set()

    def _app_channel(self, socket: Socket) -> AppChannel:
        return AppChannel(socket, self.homes, self.presence, self.config, self.clock, self.device_cursors)

    def _authenticate(self, headers: Pairs, subprotocols: Sequence[str], query: Pairs) -> Identity:
        token = credential(headers, subprotocols, query, allow_query=self.config.allow_query_credentials)
        return self.credentials.authenticate(token)

    def _online(self) -> frozenset[int]:
        assert self._listener is not None
        peers = (driver.peer for driver in self._listener.drivers)
        return frozenset(
            peer.identity.credential_id for peer in peers if peer is not None and peer.identity is not None
        )

    async def _watch_revocations(self) -> None:
        unread = False
        while True:
            await asyncio.sleep(REVOCATION_SECONDS)
            try:
                unread = self.credentials.changed() or unread
                if unread:
                    self._end_sockets(self.credentials.revoked(), "credential_revoked", gone_for_good=True)
                    self._end_sockets(self.credentials.disconnected(), "disconnected", gone_for_good=False)
                unread = self._failing = False
            except BadDatabase as error:
                if not self._failing:
                    log.error("revocations can't be read: %s", error)
                self._failing = True
            except Exception:
                # Looking must go on: a database that is locked or full now may hold a revocation when it is well again.
                if not self._failing:
                    log.exception("revocations can't be read")
                self._failing = True

    def _end_sockets(self, credential_ids: frozenset[int], reason: str, *, gone_for_good: bool) -> None:
        if credential_ids and self._listener is not None:
            for driver in tuple(self._listener.drivers):
                identity = driver.peer.identity if driver.peer is not None else None
                if identity is not None and identity.credential_id in credential_ids:
                    driver.close(1001, reason)
                    if gone_for_good and isinstance(identity, Device):
                        self.presence.expel(app_topic(identity.server_id), identity.device_id)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_SECONDS)
            for home in self.homes:
                if home.log is not None:
                    home.log.expire(self.clock.now())

    # HTTP.

    def _http(self, hosts: frozenset[str] | None) -> web.Application:
        app = web.Application(middlewares=[self._site_check(hosts)], client_max_size=64 * 1024)
        app.on_response_prepare.append(_close_connection)
        assert self._api is not None
        app.on_response_prepare.append(self._api.prepare)
        app.router.add_routes(self._api.routes())
        app.router.add_routes(viewer.routes())
        app.router.add_routes([openapi.route(self.config.public_url)])
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/metrics", self._metrics)
        for path in ("/socket", *(mount.path for mount in self._extra_mounts)):
            app.router.add_route("*", f"{path}/websocket", _not_an_upgrade)
        if self.config.local_enrolment:
            self._enrolment = enrol.LocalEnrolment(self.credentials, clock=self.clock.now)
            app.router.add_routes(enrol.routes(self._enrolment))
        return app

    def _site_check(self, hosts: frozenset[str] | None) -> Any:
        @web.middleware
        async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
            longpoll = self.longpoll
            if longpoll is not None and (mount := longpoll.mount(request)) is not None:
                return await longpoll.answer(request, mount)  # which knows the origins of its mounts
            own = loopback.own_origins(self.port, self.config.public_url) | set(self._origins)
            if hosts is None:  # strangers may reach this port by any name, and so may its own pages
                own |= {
                    o for scheme in ("http", "https") if (o := loopback.normal_origin(f"{scheme}://{request.host}"))
                }
            link = request.path == "/" and request.method in ("GET", "HEAD")
            reason = loopback.check_request(request.headers.items(), hosts, own, link=link)
            if reason is not None:
                return error(reason)
            if request.headers.get("Content-Encoding", "identity").lower() != "identity":
                return error("unsupported_media_type")
            try:
                return await handler(request)
            except web.HTTPException as answer:
                code = answer.reason.lower().replace(" ", "_")
                shown = error(code) if code in API_ERRORS else _error(answer.status, code, answer.reason)
                if "Allow" in answer.headers:
                    shown.headers["Allow"] = answer.headers["Allow"]
                return shown
            except Exception:
                log.exception("the handler of %s failed", request.path)
                return error("internal")

        return check

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, request: web.Request) -> web.Response:
        listener = self._listener
        draining = listener is None or listener.draining
        status = "draining" if draining else "failing" if self._failing else "ready"
        return web.json_response({"status": status}, status=200 if status == "ready" else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        headers = list(request.headers.items())
        peer = request.transport.get_extra_info("peername") if request.transport else None
        address = loopback.client_address(peer, headers, self.config.trusted_proxies)
        local = not loopback.forwarded(headers) and loopback.is_loopback(address)
        if not local:
            try:
                if not isinstance(self.credentials.authenticate(credential(headers)), Operator):
                    raise Refused("unauthorized")
            except Refused as refusal:
                return _error(403, refusal.reason, "metrics need an operator's credential")
        return web.Response(body=self.metrics.text(), headers={"Content-Type": Metrics.content_type})


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _close_connection(request: web.BaseRequest, response: web.StreamResponse) -> None:
    # Only the first head of a connection is seen by the port; see transports/port.py.
    response.force_close()
    response.headers["Connection"] = "close"  # aiohttp has decided on this header before it asks us


async def _not_an_upgrade(request: web.Request) -> web.Response:
    hint = "this is a WebSocket endpoint: send GET with 'connection: upgrade' and 'upgrade: websocket' headers"
    return web.json_response({"reason": "bad_request", "message": hint}, status=400)  # as `port.py` says it


def _error(status: int, code: str, message: str) -> web.Response:
    return web.json_response({"error": {"code": code, "message": message}}, status=status)
