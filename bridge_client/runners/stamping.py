"""Ids and times for events: the chance and the clock that `protocol` has not."""

import secrets
from datetime import UTC, datetime

from bridge_client.clock import Clock
from protocol.events.session_manager import Context


def stamps(session_id: str, run_id: str, clock: Clock, provider: str = "generic") -> Context:
    """The context of one run's events (rows B31, B32): ids of 128 random bits, the time by the wall clock, in UTC."""

    def now() -> datetime:
        return datetime.fromtimestamp(clock.wall(), UTC)

    def new_id() -> str:
        return secrets.token_hex(16)

    return Context(session_id=session_id, run_id=run_id, provider=provider, new_id=new_id, now=now)
