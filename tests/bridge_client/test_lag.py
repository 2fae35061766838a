"""How long the oldest unacknowledged event has waited."""

from bridge_client.lag import Lag


class Turned:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_lag_is_as_old_as_the_first_event_that_waits() -> None:
    clock = Turned()
    lag = Lag(clock)
    assert (lag.head, lag.seconds(None)) == (None, 0.0)
    for head in (3, 3, 5, 8):
        lag.note(head, None)
        clock.now += 1
    assert [lag.seconds(acked) for acked in (None, 2, 3, 4, 5, 7, 8)] == [4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 0.0]
    lag.note(8, 8)
    assert lag.seconds(8) == 0.0
    clock.now += 100
    lag.note(9, 8)
    assert lag.seconds(8) == 0.0, "an idle time is no lag"


def test_a_source_that_goes_back_starts_again() -> None:
    clock = Turned()
    lag = Lag(clock)
    lag.note(9, None)
    clock.now = 50
    lag.note(2, None)
    assert (lag.head, lag.seconds(None)) == (2, 0.0)


def test_a_long_lag_keeps_its_age_in_bounded_memory() -> None:
    clock = Turned()
    lag = Lag(clock)
    for head in range(1, 10_001):
        lag.note(head, None)
        clock.now += 1
    assert lag.seconds(None) == 10_000.0
    assert len(lag._seen) <= 512
    assert abs(lag.seconds(5000) - 5000) < 100
