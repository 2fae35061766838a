"""The hub ends the sockets itself: every version of phoenix.js comes back without being told to, and misses nothing."""

from pathlib import Path

from bridge_server.config import Config
from tests.conformance.conftest import Scene
from tests.conformance.driver import driver, javascript
from tests.conformance.test_phoenix_js import orders
from tests.support.running_hub import running_hub
from tests.support.scripted_home import scripted_home


async def test_a_forced_disconnect_closes_with_1001_and_they_come_back(direct_scene: Scene, tmp_path: Path) -> None:
    """Rule 29: an idle socket is closed with 1001; a client that sends no heartbeat in time is one."""
    scene = direct_scene
    async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=orders(scene)) as program:
        await program.until(lambda it: it.payloads("replay_complete"), "replay_complete of the first join")
        sent = await scene.home.publish(5)
        await program.until(lambda it: it.event_ids() == sent, "the live events")
        scene.disconnect()
        await program.until(lambda it: it.of("closed"), "the goodbye")
        sent += await scene.home.publish(5)
        await program.until(lambda it: it.event_ids() == sent, "what came meanwhile")
        for client in program.clients:
            assert [(sight["code"], sight["reason"]) for sight in client.of("closed")] == [(1001, "disconnected")]
            assert len(client.of("opened")) == 2, client.name


async def test_a_drained_hub_closes_with_1012_and_they_come_back_to_its_successor(tmp_path: Path) -> None:
    """A hub that restarts on the same port has forgotten everything; its home fills it again before anyone is judged."""
    async with running_hub(tmp_path, allow_query_credentials=True) as hub:
        port = hub.port
        server, home_token = hub.credentials.add_server("home")
        scene = Scene(hub, None, None, server.server_id, port)
        async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=orders(scene)) as program:
            async with scripted_home(hub.url, server.server_id, home_token, "epoch") as home:
                await program.until(lambda it: it.payloads("replay_complete"), "replay_complete of the first join")
                sent = await home.publish(10)
                await program.until(lambda it: it.event_ids() == sent, "the live events")
                await hub.drain()
            await program.until(lambda it: it.of("closed"), "the goodbye")
            await hub.close()
