"""One run: a hub, a home, apps, and what befalls them, all from one seed.

First everything runs under faults, one at each step; then the faults end, everything is started,
and within an hour of virtual time every app must have the store's content (or a true gap) and the cursor its head.
"""

import asyncio
import hashlib
import logging
import random as random_module
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import websockets.asyncio.client

import bridge_server.app
import bridge_server.web.routes
from bridge_client.forwarder import Limits
from bridge_server.auth import Credentials
from bridge_server.pairing import Pairings
from tests.simulation import disk
from tests.simulation.actors import (
    WISHES,
    Actor,
    App,
    ForgetfulApp,
    HomeActor,
    HubActor,
    PhoenixApp,
    PlainHome,
    PythonApp,
    StubbornApp,
)
from tests.simulation.disk import Disk, DiskStore, StoreFile
from tests.simulation.faults import FAULTS
from tests.simulation.loop import Endless, SimLoop, current
from tests.simulation.network import Network, Weather
from tests.simulation.truth import Breach, Truth


@dataclass(frozen=True)
class Profile:
    """What kind of run it is. `generous`: so much is kept that no app may ever be told of a gap."""

    steps: int = 24
    apps: int = 3
    merging: bool = False
    """Whether little may wait for a slow app before parts are merged, and held back."""
    often: tuple[str, ...] = ()
    """Faults that come far more often than else."""
    generous: bool = False
    moves: bool = False
    plain: bool = False
    large: float = 0.05
    outgrown: bool = False
    """Whether a store that went back may grow past its old head before its forwarder has looked.

    Ids alone don't tell then: only the digest of what was acknowledged, or of what the hub holds last. Where the cursor
    is no newer than what was restored and the hub has lost its memory nobody can tell (docs/operations.md says so):
    such a run ends there. It has no second forwarder: what that one's cursor knows, this one does not.
    """


def profile_of(seed: int) -> Profile:
    """Each seed has its kind."""
    rng = Random(seed)
    generous = rng.random() < 0.3
    moves = not generous and rng.random() < 0.5
    return Profile(
        steps=rng.choice((5, 10, 20)),
        apps=rng.choice((1, 2, 3)),
        merging=rng.random() < 0.4,
        generous=generous,
        moves=moves,
        outgrown=moves and rng.random() < 0.3,
        plain=not generous and not moves and rng.random() < 0.4,
        large=rng.choice((0.0, 0.05, 0.5)),
    )


class Untellable(Exception):
    """Nobody can tell what has happened: the run is over."""


