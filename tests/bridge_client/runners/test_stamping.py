"""Ids and times of events (rows B31, B32)."""

import re
from datetime import UTC, datetime

from bridge_client.clock import SystemClock
from bridge_client.runners.stamping import stamps
from protocol.events.session_manager import Draft, new_event, stamp


class Frozen(SystemClock):
    def wall(self) -> float:
        return 1_767_323_045.5


def test_B31_B32_ids_are_of_chance_and_times_of_the_clock() -> None:
    context = stamps("s", "r", Frozen(), "codex")
    events = [stamp(Draft("run_started"), context, number) for number in range(3)]
    assert all(re.fullmatch("nevt_[0-9a-f]{32}", event.id) for event in events)
    assert len({event.id for event in events}) == 3
    assert {event.timestamp for event in events} == {datetime(2026, 1, 2, 3, 4, 5, 500_000, UTC)}
    made = new_event("run_started", "s", new_id=context.new_id, now=context.now)
    assert re.fullmatch("evt_[0-9a-f]{32}", made.id)
