"""The seeded slice of the fuzzing that `make fuzz` does for minutes, and what it has found before."""

import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

from tests.fuzz.mutate import inputs
from tests.fuzz.targets import SEPARATOR, TARGETS, Target

CRASHERS = sorted((Path(__file__).parent / "crashers").rglob("*.bin"))

INPUTS, SLOW_INPUTS = 1_000, 250
ON_THE_LOOP = ("request-head", "websocket", "longpoll", "home-and-app")
LONG = 16 * 1024
MIB = 2**20

# A damaged heartbeat is another message on its topic, and rightly refused (Phoenix rule 7).
pytestmark = pytest.mark.lint_allows("heartbeat")

each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


@each_target
def test_strange_input_ends_in_the_protocols_own_error(target: Target) -> None:
    count = SLOW_INPUTS if target.name in ON_THE_LOOP else INPUTS
    for number, data in enumerate(islice(inputs(target, seed=0), count)):
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"input {number}: {data!r}: {error!r}") from error


@each_target
def test_the_seeds_are_taken(target: Target) -> None:
    for seed in target.seeds:
        target.run(seed)


def test_what_was_found_once_stays_mended() -> None:
    """Each find of a longer search is kept as `crashers/TARGET/anything.bin`."""
    for path in CRASHERS:
        TARGETS[path.parent.name].run(path.read_bytes())


@each_target
@pytest.mark.timeout(60)
def test_a_long_input_costs_memory_by_its_length(target: Target) -> None:
    """16 KiB of each token, alone or inside a seed: no hang, and no blow-up."""
    worst = 0
    for number, token in enumerate(target.tokens):
        many = token * (LONG // len(token))
        data = (target.seeds[0][:1] if number % 2 else target.seeds[0][:-2]) + many
        tracemalloc.start()
        try:
            target.run(data)
            worst = max(worst, tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert worst < 64 * LONG + 4 * MIB, f"{worst / MIB:.1f} MiB for 16 KiB"


def test_a_target_can_fail() -> None:
    """A promise that is broken comes out of the target: here, by a seed that says so."""

    def broken(data: bytes) -> None:
        assert SEPARATOR not in data

    broken(b"x")
    with pytest.raises(AssertionError):
        TARGETS["codec"]._replace(run=broken).run(SEPARATOR)
