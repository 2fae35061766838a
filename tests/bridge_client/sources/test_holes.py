"""Missing ids: waited for, for so long and no longer; what comes later is known for what it is."""

from bridge_client.sources import SourceEvent
from bridge_client.sources.holes import Holes


def events(*ids: int) -> list[SourceEvent]:
    return [SourceEvent(n, None, b"") for n in ids]


def ready(holes: Holes, after: int, *ids: int) -> list[int]:
    return [event.event_id for event in holes.ready(after, events(*ids))]


def test_ids_without_a_hole_are_ready_at_once() -> None:
    holes = Holes(1.0)
    holes.note(3, 10.0)
    assert ready(holes, 0, 1, 2, 3) == [1, 2, 3]


def test_what_is_behind_a_hole_waits_until_it_has_been_there_for_a_second() -> None:
    holes = Holes(1.0)
    holes.note(4, 10.0)
    assert ready(holes, 0, 1, 2, 4) == [1, 2]
    holes.note(6, 10.9)
    assert ready(holes, 2, 4, 6) == []
    holes.note(6, 11.0)
    assert ready(holes, 2, 4, 6) == [4], "6 has been there for a tenth of a second only"
    holes.note(6, 11.9)
    assert ready(holes, 4, 6) == [6]


def test_a_hole_that_fills_is_none() -> None:
    holes = Holes(1.0)
    holes.note(3, 10.0)
    assert ready(holes, 0, 1, 3) == [1]
    assert ready(holes, 1, 2, 3) == [2, 3]


def test_what_was_there_from_the_beginning_is_settled() -> None:
    holes = Holes(1.0)
    holes.restart(100)
    assert ready(holes, 0, 7, 50, 100) == [7, 50, 100]
    holes.note(102, 10.0)
    assert ready(holes, 100, 102) == []


def test_what_comes_too_late_is_known_once() -> None:
    holes = Holes(1.0)
    holes.passed(0, events(3, 4, 9))
    assert holes.closed == [(1, 2), (5, 8)]
    holes.late(6)
    holes.late(1)
    assert holes.closed == [(2, 2), (5, 5), (7, 8)]
    holes.late(2)
    assert holes.closed == [(5, 5), (7, 8)]
    holes.late(100)
    assert holes.closed == [(5, 5), (7, 8)]
    for n in range(1000, 3000, 2):
        holes.passed(n, events(n + 2))
    assert len(holes.closed) == 64, "memory stays bounded"
