"""Random lives of a home, its hub and its apps: each app gets every event once and in order, or is told of a true gap.

A `World` plays steps chosen by a seed: events are published, connections come and go, apps stop reading, history is
evicted, the store is replaced, the hub restarts, time passes. Every app checks each message against the stores; at the
end all is connected and read, and nobody may be left behind.
"""

import asyncio
import random
from typing import Any

import pytest

from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import Bench, Got, HomeWire, Wire, event

HISTORY = 8
REFILL = 5


class Store:
    """The home's events of one epoch."""

    def __init__(self, epoch: str) -> None:
        self.epoch = epoch
        self.ids: list[int] = []

    @property
    def head(self) -> int:
        return self.ids[-1] if self.ids else 0

    def between(self, after: int, to: int) -> list[int]:
        return [number for number in self.ids if after < number <= to]

    def before(self, number: int) -> int | None:
        return max((other for other in self.ids if other < number), default=None)


class App:
    """One app: joins with the cursor it has, and checks what it is given."""

    def __init__(self, world: "World", name: str, hidden: bool) -> None:
        self.world = world
        self.name = name
        self.hidden = hidden  # sees only every other event
        self.wire: Wire | None = None
        self.cursor: tuple[str | None, int] | None = None
        self.joined = False
        self.since: int | None = None
        self.since_epoch: str | None = None
        self.replied: dict[str, Any] | None = None
        self.completed: dict[str, Any] | None = None
        self.place: tuple[str, int] | None = None
        self.doomed: str | None = None  # the phx_error that must come
        self.log: list[str] = []

    def sees(self, number: int) -> bool:
        return not self.hidden or number % 2 == 0

    def join(self, with_cursor: bool) -> None:
        if self.wire is None:
            self.wire = self.world.bench.app()
        payload: dict[str, Any] = {"types": ["even"]} if self.hidden else {}
        self.since = self.since_epoch = None
        if with_cursor and self.cursor is not None and self.cursor[0] is not None:
            self.since_epoch, self.since = self.cursor
            payload |= {"since_id": str(self.since), "epoch": self.since_epoch}
        self.read()
        self.joined, self.replied, self.completed, self.doomed = True, None, None, None
        self.place = None if self.since is None else (str(self.since_epoch), self.since)
        self.log.append(f"join {payload}")
        self.wire.send("phx_join", payload)
        self.read()

    def drop(self) -> None:
        if self.wire is not None:
            self.read()
            self.wire.drop()
            self.lost()

    def lost(self) -> None:
        self.log.append("lost")
        self.wire, self.joined = None, False

    def leave(self) -> None:
        if self.wire is not None and self.joined:
            self.log.append("leave")
            self.wire.send("phx_leave", {})
            self.joined = False
            self.read()

    def read(self) -> None:
        if self.wire is None:
            return
        messages = self.wire.all()
        for got in messages[self.wire._read :]:
            self.log.append(f"{got.event} {str(got.payload)[:160]}")
            self.take(got)
        self.wire._read = len(messages)

    def take(self, got: Got) -> None:
        if got.event == "phx_close" or got.join_ref != self.wire.join_ref or not self.joined:  # type: ignore[union-attr]
            return
        if got.event == "phx_reply":
            assert got.payload["status"] == "ok", got
            if self.replied is None:
                self.reply(got.payload["response"])
        elif got.event == "session_event":
            self.event(got.payload["event"])
        elif got.event == "replay_complete":
            self.complete(got.payload)
        elif got.event == "phx_error":
            assert got.payload["reason"] in ("epoch_changed", "hub_reset", "expired", "ahead"), got
            assert self.doomed in (None, got.payload["reason"])
            self.doomed = None
            self.joined = False

    def reply(self, response: dict[str, Any]) -> None:
        self.replied = response
        if response["recovered"] is False:
            self.gap_is_true(response["gap"])
            if response["gap"]["reason"] != "hub_reset":
                self.place = (response["epoch"], int(response["head_id"] or 0))
        elif response["recovered"] is None:
            assert self.since is not None

    def event(self, event: dict[str, Any]) -> None:
        epoch, number = event["epoch"], int(event["event_id"])
        store = self.world.stores[epoch]
        assert self.doomed is None, "an event after a verdict that ends the join"
        assert self.sees(number)
        if self.completed is None:
            assert self.since is not None, "an event before replay_complete, and none was asked for"
        elif self.completed["to_id"] is not None and self.completed["epoch"] == epoch:
            assert number > int(self.completed["to_id"]), "replay_complete came too early"
        if self.place is not None and self.place[0] != epoch:
            assert self.since is None, "another epoch without a word"
            self.place = None
        if self.place is not None:
            missed = [other for other in store.between(self.place[1], number) if self.sees(other)]
            assert missed == [number], f"after {self.place} came {number}; the store has {missed} there"
        self.place = (epoch, number)
        if self.cursor is None or self.cursor[0] is None or self.completed is None or self.completed["epoch"] is None:
            self.cursor = (self.since_epoch if self.completed is None else self.completed["epoch"], number)
        else:
            self.cursor = (self.completed["epoch"], number)

    def complete(self, payload: dict[str, Any]) -> None:
        assert self.replied is not None, "replay_complete before the reply"
        assert self.completed is None, "replay_complete twice"
        self.completed = payload
        promised, recovered, to = self.replied["recovered"], payload["recovered"], payload["to_id"]
        assert isinstance(recovered, bool)
        assert (payload["gap"] is None) is recovered
        if promised is False:
            assert payload["gap"] == self.replied["gap"]
        if recovered and self.since is not None and to is not None:
            assert self.place is not None
            store = self.world.stores[payload["epoch"]]
            assert not [n for n in store.between(self.place[1], int(to)) if self.sees(n)], "the replay lacks events"
        if recovered is False and promised is not False:
            self.gap_is_true(payload["gap"])
            if promised is None:
                self.doomed = payload["gap"]["reason"]
        if to is not None and (recovered or self.doomed is None):
            self.place = self.cursor = (payload["epoch"], int(to))

    def gap_is_true(self, gap: dict[str, Any]) -> None:
        assert self.since is not None
        reason, since = gap["reason"], int(gap["from_id"])
        home = self.world.bench.record()
        if reason == "hub_reset":
            assert gap["resume_after"] is None
            return
        assert reason in ("expired", "epoch_changed", "ahead")
        if reason == "epoch_changed":
            assert self.since_epoch in self.world.dead_epochs
        elif reason == "expired":
            # At the latest now, what follows the cursor is not held any more.
            assert home.epoch != self.since_epoch or (home.log is not None and home.log.floor > since)
        else:
            raise AssertionError("nobody here invents cursors")


