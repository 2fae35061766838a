"""One of two programs on one event store, told to do everything at once until it is killed.

`python -m tests.faults.two_programs FILE NAME home|other`. What is done is told on standard output once it has been
promised, a line each:

    event ID KEY          publish returned
    message SESSION TEXT  append returned
    request SESSION ID    send returned
    acked ID              from now on events below this one may be removed

The home also answers requests and keeps the store to its rules, a pass after the other.
"""

import asyncio
import os
import random
import sys
from itertools import count
from pathlib import Path

import bridge_client.store.sqlite_retention as sqlite_retention
from bridge_client.clock import SystemClock
from bridge_client.request_execution import RequestExecution
from bridge_client.retention import Keeper, Rules
from bridge_client.runners import Message
from bridge_client.runners.echo import EchoRunner
from bridge_client.session_rules import RequestRunning
from bridge_client.sessions import Sessions
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_retention import SqliteRetention
from bridge_client.store.sqlite_sessions import SqliteSessions

KEPT = Rules(size=5_000)
UNACKNOWLEDGED = 60
"""More than the rules would keep: what is not acknowledged is due all the time, and has to stay."""

MESSAGES = 12
"""In one session: each event of a session shows all of it."""

sqlite_retention.MARK_EVENTS, sqlite_retention.STEP_EVENTS = 15, 20  # type: ignore[misc]  # many steps, many chances


class Restless(SystemClock):
    """Retention that hardly rests, so that it keeps up with those who publish."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0.001)


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def rest() -> None:
    await asyncio.sleep(random.random() * 0.02)


async def publish(store: SqliteStore, name: str) -> None:
    for number in count():
        key = f"{name}/{number}"
        stored = await store.publish({"type": "note", "session_id": name, "key": key, "pad": "x" * (number % 400)})
        tell("event", stored.event_id, key)
        await rest()


async def append(sessions: Sessions, name: str) -> None:
    for number in count():
        session_id = f"{name}-{number}"
        await sessions.create(session_id=session_id)
        for index in range(MESSAGES):
            _, at = await sessions.append(session_id, Message(role="user", content=f"m{index}"))
            assert at == index
            tell("message", session_id, f"m{index}")
            await rest()


async def send(sessions: Sessions, requests: RequestExecution, name: str) -> None:
    for number in count():
        session_id, request_id = f"{name}-{number // 4}", f"{name}-r{number}"
        if number % 4 == 0:
            await sessions.create(session_id=session_id)
        message = Message(role="user", content=f"please say {number}")
        while True:
            try:
                await requests.start(session_id, message, runner=EchoRunner(pause=0.002), request_id=request_id)
                break
            except RequestRunning:
                await rest()
        tell("request", session_id, request_id)


async def keep(store: SqliteStore) -> None:
    acked = 0
    keeper = Keeper(SqliteRetention(store), KEPT, lambda: acked, Restless())
    while True:
        acked = max(0, (await store.head() or 0) - UNACKNOWLEDGED)
        tell("acked", acked)
        await keeper.run_once()
        await rest()


async def main(path: Path, name: str, role: str) -> None:
    store = await SqliteStore.open(path)
    sessions = Sessions(SqliteSessions(store), SystemClock())
    work = [publish(store, f"{name}.{worker}") for worker in range(3)]
    work += [append(sessions, f"{name}.a{worker}") for worker in range(2)]
    if role == "home":
        requests = RequestExecution(sessions, store, SystemClock())
        await requests.recover()
        work += [send(sessions, requests, f"{name}.s"), keep(store)]
    await asyncio.gather(*work)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
