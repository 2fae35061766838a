"""What the hub knows of one home, without any connection: verdicts as a table, links, and what apps are shown."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from bridge_server.history.memory import MemoryHistory
from bridge_server.home import Gap, Home, Homes, Refused, Verdict

PATIENCE = 10.0


class Holder:
    """A connection; keeps what it was told."""

    def __init__(self) -> None:
        self.replaced: list[str | None] = []

    def replaced_by(self, instance: str | None) -> None:
        self.replaced.append(instance)


class Watcher:
    """An app; keeps the names of the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def home_joined(self, epoch_changed: bool) -> None:
        self.calls.append(f"joined {epoch_changed}")

    def home_advanced(self) -> None:
        self.calls.append("advanced")

    def history_cut(self) -> None:
        self.calls.append("cut")

    def home_left(self) -> None:
        self.calls.append("left")

    def nobody_came(self) -> None:
        self.calls.append("nobody")

    def status_changed(self) -> None:
        self.calls.append("status")


def raw(number: int) -> bytes:
    return msgspec.json.encode({"event_id": str(number), "type": "t"})


def make(held: range | None, *, stated: int | None = None, here: bool = True, epoch: str = "E") -> Home:
    """A home with dense ids `held`, which stated `stated`; not `here` means it left at 0."""
    home = Home("a" * 26, MemoryHistory(), 0.0)
    holder = Holder()
    home.join(holder, epoch, stated, None, None, 0.0)
    for number in held or ():
        home.append(raw(number), number - 1, 1000, 0.0)
    if not here:
        home.leave(holder, 0.0)
    return home


def gap(reason: str, since: int, floor: int | None) -> Verdict:
    return Verdict(False, Gap(reason, str(since), None if floor is None else str(floor)))


OPEN, TRUE = Verdict(None), Verdict(True)
HELD = range(11, 21)  # floor 10, head 20


@pytest.mark.parametrize(
    ("home", "epoch", "since", "now", "expected"),
    [
        # The hub holds 11 to 20, the home is here and has refilled.
        ((HELD, 20, True), "E", None, 0, TRUE),
        ((HELD, 20, True), "E", 9, 0, gap("expired", 9, 10)),
        ((HELD, 20, True), "E", 10, 0, TRUE),
        ((HELD, 20, True), "E", 20, 0, TRUE),
        ((HELD, 20, True), "E", 21, 0, gap("ahead", 21, 10)),
        ((HELD, 20, True), None, 15, 0, TRUE),
        ((HELD, 20, True), "X", 15, 0, gap("epoch_changed", 15, 10)),
        ((HELD, 20, True), "X", 15, 99, gap("epoch_changed", 15, 10)),
        # A home that states nothing counts as refilled.
        ((HELD, None, True), "E", 21, 0, gap("ahead", 21, 10)),
        # It is here and still refilling: what is not held yet stays open, however long it takes.
        ((HELD, 30, True), "E", 15, 0, TRUE),
        ((HELD, 30, True), "E", 9, 0, gap("expired", 9, 10)),
        ((HELD, 30, True), "E", 25, 99, OPEN),
        ((HELD, 30, True), "E", 31, 99, OPEN),
        ((HELD, 30, True), "X", 15, 99, OPEN),
        ((None, 30, True), "E", 30, 99, OPEN),
        ((None, 30, True), None, 0, 99, OPEN),
        # Its store is empty.
        ((None, None, True), "E", 0, 0, TRUE),
        ((None, None, True), "E", 1, 0, gap("ahead", 1, 0)),
        ((None, None, True), "X", 0, 0, gap("epoch_changed", 0, 0)),
        # It is away: what is held is served; the rest is open for a while, then given up.
        ((HELD, 20, False), "E", 15, 99, TRUE),
        ((HELD, 20, False), "E", 9, 99, gap("expired", 9, 10)),
        ((HELD, 20, False), "E", 21, 9.9, OPEN),
        ((HELD, 20, False), "E", 21, 10, gap("hub_reset", 21, None)),
        ((HELD, 20, False), "X", 15, 9.9, OPEN),
        ((HELD, 20, False), "X", 15, 10, gap("hub_reset", 15, None)),
        ((None, 30, False), "E", 7, 9.9, OPEN),
        ((None, 30, False), "E", 7, 10, gap("hub_reset", 7, None)),
        ((None, 30, False), None, None, 99, TRUE),
    ],
)
def test_the_verdict(
    home: tuple[Any, Any, bool], epoch: str | None, since: int | None, now: float, expected: Any
) -> None:
    held, stated, here = home
    assert make(held, stated=stated, here=here).judge(epoch, since, now, PATIENCE) == expected


