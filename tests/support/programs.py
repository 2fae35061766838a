"""Programs that some tests need: found, or said to be missing.

On somebody's own machine a test that lacks its program skips and says why. With CI=true it fails: what a machine can
install, the CI run installs, and a suite that skips there in silence proves nothing.
"""

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

# Debian keeps PostgreSQL's programs together by version, out of PATH.
POSTGRES = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
SEARCH = os.pathsep.join(
    [*POSTGRES, os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/bin"]
)


def missing(what: str) -> NoReturn:
    """End the running test because `what` is not on this machine."""
    if os.environ.get("CI", "").lower() in {"1", "true"}:
        pytest.fail(f"{what} (no test may skip with CI=true)", pytrace=False)
    pytest.skip(what)


def require(name: str) -> str:
    """The path of the program `name`."""
    return shutil.which(name, path=SEARCH) or missing(f"{name} is not installed")
