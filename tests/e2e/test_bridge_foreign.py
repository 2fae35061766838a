"""An agent server that is not ours, bridged by `bridge-client forward`: hub, home, app and kill -9 are real."""

import asyncio
import json
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from bridge_client import keys
from bridge_client.app_client import AppClient, CaughtUp, Event, Gap, ServerStatus
from bridge_client.keys import Credential
from bridge_server.app import Hub
from tests.bridge_client.scripted_hub import NoWait
from tests.support.foreign_server import ForeignServer, foreign_server
from tests.support.home_commands import run, serving

DEADLINE = 100


class World:
    """One home at one hub, and an app of it."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        server, token = hub.credentials.add_server("a home")
        _, self._app_token = hub.credentials.add_device(server.server_id, "a phone")
        self.server_id, self.hub, self.state = server.server_id, hub, folder / "state"
        keys.save(self.state / "home-credential.json", Credential(hub.url, server.server_id, token))

    def app(self, since: int = 0, epoch: str | None = None) -> AppClient:
        return AppClient(self.hub.url, self._app_token, self.server_id, cursor=(epoch, since), rng=NoWait())

    def words(self, command: str, source: str) -> tuple[str, ...]:
        return (command, "--source", source, "--state-dir", str(self.state))

    async def status(self, source: str) -> dict[str, Any]:
        code, out, err = await run(*self.words("status", source), "--json")
        assert code == 0, err
        facts: dict[str, Any] = json.loads(out)
        return facts


@pytest.fixture
async def world(hub: Hub, tmp_path: Path) -> AsyncIterator[World]:
    async with asyncio.timeout(DEADLINE):
        yield World(hub, tmp_path)


async def receive(app: AppClient, last: int, gaps: list[Gap] | None = None) -> list[dict[str, Any]]:
    values = []
    async for item in app:
        if isinstance(item, Gap) and gaps is not None:
            gaps.append(item)
        elif isinstance(item, Event):
            values.append(item.value)
            if item.event_id == last:
                return values
        else:
            assert isinstance(item, ServerStatus | CaughtUp)
    raise AssertionError("the app ended")


Write = Callable[[int, int], None]


@asynccontextmanager
async def a_source(kind: str, folder: Path) -> AsyncIterator[tuple[str, Write, Callable[[int], None]]]:
    """Its name, how to add events from one id to another, and how to forget all after one."""
    if kind == "a server":
        async with foreign_server() as server:

            def write(first: int, last: int) -> None:
                for n in range(first, last + 1):
                    server.add(n, n=n, session_id="s")

            def forget(after: int) -> None:
                del server.events[after:]

            yield server.url, write, forget
    else:
        path = folder / "agent.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE log (seq INTEGER PRIMARY KEY, kind TEXT, n INTEGER)")

        def insert(first: int, last: int) -> None:
            with closing(sqlite3.connect(path, timeout=10)) as connection:
                rows = [(n, "note", n) for n in range(first, last + 1)]
                connection.executemany("INSERT INTO log VALUES (?, ?, ?)", rows)
                connection.commit()

        def delete(after: int) -> None:
            with closing(sqlite3.connect(path, timeout=10)) as connection:
                connection.execute("DELETE FROM log WHERE seq > ?", (after,))
                connection.commit()

        yield f"sqlite:{path}?table=log&id=seq&map=type:kind,n:n", insert, delete


@pytest.mark.parametrize("kind", ["a server", "a file"])
async def test_A200_A208_each_event_once_in_order_over_kills(world: World, tmp_path: Path, kind: str) -> None:
    async with a_source(kind, tmp_path) as (source, write, _), world.app() as app:
        write(1, 30)
        async with serving(*world.words("forward", source)) as (process, about):
            assert (about["server_id"], about["source"]) == (world.server_id, source)
            assert "store" not in about
            values = await receive(app, 30)
            write(31, 40)
            values += await receive(app, 40)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        write(41, 50)
        async with serving(*world.words("forward", source)):
            values += await receive(app, 50)
    assert [value["n"] for value in values] == list(range(1, 51))
    assert all(value["event_id"] == str(value["n"]) for value in values)


@pytest.mark.parametrize("kind", ["a server", "a file"])
async def test_a_source_that_goes_back_is_told_and_sent_again(world: World, tmp_path: Path, kind: str) -> None:
    gaps: list[Gap] = []
    async with a_source(kind, tmp_path) as (source, write, forget), world.app() as app:
        write(1, 10)
        async with serving(*world.words("forward", source)):
            assert len(await receive(app, 10)) == 10
            forget(4)
            write(5, 6)
            while not gaps:
                await receive(app, 6, gaps)
    assert gaps[0].reason == "epoch_changed"
    async with world.app() as late:
        assert [value["n"] for value in await receive(late, 6)] == [1, 2, 3, 4, 5, 6]


async def test_status_tells_how_far_it_came_whether_it_runs_or_not(world: World, tmp_path: Path) -> None:
    async with a_source("a file", tmp_path) as (source, write, _):
        facts = await world.status(source)
        assert (facts["running"], facts["acked_id"], facts["waiting"]) == (False, None, None)
        write(1, 5)
        async with serving(*world.words("forward", source)), world.app() as app:
            await receive(app, 5)
            while (facts := await world.status(source))["acked_id"] != "5" or facts["connected"] is None:
                pass
            assert (facts["running"], facts["connected"], facts["head_id"]) == (True, True, "5")
            assert facts["lag"] == {"events": 0, "seconds": 0.0}
            assert 0 <= facts["last_ack_age_seconds"] < DEADLINE
            assert facts["server_id"] == world.server_id
        facts = await world.status(source)
        assert (facts["running"], facts["acked_id"], facts["connected"]) == (False, "5", None)
        assert facts["last_ack_age_seconds"] > 0


async def test_a_source_that_can_not_be_is_one_sentence(world: World, tmp_path: Path) -> None:
    async with foreign_server(ForeignServer()) as server:
        code, out, err = await run(*world.words("forward", server.url.replace("/events", "/elsewhere")))
    assert (code, out) == (1, "")
    assert err.splitlines()[-1].startswith("Error: http://")
    assert "answers 404" in err
    code, _, err = await run("forward", "--state-dir", str(world.state))
    assert (code, "--source" in err) == (2, True)
    code, _, err = await run(*world.words("forward", "sqlite:x"))
    assert (code, "names no table" in err) == (2, True)
