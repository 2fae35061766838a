"""How a home stands, by its files and, if it runs, by its own word: what `status` prints and `doctor` judges."""

import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from bridge_client import keys, local_api
from bridge_client.alone import holder
from bridge_client.api import address
from bridge_client.clock import rfc3339
from bridge_client.config import LOCAL_HUB_URL, Config
from bridge_client.cursor import CursorFile, DamagedCursor
from bridge_client.retention_report import Outlook
from bridge_client.store import EventStore

TOLD = ("epoch", "name", "server_id", "pid", "started_at", "connected", "connected_since", "last_error", "lag")
"""Members of `GET /status` that stand in `status` as the home that runs says them."""


class Means(NamedTuple):
    """How to look: each makes no file."""

    open_store: Callable[[Config], AbstractAsyncContextManager[EventStore]]
    outlook: Callable[[Config], Awaitable[Outlook | None]]
    count_letters: Callable[[Config], Awaitable[int]]
    runner_problem: Callable[[Config], str | None]


async def look(config: Config, means: Means) -> dict[str, Any]:
    """The members that docs/cli.md explains, but for `hub`. Raises StoreError, BadKeyFile."""
    credential = keys.load_for(config.hub_url, config.credential_path)
    found = await means.outlook(config)
    facts: dict[str, Any] = {
        "name": config.name,
        "source": config.source_name,
        "epoch": None,
        "head_id": None,
        "head_known": False,
        "stored": None if found is None else found.facts(),
        "server_id": credential.server_id if credential is not None else None,
        "hub_url": credential.hub_url if credential is not None else config.hub_url or LOCAL_HUB_URL,
        "dead_letters": await means.count_letters(config),
        "runner": None if config.source is not None else config.runner,
        "runner_problem": None if config.source is not None else means.runner_problem(config),
    }
    if config.source is None:
        facts |= {"store": str(config.store_path), "head_known": True}
        if config.store_path.exists():
            async with means.open_store(config) as store:
                head = await store.head()
                facts |= {"epoch": store.epoch, "head_id": None if head is None else str(head)}
    facts |= _acknowledged(config, facts["epoch"])
    facts |= await _running(config)
    known = facts["head_known"] and (facts["connected"] is not None or facts["cursor_error"] is None)
    facts["waiting"] = int(facts["head_id"] or 0) - int(facts["acked_id"] or 0) if known else None
    facts["lag"] = {"seconds": None, **facts["lag"], "events": facts["waiting"]}
    return facts


def _acknowledged(config: Config, epoch: str | None) -> dict[str, Any]:
    facts: dict[str, Any] = {"epoch": epoch, "acked_id": None, "cursor_error": None}
    facts |= {"last_ack_at": None, "last_ack_age_seconds": None}
    try:
        cursor = CursorFile(config.cursor_path).load()
    except DamagedCursor as error:
        return facts | {"cursor_error": str(error)}
    if cursor is None:
        return facts
    if config.source is not None:
        facts["epoch"] = cursor.epoch
    if cursor.epoch == facts["epoch"]:
        at = config.cursor_path.stat().st_mtime
        facts |= {"acked_id": str(cursor.event_id), "last_ack_at": rfc3339(at)}
        facts["last_ack_age_seconds"] = max(0.0, time.time() - at)
    return facts


async def _running(config: Config) -> dict[str, Any]:
    """What the home that runs says; of one that answers no programs only that it runs."""
    facts: dict[str, Any] = {"running": False, "api": None, "pid": None, "started_at": None}
    facts |= {"connected": None, "connected_since": None, "last_error": None, "lag": {}}
    url = address.find(config.address_path)
    said = await local_api.status(url, config.state_dir) if url is not None else ""
    if isinstance(said, dict):
        facts |= {"running": True, "api": url, "head_known": True} | {name: said.get(name) for name in TOLD}
        facts |= {name: said.get(name) for name in ("head_id", "acked_id", "runner", "runner_problem")}
        if said.get("last_ack_at") is not None:  # else the file knows of an earlier one
            facts |= {name: said.get(name) for name in ("last_ack_at", "last_ack_age_seconds")}
        return facts
    here = holder(config.state_dir)
    if here is not None and here.forwards(config.source, config.store_path):
        facts |= {"running": True, "pid": here.pid}
    return facts | {"api": said or None}