class World:
    """See the module. `random` decides everything."""

    def __init__(self, seed: int, loop: SimLoop, grounds: "Grounds", profile: Profile) -> None:
        self.seed = seed
        self.loop = loop
        self.random = loop.random
        self.folder = grounds.folder
        self.credentials = grounds.credentials
        self.server_id, self.home_token = grounds.names[:2]
        self._devices = iter(grounds.names[2:])
        self.profile = profile
        self.lines: deque[str] = deque(maxlen=120)
        self.breaches: list[str] = []
        self.moves = 0
        self.blind = False  # only the hub's memory can tell that the store went back
        self.untellable = False
        self.befell: set[str] = set()
        self._hash = hashlib.blake2b(digest_size=8)
        self._numbers = 0
        self.network = Network(loop, self.trace)
        self.truth = Truth()
        self.calm = False
        self.backups: list[Any] = []
        with self.credentials.database.writing() as connection:
            connection.execute("DELETE FROM device_cursors")
        self._make()

    def _make(self) -> None:
        rng, profile = self.random, self.profile
        small = {"history_events": rng.choice((5, 20, 100)), "history_bytes": rng.choice((20_000, 200_000))}
        if profile.generous:
            small = {}
        window = {"window_events": rng.choice((1, 3, 50)), "window_bytes": rng.choice((500, 10_000, 1 << 20))}
        if profile.merging:
            small |= {"queue_handover_bytes": rng.choice((300, 2_000)), "queue_merge_bytes": 400}
            small |= {"queue_hold_bytes": rng.choice((800, 1 << 20)), "merge_window": rng.choice((0.25, 5.0))}
        self.hub = HubActor(self, "hub", {**small, **window})
        machine = Disk(rng)
        file = StoreFile(machine, self._committed)
        file.renewed = self.began
        self.began(file)
        limits = Limits() if profile.generous else Limits(refill_events=rng.choice((1, 10, 50)), refill_bytes=100_000)
        kind_of_home = PlainHome if profile.plain else HomeActor
        self.home = kind_of_home(self, "home", file, machine, limits)
        # A second forwarder of the same home, started by mistake beside the first.
        self.twin = HomeActor(self, "twin", file, machine, limits)
        self.twin.wanted = self.twin.publishes = False
        self.apps: list[App] = []
        for number in range(profile.apps):
            kind = rng.choice((PythonApp, PythonApp, PythonApp, PhoenixApp, StubbornApp, ForgetfulApp))
            since = 0 if kind is StubbornApp else rng.choice((0, 0, None))
            self.apps.append(kind(self, f"{kind.__name__}{number}", since, rng.randrange(len(WISHES))))

    @property
    def actors(self) -> list[Actor]:
        return [self.hub, self.home, self.twin, *self.apps]

    def device(self) -> str:
        """The credential of one more app."""
        return next(self._devices)

    def number(self) -> int:
        """What makes each event unique."""
        self._numbers += 1
        return self._numbers

    # What happens is written down.

    def trace(self, text: str) -> None:
        line = f"{self.loop.time() - 1000:.4f} {text}"
        self._hash.update(line.encode())
        self.lines.append(line)

    @property
    def digest(self) -> str:
        """Tells two runs apart by anything that was traced."""
        return self._hash.hexdigest()

    def breach(self, what: str, error: BaseException | None = None) -> None:
        process = current()
        if self.untellable or (process is not None and not process.alive):
            return
        self.trace(f"BREACH {what}")
        self.breaches.append(what)

    def _committed(self, file: StoreFile, stored: Any) -> None:
        self.truth.present.add(stored.event_id, stored.data)
        self.trace(f"event {stored.event_id}, {len(stored.data)} bytes")

    def began(self, file: StoreFile, parent: Any = None) -> None:
        self.blind = False
        self.truth.begin(file.epoch, [event for event, _, _ in file.events], parent)
        self.trace(f"the store is in epoch {file.epoch} at {file.ids[-1:]}")

    def taken(self, epoch: str, number: int) -> None:
        """A hub has taken an event in."""
        self.truth.taken[epoch] = max(number, self.truth.taken.get(epoch, 0))

    def went_back(self, end: int) -> None:
        """The store was put back to `end`, under the epoch it had then."""
        saved, epoch = self.home.cursor, self.home.file.epoch
        if self.truth.taken.get(epoch, 0) <= end or (saved is not None and saved["epoch"] != epoch):
            return
        self.blind = saved is None or saved["mark"] is None or saved["mark"]["event_id"] <= end
        hub = self.hub.hub
        held = None if hub is None else hub.homes.get(self.server_id)
        if held is None or held.epoch != epoch or (held.head or 0) <= end:
            self.hub_forgot()

    def hub_forgot(self) -> None:
        """The hub's memory is gone."""
        self.untellable = self.untellable or (self.blind and self.profile.outgrown)

    def settle_store(self) -> None:
        """Programs publish again once the forwarder has seen that the store went back, or nothing was lost by it."""
        life = self.truth.present
        if not self.home.publishes and self.truth.taken.get(life.epoch, 0) <= (life.ids[-1] if life.ids else 0):
            self.home.publishes = True

    def check_cursors(self) -> None:
        """No cursor on a disk is ahead of what a hub has taken."""
        for home in (self.home, self.twin):
            saved = home.cursor
            if saved is not None and int(saved["event_id"]) > self.truth.taken.get(saved["epoch"], 0):
                self.breach(f"the cursor of {home.name} is ahead of every hub: {saved}, {self.truth.taken}")

    # The run.

    def again(self, actor: Actor) -> None:
        """Start an actor that has ended, after a while."""
        self.loop.call_later(self.random.choice((0.01, 0.5, 3.0, 30.0)), actor.start)

    async def play(self) -> None:
        """The whole run. Raises Breach."""
        for actor in self.actors:
            self.loop.call_later(self.random.choice((0.0, 0.0, 2.0)), actor.start)
        names = list(FAULTS)
        weights = [weight * (8 if fault.__name__ in self.profile.often else 1) for fault, weight in FAULTS.items()]
        for _ in range(self.profile.steps):
            await asyncio.sleep(self.random.expovariate(0.5))
            fault = self.random.choices(names, weights)[0]
            self.trace(fault.__name__)
            self.befell.add(fault.__name__)
            fault(self)
            self.settle_store()
            self.check_cursors()
            self._check()
        await self._converge()

    def _check(self) -> None:
        if self.untellable:
            raise Untellable
        if self.breaches:
            raise Breach("\n".join(self.breaches[:5]))

    async def _converge(self) -> None:
        self.trace("the faults end")
        self.calm = True
        self.network.weather = Weather()
        self.twin.wanted = False
        self.twin.crash()
        for link in list(self.network.links.values()):
            link.flow()
        self.home.disk.full = self.home.disk.failing = False
        for actor in self.actors:
            if actor.process is not None:
                self.wake(actor)
            actor.start()
        for app in self.apps:
            app.slow = 0.0
        await asyncio.sleep(5)
        for _ in range(20):
            self.settle_store()
            if self.home.publishes:
                break
            await asyncio.sleep(120)
        self.home.publishes = False
        store = DiskStore(self.home.file)
        open_questions: list[str] = []
        for pause in (5, 25, 60, 60, 120, 300, 600, 1200, 3600):
            for _ in range(2):
                await self.home.publish(store, self.random)
            await asyncio.sleep(pause)
            self.check_cursors()
            self._check()
            open_questions = self._open_questions()
            if not open_questions:
                return
        raise Breach("not converged:\n" + "\n".join(open_questions))

    def _open_questions(self) -> list[str]:
        found = [lack for app in self.apps if (lack := app.account.lacks())]
        life, saved = self.truth.present, self.home.cursor
        if saved is None or (saved["epoch"], saved["event_id"]) != (life.epoch, str(life.ids[-1])):
            found.append(f"the cursor is {saved}, the store at {life.epoch} {life.ids[-1:]}")
        hub = self.hub.hub
        if hub is None or hub.budget.used or hub.budget.busy:
            found.append("the hub still has something queued")
        if self.profile.generous and (
            gaps := [g for a in self.apps for g in a.account.gaps if g.reason != "hub_reset"]
        ):
            raise Breach(f"everything was kept, and still gaps were told: {gaps[:3]}")
        return found

    def wake(self, actor: Actor, *, slept: bool = False) -> None:
        process = actor.process
        if process is not None and process.alive and process.frozen:
            self.trace(f"{actor.name} goes on")
            process.thaw(slept=slept)
            self.network.woke(process)

    def later(self, what: Callable[[], object]) -> None:
        """Undo a fault after a while."""
        self.loop.call_later(self.random.choice((0.05, 1.0, 8.0, 40.0)), what)

    def anybody(self) -> Actor:
        return self.random.choice([self.hub, self.hub, self.home, self.home, *self.apps])