def test_a_home_that_was_never_seen_is_waited_for_from_the_hubs_start() -> None:
    home = Homes(MemoryHistory(), lambda: 100.0).get("a" * 26)
    assert home.judge("E", 5, 109.9, PATIENCE) == OPEN
    assert home.judge("E", 5, 110.0, PATIENCE) == gap("hub_reset", 5, None)
    assert (home.online, home.shown_online, home.shown_since) == (False, False, 100.0)


def test_the_link_rises_at_each_join_and_only_the_holder_can_leave() -> None:
    home = make(None)
    first, second = Holder(), Holder()
    home.join(first, "E", None, "name", "one", 1.0)
    home.join(second, "E", None, None, "two", 2.0)
    assert first.replaced == ["two"]
    assert (home.link, home.holder, home.name, home.instance) == (3, second, "name", "two")
    assert home.leave(first, 3.0) is False
    assert home.online
    assert home.leave(second, 4.0) is True
    assert (home.online, home.absent_since) == (False, 4.0)


def test_a_refused_join_changes_nothing() -> None:
    home = make(HELD, stated=20)
    holder = home.holder
    for number in range(6):
        home.join(holder, f"epoch{number}", None, None, None, 0.0)  # type: ignore[arg-type]
    link = home.link
    home.append(raw(1), None, 1000, 0.0)
    with pytest.raises(Refused) as refused:
        home.join(Holder(), "another", 5, "n", "i", 10.0)
    assert (refused.value.reason, refused.value.details) == ("rate_limited", {"retry_after_ms": 3_590_000})
    assert (home.link, home.holder, home.epoch, home.head, home.stated_head) == (link, holder, "epoch5", 1, None)


def test_a_status_is_shown_once_and_an_old_links_absence_never() -> None:
    home, watcher, holder = make(None, here=False), Watcher(), Holder()
    home.watchers[watcher] = None
    home.join(holder, "E", None, None, None, 5.0)
    home.show_online(5.0)
    home.show_online(6.0)
    assert (watcher.calls, home.shown_online, home.shown_since) == (["status"], True, 5.0)
    home.leave(holder, 7.0)
    away = home.link
    home.join(holder, "E", None, None, None, 8.0)
    home.show_absence(away)
    home.leave(holder, 9.0)
    home.show_absence(away)
    assert (watcher.calls, home.shown_online, home.shown_since) == (["status"], True, 5.0)
    home.show_absence(home.link)
    home.show_absence(home.link)
    assert (watcher.calls, home.shown_online, home.shown_since) == (["status", "status"], False, 9.0)


def test_only_those_who_wait_are_woken_by_an_event() -> None:
    home, waits, rests = make(None), Watcher(), Watcher()
    home.watchers |= {waits: None, rests: None}
    home.waiting[waits] = None
    home.advanced()
    assert (waits.calls, rests.calls) == (["advanced"], [])


def test_append_takes_what_follows_and_says_what_does_not() -> None:
    home = make(None)
    kept, number = home.append(raw(7), None, 1000, 3.0)
    assert kept is not None
    assert (number, kept.event_id, kept.data, kept.type, kept.session_id, kept.at) == (7, 7, raw(7), "t", None, 3.0)
    assert home.last_event_at == 3.0
    assert home.append(raw(7), 99, 1000, 4.0) == (None, 7)
    assert home.append(raw(3), UNSET, 1000, 4.0) == (None, 3)
    assert home.last_event_at == 3.0  # a repeat is no news
    for prev in (None, 6, 8):
        with pytest.raises(Refused) as refused:
            home.append(raw(9), prev, 1000, 4.0)
        assert (refused.value.reason, refused.value.details) == ("gap", {"resume_from": "7"})
    with pytest.raises(Refused) as refused:
        home.append(raw(9), 7, len(raw(9)) - 1, 4.0)
    assert refused.value.reason == "too_large"
    assert home.append(raw(9), 7, len(raw(9)), 4.0)[1] == 9
    assert home.append(raw(20), UNSET, 1000, 4.0)[1] == 20
