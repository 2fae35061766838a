"""Where the home is put together: the one module that names concrete backends."""

import asyncio
import logging
import random
import secrets
import shlex
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from bridge_client import keys, local_api, local_token, source_spec
from bridge_client import standing as how_it_stands
from bridge_client.api import address
from bridge_client.api.events import Events
from bridge_client.api.in_process import InProcess
from bridge_client.api.notifications import NotificationRoutes
from bridge_client.api.server import Api
from bridge_client.api.session_events import SessionEvents
from bridge_client.api.sessions import SessionRoutes
from bridge_client.api.status import StatusReport
from bridge_client.app_client import AppClient
from bridge_client.clock import SystemClock
from bridge_client.config import LOCAL_HUB_URL, BadConfig, Config
from bridge_client.cursor import CursorFile
from bridge_client.dead_letters import DeadLetters
from bridge_client.forwarder import Forwarder, Limits
from bridge_client.hub_state import hub_state
from bridge_client.keys import BadKeyFile, Credential, HubNotReady
from bridge_client.lag import Lag, Peek, watch
from bridge_client.link import Link
from bridge_client.local_events import LocalEvents
from bridge_client.notifications import ApplicationNotifications, Notifications, SessionNotifications
from bridge_client.one_off_session import OneOffSession
from bridge_client.request_execution import RequestExecution
from bridge_client.request_locks import RequestLocks
from bridge_client.requests import Audited, Requests
from bridge_client.retention import Keeper
from bridge_client.retention_report import Outlook
from bridge_client.runners import Runner
from bridge_client.runners.chat_stream import Endpoint
from bridge_client.runners.command import KNOWN, Command, CommandRunner
from bridge_client.runners.echo import EchoRunner
from bridge_client.runners.groups import ProcessGroups
from bridge_client.runners.json_lines import FORMATS
from bridge_client.runners.one_off import OneOff
from bridge_client.runners.openai import Model, OpenAIRunner
from bridge_client.runners.process import Limits as ProcessLimits
from bridge_client.runners.tools import ListFiles, ReadFile
from bridge_client.sessions import Sessions
from bridge_client.source_spec import SqliteSpec
from bridge_client.sources import Source
from bridge_client.sources.foreign_sqlite import ForeignSqlite
from bridge_client.sources.http import HttpSource
from bridge_client.sources.own_epoch import OwnEpoch
from bridge_client.sources.store import StoreSource
from bridge_client.store import sqlite_file
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_log import SqliteSessionLog
from bridge_client.store.sqlite_notifications import SqliteNotifications
from bridge_client.store.sqlite_requests import SqliteAnswers
from bridge_client.store.sqlite_retention import SqliteRetention
from bridge_client.store.sqlite_sessions import SqliteSessions
from protocol.loopback import normal_origin

LONGEST_WAIT = 5.0
"""Seconds between two tries to enrol while the hub is not there yet."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[SqliteStore]:
    """The home's event store, closed at the end. Raises StoreError."""
    store = await SqliteStore.open(config.store_path)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def open_letters(config: Config) -> AsyncIterator[DeadLetters]:
    """The events that can't be forwarded. Those of our store lie in it: it has to be there. Raises StoreError."""
    path = config.dead_letters_path
    letters = await DeadLetters.open(lambda: sqlite_file.open_letters(path), path)
    try:
        yield letters
    finally:
        await letters.close()


async def count_letters(config: Config) -> int:
    """How many events could not be forwarded. Makes no file. Raises StoreError."""
    if not config.dead_letters_path.exists():
        return 0
    async with AsyncExitStack() as stack:
        if config.source is None:
            await stack.enter_async_context(open_store(config))
        letters = await stack.enter_async_context(open_letters(config))
        return await letters.count()


async def obtain_credential(config: Config) -> Credential:
    """The home's credential: the one kept, or else a new one from the hub on this machine, which is then kept.

    While that hub is not there it is tried again, without end. Raises BadKeyFile, also when there is no file where one
    was named: whoever names it has a credential from elsewhere. Raises EnrolmentFailed.
    """
    path, hub_url = config.credential_path, config.hub_url or LOCAL_HUB_URL
    kept = keys.load_for(config.hub_url, path)
    if kept is not None:
        return kept
    if config.credential_file is not None:
        raise BadKeyFile(
            f"there is no {path}: make it on the hub (bridge-server servers add NAME --out FILE), or name no file"
            " to enrol with the hub on this machine"
        )
    retrying = AsyncRetrying(
        retry=retry_if_exception_type((aiohttp.ClientError, TimeoutError, HubNotReady)),
        wait=wait_random_exponential(multiplier=0.1, max=LONGEST_WAIT),
        before_sleep=_waiting,
        reraise=True,
    )
    async with aiohttp.ClientSession() as session:
        credential: Credential = await retrying(keys.enrol, hub_url, config.name, config.state_dir, session)
    keys.save(path, credential)
    _log.info("enrolled with %s as home %s; kept in %s", hub_url, credential.server_id, path)
    return credential


