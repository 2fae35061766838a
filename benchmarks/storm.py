"""A reconnect storm: every app loses its connection at the same moment, and all come back at once with their cursors.

Nobody waits, as real clients would do at random: each dials in the turn in which it was dropped. While they are away a
few events are published, so that each has something to recover; the home's connection stays, and must not notice.
"""

import asyncio
import re
import time
from typing import Any, Final, NamedTuple

from benchmarks.generator import Frames, Headers, Load, Run, Socket, cpu_seconds, event, text_frame
from benchmarks.servers import HUB, running

APPS: Final = 10_000
BEFORE: Final = 10
MISSED: Final = 5
PATIENCE: Final = 120.0

_ID = re.compile(rb'"event_id":"(\d+)"')


class Storm(NamedTuple):
    """What one storm showed. `wrong` counts apps that did not get exactly what they missed, and were not told so."""

    apps: int
    seconds: float
    """From the drop until the last app is joined and has what it missed."""
    cpu_us_per_app: float
    refused: int
    wrong: int
    home_messages: int
    """What the home was sent during the storm, beside the acknowledgements of its events."""


class _Returning(Socket):
    """An app that joins with its cursor, and reads until its replay is complete."""

    def __init__(self, request: tuple[str, Headers], hello: str) -> None:
        super().__init__(request, [hello], 1)
        self.recovered = asyncio.get_running_loop().create_future()
        self.ids: list[int] = []
        self._all = b""

    def data_received(self, data: bytes) -> None:
        """Until the last word on the replay."""
        super().data_received(data)
        self._all += data
        end = self._all.find(b'"replay_complete"')
        if end >= 0 and not self.recovered.done():
            self.ids = [int(number) for number in _ID.findall(self._all[:end])]
            self.recovered.set_result(b'"recovered":true' in self._all[end:])

    def connection_lost(self, exc: Exception | None) -> None:
        """Refused, or cut: that is an answer, too."""
        super().connection_lost(exc)
        if not self.recovered.done():
            self.recovered.set_result(False)


async def storm(apps: int = APPS) -> Storm:
    """Drop all apps of one home at once, and wait until all have recovered. Raises TimeoutError, RuntimeError."""
    async with running(HUB, 1) as server:
        run = Run(server.port, server.dialect, Load(apps=apps, events=BEFORE, window=1), server.pid)
        try:
            await run.connect()
            await run.publish()
            await run.finish()
            return await _drop_and_return(run, apps, server.ready["tenants"][0])
        finally:
            run.close()


async def _drop_and_return(run: Run, apps: int, tenant: dict[str, Any]) -> Storm:
    loop = asyncio.get_running_loop()
    home, frames = run.publishers[0], Frames()
    answers = 0

    def taken(data: bytes) -> None:
        nonlocal answers
        answers += frames.count(data)

    home.taken = taken
    cpu, started = cpu_seconds(run.server_pid), time.monotonic()
    run.drop_apps()
    for number in range(BEFORE + 1, BEFORE + MISSED + 1):
        home.transport.write(text_frame(run.dialect.publish(0, number, event(number, run.load.size))))
    request = run.dialect.app_request(0)
    hello = f'["1","1","app:{tenant["server_id"]}","phx_join",{{"since_id":"{BEFORE}"}}]'

    async def comes_back() -> _Returning:
        _, app = await loop.create_connection(lambda: _Returning(request, hello), "127.0.0.1", run.port)
        app.joined.add_done_callback(lambda joined: joined.exception())
        await app.recovered
        return app

    async with asyncio.timeout(PATIENCE):
        back = await asyncio.gather(*(comes_back() for _ in range(apps)))
    seconds = time.monotonic() - started
    expected = list(range(BEFORE + 1, BEFORE + MISSED + 1))
    found = Storm(
        apps,
        seconds,
        (cpu_seconds(run.server_pid) - cpu) / apps * 1e6,
        sum(not app.recovered.result() for app in back),
        sum(app.ids != expected for app in back),
        answers - MISSED,
    )
    for app in back:
        if not app.lost:
            app.transport.abort()
    return found
