"""The faults. Each is one thing that happens at one moment; what it begins, `later` or the end of the faults undoes."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.actors import Actor
from tests.simulation.disk import DiskStore, StoreFile
from tests.simulation.network import Weather

if TYPE_CHECKING:
    from tests.simulation.world import World


def nothing(world: "World") -> None:
    """Let them work."""


def crash(world: "World") -> None:
    _crash(world, world.anybody())


def crash_at_an_await(world: "World") -> None:
    actor = world.anybody()
    if actor.process is not None and actor.up:
        actor.process.after_steps(world.random.randint(1, 300), lambda: _crash(world, actor))


def _crash(world: "World", actor: Actor) -> None:
    if actor.up and not world.calm:
        actor.crash(silently=world.random.random() < 0.4)
        world.again(actor)


def drain(world: "World") -> None:
    if world.hub.up and world.hub.process is not None and not world.hub.process.frozen:
        world.hub.process.spawn(world.hub.drain())


def freeze(world: "World") -> None:
    actor = world.anybody()
    if actor.process is not None and actor.up and not actor.process.frozen:
        slept = world.random.random() < 0.5
        world.trace(f"{actor.name} is frozen")
        actor.process.freeze()
        world.later(lambda: world.wake(actor, slept=slept))


def cut(world: "World") -> None:
    if world.network.links:
        link = world.random.choice(list(world.network.links.values()))
        link.cut((world.random.random() < 0.7, world.random.random() < 0.7))


def stall(world: "World") -> None:
    if world.network.links:
        link = world.random.choice(list(world.network.links.values()))
        world.trace(f"connection {link.number} stalls")
        if world.random.random() < 0.5:
            link.stall()
        else:
            world.random.choice((link.near, link.far)).out.stalled = True
        world.later(link.flow)


def weather(world: "World") -> None:
    rng = world.random
    world.network.weather = Weather(
        slowest=rng.choice((0.002, 0.05, 0.5, 4.0)),
        pieces=rng.choice((0.0, 0.0, 0.3)),
        refused=rng.choice((0.0, 0.0, 0.3, 0.9)),
        hanging=rng.choice((0.0, 0.2)),
        doubled=rng.choice((0.0, 0.2)),
    )


def disk_trouble(world: "World") -> None:
    machine = world.home.disk
    machine.full = world.random.random() < 0.5
    machine.failing = not machine.full

    def repair() -> None:
        machine.full = machine.failing = False

    world.later(repair)


def clock_step(world: "World") -> None:
    actor = world.anybody()
    if actor.process is not None:
        actor.process.clock_step += world.random.choice((-86_400, -3_600, -1, 0.5, 40, 7_200))


def slow_app(world: "World") -> None:
    app = world.random.choice(world.apps)
    app.slow = world.random.choice((0.0, 0.05, 1.0, 20.0))


def twin(world: "World") -> None:
    """The same home runs twice, over one store."""
    if world.profile.outgrown:
        return
    world.twin.wanted = not world.twin.wanted
    if world.twin.wanted:
        world.twin.start()
    else:
        world.twin.crash()


def store_moves(world: "World") -> None:
    """The store is replaced, or put back from a backup. The home does not run meanwhile."""
    if not world.profile.moves or world.moves >= 3:
        return
    if not world.backups or world.random.random() < 0.3:
        world.backups.append((world.home.file.copy(), world.truth.present))
        return
    world.moves += 1
    if world.random.random() < 0.5 and world.home.process is not None:
        # What the home last sends arrives when another store has taken its place: perhaps the one of just now.
        world.backups.append((world.home.file.copy(), world.truth.present))
        for link in world.network.of(world.home.process):
            link.stall()
            world.loop.call_later(world.random.choice((4.3, 5.0, 6.0, 20.0)), link.flow)
        world.loop.call_later(4, _move, world, True)
    else:
        _move(world, False)


def _move(world: "World", silently: bool) -> None:
    if world.calm:
        return
    file = world.home.file
    world.backups.append((file.copy(), world.truth.present))
    world.twin.wanted = False
    world.twin.crash()
    world.home.crash(silently=silently)
    parent = None
    if world.random.random() < 0.5:
        file.restore(StoreFile(world.home.disk, file.committed).copy())
    else:
        known = [one for one in world.backups if world.profile.outgrown or _earlier(world, *one[0])]
        backup, parent = world.random.choice(known)
        file.restore(backup)
        world.home.publishes = world.profile.outgrown
    file.wake()
    world.began(file, parent)
    if parent is not None:
        world.went_back(file.ids[-1] if file.ids else 0)
    world.loop.create_task(_outgrow_and_start(world, world.profile.outgrown and parent is not None))


async def _outgrow_and_start(world: "World", outgrow: bool) -> None:
    """Other programs write into the store, perhaps until it is as long as it was, before the home runs again."""
    for _ in range(world.random.choice((0, 3, 30)) if outgrow else 0):
        await world.home.publish(DiskStore(world.home.file), world.random)
    await asyncio.sleep(world.random.choice((0.01, 1.0)))
    world.home.start()


def _earlier(world: "World", epoch: str, ids: list[int], events: list[Any]) -> bool:
    """Whether a backup is of the present life: one of another branch of its epoch is outgrown from the start."""
    life = world.truth.present
    return epoch == life.epoch and (not ids or life.data.get(ids[-1]) == events[-1][0].data)


FAULTS: dict[Callable[["World"], None], float] = {
    nothing: 4,
    crash: 4,
    crash_at_an_await: 6,
    drain: 1,
    freeze: 3,
    cut: 8,
    stall: 4,
    weather: 4,
    disk_trouble: 2,
    clock_step: 2,
    slow_app: 3,
    twin: 1,
    store_moves: 8,
}