class World:
    """A home with its store, a hub, and some apps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = self.new_bench()
        self.stores: dict[str, Store] = {}
        self.dead_epochs: set[str] = set()
        self.home: HomeWire | None = None
        self.sent = 0
        self.acked = 0
        self.replace_store()
        self.apps = [App(self, f"app{number}", number == 2) for number in range(4)]

    @staticmethod
    def new_bench() -> Bench:
        return Bench(history_events=HISTORY)

    def replace_store(self) -> None:
        if self.stores:
            self.dead_epochs.add(self.store.epoch)
        self.store = Store(f"epoch{len(self.stores)}")
        self.stores[self.store.epoch] = self.store
        self.sent = self.acked = 0

    # Steps.

    def publish(self) -> None:
        for _ in range(self.random.choice((1, 1, 2, 5, 12))):
            self.store.ids.append(self.store.head + self.random.choice((1, 1, 1, 3)))
        if self.random.random() < 0.9:
            self.forward()

    def forward(self) -> None:
        """What the forwarder has not sent yet, in batches of any size."""
        while self.home is not None and (waiting := self.store.between(self.sent, self.store.head)):
            batch = waiting[: self.random.choice((1, 2, 7))]
            reply = self.home.call(
                "session_events",
                {
                    "events": [
                        event(
                            number,
                            "even" if number % 2 == 0 else "odd",
                            epoch=self.store.epoch,
                            data="x" * self.random.choice((0, 0, 0, 30_000)),
                        )
                        for number in batch
                    ],
                    "prev_id": None if (before := self.store.before(batch[0])) is None else str(before),
                },
            )
            assert reply == {"status": "ok", "response": {"acked_id": str(batch[-1])}}, reply
            self.sent = batch[-1]
            if self.random.random() < 0.8:
                self.acked = self.sent
            if self.random.random() < 0.1:
                return

    def home_comes(self) -> None:
        """Comes back, or takes over from a connection that is only half dead."""
        home = self.bench.home()
        reply = home.call(
            "phx_join",
            {"epoch": self.store.epoch, "head_id": str(self.store.head) if self.store.ids else None},
        )
        if reply["status"] == "error":
            assert reply["response"]["reason"] in ("flapping", "rate_limited")
            return
        self.home = home
        resume = reply["response"]["resume_from"]
        if resume is not None:
            self.sent = int(resume)
        else:
            first = self.store.ids[-REFILL - 1] if len(self.store.ids) > REFILL else 0
            self.sent = min(self.acked, first)
        if self.random.random() < 0.8:
            self.forward()

    def home_goes(self) -> None:
        if self.home is not None:
            self.home.drop()
            self.home = None

    def store_replaced(self) -> None:
        self.home_goes()
        self.replace_store()

    def hub_restarts(self) -> None:
        for app in self.apps:
            app.drop()
        self.home_goes()
        self.bench = self.new_bench()

    def app_joins(self) -> None:
        self.random.choice(self.apps).join(with_cursor=self.random.random() < 0.8)

    def app_leaves(self) -> None:
        self.random.choice(self.apps).leave()

    def app_drops(self) -> None:
        self.random.choice(self.apps).drop()

    def app_stops_reading(self) -> None:
        app = self.random.choice(self.apps)
        if app.wire is not None:
            app.wire.transport.frozen = True

    def app_reads_some(self) -> None:
        app = self.random.choice(self.apps)
        if app.wire is not None:
            app.wire.transport.take()

    def app_reads_on(self) -> None:
        app = self.random.choice(self.apps)
        if app.wire is not None:
            app.wire.transport.thaw()

    STEPS = (
        (publish, 10),
        (forward, 3),
        (home_comes, 5),
        (home_goes, 3),
        (store_replaced, 0.6),
        (hub_restarts, 0.6),
        (app_joins, 10),
        (app_leaves, 1),
        (app_drops, 2),
        (app_stops_reading, 3),
        (app_reads_some, 4),
        (app_reads_on, 3),
    )

    async def play(self, steps: int) -> None:
        actions = [action for action, _ in self.STEPS]
        weights = [weight for _, weight in self.STEPS]
        for _ in range(steps):
            action = self.random.choices(actions, weights)[0]
            for app in self.apps:
                app.log.append(f"-- {action.__name__}")
            action(self)
            await self.pass_time()
        await self.finish()

    async def pass_time(self) -> None:
        choice = self.random.random()
        if choice < 0.5:
            await settle()
        elif choice < 0.7:
            await asyncio.sleep(0)
        elif choice < 0.8:
            await asyncio.sleep(self.random.choice((1, 6, 11, 40)))
        for app in self.apps:
            app.read()

    async def finish(self) -> None:
        """All come back and read everything."""
        await asyncio.sleep(3600)
        if self.home is None:
            self.home_comes()
        assert self.home is not None
        for _ in range(20):
            self.forward()
            for app in self.apps:
                if app.wire is not None:
                    app.wire.transport.thaw()
                if not app.joined:
                    app.join(with_cursor=True)
            await asyncio.sleep(1)
            for app in self.apps:
                app.read()
        self.store.ids += [self.store.head + 1, self.store.head + 2]
        while self.sent < self.store.head:
            self.forward()
        await settle()
        for app in self.apps:
            app.read()
            assert app.joined
            assert app.completed is not None, f"{app.name} still waits for its verdict"
            seen = [number for number in self.store.ids if app.sees(number)]
            assert app.place is not None
            assert app.place == (self.store.epoch, seen[-1]), f"{app.name} is left behind"
        assert not self.bench.record().waiting
        assert self.bench.budget.used == 0
        assert not self.bench.budget.busy


@pytest.mark.parametrize("block", range(8))
def test_every_app_gets_every_event_once_and_in_order_or_is_told_a_true_gap(block: int) -> None:
    for seed in range(block * 25, block * 25 + 25):
        world: World | None = None

        @virtual_time
        async def life(seed: int = seed) -> None:
            nonlocal world
            world = World(seed)
            await world.play(80)

        try:
            life()
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            for app in world.apps if world is not None else ():
                failure.add_note(f"{app.name}:\n  " + "\n  ".join(app.log[-25:]))
            raise
