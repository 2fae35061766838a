"""Behind a reverse proxy that keeps its connections to the hub alive, an upgrade must never meet an HTTP leftover.

Only the first request head of a connection reaches the WebSocket driver: had the hub kept a connection open after
answering /health, nginx would send the next upgrade down the same one, to be answered by the wrong half of the port.
"""

import json
from pathlib import Path

import aiohttp
import pytest
from websockets.asyncio.client import connect

from bridge_server.app import Hub

pytestmark = pytest.mark.requires("nginx")

ROUNDS = 20


async def test_an_upgrade_after_an_http_answer_over_a_kept_alive_upstream(
    hub: Hub, nginx_port: int, tmp_path: Path
) -> None:
    server, _ = hub.credentials.add_server("home")
    device, token = hub.credentials.add_device(server.server_id, "phone")
    topic = f"app:{device.server_id}"
    url = f"ws://127.0.0.1:{nginx_port}/socket/websocket?vsn=2.0.0"
    async with aiohttp.ClientSession() as http:
        for _ in range(ROUNDS):
            async with http.get(f"http://127.0.0.1:{nginx_port}/health") as answer:
                assert answer.status == 200
                assert await answer.read()
            async with connect(url, additional_headers={"X-API-Key": token}, proxy=None) as socket:
                await socket.send(json.dumps(["1", "1", topic, "phx_join", {}]))
                join_ref, ref, _, event, reply = json.loads(await socket.recv())
                assert (join_ref, ref, event, reply["status"]) == ("1", "1", "phx_reply", "ok")
    # No 502 that a retry hid: nginx writes a line for each upstream that hung up on it.
    assert "upstream prematurely closed" not in (tmp_path / "nginx" / "error.log").read_text()


async def test_a_refusal_before_the_upgrade_reaches_the_client_through_nginx(hub: Hub, nginx_port: int) -> None:
    """403 stays 403, with its machine-readable reason: some clients stop for good on it, and on nothing else."""
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        "X-API-Key": "not a credential",
    }
    async with aiohttp.ClientSession() as http:
        for _ in range(ROUNDS):
            url = f"http://127.0.0.1:{nginx_port}/socket/websocket?vsn=2.0.0"
            async with http.get(url, headers=headers) as answer:
                assert answer.status == 403
                assert await answer.json(content_type=None) == {"reason": "credential_invalid"}
