"""A reconnect storm: every app is dropped at once, and all come back in the same moment."""

import asyncio
import json
import resource
from contextlib import AsyncExitStack
from pathlib import Path

from bridge_server.auth import Server
from tests.support.processes import until
from tests.support.raw_socket import RawSocket
from tests.support.running_hub import running_hub

APPS = 500
DEVICES = 20
BEFORE, MISSED = 10, 5


async def test_everybody_is_back_with_everything_and_the_home_is_not_asked(tmp_path: Path) -> None:
    """# case 10: nobody waits, and nobody is refused; what was missed comes from the hub's memory alone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4 * APPS)), hard))
    async with running_hub(tmp_path) as hub, AsyncExitStack() as stack:
        server, token = hub.credentials.add_server("home")
        assert isinstance(server, Server)
        tokens = [hub.credentials.add_device(server.server_id, "phone")[1] for _ in range(DEVICES)]
        port = hub._listener
        assert port is not None
        host = f"127.0.0.1:{hub.port}"
        path = "/socket/websocket?vsn=2.0.0"

        home = await stack.enter_async_context(RawSocket(hub.port))
        assert (await home.upgrade(path, f"Authorization: Bearer {token}", host=host)).status == 101
        home.send_text(json.dumps(["1", "1", f"server:{server.server_id}", "phx_join", {"epoch": "E"}]))
        assert json.loads(await home.text())[4]["status"] == "ok"

        async def publish(first: int, last: int) -> None:
            events = [{"event_id": str(number), "type": "note"} for number in range(first, last + 1)]
            batch = {"events": events, "prev_id": str(first - 1) if first > 1 else None}
            home.send_text(json.dumps(["1", "2", f"server:{server.server_id}", "session_events", batch]))
            assert json.loads(await home.text())[4] == {"status": "ok", "response": {"acked_id": str(last)}}

        await publish(1, BEFORE)

        async def comes(number: int) -> list[int]:
            app = await stack.enter_async_context(RawSocket(hub.port))
            answer = await app.upgrade(path, f"Authorization: Bearer {tokens[number % DEVICES]}", host=host)
            assert answer.status == 101, answer
            wishes = {"since_id": str(BEFORE), "epoch": "E"}
            app.send_text(json.dumps(["1", "1", f"app:{server.server_id}", "phx_join", wishes]))
            ids: list[int] = []
            while True:
                message = json.loads(await app.text())
                if message[3] == "session_event":
                    ids.append(int(message[4]["event"]["event_id"]))
                elif message[3] == "replay_complete":
                    assert message[4] == {"epoch": "E", "to_id": str(head), "recovered": True, "gap": None}
                    return ids

        head = BEFORE
        assert await asyncio.gather(*map(comes, range(APPS))) == [[]] * APPS
        assert len(port.drivers) == APPS + 1

        dropped = [driver for driver in port.drivers if driver.peer and driver.peer.identity != server]
        for driver in dropped:
            driver.abort()
        await publish(BEFORE + 1, BEFORE + MISSED)
        await until(lambda: len(port.drivers) == 1, "everybody is gone")
        head = BEFORE + MISSED
        back = await asyncio.gather(*map(comes, range(APPS)))

        assert back == [list(range(BEFORE + 1, BEFORE + MISSED + 1))] * APPS
        assert port.refusals.counts == {}
        assert hub.budget.used == 0
        home.send_text('[null,"beat","phoenix","heartbeat",{}]')
        assert json.loads(await home.text())[1] == "beat", "nothing else came to the home"
