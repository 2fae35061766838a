"""Who was refused before it was a peer: counted, and said in the log without a flood."""

import logging
from pathlib import Path

import aiohttp
import pytest

from bridge_server.clock import Clock
from bridge_server.transports.refusals import Refusals
from tests.support.longpoll_client import LongPollClient
from tests.support.raw_socket import RawSocket
from tests.support.running_hub import running_hub


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