class Grounds:
    """What all runs share: a folder with the hub's database, in which everybody is known."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.credentials = Credentials(folder / "hub.db")
        server, token = self.credentials.add_server("Home")
        tokens = [self.credentials.add_device(server.server_id, f"App {number}")[1] for number in range(6)]
        Pairings(self.credentials)  # makes its key: no run may be the first to need one
        self.names = [server.server_id, token, *tokens]

    def close(self) -> None:
        self.credentials.close()


@dataclass(frozen=True)
class Outcome:
    """How a run ended: a digest of all that was traced, what was breached (None: nothing), the last lines."""

    seed: int
    digest: str
    breach: str | None
    lines: tuple[str, ...]
    events: int
    merged: int
    gaps: int
    steps: int
    befell: frozenset[str]

    @property
    def report(self) -> str:
        lines = "\n  ".join(self.lines)
        return f"{self.breach}\n\nthe end of seed {self.seed} (trace {self.digest}):\n  {lines}\n\n{replay(self.seed)}"


def replay(seed: int) -> str:
    """The command that plays a seed again."""
    return f"python -m tests.simulation {seed}"


class _Errors(logging.Handler):
    """An error that our code logs is a breach: nothing here may surprise it."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        trouble = f": {record.exc_info[1]!r}" if record.exc_info else ""
        self._world.breach(f"{record.name} logged: {record.getMessage()}{trouble}")


