"""Two processes on one event store, each killed with -9 at random moments, in the middle of everything they can do.

No event is lost after its publish returned (unless retention, which may, has removed it), no id is used twice, no lock
is left; a session holds each message whose append returned, and a request ends. `make soak` goes on for SOAK_SECONDS
(600) from SOAK_SEED.
"""

import asyncio
import json
import os
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bridge_client.clock import SystemClock
from bridge_client.request_execution import RequestExecution
from bridge_client.sessions import Sessions
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_file import FLOOR
from bridge_client.store.sqlite_sessions import SqliteSessions
from tests.support.processes import ROOT, until


class Ledger:
    """What the processes have promised, and what may be gone. Holds no more than the file does."""

    def __init__(self) -> None:
        self.events: dict[int, str] = {}
        self.messages: dict[str, list[str]] = {}
        self.requests: dict[str, str] = {}
        self.acked = 0
        self.floor = 0
        self.promised = 0
        self.removed = 0

    def note(self, line: str) -> None:
        what, *words = line.split()
        match what, words:
            case "event", [number, key]:
                event_id = int(number)
                assert event_id not in self.events, f"id {event_id} was given to {self.events[event_id]} and {key}"
                assert event_id > self.floor, f"id {event_id} was given again: it was removed already"
                self.events[event_id] = key
                self.promised += 1
            case "message", [session, text]:
                self.messages.setdefault(session, []).append(text)
            case "request", [session, request]:
                self.requests[request] = session
            case "acked", [number]:
                self.acked = max(self.acked, int(number))
            case _:
                raise AssertionError(f"not what the program tells: {line!r}")

    def check(self, path: Path) -> None:
        """Whatever else goes on, the file holds what was promised."""
        with closing(sqlite3.connect(path, timeout=30)) as file:
            file.execute("BEGIN")
            floor = file.execute(FLOOR).fetchone()[0]
            held = {number: json.loads(data) for number, data in file.execute("SELECT id, data FROM events")}
            sessions = {name: row for name, *row in file.execute(
                "SELECT session_id, cursor_event_id, message_count FROM sessions")}  # fmt: skip
            messages: dict[str, list[str]] = {}
            for name, data in file.execute(
                "SELECT session_id, data FROM session_messages ORDER BY session_id, position"
            ):
                messages.setdefault(name, []).append(json.loads(data)["content"])
        assert self.floor <= floor < max(self.acked, 1), "only what was acknowledged is removed"
        assert min(held, default=floor + 1) > floor
        kept = {number: key for number, key in self.events.items() if number > floor}
        lost = {number: key for number, key in kept.items() if held.get(number, {}).get("key") != key}
        assert not lost, f"{len(lost)} events are lost, behind the floor {floor}: {dict(list(lost.items())[:5])}"
        keys = [event["key"] for event in held.values() if "key" in event]
        assert len(keys) == len(set(keys)), "an event is there twice"
        for name, (cursor, count) in sessions.items():
            assert count == len(messages.get(name, [])), f"session {name} counts {count} messages"
            assert cursor <= floor or held[cursor]["session_id"] == name, f"the cursor of session {name} is elsewhere"
        for name, texts in self.messages.items():
            assert messages[name][: len(texts)] == texts, f"session {name} has lost messages"
        self.removed += len(self.events) - len(kept)
        self.events, self.floor = kept, floor


class Worker:
    """One of the two programs, over its lives."""

    def __init__(self, path: Path, role: str, ledger: Ledger) -> None:
        self._path = path
        self._role = role
        self._ledger = ledger
        self._lives = 0
        self.told = 0
        """Lines, in this life."""

    async def start(self) -> None:
        self._lives += 1
        self.told = 0
        command = ["-m", "tests.faults.two_programs", str(self._path), f"{self._role}{self._lives}", self._role]
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if line.endswith(b"\n"):  # else it was cut off by the kill
                self._ledger.note(line.decode().rstrip())
                self.told += 1

    async def kill(self) -> None:
        assert self.process.stderr is not None
        if self.process.returncode is None:
            self.process.kill()
        said = (await self.process.stderr.read()).decode()
        assert await self.process.wait() == -9, said
        assert "Traceback" not in said, said
        await self._reading  # and everything it has told is in the ledger


async def play(path: Path, chance: random.Random, more: Callable[[int], bool]) -> Ledger:
    """Rounds of kills, for as long as `more` says; then everything is checked."""
    ledger = Ledger()
    workers = [Worker(path, "home", ledger), Worker(path, "other", ledger)]
    await asyncio.gather(*(worker.start() for worker in workers))
    try:
        rounds = 0
        while more(rounds):
            rounds += 1
            victims = workers if chance.random() < 0.25 else [chance.choice(workers)]
            wanted = chance.randrange(1, 150)
            await until(lambda: all(worker.told >= wanted for worker in workers), "both go on", 60)  # noqa: B023
            await asyncio.sleep(chance.uniform(0, 0.05))  # the moment is to be random
            for victim in victims:
                await victim.kill()
            if len(victims) == 2:
                unlocked(path)
            ledger.check(path)
            await asyncio.gather(*(victim.start() for victim in victims))
    finally:
        for worker in workers:
            await worker.kill()
    ledger.check(path)
    unlocked(path)
    await ended(path, ledger)
    return ledger


def unlocked(path: Path) -> None:
    """Nobody is left who could hold a lock: it can be had without a wait."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")
        file.execute("ROLLBACK")
        assert file.execute("PRAGMA quick_check").fetchone() == ("ok",)


async def ended(path: Path, ledger: Ledger) -> None:
    """The next start ends what the kill has left, and goes on behind the last id."""
    store = await SqliteStore.open(path)
    sessions = Sessions(SqliteSessions(store), SystemClock())
    requests = RequestExecution(sessions, store, SystemClock())
    await requests.recover()
    assert not await sessions.with_request()
    for request_id, session_id in ledger.requests.items():
        events = [json.loads(one.data) for one in await store.list(session_id=session_id, request_id=request_id)]
        if events:  # or it ended so long ago that all of it is gone
            assert [event["type"] for event in events].count("request_completed") == 1, events
            assert events[-1]["type"] == "request_completed"
    last = await store.head()
    stored = await store.publish({"type": "note"})
    assert last is not None
    assert stored.event_id == last + 1
    assert last >= max(ledger.events)
    await requests.close()
    await store.close()


@pytest.mark.timeout(120)
async def test_nothing_promised_is_lost_when_two_processes_are_killed_at_random(tmp_path: Path) -> None:
    ledger = await play(tmp_path / "home.db", random.Random(11), lambda rounds: rounds < 3)
    assert ledger.promised > 100
    assert ledger.floor > 0, "retention has run"


@pytest.mark.soak
@pytest.mark.timeout(0)
async def test_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    chance = random.Random(int(os.environ.get("SOAK_SEED", "1000")))
    end = time.monotonic() + seconds
    shown = 0.0

    def more(rounds: int) -> bool:
        nonlocal shown
        left = end - time.monotonic()
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            with capsys.disabled():
                sys.stdout.write(f"\ntwo processes: {rounds} rounds of kills, {left:.0f} s left")
                sys.stdout.flush()
        return left > 0

    ledger = await play(tmp_path / "home.db", chance, more)
    with capsys.disabled():
        sys.stdout.write(f"\ntwo processes: {ledger.promised} events promised, {ledger.removed} of them removed\n")
    assert ledger.removed > 0
