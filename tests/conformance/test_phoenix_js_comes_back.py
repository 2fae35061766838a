"""Whatever ends its socket, npm `phoenix` comes back by itself, joins again, and goes on where it stopped."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge_server.app import Hub
from tests.conformance.driver import Driver, driver
from tests.support.cable import Cable
from tests.support.programs import missing, require
from tests.support.running_hub import running_hub
from tests.support.scripted_home import scripted_home

JS = Path(__file__).resolve().parent / "js"


async def settled(phoenix: Driver, times: int) -> None:
    """It has joined so often, each time with its verdict."""
    await phoenix.until(lambda it: len(it.payloads("replay_complete")) == times, f"replay_complete number {times}")
    assert phoenix.payloads("replay_complete")[-1]["recovered"] is True


@asynccontextmanager
async def phoenix_js(folder: Path, port: int, server_id: str, token: str) -> AsyncIterator[Driver]:
    """The client, dialling a port of this machine."""
    node = require("node")
    if not (JS / "node_modules" / "phoenix").is_dir():
        missing("tests/conformance/js/node_modules is not built: `make test` builds it, with npm")
    order = {"url": f"ws://127.0.0.1:{port}/socket", "token": token, "topic": f"app:{server_id}"}
    async with driver(node, JS / "phoenix.mjs", log=folder / "client.log", **order) as phoenix:
        yield phoenix


@pytest.mark.parametrize("code", [1001, 1012, 1013, "abort"])
async def test_case_7_and_8_after_a_drain_with_any_code(tmp_path: Path, code: Any) -> None:
    async with AsyncExitStack() as stack:
        cable = await stack.enter_async_context(Cable())
        old = await stack.enter_async_context(running_hub(tmp_path, drain_code=code))
        cable.lead_to(old.port)
        server, home_token = old.credentials.add_server("home")
        _, token = old.credentials.add_device(server.server_id, "phone")
        phoenix = await stack.enter_async_context(phoenix_js(tmp_path, cable.port, server.server_id, token))
        async with scripted_home(old.url, server.server_id, home_token) as home:
            await settled(phoenix, 1)
            ids = await home.publish(3)
            await phoenix.until(lambda it: it.event_ids() == ids, "the events of the first hub")
        await old.drain()
        await phoenix.until(lambda it: it.of("closed"), "the end of its socket")
        assert phoenix.of("closed")[0]["code"] == (1006 if code == "abort" else code)
        await old.close()
        new = await stack.enter_async_context(running_hub(tmp_path))
        cable.lead_to(new.port)
        # The new hub's memory is empty: the home says what it has, and begins again.
        async with scripted_home(new.url, server.server_id, home_token, head=5) as home:
            ids = await home.publish(5)
            await settled(phoenix, 2)
            await phoenix.until(lambda it: it.event_ids()[-1:] == ids[-1:], "what it missed")
            assert phoenix.event_ids() == ids


async def test_case_1_after_an_operator_has_disconnected_it(hub: Hub, tmp_path: Path) -> None:
    server, home_token = hub.credentials.add_server("home")
    device, token = hub.credentials.add_device(server.server_id, "phone")
    async with (
        scripted_home(hub.url, server.server_id, home_token) as home,
        phoenix_js(tmp_path, hub.port, server.server_id, token) as phoenix,
    ):
        for times in (1, 2, 3):
            await settled(phoenix, times)
            ids = await home.publish(2)
            await phoenix.until(lambda it, last=ids[-1]: it.event_ids()[-1:] == [last], "the events")
            hub.credentials.disconnect(device_id=device.device_id)
        await settled(phoenix, 4)
        assert {sight["code"] for sight in phoenix.of("closed")} == {1001}
        assert phoenix.event_ids() == [str(number) for number in range(1, 7)]
