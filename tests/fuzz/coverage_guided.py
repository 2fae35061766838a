"""One target under libFuzzer, guided by coverage: python -m tests.fuzz.coverage_guided TARGET libfuzzer-options

A process of its own, which libFuzzer ends. Needs atheris.
"""

import logging
import sys

import atheris

with atheris.instrument_imports(include=["protocol", "bridge_server"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    """Fuzz until an option of libFuzzer's or a find ends it."""
    name, *options = sys.argv[1:]
    logging.getLogger("bridge_server").propagate = False
    logging.getLogger("bridge_server").addHandler(logging.NullHandler())
    atheris.Setup([f"tests.fuzz {name}", *options], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
