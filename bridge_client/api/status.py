"""`GET /status`: whether events get through, by the age of the last acknowledgement and of what waits."""

import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from bridge_client.clock import Clock, rfc3339
from bridge_client.dead_letters import DeadLetters
from bridge_client.forwarder import Forwarder, Status
from bridge_client.lag import Lag
from bridge_client.requests import Requests
from bridge_client.retention_report import Outlook
from bridge_client.sources import Source


class StatusReport:
    """What one running home says of itself. `about` are members that don't change."""

    def __init__(self, source: Source, letters: DeadLetters, lag: Lag, clock: Clock, about: dict[str, Any]) -> None:
        self._source = source
        self._letters = letters
        self._lag = lag
        self._clock = clock
        self._about: dict[str, Any] = {**about, "server_id": None, "hub_url": None}
        self._forwarder: Forwarder | None = None
        self._started = clock.wall()
        self.requests: Requests | None = None
        """Who answers what apps ask through the hub; None: nobody does."""
        self.outlook: Callable[[], Awaitable[Outlook]] | None = None
        """What the store holds and keeps; None: the source is somebody else's."""
        self.runner: str | None = None
        """Who answers messages; None: nobody does."""
        self.runner_problem: Callable[[], str | None] = lambda: None
        """Why the runner can't answer anything, None while nothing is known against it."""
        self.url: str | None = None
        """Where the home answers, None where it doesn't."""

    def attach(self, forwarder: Forwarder, server_id: str, hub_url: str) -> None:
        """From now on `forwarder` forwards the source to `hub_url` as `server_id`."""
        self._forwarder = forwarder
        self._about |= {"server_id": server_id, "hub_url": hub_url}

    def acked(self) -> int | None:
        """The last event acknowledged."""
        return None if self._forwarder is None else self._forwarder.status.acked_id

    async def get(self, request: web.Request) -> web.Response:
        """The handler. Raises StoreError."""
        return web.Response(body=msgspec.json.encode(await self.facts()), content_type="application/json")

    async def facts(self) -> dict[str, Any]:
        """The answer's members; docs/home-api.md explains each. Raises StoreError."""
        now = self._clock.wall()
        status = Status(None, None, None, None, None) if self._forwarder is None else self._forwarder.status
        acked, heads = status.acked_id, [head for head in (status.head_id, self._lag.head) if head is not None]
        head = max(heads) if heads else None
        behind = max(0, (head or 0) - (acked or 0))
        return {
            **self._about,
            "pid": os.getpid(),
            "started_at": _time(self._started),
            "epoch": self._source.epoch,
            "head_id": _id(head),
            "acked_id": _id(acked),
            "connected": status.connected_since is not None,
            "connected_since": _time(status.connected_since),
            "last_ack_at": _time(status.last_ack_at),
            "last_ack_age_seconds": None if status.last_ack_at is None else round(max(0, now - status.last_ack_at), 3),
            "lag": {"events": behind, "seconds": round(self._lag.seconds(acked), 3) if behind else 0.0},
            "dead_letters": await self._letters.count(),
            "stored": None if self.outlook is None else (await self.outlook()).facts(),
            "runner": self.runner,
            "runner_problem": self.runner_problem(),
            "last_error": status.last_error,
        }


def _id(event_id: int | None) -> str | None:
    return None if event_id is None else str(event_id)


def _time(wall: float | None) -> str | None:
    return None if wall is None else rfc3339(wall)
