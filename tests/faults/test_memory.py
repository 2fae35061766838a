"""Memory stays flat: at home while the hub is away, and at the hub beside apps that never read."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_file import connect
from tests.faults.apps import phoenix_app, python_app
from tests.faults.scene import Scene
from tests.support.invariant import Record, nothing_lost
from tests.support.processes import PATIENCE, Program, cursor_on_disk, until
from tests.support.raw_socket import frame, head
from tests.support.stored import all_events

MIB = 1 << 20
HOUR = 180_000
"""Events, at fifty a second."""
"""Events of an hour at 50 a second."""


async def publish_fast(store: SqliteStore, count: int, text: str) -> None:
    """Publish `count` events as fast as they can be made durable."""
    for start in range(0, count, 2_000):
        some = range(start, min(start + 2_000, count))
        await asyncio.gather(*(store.publish({"type": "note", "n": n, "text": text}) for n in some))


def write_all(path: Path, after: int, count: int) -> None:
    """Half a kilobyte each, put into the store's file at once: publishing them one by one is not what is measured."""
    with closing(connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO events (id, session_id, data) VALUES (?, 's', ?)",
            (
                (number, b'{"event_id":"%d","type":"note","session_id":"s","text":"%b"}' % (number, b"x" * 400))
                for number in range(after + 1, after + count + 1)
            ),
        )
        connection.execute("COMMIT")


class Peak:
    """The most memory a program was seen to occupy."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.bytes = program.resident()

    async def watch(self) -> None:
        while True:
            self.bytes = max(self.bytes, self._program.resident())
            await asyncio.sleep(0.02)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("count", [HOUR // 3, pytest.param(HOUR, marks=pytest.mark.soak)])
async def test_what_came_while_the_hub_was_away_waits_in_the_store_not_in_memory(scene: Scene, count: int) -> None:
    """It is more than memory may grow by."""
    record = Record("python", 4_000)
    store = await scene.store()
    keep = {"history_events": 2 * count, "history_bytes": 1024 * MIB}
    async with scene.hub(**keep) as hub, scene.home() as home:
        await publish_fast(store, 4_000, "x" * 100)
        await until(lambda: cursor_on_disk(scene.home_folder) == 4_000, "the home has warmed up")
        baseline = home.resident()
        peak = Peak(home)
        watching = asyncio.create_task(peak.watch())
        await hub.kill()
        await asyncio.to_thread(write_all, scene.home_folder / "home.db", 4_000, count)
        assert cursor_on_disk(scene.home_folder) == 4_000, "nobody acknowledged anything"
        await until(lambda: home.text.count("trying again") > 3, "the home has looked for the hub in vain")
        away = peak.bytes
        await hub.start()
        await until(lambda: cursor_on_disk(scene.home_folder) == count + 4_000, "all is acknowledged", 60)
        async with python_app(scene.url, scene.device(), scene.server_id, record):
            await until(lambda: record.last_id == count + 4_000, "all has arrived", 60)
        watching.cancel()
    nothing_lost(await all_events(store), record)
    await store.close()
    assert record.gaps == [], "the hub kept it all"
    assert away - baseline < 30 * MIB, "flat while the hub is away"
    assert peak.bytes - baseline < 30 * MIB, "flat while it catches up"


SLOW, READING = 20, 10
LOUD, QUIET = 6_000, 600
STUCK_SECONDS = 6.0


def never_reads(port: int, server_id: str, token: str, wishes: dict[str, Any]) -> socket.socket:
    """An app that joins and takes nothing: what the kernel holds for it is little."""
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.connect(("127.0.0.1", port))
    line.sendall(head("/socket/websocket?vsn=2.0.0", f"Authorization: Bearer {token}", host=f"127.0.0.1:{port}"))
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += line.recv(1)
    line.sendall(frame(json.dumps(["1", "1", f"app:{server_id}", "phx_join", wishes]).encode()))
    return line


async def metric(url: str, name: str) -> float:
    """The sum of a metric over its labels, or of those that `name` goes on to give."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def until_metric(url: str, name: str, wanted: float) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while (value := await metric(url, name)) != wanted:
        assert asyncio.get_running_loop().time() < deadline, f"{name} is {value} and never {wanted}"
        await asyncio.sleep(0.1)


async def test_apps_that_never_read_cost_the_hub_their_cap_and_the_others_nothing(scene: Scene) -> None:
    """Half of them are cut for what is queued (4 MiB), half, who want only the quiet session, for taking nothing."""
    reading = [Record(f"reading {number}", 0) for number in range(READING)]
    store = await scene.store()
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(scene.hub(queue_cut_seconds=STUCK_SECONDS))
        await stack.enter_async_context(scene.home())
        await publish_fast(store, 100, "warm up")
        for number, record in enumerate(reading):
            app = phoenix_app if number < 2 else python_app
            await stack.enter_async_context(app(scene.url, scene.device(), scene.server_id, record))
        await until(lambda: all(record.last_id == 100 for record in reading), "the hub has warmed up")
        slow_tokens = [scene.device() for _ in range(SLOW)]
        for number, token in enumerate(slow_tokens):
            wishes = {"since_id": "100"} | ({"session_id": "quiet"} if number % 2 else {})
            line = never_reads(hub.port, scene.server_id, token, wishes)
            stack.callback(line.close)
        await until_metric(scene.url, 'bridge_connections{peer="device"}', SLOW + READING)
        baseline = hub.resident()
        peak = Peak(hub)
        watching = asyncio.create_task(peak.watch())
        for part in range(10):
            await asyncio.gather(
                *(
                    store.publish({"type": "note", "session_id": name, "n": n, "part": part, "text": "y" * 2_000})
                    for name, count in (("loud", LOUD), ("quiet", QUIET))
                    for n in range(count // 10)
                )
            )
            last = await store.head()
            await until(lambda last=last: all(record.last_id == last for record in reading), "readers have it all")
            if part == 4:  # 7 MB, and too early to be cut for taking nothing
                cuts = await metric(scene.url, "bridge_cuts_total")
                assert cuts >= SLOW / 2, "who is sent much is cut for what is queued"
        await until_metric(scene.url, "bridge_cuts_total", SLOW)
        await until_metric(scene.url, 'bridge_connections{peer="device"}', READING)
        assert await metric(scene.url, "bridge_queued_bytes") == 0, "what was queued for them is forgotten"
        watching.cancel()
        back = [Record("cut, and back", 100), Record("cut, and back", 100), Record("cut late, and back", last)]
        for record, token in zip(back, slow_tokens, strict=False):
            app = phoenix_app if record is back[1] else python_app
            await stack.enter_async_context(app(scene.url, token, scene.server_id, record))
        await publish_fast(store, 10, "the last ones")
        last = await store.head()
        everybody = [*reading, *back]
        await until(lambda: all(record.last_id == last for record in everybody), "everybody is live again")
    nothing_lost(await all_events(store), *everybody)
    await store.close()
    assert [gap for record in reading for gap in record.gaps] == []
    assert [gap for record in back for gap in record.gaps] == [], (
        "14 MB were sent, the live tier holds 8 MiB: the home had the rest"
    )
    growth = peak.bytes - baseline
    assert growth < (SLOW * 4 + 8 + 24) * MIB, f"{growth / MIB:.0f} MiB"
