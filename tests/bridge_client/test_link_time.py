"""The link in time: how long it waits, what counts as dead, what is read and when."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from bridge_client.dial import Disconnected, Wire
from bridge_client.link import Link, Session
from protocol.client import Received
from tests.bridge_client.scripted_hub import (
    MemoryWire,
    NoWait,
    VirtualClock,
    settle,
)

CREDENTIAL = "sb-server-0123456789abcdefghijklmnopqrstuvwxyz"


TOPIC = "app:x"


async def join_once(session: Session) -> str:
    await session.join(TOPIC, {})
    return "joined"


async def until_lost(session: Session) -> None:
    """Join, then take what comes for as long as the socket lives."""
    await session.join(TOPIC, {})
    while True:
        await session.next()


class Unreachable:
    """A dialler that fails, and notes when it was asked."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.at: list[float] = []

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Wire:
        self.at.append(self.clock.now)
        raise Disconnected("nobody there")


async def test_case_11_two_hundred_homes_do_not_return_in_step() -> None:
    clock = VirtualClock()
    start = clock.now
    diallers = [Unreachable(clock) for _ in range(200)]
    runs = [
        asyncio.create_task(
            Link("http://h", CREDENTIAL, dial=dial, clock=clock, rng=random.Random(seed)).run(join_once)
        )
        for seed, dial in enumerate(diallers)
    ]
    await clock.advance(60.0)
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    assert all(dial.at[0] == start for dial in diallers)
    third_and_later = Counter(int((at - start) * 10) for dial in diallers for at in dial.at[2:])
    assert sum(third_and_later.values()) > 600
    assert max(third_and_later.values()) <= 50, third_and_later.most_common(3)  # in step it would be 200
    assert max(count for tenth, count in third_and_later.items() if tenth > 100) <= 10
    for dial in diallers:
        gaps = [later - earlier for earlier, later in zip(dial.at, dial.at[1:], strict=False)]
        assert all(gap <= min(60, 0.5 * 2**n) for n, gap in enumerate(gaps))


class Script:
    """A dialler of wires in memory; the test holds the other ends."""

    def __init__(self) -> None:
        self.wires: list[MemoryWire] = []

    async def __call__(self, url: str, headers: Mapping[str, str]) -> Wire:
        wire = MemoryWire()
        self.wires.append(wire)
        return wire


class Longest(random.Random):
    """Chance that always picks the end."""

    def uniform(self, a: float, b: float) -> float:
        return b


def start(talk: Any, rng: random.Random) -> tuple[VirtualClock, Script, "asyncio.Task[Any]"]:
    clock, dial = VirtualClock(), Script()
    return clock, dial, asyncio.create_task(Link("http://h", CREDENTIAL, dial=dial, clock=clock, rng=rng).run(talk))


async def stop(run: "asyncio.Task[Any]") -> None:
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)


def joined(wire: MemoryWire) -> None:
    join_ref, ref, topic, event, _ = wire.sent[0]
    assert event == "phx_join"
    wire.say(join_ref, ref, topic, "phx_reply", {"status": "ok", "response": {}})


async def test_case_22_a_mute_hub_is_dead_after_two_intervals(caplog: pytest.LogCaptureFixture) -> None:
    clock, dial, run = start(until_lost, NoWait())
    await settle()
    joined(dial.wires[0])
    await clock.advance(59.0)
    assert len(dial.wires) == 1
    assert [frame[3] for frame in dial.wires[0].sent] == ["phx_join", "heartbeat"]
    await clock.advance(1.0)
    assert len(dial.wires) == 2
    assert dial.wires[0].aborted
    assert "nothing came from the hub for 60 s" in caplog.text
    await stop(run)


async def test_a_hub_that_answers_heartbeats_is_alive() -> None:
    clock, dial, run = start(until_lost, NoWait())
    await settle()
    joined(dial.wires[0])
    for _ in range(20):
        await clock.advance(30.0)
        beat = dial.wires[0].sent[-1]
        assert beat[2:4] == ["phoenix", "heartbeat"]
        dial.wires[0].say(None, beat[1], "phoenix", "phx_reply", {"status": "ok", "response": {}})
    assert len(dial.wires) == 1
    await stop(run)


