"""The hub ends the sockets itself: every version of phoenix.js comes back without being told to, and misses nothing."""

from pathlib import Path
from typing import Any

import pytest

from bridge_server.auth import Device
from tests.conformance.conftest import Place, Scene
from tests.conformance.driver import driver, javascript
from tests.conformance.test_phoenix_js import VERSIONS, orders
from tests.support.running_hub import running_hub
from tests.support.scripted_home import scripted_home


async def test_case_1_and_rule_29_after_a_forced_disconnect_they_come_back(direct_scene: Scene, tmp_path: Path) -> None:
    scene = direct_scene
    async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=orders(scene)) as program:
        await program.until(lambda it: it.payloads("replay_complete"), "replay_complete of the first join")
        sent = await scene.home.publish(5)
        await program.until(lambda it: it.event_ids() == sent, "the live events")
        listener = scene.hub._listener
        assert listener is not None
        apps = [it for it in listener.drivers if it.peer is not None and isinstance(it.peer.identity, Device)]
        assert len(apps) == len(VERSIONS)
        for device_id in {it.peer.identity.device_id for it in apps}:
            scene.hub.credentials.disconnect(device_id=device_id)
        sent += await scene.home.publish(5)
        await program.until(lambda it: len(it.payloads("replay_complete")) == 2, "replay_complete of the rejoin")
        sent += await scene.home.publish(5)
        await program.until(lambda it: it.event_ids()[-1:] == sent[-1:], "the live events after it")
        for client in program.clients:
            assert client.event_ids() == sent, client.name
            closed = [(sight["code"], sight["reason"]) for sight in client.of("closed")]
            assert closed == [(1001, "disconnected")], client.name
            assert len(client.of("opened")) == 2, client.name


@pytest.mark.parametrize("code", [1001, 1012, 1013, "abort"])
async def test_case_7_and_8_after_a_drain_they_come_back_to_the_hub_that_takes_its_port(
    tmp_path: Path, code: Any
) -> None:
    """With any code. The new hub has forgotten everything: its home fills it before any cursor is judged."""
    settings = {"allow_query_credentials": True}
    async with running_hub(tmp_path, drain_code=code, **settings) as old:
        port = old.port
        server, home_token = old.credentials.add_server("home")
        order = orders(Place(old, server.server_id, port))
        async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=order) as program:
            async with scripted_home(old.url, server.server_id, home_token, "epoch") as home:
                await program.until(lambda it: it.payloads("replay_complete"), "replay_complete of the first join")
                sent = await home.publish(10)
                await program.until(lambda it: it.event_ids() == sent, "the live events")
                await old.drain()
            await program.until(lambda it: it.of("closed"), "the goodbye")
            await old.close()
            async with (
                running_hub(tmp_path, port=port, **settings) as new,
                scripted_home(new.url, server.server_id, home_token, "epoch", head=10) as home,
            ):
                await program.until(lambda it: len(it.of("joined")) == 2, "its rejoin")
                assert await home.publish(10) == sent
                sent += await home.publish(5)
                await program.until(lambda it: it.event_ids()[-1:] == sent[-1:], "what came after")
                for client in program.clients:
                    assert client.event_ids() == sent, client.name
                    assert client.of("closed")[0]["code"] == (1006 if code == "abort" else code), client.name
                    assert client.payloads("replay_complete")[-1]["recovered"] is True, client.name
                    assert len(client.of("opened")) == 2, client.name
