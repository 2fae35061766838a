"""What every test may use: two markers, and a running hub; and what every test passes: the lint of the hub's output."""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bridge_server.app import Hub
from tests.support import lint, lint_seam
from tests.support.postgres_server import stop_shared_server
from tests.support.programs import require
from tests.support.running_hub import running_hub

lint_seam.install()

# How long an example takes, or its making, says how busy the machine is: by default 200 ms of an example fail its test.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell lets what it runs in the background (`make test &`) ignore Ctrl-C, and so would the programs under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        for program in mark.args:
            require(program)


def pytest_sessionfinish() -> None:
    stop_shared_server()


@pytest.fixture(autouse=True)
def output_lint(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test during which a hub in this process sent what some client can't take."""
    yield
    allowed = {rule for mark in request.node.iter_markers("lint_allows") for rule in mark.args}
    if wrong := [fault for fault in lint_seam.take_faults() if fault.rule not in allowed]:
        shown = "\n".join(f"  {fault.rule}: {fault.text}\n    rule: {lint.RULES[fault.rule]}" for fault in wrong[:20])
        pytest.fail(f"the hub sent what a client can't take ({len(wrong)} faults):\n{shown}", pytrace=False)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    """A hub on a free loopback port, with its database in the test's own folder."""
    async with running_hub(tmp_path) as hub:
        yield hub
