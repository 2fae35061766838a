"""How instants are shown to people: alike for all who ask within a second, and by the wall clock of that second."""

from bridge_server.clock import Clock


def test_an_instant_is_shown_alike_to_all_and_follows_the_wall_clock_a_second_later() -> None:
    now, wall = [100.0], [1_700_000_000.0]
    clock = Clock(lambda: now[0], lambda: wall[0])
    assert clock.shown(None) is None
    assert clock.shown(99.5) == "2023-11-14T22:13:19.500Z"
    assert clock.shown(100.0) == "2023-11-14T22:13:20.000Z"
    now[0], wall[0] = 100.9, 1_700_000_003.9  # somebody set the clock three seconds forward
    assert clock.shown(100.0) == "2023-11-14T22:13:20.000Z"
    assert clock.shown(99.5) == "2023-11-14T22:13:22.500Z"
    now[0], wall[0] = 102.0, 1_700_000_005.0
    assert clock.shown(99.5) == "2023-11-14T22:13:22.500Z"
    assert clock.shown(100.0) == "2023-11-14T22:13:23.000Z"