class Opened(NamedTuple):
    """What there is to forward, and how to look how far it has come without disturbing who reads it."""

    source: Source
    peek: Peek
    letters: DeadLetters
    store: SqliteStore | None = None
    """The home's own store, None when the source is somebody else's."""
    interval: float = 1.0
    """Seconds between two such looks."""


@asynccontextmanager
async def open_source(config: Config) -> AsyncIterator[Opened]:
    """The source that `config.source` names, else the home's own store; closed at the end.

    Waits for a foreign source that is away. Raises StoreError, SourceRefused, BadKeyFile.
    """
    if config.source is None:
        async with open_store(config) as store, open_letters(config) as letters:
            yield Opened(StoreSource(store), store.head, letters, store)
        return
    spec = source_spec.parse(config.source)
    epoch = await asyncio.to_thread(OwnEpoch, config.epoch_path, config.source)
    async with open_letters(config) as letters:
        if isinstance(spec, SqliteSpec):
            table = await ForeignSqlite.open(spec, epoch, letters=letters)
            try:
                yield Opened(table, table.peek, letters)
            finally:
                await table.close()
            return
        token = None if config.source_token_file is None else keys.read_token(config.source_token_file)
        async with aiohttp.ClientSession() as session:
            server = await HttpSource.open(spec.url, epoch, session, token=token, letters=letters)
            yield Opened(server, server.peek, letters, interval=10.0)


class CantListen(OSError):
    """The home's API can't have its address; the text says what to do."""


@asynccontextmanager
async def answering(config: Config, opened: Opened, runner: Runner | None = None) -> AsyncIterator[StatusReport]:
    """Answer programs on this machine as `config` says, from entry to exit; `url` of what it yields says where.

    The address stands in `config.address_path` meanwhile. `runner` answers what is sent to a session. Requests that a
    home left behind end here; those under way at the exit are stopped. Raises CantListen, BadKeyFile, StoreError.
    """
    clock = SystemClock()
    lag = Lag(clock)
    report = StatusReport(
        opened.source, opened.letters, lag, clock, {"name": config.name, "source": config.source_name}
    )
    tasks = [asyncio.create_task(watch(lag, opened.peek, report.acked, clock, opened.interval))]
    routes, requests = [web.get("/status", report.get)], None
    try:
        if (store := opened.store) is not None:
            sessions = Sessions(SqliteSessions(store), clock)
            notes = SessionNotifications(sessions, clock)
            locks = RequestLocks(config.locks_path)
            requests = RequestExecution(sessions, store, clock, notify=notes.tell, elsewhere=locks.held)
            await ProcessGroups(config.groups_path).end_left(clock)  # before a session is free for the next program
            await requests.recover()
            tasks.append(asyncio.create_task(requests.keep_recovering()))
            if runner is not None:
                report.runner = config.runner or runner.name
            if isinstance(runner, CommandRunner):
                report.runner_problem = runner.problem
                if problem := runner.problem():
                    _log.warning("messages can't be answered yet: %s", problem)
            stock, rules = SqliteRetention(store), config.retention
            report.outlook = lambda: stock.outlook(rules, clock.wall())
            keeper = Keeper(stock, rules, report.acked, clock)
            tasks.append(asyncio.create_task(keeper.run(), name="retention"))
            routes.append(web.get("/events", Events(store, sessions.cursor).get))
            routes += SessionRoutes(sessions, requests, lambda: store.epoch, runner).routes()
            routes += NotificationRoutes(ApplicationNotifications(SqliteNotifications(store), clock), notes).routes()
            routes += SessionEvents(SqliteSessionLog(store), lambda: store.epoch).routes()
        # Another server to be bridged may well have the usual port; what forwards it needs none in particular.
        port = None if not config.api else config.api_port if opened.store is not None else 0
        origins = [origin for text in config.api_origins if (origin := normal_origin(text))]
        token = local_token.obtain(config.state_dir) if config.api else secrets.token_urlsafe(32)
        api = Api(routes, token, host=config.api_host, port=port, origins=origins)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(api)
            except OSError as error:
                raise CantListen(await local_api.cant_listen(config.api_host, config.api_port, error)) from None
            if api.url:
                report.url = api.url
                address.write(config.address_path, api.url)
                stack.callback(address.remove, config.address_path)
            if store is not None:
                ask = await stack.enter_async_context(InProcess(api, token))
                report.requests = Requests(ask, SqliteAnswers(store), clock)
                stack.push_async_callback(report.requests.close)
            yield report
    finally:
        if requests is not None:
            await requests.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def outlook(config: Config) -> Outlook | None:
    """What the home's own store holds and what the home keeps, None while there is none. Raises StoreError."""
    if config.source is not None or not config.store_path.exists():
        return None  # and no file is made
    status = await local_api.running(address.find(config.address_path), config.state_dir)
    async with open_store(config) as store:
        return (await SqliteRetention(store).outlook(config.retention, time.time())).as_told(status)


