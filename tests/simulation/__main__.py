"""Play seeds: `python -m tests.simulation SEED [SEED …]`, or `--soak SECONDS` from the first seed on."""

import argparse
import logging
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from tests.simulation.world import Grounds, Outcome, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seeds", nargs="*", type=int)
    parser.add_argument("--soak", type=float, metavar="SECONDS", default=0.0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--go-on", action="store_true", help="after a failure, too")
    options = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)
    failed = 0
    end = time.monotonic() + options.soak
    with tempfile.TemporaryDirectory() as folder:
        grounds = Grounds(Path(folder))
        for done, seed in enumerate(options.seeds or count(options.first), 1):
            outcome: Outcome = run(seed, grounds)
            if outcome.breach is not None:
                failed += 1
                _say(outcome.report if not options.go_on else f"{seed}: {outcome.breach}"[:200])
                if not options.go_on:
                    break
            elif options.seeds:
                _say(f"{seed}: trace {outcome.digest}, {outcome.events} events, {outcome.gaps} gaps")
            if not options.seeds and time.monotonic() > end:
                _say(f"{done} seeds, {failed} failed")
                break
        grounds.close()
    return 1 if failed else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
