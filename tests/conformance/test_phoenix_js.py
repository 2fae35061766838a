"""npm `phoenix`, the reference client, run for real in five versions at once."""

from collections.abc import Iterable
from pathlib import Path

from tests.conformance.conftest import Place, Scene
from tests.conformance.driver import Order, driver, javascript
from tests.conformance.journey import join_drop_resume_leave

# Only from 1.8 on has it a place for the credential beside the URL.
VERSIONS = {
    "phoenix-1.4": "query",
    "phoenix-1.7": "query",
    "phoenix-1.8.4": "subprotocol",
    "phoenix-1.8.12": "subprotocol",
    "phoenix": "subprotocol",
}


def orders(place: Place, versions: Iterable[str] = VERSIONS, **more: str) -> list[Order]:
    """One client of each version."""
    return [
        place.order(version, **{"package": version, "auth": VERSIONS[version], "transport": "websocket", **more})
        for version in versions
    ]


async def test_phoenix_js_joins_is_dropped_resumes_and_leaves(scene: Scene, tmp_path: Path) -> None:
    async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=orders(scene)) as program:
        await join_drop_resume_leave(program, scene.home, scene.cable)
        for client in program.clients:
            first, again = client.of("joined")
            asked = VERSIONS[client.name] == "subprotocol"
            assert client.of("opened")[0]["subprotocol"] == ("phoenix" if asked else ""), client.name
            assert first["reply"]["recovered"] is True
            assert (again["reply"]["recovered"], again["reply"]["gap"]) == (True, None)
            assert client.of("refused") == client.of("join_timeout") == []


async def test_phoenix_js_is_refused_a_foreign_topic_and_keeps_its_socket(direct_scene: Scene, tmp_path: Path) -> None:
    """The device of one home asks for another's topic: an error it understands, no storm of reconnects."""
    scene = direct_scene
    foreign = orders(scene, topic="app:" + "a" * 26)
    async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=foreign) as program:
        await program.until(lambda it: it.of("refused"), "the refusal")
        for client in program.clients:
            assert client.of("refused")[0]["reply"] == {"reason": "unauthorized"}, client.name
            assert client.of("closed") == [], client.name
        assert scene.cable.accepted == len(VERSIONS)


async def test_phoenix_js_with_a_bad_token_backs_off(direct_scene: Scene, tmp_path: Path) -> None:
    """Refused before the upgrade, its ladder of waits grows: accepted and then closed, it would come every 12 ms."""
    wrong = orders(direct_scene, token="wrong" * 8)
    async with driver(*javascript("phoenix.mjs"), log=tmp_path / "clients.log", orders=wrong) as program:
        await program.until(lambda it: len(it.of("closed")) >= 4, "four refusals")
        for client in program.clients:
            assert client.of("opened") == [], client.name
