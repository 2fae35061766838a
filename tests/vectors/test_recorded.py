"""Every recorded scenario that rules 1 to 23, 25, 26 and 29 of the Phoenix rules cover, over a real socket."""

from pathlib import Path

import pytest

from tests.support.recorded_server import recorded_server
from tests.vectors.deviations import DEVIATIONS
from tests.vectors.recording import LEFT_OUT, PATH, scenarios
from tests.vectors.replay import Replay

# The recorded server's channels answer with whatever they are sent, and relay it.
pytestmark = pytest.mark.lint_allows("status", "response", "number", "id")

REPLAYED = [name for name in scenarios() if name not in LEFT_OUT]

recording = pytest.mark.skipif(
    not scenarios(), reason=f"the recording {PATH.name} is not on this machine: it is no part of the repository"
)


@recording
@pytest.mark.parametrize("name", REPLAYED or ["none"])
async def test_the_hub_answers_as_recorded(name: str, tmp_path: Path) -> None:
    async with recorded_server(tmp_path) as server:
        replay = Replay(scenarios()[name], server)
        await replay.run()
    claimed = {deviation.name for deviation in DEVIATIONS.values() if name in deviation.shows_in}
    assert replay.used == claimed, "a deviation shows where it is not named, or is named where it does not show"


@recording
def test_nothing_is_left_out_in_silence() -> None:
    assert LEFT_OUT.keys() <= scenarios().keys()
    assert len(REPLAYED) > 50


@recording
@pytest.mark.parametrize("name", DEVIATIONS)
def test_every_deviation_shows_somewhere(name: str) -> None:
    assert DEVIATIONS[name].shows_in
    assert DEVIATIONS[name].shows_in <= set(REPLAYED)
    assert DEVIATIONS[name].why
    assert DEVIATIONS[name].rule
