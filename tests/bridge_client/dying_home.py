"""A home that dies while it does what an app asked: `python -m tests.bridge_client.dying_home FILE LOG POINT`.

POINT is `before` (the id is remembered), `during` (it is being done) or `after` (it is done), each without an answer
being remembered; or `never`. What is done is one line in LOG; the answer goes to standard output.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from bridge_client.clock import SystemClock
from bridge_client.requests import Answer, Asked, Requests
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_requests import SqliteAnswers


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


async def main(file: Path, done: Path, point: str) -> None:
    async def act(method: str, path: str, body: bytes | None) -> Answer:
        if point == "before":
            die()
        with done.open("a") as log:
            log.write("done\n")
            if point == "during":
                log.flush()
                die()
        if point == "after":
            die()
        return Answer(202, {"content-type": "application/json"}, b'{"n":1}')

    store = await SqliteStore.open(file)
    asked = Asked(
        id="request-0001", call=1, device_id="phone", scopes=["control"], method="POST", path="/sessions/s/send"
    )
    sys.stdout.write(str(await Requests(act, SqliteAnswers(store), SystemClock()).answer(asked)))
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
