"""Where the home is put together: the one module that names concrete backends."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from bridge_client import keys
from bridge_client.app_client import AppClient
from bridge_client.config import LOCAL_HUB_URL, Config
from bridge_client.cursor import CursorFile, SavedCursor
from bridge_client.forwarder import Forwarder, Limits
from bridge_client.keys import BadKeyFile, Credential, HubNotReady
from bridge_client.link import Link
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore
from bridge_client.store.sqlite import SqliteStore

LONGEST_WAIT = 5.0
"""Seconds between two tries to enrol while the hub is not there yet."""

HUB_TIMEOUT = aiohttp.ClientTimeout(total=5.0)

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[EventStore]:
    """The home's event store, closed at the end. Raises StoreError."""
    store = await SqliteStore.open(config.store_path)
    try:
        yield store
    finally:
        await store.close()


def kept_credential(config: Config, path: Path) -> Credential | None:
    """The credential in `path`, None if there is no such file. Raises BadKeyFile, also when it is for another hub."""
    kept = keys.load(path)
    if kept is not None and config.hub_url is not None and config.hub_url.rstrip("/") != kept.hub_url.rstrip("/"):
        # Sent to another hub, it would be that hub's to use.
        raise BadKeyFile(f"{path} is for the hub at {kept.hub_url}, not for {config.hub_url}; name another file")
    return kept


async def obtain_credential(config: Config) -> Credential:
    """The home's credential: the one kept, or else a new one from the hub on this machine, which is then kept.

    While that hub is not there it is tried again, without end. Raises BadKeyFile, EnrolmentFailed.
    """
    path, hub_url = config.credential_path, config.hub_url or LOCAL_HUB_URL
    kept = kept_credential(config, path)
    if kept is not None:
        return kept
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


@asynccontextmanager
async def forwarding(config: Config, credential: Credential, store: EventStore) -> AsyncIterator[Forwarder]:
    """A forwarder from `store` to the hub, ready to `run`; its cursor is saved at the end."""
    cursor = CursorFile(config.cursor_path)
    try:
        yield Forwarder(
            StoreSource(store),
            cursor,
            Link(credential.hub_url, credential.credential, heartbeat=config.heartbeat, rng=random.SystemRandom()),
            server_id=credential.server_id,
            hub_url=credential.hub_url,
            name=config.name,
            instance=config.instance_name,
            limits=Limits(config.window_events, config.window_bytes, config.refill_events, config.refill_bytes),
        )
    finally:
        await cursor.close()


def app_client(
    credential: Credential, *, cursor: tuple[str | None, int] | None = None, session_id: str | None = None
) -> AppClient:
    """An app that reads the home of `credential`. Raises BadKeyFile when that is no app's."""
    if credential.device_id is None:
        raise BadKeyFile("this is the credential of a home; an app needs its own: bridge-server devices add")
    return AppClient(
        credential.hub_url, credential.credential, credential.server_id, cursor=cursor, session_id=session_id
    )


def saved_cursor(config: Config) -> SavedCursor | None:
    """How far the hub has acknowledged the store's events. Raises DamagedCursor."""
    return CursorFile(config.cursor_path).load()


async def hub_state(hub_url: str) -> str:
    """What the hub says of itself: "ready", "draining", or why it can't be asked."""
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(hub_url.rstrip("/") + "/ready", timeout=HUB_TIMEOUT, allow_redirects=False) as response,
        ):
            states = {200: "ready", 503: "draining"}
            return states.get(response.status, f"answers {response.status}: something else is at that URL")
    except (aiohttp.ClientError, TimeoutError) as error:
        return f"can't be reached: {error or type(error).__name__}"


def _waiting(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    level = logging.WARNING if state.attempt_number == 1 else logging.DEBUG
    _log.log(level, "not enrolled yet: %s; trying again until the hub is there", error)
