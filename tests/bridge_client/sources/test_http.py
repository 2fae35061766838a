"""Another server's events: its habits, its failures, its token."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from bridge_client.dead_letters import DeadLetters
from bridge_client.sources import SourceEvent, SourceRefused
from bridge_client.sources.http import FASTEST, HttpSource
from bridge_client.sources.own_epoch import OwnEpoch
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_retention import SqliteRetention
from tests.contracts.test_sources import http_source, read
from tests.support.foreign_server import ForeignServer, foreign_server
from tests.support.running_api import TOKEN, running_api

DEADLINE = 20


class Away:
    """A server that can be away, in two ways, and back where it was."""

    def __init__(self, server: ForeignServer, running: AsyncExitStack, how: str) -> None:
        self._server, self._running, self._how = server, running, how

    async def leave(self) -> None:
        if self._how == "gone":
            await self._running.aclose()
        else:
            self._server.failure = web.Response(status=503)

    async def back(self) -> None:
        if self._how == "gone":
            await self._running.enter_async_context(foreign_server(self._server))
        self._server.failure = None


async def ids(source: HttpSource, after: int = 0) -> list[int]:
    return [event.event_id for event in await read(source, after)]


async def test_it_waits_at_a_server_that_can(tmp_path: Path) -> None:
    server = ForeignServer()
    server.waits = True
    async with foreign_server(server), http_source(server.url, tmp_path) as source, asyncio.timeout(DEADLINE):
        server.add("1")
        assert await ids(source) == [1]
        waiting = asyncio.ensure_future(source.wait(1))
        await server.asked_more()
        assert int(server.asked[-1]["wait_timeout_ms"]) > 1000
        asked = len(server.asked)
        server.add("2")
        await waiting
        assert [event.event_id for event in await source.page(1)] == [2]
        assert len(server.asked) == asked, "what the wait brought is not asked for again"


async def test_2_5_what_the_server_has_removed_shows_in_the_id_before_the_first_event_left(tmp_path: Path) -> None:
    """Another home that keeps little: a hub must learn from it where the past begins."""
    store = await SqliteStore.open(tmp_path / "home.db")
    for _ in range(9):
        await store.publish({"type": "note", "session_id": "s"})
    stock = SqliteRetention(store)
    await stock.mark(1_000_000.0)
    await stock.remove((await stock.marks())[-1], 6)
    async with running_api(store) as api, http_source(api.api.url + "/events", tmp_path, token=TOKEN) as source:
        for after, before in ((0, 5), (2, 5), (5, 5), (7, 7)):
            first = (await source.page(after))[0]
            assert (first.event_id, first.prev_id) == (before + 1, before)
    await store.close()


async def test_it_asks_ever_more_rarely_where_nobody_waits(tmp_path: Path) -> None:
    slept: list[float] = []

    class Clock:
        def monotonic(self) -> float:
            return 0.0

        def wall(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 8:
                server.add(1)

    async with foreign_server() as server, http_source(server.url, tmp_path, clock=Clock()) as source:
        async with asyncio.timeout(DEADLINE):
            await source.wait(0)
    assert slept == [FASTEST, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


async def test_a_server_that_refuses_parameters_it_does_not_know(tmp_path: Path) -> None:
    server = ForeignServer()
    server.strict = True
    for n in range(1, 1201):
        server.add(n)
    async with foreign_server(server), http_source(server.url, tmp_path) as source, asyncio.timeout(DEADLINE):
        assert await source.page(0) == [], "refused"
        await source.wait(0)
        assert await ids(source) == list(range(1, 1201))
        assert await source.head() == 1200
    assert set(server.asked[-1]) <= {"since_id"}


async def test_a_server_that_does_not_say_its_last_id_is_read_to_its_end(tmp_path: Path) -> None:
    server = ForeignServer()
    server.says_latest = False
    async with foreign_server(server), http_source(server.url, tmp_path) as source:
        assert await source.head() is None
        for n in (3, 5, 9):
            server.add(str(n))
        assert await source.head() == 9
        assert [(e.event_id, e.prev_id) for e in await read(source)] == [(3, 2), (5, 3), (9, 5)]


async def test_sparse_ids_are_not_waited_for_unless_told_so(tmp_path: Path) -> None:
    server = ForeignServer()
    async with foreign_server(server), http_source(server.url, tmp_path) as source:
        server.add(1)
        server.add(8)  # partials 2 to 8, merged
        assert await ids(source) == [1, 8]
    async with foreign_server(server), http_source(server.url, tmp_path, dense=True) as source:
        async with asyncio.timeout(DEADLINE):
            assert await ids(source) == [1]
            await source.wait(1)
            assert await ids(source, 1) == [8]


async def test_one_bad_event_does_not_stop_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = ForeignServer()
    server.add("1")
    server.events.append({"event_id": "2", "no type": True})
    server.add("3")

    async def with_junk(request: web.Request) -> web.Response:
        answer = await plain(request)
        body = json.loads(answer.body)  # type: ignore[arg-type]
        body["events"] += [{"type": "x"}, {"type": "x", "event_id": "007"}, 7]
        return web.json_response(body)

    plain, server.get = server.get, with_junk  # type: ignore[method-assign]
    letters = DeadLetters.in_memory()
    async with foreign_server(server), http_source(server.url, tmp_path, letters=letters) as source:
        events = await source.page(0)
    assert [event.event_id for event in events] == [1, 2, 3]
    [letter] = await letters.list()
    assert (letter.event_id, json.loads(letter.data)) == (2, {"event_id": "2", "no type": True})
    assert json.loads(events[1].data)["type"] == "unforwardable"
    assert "2" in caplog.text
    assert "007" in caplog.text


@pytest.mark.parametrize(
    "failure",
    [
        web.Response(status=500),
        web.Response(status=503, headers={"Retry-After": "0"}),
        web.Response(status=200, body=b"<html>"),
        web.Response(status=200, body=b'{"events":7}'),
        web.Response(status=404),
        web.Response(status=401),
    ],
    ids=str,
)
async def test_what_fails_for_a_while_is_asked_again(
    tmp_path: Path, failure: web.Response, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server = ForeignServer()
    async with foreign_server(server), http_source(server.url, tmp_path) as source, asyncio.timeout(DEADLINE):
        epoch = source.epoch
        server.add(1)
        server.failure = failure
        assert await source.page(0) == []
        waiting, asking = asyncio.ensure_future(source.wait(0)), asyncio.ensure_future(source.head())
        await server.asked_more(2)
        server.failure = None
        await waiting
        assert await asking == 1
        assert await ids(source) == [1]
        assert source.epoch == epoch
    assert server.url in caplog.text


async def test_a_server_that_is_away_is_waited_for(tmp_path: Path) -> None:
    server = ForeignServer()
    async with foreign_server(server):  # has an address from now on
        server.add(1)
    async with aiohttp.ClientSession() as session, asyncio.timeout(DEADLINE):
        opening = asyncio.ensure_future(HttpSource.open(server.url, OwnEpoch(tmp_path / "epoch", server.url), session))
        await asyncio.sleep(0.05)
        assert not opening.done()
        async with foreign_server(server):
            source = await opening
            assert await ids(source) == [1]


@pytest.mark.parametrize(
    ("status", "said"), [(401, "--source-token-file"), (403, "token"), (404, "path"), (302, "else")]
)
async def test_a_source_that_never_will_answer_is_refused_at_the_start(tmp_path: Path, status: int, said: str) -> None:
    server = ForeignServer()
    server.failure = web.Response(status=status, headers={"Location": "/elsewhere"})
    async with foreign_server(server):
        with pytest.raises(SourceRefused, match=said):
            async with http_source(server.url, tmp_path):
                pass
    assert len(server.asked) == 1


async def test_the_token_goes_to_the_server_and_no_further(tmp_path: Path) -> None:
    server, other = ForeignServer(), ForeignServer()
    server.token = "made-up"
    async with foreign_server(server), foreign_server(other):
        server.add(1)
        async with http_source(server.url, tmp_path, token="made-up") as source:
            assert await ids(source) == [1]
            server.failure = web.Response(status=307, headers={"Location": other.url})
            assert await source.page(0) == []
    assert other.asked == []


@pytest.mark.parametrize("cleverness", [{"epoch": "one"}, {"says_reset": True}, {}], ids=str)
async def test_a_restored_server_is_noticed_though_it_grew_again(tmp_path: Path, cleverness: dict[str, Any]) -> None:
    server = ForeignServer()
    vars(server).update(cleverness)
    async with foreign_server(server), http_source(server.url, tmp_path) as source:
        for n in range(1, 6):
            server.add(n)
        assert await ids(source) == [1, 2, 3, 4, 5]
        before = source.epoch
        del server.events[2:]
        if server.epoch is not None:
            server.epoch = "two"
            for n in range(3, 9):
                server.add(n)
        assert await source.page(5) == []
        assert source.epoch != before
        async with asyncio.timeout(DEADLINE):
            await source.wait(5)
        await source.head()
        assert (await ids(source))[:2] == [1, 2]


@pytest.mark.parametrize("how", ["gone", "failing"])
async def test_a_server_that_says_nothing_is_known_again_by_its_last_event(tmp_path: Path, how: str) -> None:
    """It was restored while it was away, and has outgrown its old end before anybody looked."""
    server = ForeignServer()
    server.says_latest = False
    async with AsyncExitStack() as stack, AsyncExitStack() as running:
        await running.enter_async_context(foreign_server(server))
        away = Away(server, running, how)
        source = await stack.enter_async_context(http_source(server.url, tmp_path))
        for n in range(1, 6):
            server.add(n, text="before")
        server.add(6, text="a part", type="partial")
        assert await ids(source) == [1, 2, 3, 4, 5, 6]
        before = source.epoch
        await away.leave()
        assert await source.page(6) == []
        await away.back()
        server.add(7)
        assert await ids(source, 6) == [7]
        assert source.epoch == before, "it is the one it was"
        await away.leave()
        assert await source.page(7) == []
        del server.events[2:]
        for n in range(3, 10):
            server.add(n, text="after")
        await away.back()
        assert await source.page(7) == []
        assert source.epoch != before
        await source.head()
        assert await ids(source) == list(range(1, 10))


async def test_what_was_acknowledged_tells_a_server_that_was_restored_while_nobody_looked(tmp_path: Path) -> None:
    def digest(event: SourceEvent) -> str:
        return sha256(event.data).hexdigest()

    async with foreign_server() as server, http_source(server.url, tmp_path) as source:
        server.add(1)
        server.add(2, type="partial")
        server.add(3)
        one, two, three = await read(source, 0)
        assert [await source.knows(event.event_id, digest(event)) for event in (one, two, three)] == [True] * 3
        assert await source.knows(3, digest(one)) is False
        assert await source.knows(2, digest(one)) is None, "parts are merged, and others by the next answer"
        assert await source.knows(4, digest(one)) is None, "it may have been removed"
        server.epoch = "its own"
        assert await source.page(3) == []
        assert await source.knows(3, digest(one)) is None, "it says itself when it lives another life"
