"""Every app sees every event once and in order or is told of the gap, whatever goes wrong: many seeds.

`make soak` plays on for SOAK_SECONDS (600), from a seed of its own (SOAK_SEED), and says how far it is.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.mutants import MUTANTS, PROFILES, replay_skips_one
from tests.simulation.world import Grounds, Profile, profile_of, run
from tests.support.lint import RULES
from tests.support.processes import ROOT

SEEDS = 200
BLOCKS = 8


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    made = Grounds(tmp_path_factory.mktemp("hub"))
    yield made
    made.close()


def play(seed: int, grounds: Grounds) -> int:
    outcome = run(seed, grounds)
    assert outcome.breach is None, f"seed {seed}: {outcome.report}"
    return outcome.events


@pytest.mark.parametrize("block", range(BLOCKS))
def test_nothing_is_lost_doubled_or_out_of_order(grounds: Grounds, block: int) -> None:
    events = sum(play(seed, grounds) for seed in range(block, SEEDS, BLOCKS))
    assert events > SEEDS, "apps saw something"


@pytest.mark.lint_allows(*RULES)  # what a broken hub says is broken, too
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_planted_bug_is_found(grounds: Grounds, mutant: object) -> None:
    """And it is that bug: the same run without it is clean."""
    for seed in range(MUTANTS[mutant]):  # type: ignore[index]
        if run(seed, grounds, mutant, PROFILES.get(mutant)).breach is not None:  # type: ignore[arg-type,call-overload]
            assert run(seed, grounds, None, PROFILES.get(mutant)).breach is None  # type: ignore[call-overload]
            return
    pytest.fail(f"{MUTANTS[mutant]} seeds, and none finds it")  # type: ignore[index]


def test_a_seed_replays_exactly_also_in_another_process(grounds: Grounds) -> None:
    seeds = [3, 26]
    here = [run(seed, grounds).digest for seed in seeds]
    assert [run(seed, grounds).digest for seed in seeds] == here
    assert len(set(here)) == len(seeds), "they differ"
    command = [sys.executable, "-m", "tests.simulation", *map(str, seeds[::-1])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7"}
    there = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    assert [line.split()[2].rstrip(",") for line in there.splitlines()] == here[::-1]


def test_every_kind_of_run_and_fault_comes_up(grounds: Grounds) -> None:
    """What a block of seeds never does, it can't find."""
    profiles = [profile_of(seed) for seed in range(SEEDS)]
    for kind in ("generous", "moves", "plain", "merging"):
        assert {getattr(profile, kind) for profile in profiles} == {True, False}, kind
    left, merged = {fault.__name__ for fault in FAULTS}, 0
    for seed in range(20):
        outcome = run(seed, grounds, profile=Profile(steps=40, moves=True, merging=True))
        left, merged = left - outcome.befell, merged + outcome.merged
        if not left and merged:
            return
    pytest.fail(f"in none of them: {left}, {merged} events merged")


@pytest.mark.lint_allows(*RULES)
def test_a_failure_says_how_to_play_it_again(grounds: Grounds) -> None:
    broken = next(outcome for seed in count() if (outcome := run(seed, grounds, replay_skips_one)).breach is not None)
    assert broken.report.splitlines()[-1] == f"python -m tests.simulation {broken.seed}"


def test_generous_runs_tell_no_gap(grounds: Grounds) -> None:
    """Where everything is kept, a gap would be a lie, but for `hub_reset`, which is withdrawn."""
    profile = Profile(steps=16, apps=3, generous=True)
    for seed in range(3):
        outcome = run(seed, grounds, profile=profile)
        assert outcome.breach is None, outcome.report


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_soak(grounds: Grounds, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    first = int(os.environ.get("SOAK_SEED", "1000"))
    end = time.monotonic() + seconds
    shown = 0.0
    for seed in count(first):
        play(seed, grounds)
        left = end - time.monotonic()
        if left <= 0:
            return
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            with capsys.disabled():
                sys.stdout.write(f"\nsimulation: {seed - first + 1} seeds, {left:.0f} s left")
                sys.stdout.flush()
