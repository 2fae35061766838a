"""npm `phoenix`, the reference client, run for real."""

from pathlib import Path

import pytest

from tests.conformance.conftest import Scene
from tests.conformance.driver import driver
from tests.conformance.journey import join_drop_resume_leave
from tests.support.programs import missing, require

JS = Path(__file__).resolve().parent / "js"


@pytest.fixture
def client() -> tuple[str | Path, ...]:
    """The command line of the client."""
    node = require("node")
    if not (JS / "node_modules" / "phoenix").is_dir():
        missing("tests/conformance/js/node_modules is not built: `make test` builds it, with npm")
    return node, JS / "phoenix.mjs"


async def test_phoenix_js_joins_is_dropped_resumes_and_leaves(
    client: tuple[str | Path, ...], scene: Scene, tmp_path: Path
) -> None:
    async with driver(
        *client, log=tmp_path / "client.log", url=scene.socket_url, token=scene.token, topic=scene.topic
    ) as phoenix:
        await join_drop_resume_leave(phoenix, scene)
        first, again = phoenix.of("joined")
        assert phoenix.of("opened")[0]["subprotocol"] == "phoenix", "the token came in the subprotocol"
        assert first["reply"]["recovered"] is True
        assert (again["reply"]["recovered"], again["reply"]["gap"]) == (True, None)
        assert phoenix.of("refused") == phoenix.of("join_timeout") == []


async def test_phoenix_js_is_refused_a_foreign_topic_and_keeps_its_socket(
    client: tuple[str | Path, ...], scene: Scene, tmp_path: Path
) -> None:
    """The device of one home asks for another's topic: an error it understands, no storm of reconnects."""
    async with driver(
        *client, log=tmp_path / "client.log", url=scene.socket_url, token=scene.token, topic="app:" + "a" * 26
    ) as phoenix:
        await phoenix.until(lambda it: it.of("refused"), "the refusal")
        assert phoenix.of("refused")[0]["reply"] == {"reason": "unauthorized"}
        assert phoenix.of("closed") == []
        assert scene.cable.accepted == 1


async def test_phoenix_js_with_a_bad_token_backs_off(
    client: tuple[str | Path, ...], scene: Scene, tmp_path: Path
) -> None:
    """Refused before the upgrade, its ladder of waits grows: accepted and then closed, it would come every 12 ms."""
    async with driver(
        *client, log=tmp_path / "client.log", url=scene.socket_url, token="wrong" * 8, topic=scene.topic
    ) as phoenix:
        await phoenix.until(lambda it: len(it.of("closed")) >= 4, "four refusals")
        assert phoenix.of("opened") == []