Patch = Callable[[object, str, object], None]

_load_once = cache(bridge_server.web.routes.load)  # what compresses the viewer's files, at each start of a hub


@contextmanager
def _patched() -> Iterator[Patch]:
    undo: list[tuple[object, str, object]] = []
    missing = object()

    def patch(target: object, name: str, value: object) -> None:
        undo.append((target, name, getattr(target, name, missing)))
        setattr(target, name, value)

    try:
        yield patch
    finally:
        for target, name, value in reversed(undo):
            delattr(target, name) if value is missing else setattr(target, name, value)


def run(
    seed: int, grounds: Grounds, fault: Callable[[Patch], None] | None = None, profile: Profile | None = None
) -> Outcome:
    """Play one seed, with a bug planted or without."""
    rng = Random(seed)
    loop = SimLoop(rng)
    asyncio.set_event_loop(None)
    with _patched() as patch:
        patch(random_module, "_urandom", Random(seed).randbytes)  # epochs, masks: all that `secrets` gives
        patch(bridge_server.app, "REVOCATION_SECONDS", 30.0)
        patch(websockets.asyncio.client, "get_proxy", lambda uri: None)  # whatever this machine's environment says
        patch(bridge_server.web.routes, "load", _load_once)
        patch(sqlite3, "connect", _connect)
        disk.install(patch)
        if fault is not None:
            fault(patch)
        world: World | None = None
        breach: str | None = None

        async def play() -> None:
            nonlocal world
            world = World(seed, loop, grounds, profile or profile_of(seed))
            _watch_hubs(world, patch)
            errors = _Errors(world)
            logger = logging.getLogger()
            logger.addHandler(errors)
            logging.disable(logging.WARNING)
            try:
                await world.play()
            finally:
                logging.disable(logging.NOTSET)
                logger.removeHandler(errors)
                for actor in world.actors:
                    actor.crash()

        try:
            with suppress(Untellable):
                loop.run_until_complete(play())
        except (Breach, Endless) as found:
            breach = str(found)
        finally:
            loop.close()
    assert world is not None
    accounts = [app.account for app in world.apps]
    return Outcome(
        seed,
        world.digest,
        breach,
        tuple(world.lines),
        sum(account.events for account in accounts),
        sum(account.merged for account in accounts),
        sum(len(account.gaps) for account in accounts),
        loop.steps,
        frozenset(world.befell),
    )


_sqlite = sqlite3.connect


def _connect(*args: Any, **options: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = _sqlite(*args, **options)
    if (process := current()) is not None:
        process.opened(connection)
    return connection


def _watch_hubs(world: World, patch: Patch) -> None:
    from bridge_server.home import Home

    append = Home.append

    def watched(self: Home, raw: bytes, *args: Any) -> Any:
        kept, number = append(self, raw, *args)
        world.taken(self.epoch or "", number)
        return kept, number

    patch(Home, "append", watched)
