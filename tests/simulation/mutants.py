"""Planted bugs: the real classes with one fault each, and how many seeds the simulation may need to find it.

Each is a function that patches the fault in. A simulation that lets one of them pass is worth nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec import Raw

import bridge_server.channels.app
import bridge_server.merging
import bridge_server.replay
import protocol.events.compaction
from bridge_client.app_client import AppClient
from bridge_client.forwarder import Forwarder
from bridge_client.sources.store import StoreSource
from bridge_server.channels import Reply
from bridge_server.channels.server import ServerChannel
from bridge_server.home import Home
from bridge_server.hub import Listener
from tests.simulation.world import Patch, Profile


def replay_skips_one(patch: Patch) -> None:
    """Resume: the first event of a page of several is not sent."""
    replay = bridge_server.replay.replay

    async def faulty(log: Any, since: int, to: int, *, send: Any, **rest: Any) -> bool:
        return await replay(log, since, to, send=lambda page: send(page[1:] if len(page) > 1 else page), **rest)

    patch(bridge_server.channels.app, "replay", faulty)


def live_too_late(patch: Patch) -> None:
    """Resume: after its replay a listener goes live a moment later, as if something were awaited between."""
    go_live = Listener.go_live

    def faulty(self: Listener) -> None:
        asyncio.get_running_loop().call_later(0.02, go_live, self)

    patch(Listener, "go_live", faulty)


def recovered_whatever_is_held(patch: Patch) -> None:
    """Resume: a cursor below what is held is served from what is held, without a word."""
    judge = Home.judge

    def faulty(self: Home, epoch: str | None, since: int | None, *rest: Any) -> Any:
        if since is not None and self.log is not None and epoch in (None, self.epoch):
            since = max(since, self.log.floor)
        return judge(self, epoch, since, *rest)

    async def replay(log: Any, since: int, to: int, **rest: Any) -> bool:
        return await bridge_server.replay.replay(log, max(since, log.floor), to, **rest)

    patch(Home, "judge", faulty)
    patch(bridge_server.channels.app, "replay", replay)


def cursor_before_acknowledgement(patch: Patch) -> None:
    """Ack: the cursor is saved when an event is sent."""
    push = Forwarder._push

    def faulty(self: Forwarder, session: Any, window: Any, batch: Any) -> None:
        push(self, session, window, batch)
        self._save(batch[-1].event_id)

    patch(Forwarder, "_push", faulty)


def acknowledged_with_its_lost_tail(patch: Patch) -> None:
    """Ack: the last event of a batch is not taken, and acknowledged."""
    take = ServerChannel._take

    def faulty(self: ServerChannel, events: list[Raw], prev_id: Any) -> Reply:
        if len(events) < 2 or self._home.holder is not self:
            return take(self, events, prev_id)
        reply = take(self, events[:-1], prev_id)
        last = bytes(events[-1]).split(b'"')[3]
        return Reply("ok", Raw(b'{"acked_id":"%b"}' % last)) if reply.status == "ok" else reply

    patch(ServerChannel, "_take", faulty)


def repeats_are_published(patch: Patch) -> None:
    """Ack: what comes again because its acknowledgement was lost is delivered again."""
    append = Home.append

    def faulty(self: Home, raw: bytes, prev_id: Any, limit: int, now: float) -> Any:
        kept, number = append(self, raw, prev_id, limit, now)
        if kept is None and self.log is not None:
            page = self.log.page(max(number - 1, self.log.floor), number, 1)
            kept = page[0] if page else None
        return kept, number

    patch(Home, "append", faulty)


def nobody_is_fenced(patch: Patch) -> None:
    """Fencing: a connection that was taken over goes on writing."""
    take = ServerChannel._take

    def faulty(self: ServerChannel, events: list[Raw], prev_id: Any) -> Reply:
        self._home.holder = self
        return take(self, events, prev_id)

    patch(ServerChannel, "replaced_by", lambda self, instance: None)
    patch(ServerChannel, "_take", faulty)


def restored_under_its_old_epoch(patch: Patch) -> None:
    """Fencing: a store that went back in time keeps its epoch, and reuses ids in it."""

    async def faulty(self: Forwarder, why: str) -> None:
        self._acked = None

    patch(Forwarder, "_renew", faulty)


def another_history_not_known(patch: Patch) -> None:
    """Fencing: a store that went back and outgrew its old head is taken for the same, for nobody compares events."""

    async def faulty(self: StoreSource, event_id: int, digest: str) -> bool | None:
        return None

    patch(StoreSource, "knows", faulty)


def verdict_not_heeded(patch: Patch) -> None:
    """Resume, the app's half: a gap is not told."""

    async def faulty(self: AppClient, gap: Any, epoch: Any, head: Any) -> bool:
        return False

    patch(AppClient, "_fell_behind", faulty)


def merged_across_others(patch: Patch) -> None:
    """Merge: parts become one over events of other requests between them, so that ids behind a text vouch for it."""
    plan = bridge_server.merging.plan
    patch(bridge_server.merging, "plan", lambda events, *, adjacent, repeated: plan(events, repeated=repeated))


def merged_text_lost(patch: Patch) -> None:
    """Merge: of merged parts only the last one's text is left."""
    patch(bridge_server.merging, "merge", lambda parts: dict(parts[-1]))


def left_out_without_a_whole(patch: Patch) -> None:
    """Merge: parts are left out of a queue for a whole of another request."""
    patch(protocol.events.compaction, "_request", lambda event: "any")
    patch(protocol.events.compaction, "_repeats", lambda whole, parts: True)


PROFILES: dict[Callable[[Patch], None], Profile] = {
    live_too_late: Profile(steps=12, apps=3, generous=True, often=("cut",)),
    repeats_are_published: Profile(steps=16, apps=2, plain=True),
    nobody_is_fenced: Profile(steps=12, apps=1, moves=True, large=0.0, often=("store_moves",)),
    another_history_not_known: Profile(steps=24, apps=1, moves=True, large=0.0, outgrown=True, often=("store_moves",)),
    restored_under_its_old_epoch: Profile(steps=16, apps=1, moves=True, large=0.0, often=("store_moves",)),
    verdict_not_heeded: Profile(steps=8, apps=2, moves=True, large=0.0, often=("store_moves",)),
    merged_across_others: Profile(steps=12, apps=3, merging=True, often=("cut", "slow_app")),
    merged_text_lost: Profile(steps=12, apps=3, merging=True, often=("cut", "slow_app")),
    left_out_without_a_whole: Profile(steps=12, apps=3, merging=True, often=("cut", "slow_app")),
}
"""Runs in which what is broken is used often."""

MUTANTS: dict[Callable[[Patch], None], int] = {
    replay_skips_one: 30,
    live_too_late: 60,
    recovered_whatever_is_held: 60,
    cursor_before_acknowledgement: 30,
    acknowledged_with_its_lost_tail: 30,
    repeats_are_published: 60,
    nobody_is_fenced: 60,
    restored_under_its_old_epoch: 60,
    another_history_not_known: 60,
    verdict_not_heeded: 60,
    merged_across_others: 60,
    merged_text_lost: 60,
    left_out_without_a_whole: 60,
}
