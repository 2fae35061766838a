"""Who was refused before it was a peer: counted, and said in the log without a flood."""

import asyncio
import logging
from pathlib import Path

import aiohttp
import pytest

from bridge_server.clock import Clock
from bridge_server.transports.refusals import Refusals
from protocol.codec import V2
from tests.support.longpoll_client import LongPollClient
from tests.support.raw_socket import RawSocket
from tests.support.running_hub import running_hub
from tests.support.virtual_time import virtual_time
from tests.support.wire_bench import Bench, Wire


def test_one_line_a_second_for_each_reason_and_the_rest_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    now = 0.0
    refusals = Refusals(Clock(lambda: now))
    for _ in range(3):
        refusals.add(403, "credential_invalid", "198.51.100.7")
    refusals.add(503, "overloaded", "198.51.100.8")
    now = 1.0
    refusals.add(403, "credential_invalid", "198.51.100.9")
    assert refusals.counts == {"credential_invalid": 4, "overloaded": 1}
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    first = "refused a connection from 198.51.100.7: credential_invalid (403)"
    assert lines == [
        ("INFO", first),
        ("DEBUG", first),
        ("DEBUG", first),
        ("INFO", "refused a connection from 198.51.100.8: overloaded (503)"),
        (
            "INFO",
            "refused a connection from 198.51.100.9: credential_invalid (403), and 2 more since the last such line",
        ),
    ]


async def test_a_refused_upgrade_and_a_refused_session_say_who_and_why_but_no_credential(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "not-a-credential-of-this-hub"
    told = (f"Authorization: Bearer {secret}", "X-Forwarded-For: 198.51.100.7")
    async with running_hub(tmp_path, trusted_proxies=("127.0.0.1",), public_url="https://hub.example") as hub:
        async with RawSocket(hub.port) as socket:
            assert (await socket.upgrade("/socket/websocket?vsn=2.0.0", *told, host="hub.example")).status == 403
        headers = {"Host": "hub.example", **dict(line.split(": ") for line in told)}
        async with aiohttp.ClientSession() as http:
            client = LongPollClient(http, f"{hub.url}/socket/longpoll", headers, "2.0.0")
            assert (await client.ask("GET", headers=headers))["status"] == 403
    said = [record.getMessage() for record in caplog.records if record.name == "bridge_server.refusals"]
    assert said == ["refused a connection from 198.51.100.7: credential_invalid (403)"] * 2
    assert secret not in caplog.text


@virtual_time
async def test_a_storm_of_cuts_is_one_line_a_second_and_counted() -> None:
    bench = Bench()
    seen = Seen()
    log = logging.getLogger("bridge_server.peer")
    log.addHandler(seen)
    log.setLevel(logging.DEBUG)
    try:
        for pause in (0.5, 0.5, 0.0):
            Wire(bench, None, V2).peer.outbox.cut("stuck")
            await asyncio.sleep(pause)
    finally:
        log.removeHandler(seen)
        log.setLevel(logging.NOTSET)
    assert bench.budget.cuts["stuck"] == 3
    said = "a peer reads too slowly and is cut"
    assert seen.lines == [
        ("WARNING", said),
        ("DEBUG", said),
        ("WARNING", f"{said}, and 1 more since the last such line"),
    ]


class Seen(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, record.getMessage()))