async def test_case_23_a_consumer_busy_for_minutes_does_not_cost_the_link() -> None:
    async def busy(session: Session) -> None:
        await session.join(TOPIC, {})
        await clock.sleep(300.0)
        await until_lost(session)

    clock, dial, run = start(busy, NoWait())
    await settle()
    joined(dial.wires[0])
    await settle()
    for n in range(500):  # more than the session holds: it stops reading
        dial.wires[0].say("1", None, TOPIC, "news", {"n": n})
    await clock.advance(200.0)
    assert len(dial.wires) == 1
    assert [frame[3] for frame in dial.wires[0].sent].count("heartbeat") == 6
    await stop(run)


async def test_what_nobody_takes_is_not_read() -> None:
    taken: list[Any] = []

    async def late(session: Session) -> None:
        await session.join(TOPIC, {})
        await clock.sleep(10.0)
        while True:
            taken.append(await session.next())

    clock, dial, run = start(late, NoWait())
    await settle()
    joined(dial.wires[0])
    await settle()
    for n in range(500):
        dial.wires[0].say("1", None, TOPIC, "news", {"n": n})
    await clock.advance(5.0)
    assert 350 < dial.wires[0]._incoming.qsize() < 500
    await clock.advance(6.0)
    for _ in range(100):
        await settle()
    assert [json.loads(bytes(event.payload)) for event in taken] == [{"n": n} for n in range(500)]
    assert all(isinstance(event, Received) for event in taken)
    await stop(run)


@pytest.mark.parametrize("jump", [31.0, 8 * 3600.0])
async def test_case_26_a_sleep_of_the_machine_forces_a_new_socket(
    jump: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock, dial, run = start(until_lost, NoWait())
    await settle()
    joined(dial.wires[0])
    await clock.advance(2.0)
    clock.wall_offset += jump  # the monotonic clock stood still
    await clock.advance(5.0)
    assert len(dial.wires) == 2
    assert "asleep" in caplog.text
    await stop(run)


async def test_small_steps_of_the_clock_and_steps_back_cost_nothing() -> None:
    clock, dial, run = start(until_lost, NoWait())
    await settle()
    joined(dial.wires[0])
    for step in (20.0, -7200.0, 29.0):
        clock.wall_offset += step
        await clock.advance(5.0)
    assert len(dial.wires) == 1
    await stop(run)


async def test_the_backoff_grows_until_a_socket_was_healthy_for_thirty_seconds() -> None:
    clock, dial, run = start(until_lost, Longest())
    for n, wait in enumerate([0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]):
        await settle()
        dial.wires[n].lose(Disconnected("gone"))
        await clock.advance(wait - 0.01)
        assert len(dial.wires) == n + 1
        await clock.advance(0.02)
        assert len(dial.wires) == n + 2
    joined(dial.wires[-1])
    await clock.advance(29.0)  # not yet healthy
    dial.wires[-1].say(None, None, "phoenix", "x", {})
    dial.wires[-1].lose(Disconnected("gone"))
    await clock.advance(59.0)
    assert len(dial.wires) == 10
    await clock.advance(1.0)
    joined(dial.wires[-1])
    await clock.advance(31.0)
    dial.wires[-1].say(None, None, "phoenix", "x", {})
    dial.wires[-1].lose(Disconnected("gone"))
    await clock.advance(0.6)
    assert len(dial.wires) == 12
    await stop(run)


async def test_what_came_before_the_end_is_taken_before_the_end_is_told() -> None:
    taken: list[Any] = []

    async def talk(session: Session) -> None:
        await session.join(TOPIC, {})
        await clock.sleep(1.0)
        while True:
            taken.extend(session.take())
            await session.wake.wait()

    clock, dial, run = start(talk, NoWait())
    await settle()
    joined(dial.wires[0])
    await settle()
    dial.wires[0].say("1", None, TOPIC, "replaced", {})
    dial.wires[0].lose(Disconnected("gone"))
    await clock.advance(1.0)
    assert [event.event for event in taken] == ["replaced"]
    assert len(dial.wires) == 2
    await stop(run)