def runner(config: Config) -> Runner | None:
    """Who answers what is sent to a session, as `config` says. Raises BadConfig, BadKeyFile."""
    limits = ProcessLimits(total=config.runner_timeout, silence=config.runner_silence)
    match config.runner:
        case None:
            return None
        case "echo":
            return EchoRunner()
        case "openai":
            key = config.runner_key() if config.runner_key_file is None else keys.read_token(config.runner_key_file)
            root, ask = config.runner_tools, config.runner_ask
            return OpenAIRunner(
                Endpoint(config.runner_url, key, config.runner_silence),
                Model(config.runner_model, config.runner_system),
                () if root is None else (ReadFile(root, ask=ask), ListFiles(root, ask=ask)),
            )
        case "command":
            words, resume = shlex.split(config.runner_command), shlex.split(config.runner_resume)
            format = config.runner_format
            if format is not None and format not in FORMATS:
                raise BadConfig(f"runner_format = {format!r}: is none of {', '.join(FORMATS)}")
            command = Command(words, resume, format, config.runner_dir)
        case known:
            command = KNOWN[known]._replace(cwd=config.runner_dir)
    return CommandRunner(command, limits=limits, groups=ProcessGroups(config.groups_path))


def runner_problem(config: Config) -> str | None:
    """Why the runner can't answer anything, and what to do, as far as can be seen from here; None: nothing is seen."""
    try:
        found = runner(config)
    except (BadConfig, BadKeyFile) as error:
        return str(error)
    return found.problem() if isinstance(found, CommandRunner) else None


@asynccontextmanager
async def notifications(config: Config, session_id: str | None) -> AsyncIterator[Notifications]:
    """Those of a session, or of the application, in the home's store, whether it runs or not. Raises StoreError."""
    clock = SystemClock()
    async with open_store(config) as store:
        if session_id is None:
            yield ApplicationNotifications(SqliteNotifications(store), clock)
        else:
            yield SessionNotifications(Sessions(SqliteSessions(store), clock), clock).of(session_id)


async def one_off(config: Config, command: Sequence[str], store: SqliteStore, session_id: str) -> OneOff:
    """A command whose output becomes events of a session. Raises BadSession, RequestRunning, StoreError."""
    clock, locks = SystemClock(), RequestLocks(config.locks_path)
    session = OneOffSession(Sessions(SqliteSessions(store), clock), store, locks, command, session_id)
    await session.check()
    return OneOff(command, session, clock)


@asynccontextmanager
async def forwarding(
    config: Config,
    credential: Credential,
    source: Source,
    letters: DeadLetters | None = None,
    requests: Requests | None = None,
) -> AsyncIterator[Forwarder]:
    """A forwarder from `source` to the hub, ready to `run`; its cursor is saved at the end."""
    cursor = CursorFile(config.cursor_path)
    try:
        yield Forwarder(
            source,
            cursor,
            Link(credential.hub_url, credential.credential, heartbeat=config.heartbeat, rng=random.SystemRandom()),
            server_id=credential.server_id,
            hub_url=credential.hub_url,
            name=config.name,
            instance=config.instance_name,
            limits=Limits(config.window_events, config.window_bytes, config.refill_events, config.refill_bytes),
            letters=letters,
            requests=requests,
        )
    finally:
        await cursor.close()


def app_client(
    credential: Credential, *, cursor: tuple[str | None, int] | None = None, session_id: str | None = None
) -> AppClient:
    """An app that reads the home of `credential`. Raises BadKeyFile when that is no app's."""
    if credential.device_id is None:
        raise BadKeyFile(
            "this is the credential of a home; an app needs its own: bridge-client redeem LINK (or, on the hub:"
            " bridge-server devices add)"
        )
    return AppClient(
        credential.hub_url, credential.credential, credential.server_id, cursor=cursor, session_id=session_id
    )


def local_events(
    config: Config, *, cursor: tuple[str | None, int] | None = None, session_id: str | None = None
) -> LocalEvents:
    """The events of the home that runs with this state directory. Raises BadKeyFile when none has ever run here."""
    token = local_token.load(config.state_dir)
    if token is None:
        raise BadKeyFile(f"no home has run with {config.state_dir} yet: start one, bridge-client serve")
    return LocalEvents(lambda: address.find(config.address_path), token, cursor=cursor, session_id=session_id)


async def standing(config: Config) -> dict[str, Any]:
    """How the home stands, whether it runs or not, without asking the hub. Makes no file.

    Raises StoreError, BadKeyFile.
    """
    return await how_it_stands.look(config, how_it_stands.Means(open_store, outlook, count_letters, runner_problem))


async def status(config: Config) -> dict[str, Any]:
    """The same, and what the hub says: docs/cli.md explains each member. Raises StoreError, BadKeyFile."""
    facts = await standing(config)
    return facts | {"hub": await hub_state(facts["hub_url"])}


async def audited(config: Config, limit: int) -> Sequence[Audited]:
    """The last lines of what apps have asked, the latest last. Makes no file. Raises StoreError."""
    if not config.store_path.exists():
        return []
    async with open_store(config) as store:
        return list(reversed(await SqliteAnswers(store).audited(limit)))


def _waiting(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    level = logging.WARNING if state.attempt_number == 1 else logging.DEBUG
    _log.log(level, "not enrolled yet: %s; trying again until the hub is there", error)
