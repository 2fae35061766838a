"""The newest events of a store in memory."""

from hypothesis import given
from hypothesis import strategies as st

from bridge_client.store import Stored
from bridge_client.store.tail import Tail

batches = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7), st.integers(0, 30)), max_size=30)


@given(batches, st.integers(1, 8))
def test_what_it_gives_is_a_run_of_the_log_and_nothing_is_missing_in_it(
    steps: list[tuple[int, int, int]], limit: int
) -> None:
    tail, ours, last, kept_from = Tail(events=10, size=200), dict[int, Stored](), 0, 1
    for skipped, count, size in steps:  # skipped ids are another process's
        if skipped:
            kept_from = last + skipped + 1
        batch = [Stored(n, b"x" * size) for n in range(last + skipped + 1, last + skipped + count + 1)]
        last = batch[-1].event_id
        ours |= {event.event_id: event for event in batch}
        tail.append(batch)
        for after in range(last + 3):
            run = tail.after(after, limit)
            assert len(run) <= limit
            assert run == [ours[after + n] for n in range(1, len(run) + 1)]
            assert not run or after + 1 >= kept_from
    tail.clear()
    assert tail.after(last - 1, limit) == []


def test_its_bounds_are_events_and_bytes() -> None:
    tail = Tail(events=4, size=100)

    def kept() -> list[int]:
        return next(found for after in range(100) if (found := [event.event_id for event in tail.after(after, 100)]))

    tail.append([Stored(n, b"x") for n in range(1, 8)])
    assert kept() == [4, 5, 6, 7]
    tail.append([Stored(8, b"x" * 98)])
    assert kept() == [6, 7, 8]
    tail.append([Stored(9, b"x" * 101)])  # larger than all there is room for
    assert all(tail.after(after, 100) == [] for after in range(12))
    tail.append([Stored(10, b"x")])
    assert kept() == [10]
    tail.append([Stored(12, b"x")])  # 11 is somebody else's
    assert kept() == [12]
