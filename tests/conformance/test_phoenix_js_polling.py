"""npm `phoenix` over long polling: five versions alone, and those that can fall back to it from a WebSocket."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conformance.conftest import Place, Scene
from tests.conformance.driver import driver, javascript
from tests.conformance.journey import join_drop_resume_leave
from tests.conformance.test_phoenix_js import VERSIONS, orders
from tests.support import proxies

# Only from 1.8 on do they poll with fetch; those before look for a browser's XMLHttpRequest.
BY_FETCH = [version for version, auth in VERSIONS.items() if auth == "subprotocol"]
BY_XHR = [version for version in VERSIONS if version not in BY_FETCH]


@pytest.mark.parametrize(
    ("versions", "more"), [(BY_FETCH, {}), (BY_XHR, {"xhr": "yes"})], ids=["by fetch", "by XMLHttpRequest"]
)
async def test_phoenix_js_polls_is_dropped_resumes_and_leaves(
    versions: list[str], more: dict[str, str], direct_scene: Scene, tmp_path: Path
) -> None:
    scene = direct_scene
    order = orders(scene, versions, transport="longpoll", **more)
    async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=order) as program:
        await join_drop_resume_leave(program, scene.home, scene.cable)
        for client in program.clients:
            assert "WebSocket" not in {sight["transport"] for sight in client.of("opened")}, client.name
            assert client.of("refused") == client.of("join_timeout") == [], client.name


@pytest.mark.requires("nginx")
@pytest.mark.parametrize(
    ("versions", "more"), [(BY_FETCH, {}), (BY_XHR[1:], {"xhr": "yes"})], ids=["by fetch", "by XMLHttpRequest"]
)
async def test_case_95_phoenix_js_falls_back_where_websockets_are_refused(
    versions: list[str], more: dict[str, str], direct_scene: Scene, tmp_path: Path
) -> None:
    """1.4 has no fallback."""
    scene = direct_scene
    without = "Upgrade $http_upgrade"
    async with proxies.nginx(tmp_path / "nginx", scene.hub.port, without=without, tls=False) as proxy:
        order = orders(
            Place(scene.hub, scene.server_id, urlsplit(proxy.url).port or 0), versions, transport="fallback", **more
        )
        async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=order) as program:
            await program.until(lambda it: it.payloads("replay_complete"), "replay_complete of its join")
            sent = await scene.home.publish(10)
            await program.until(lambda it: it.event_ids() == sent, "the events")
            for client in program.clients:
                assert "WebSocket" not in {sight["transport"] for sight in client.of("opened")}, client.name
