"""A scene for each test, and how hard the tests try."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.credentials.close()


@pytest.fixture(scope="session")
def effort() -> int:
    """How often the random tests repeat themselves; `FAULTS_EFFORT=20` makes a soak of them."""
    return int(os.environ.get("FAULTS_EFFORT", "1"))
