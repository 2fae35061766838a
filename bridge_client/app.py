"""Where the home is put together: the one module that names concrete backends."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from bridge_client import keys
from bridge_client.config import Config
from bridge_client.cursor import CursorFile
from bridge_client.forwarder import Forwarder, Limits
from bridge_client.keys import Credential, NoKeyFile
from bridge_client.link import Link
from bridge_client.sources.store import StoreSource
from bridge_client.store import EventStore
from bridge_client.store.sqlite import SqliteStore

LONGEST_WAIT = 5.0
"""Seconds between two tries to enrol while the hub is not there yet."""

_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_store(config: Config) -> AsyncIterator[EventStore]:
    """The home's event store, closed at the end. Raises StoreError."""
    store = await SqliteStore.open(config.store_path)
    try:
        yield store
    finally:
        await store.close()


async def obtain_credential(config: Config) -> Credential:
    """The home's credential: the one kept, or else a new one from the hub on this machine, which is then kept.

    While that hub is not there it is tried again, without end. Raises BadKeyFile, EnrolmentFailed.
    """
    kept = keys.load(config.credential_path)
    if kept is not None:
        return kept
    retrying = AsyncRetrying(
        retry=retry_if_exception_type((aiohttp.ClientError, TimeoutError, NoKeyFile)),
        wait=wait_random_exponential(multiplier=0.1, max=LONGEST_WAIT),
        before_sleep=_waiting,
        reraise=True,
    )
    async with aiohttp.ClientSession() as session:
        credential: Credential = await retrying(keys.enrol, config.hub_url, config.name, config.state_dir, session)
    keys.save(config.credential_path, credential)
    _log.info("enrolled with %s as home %s; kept in %s", config.hub_url, credential.server_id, config.credential_path)
    return credential


@asynccontextmanager
async def forwarding(config: Config, credential: Credential, store: EventStore) -> AsyncIterator[Forwarder]:
    """A forwarder from `store` to the hub, ready to `run`; its cursor is saved at the end."""
    cursor = CursorFile(config.cursor_path)
    try:
        yield Forwarder(
            StoreSource(store),
            cursor,
            Link(config.hub_url, credential.credential, heartbeat=config.heartbeat, rng=random.SystemRandom()),
            server_id=credential.server_id,
            hub_url=config.hub_url,
            name=config.name,
            instance=config.instance_name,
            limits=Limits(config.window_events, config.window_bytes, config.refill_events, config.refill_bytes),
        )
    finally:
        await cursor.close()


def _waiting(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    level = logging.WARNING if state.attempt_number == 1 else logging.DEBUG
    _log.log(level, "not enrolled yet: %s; trying again until the hub is there", error)
