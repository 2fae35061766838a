"""What a peer has not taken: order, bounds, purging, the socket's own lane, and when a peer is cut."""

import asyncio
import random

import pytest

from bridge_server.backlog import Marks
from bridge_server.message import Form, Message
from bridge_server.outbox import URGENT_BYTES, Budget, Outbox
from protocol.codec import V1, V2, Encoded
from protocol.server import Channel
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import Bench


class Pipe:
    """A transport that can be shut; what is written while it is shut lies in `held`."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.held: list[bytes] = []
        self.shut = False
        self.now = 0.0
        self.outbox: Outbox | None = None

    @staticmethod
    def wrap(message: Encoded) -> bytes:
        return message.data

    def write(self, data: bytes) -> None:
        if self.shut:
            self.held.append(data)
            assert self.outbox is not None
            self.outbox.pause(self.now)
        else:
            self.taken.append(data)

    def unsent(self) -> int:
        return sum(map(len, self.held))

    def take(self) -> None:
        """The other side takes what lies there."""
        self.taken += self.held
        self.held = []
        assert self.outbox is not None
        self.outbox.resume(self.now)

    def open(self) -> None:
        self.shut = False
        self.take()

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self, code: int, reason: str) -> None: ...
    def abort(self) -> None: ...


MARKS = Marks()

A, B = (Channel(f"room:{name}", "1", b'["1"') for name in "ab")
FORM = Form(V2, "room:a", b'["1"', Pipe.wrap)


class Cuts(list[str]):
    """Who was cut, in order."""


def outbox(budget: Budget | None = None, cuts: Cuts | None = None, name: str = "") -> tuple[Outbox, Pipe]:
    pipe = Pipe()
    box = Outbox(pipe, budget or Budget(), lambda: (cuts if cuts is not None else Cuts()).append(name))
    pipe.outbox = box
    return box, pipe


def cut(budget: Budget) -> dict[str, int]:
    """How many were cut, by the reasons there were."""
    return {reason: count for reason, count in budget.cuts.items() if count}


def shut(pipe: Pipe) -> None:
    """Fill the transport, so that all that follows is queued."""
    pipe.shut = True
    assert pipe.outbox is not None
    pipe.outbox.put(A, b"-")


def said(number: int, size: int = 0) -> Message:
    return Message("said", b"<%d%b>" % (number, b"x" * size))


def heard(pipe: Pipe) -> list[int]:
    """The numbers of the messages, in the order they were taken."""
    parts = b"".join(pipe.taken).split(b"<")[1:]
    return [int(part.split(b">")[0].rstrip(b"x")) for part in parts]


def test_an_idle_peer_has_nothing_queued() -> None:
    budget = Budget()
    box, pipe = outbox(budget)
    box.put(A, b"1")
    box.put(None, b"2")
    box.put_message(A, said(3), FORM)
    box.put_events(A, b"4", FORM)
    assert len(pipe.taken) == 4
    assert (box.queued, budget.used, box._queue) == (0, 0, None)


def test_the_socket_lane_overtakes_and_the_channels_keep_one_order() -> None:
    box, pipe = outbox()
    shut(pipe)
    box.put_message(A, said(1), FORM)
    box.put(B, b"<2>")
    box.put(None, b"<99>")
    box.put_events(A, b"<3><4>", FORM)
    box.put(None, b"<98>")
    box.put(A, b"<5>")
    pipe.open()
    assert heard(pipe) == [99, 98, 1, 2, 3, 4, 5]
    assert box.queued == 0
    assert not box.paused


def test_what_is_handed_over_at_a_time_is_bounded_and_formed_late() -> None:
    box, pipe = outbox()
    shut(pipe)
    messages = [said(number, 10_000) for number in range(30)]
    for message in messages:
        box.put_message(A, message, FORM)
    assert not any(message._frames for message in messages)
    pipe.take()
    assert len(pipe.held) == 1
    assert 50_000 < len(pipe.held[0]) <= MARKS.handover_bytes
    formed = sum(bool(message._frames) for message in messages)
    assert formed == len(pipe.held[0]) // 10_000
    assert box.queued == sum(message.size for message in messages[formed:])
    pipe.open()
    assert heard(pipe) == list(range(30))
    assert all(len(write) <= MARKS.handover_bytes for write in pipe.taken)


def test_a_message_larger_than_a_handover_goes_alone() -> None:
    box, pipe = outbox()
    shut(pipe)
    for number, size in enumerate((10, 200_000, 10)):
        box.put_message(A, said(number, size), FORM)
    pipe.open()
    assert [len(write) > MARKS.handover_bytes for write in pipe.taken] == [False, False, True, False]
    assert heard(pipe) == [0, 1, 2]


def test_purging_forgets_the_events_of_a_channel_and_what_follows_them() -> None:
    budget = Budget()
    box, pipe = outbox(budget)
    shut(pipe)
    box.put(A, b"<1>")  # before the first event: kept
    box.put_message(A, said(2), FORM)
    box.put_message(B, said(3), FORM)
    box.put(A, b"<4>")  # may vouch for event 2
    box.put(B, b"<5>")
    box.put_events(A, b"<6>", FORM)
    box.put(None, b"<7>")
    box.purge(A)
    box.put(A, b"<8>")
    assert budget.used == box.queued == said(3).size + 4 * len(b"<n>")
    pipe.open()
    assert heard(pipe) == [7, 1, 3, 5, 8]
    assert budget.used == 0


def test_purging_an_idle_or_empty_outbox_is_harmless() -> None:
    box, pipe = outbox()
    box.purge(A)
    shut(pipe)
    box.purge(A)
    box.put_message(A, said(1), FORM)
    box.purge(A)
    pipe.open()
    assert heard(pipe) == []
    assert not box.paused


def test_a_peer_is_cut_above_its_own_bound_and_not_below() -> None:
    cuts = Cuts()
    budget = Budget()
    box, pipe = outbox(budget, cuts, "slow")
    shut(pipe)
    big = said(1, 2**18)
    for _ in range(MARKS.cut_bytes // big.size):
        box.put_message(A, big, FORM)
    assert cuts == []
    box.put_message(A, big, FORM)
    assert cuts == ["slow"]
    assert (budget.used, cut(budget), budget.busy) == (0, {"queue": 1}, set())
    # It is over: nothing is queued or written any more, whoever calls.
    for _ in range(2):
        box.put_message(A, big, FORM)
        box.put(A, b"late")
        box.put(None, b"late")
        box.pause(0.0)
        box.cut("stuck")
    pipe.open()
    box.put(A, b"late")
    assert b"late" not in b"".join(pipe.taken)
    assert (budget.used, cut(budget), budget.busy, len(cuts)) == (0, {"queue": 1}, set(), 1)


def test_the_urgent_lane_is_bounded() -> None:
    cuts = Cuts()
    box, pipe = outbox(cuts=cuts, name="pinger")
    shut(pipe)
    most = URGENT_BYTES // 1000
    for _ in range(most - 4):
        box.put(None, b"x" * 1000)
    assert cuts == []
    for _ in range(5):
        box.put(None, b"x" * 1000)
    assert cuts == ["pinger"]


def test_the_urgent_lane_counts_what_an_empty_answer_costs() -> None:
    cuts = Cuts()
    box, pipe = outbox(cuts=cuts, name="pinger")
    shut(pipe)
    pongs = 0
    while not cuts:
        box.put(None, b"\x8a\x00")
        pongs += 1
    assert 1000 < pongs < 2000


def test_the_urgent_lane_starts_anew_when_it_was_taken() -> None:
    cuts = Cuts()
    box, pipe = outbox(cuts=cuts)
    for _ in range(10):
        shut(pipe)
        for _ in range(50):
            box.put(None, b"x" * 1000)
        pipe.open()
    assert cuts == []


def test_the_budget_cuts_the_largest_queue_first() -> None:
    cuts = Cuts()
    budget = Budget(100_000)
    boxes = {name: outbox(budget, cuts, name) for name in ("small", "large", "middle")}
    for name, size in (("small", 10_000), ("large", 50_000), ("middle", 30_000)):
        box, pipe = boxes[name]
        shut(pipe)
        box.put_message(A, said(1, size), FORM)
    assert cuts == []
    boxes["small"][0].put_message(A, said(2, 15_000), FORM)
    assert cuts == ["large"]
    boxes["small"][0].put_message(A, said(2, 60_000), FORM)
    assert cuts == ["large", "small"]  # the one that grew is the largest itself
    assert budget.used == boxes["middle"][0].queued
    boxes["middle"][1].open()
    assert budget.used == 0
    assert cut(budget) == {"total": 2}


def test_one_message_over_the_whole_budget_cuts_only_the_peer_it_waits_for() -> None:
    cuts = Cuts()
    budget = Budget(1000)
    box, pipe = outbox(budget, cuts, "one")
    other, _ = outbox(budget, cuts, "idle")
    shut(pipe)
    box.put_message(A, said(1, 5000), FORM)
    other.put_message(A, said(1, 5000), FORM)
    assert cuts == ["one"]
    assert budget.used == 0


def test_a_peer_that_takes_nothing_for_the_whole_time_is_stuck() -> None:
    box, pipe = outbox()
    assert not box.stuck(1000.0)
    pipe.shut = True
    box.put(A, b"x" * 1000)
    assert box.paused
    assert not box.stuck(MARKS.cut_seconds - 0.1)
    assert box.stuck(MARKS.cut_seconds)


def test_a_peer_that_takes_a_little_now_and_then_is_not_stuck() -> None:
    box, pipe = outbox()
    pipe.shut = True
    for _ in range(100):
        box.put(A, b"x" * 1000)
    now = 0.0
    for left in range(99, 0, -1):
        now += MARKS.cut_seconds - 1
        pipe.held = [b"x" * left * 10]  # the system took some of it
        assert not box.stuck(now)
    assert not box.stuck(now + MARKS.cut_seconds - 0.1)
    assert box.stuck(now + MARKS.cut_seconds)


def test_resuming_is_progress() -> None:
    box, pipe = outbox()
    pipe.shut = True
    for _ in range(100):
        box.put(A, b"x" * 10_000)
    pipe.now = 14.0
    pipe.take()
    assert box.paused
    assert not box.stuck(28.0)
    assert box.stuck(29.0)


def test_what_is_corked_leaves_in_one_write() -> None:
    box, pipe = outbox()
    box.cork()
    box.put(A, b"1")
    box.put(None, b"2")
    assert pipe.taken == []
    box.flush()
    assert pipe.taken == [b"12"]
    box.put(A, b"3")
    box.uncork()
    assert pipe.taken == [b"12", b"3"]
    box.put(A, b"4")
    assert pipe.taken[-1] == b"4"
    box.cork()
    box.drop()
    box.put(A, b"5")
    box.uncork()
    assert pipe.taken[-1] == b"4"


@pytest.mark.parametrize("binary_form", [True, False])
def test_a_busy_peer_refuses_at_once_what_its_serializer_can_not_carry(binary_form: bool) -> None:
    budget = Budget()
    box, pipe = outbox(budget)
    form = Form(V2 if binary_form else V1, "room:a", b"", Pipe.wrap)
    message = Message("bytes", b"\x00", binary=True)
    shut(pipe)
    if binary_form:
        box.put_message(A, message, form)
    else:
        with pytest.raises(ValueError, match="binary"):
            box.put_message(A, message, form)
    pipe.open()
    assert budget.used == 0
    assert not box.paused


@virtual_time
async def test_drained_waits_for_the_whole_queue() -> None:
    box, pipe = outbox()
    await box.drained()
    shut(pipe)
    box.put_message(A, said(1, 100_000), FORM)
    waiter = asyncio.ensure_future(box.drained())
    await settle()
    pipe.take()
    await settle()
    assert not waiter.done()
    pipe.open()
    await settle()
    assert waiter.done()


@pytest.mark.parametrize("seed", range(30))
def test_any_interleaving_keeps_order_and_counts_every_byte(seed: int) -> None:
    chance = random.Random(seed)
    budget = Budget()
    box, pipe = outbox(budget)
    sent: list[int] = []
    for number in range(300):
        match chance.randrange(8):
            case 0:
                pipe.shut = True
            case 1:
                pipe.open()
            case 2:
                pipe.take()
            case 3:
                box.put(A, b"<%d>" % number)
                sent.append(number)
            case 4:
                box.put_events(B, b"<%d>" % number, FORM)
                sent.append(number)
            case _:
                box.put_message(A, said(number, chance.choice((0, 100, 20_000, 70_000))), FORM)
                sent.append(number)
        assert box.queued == budget.used == sum(entry.size for entry in box._queue or ())
        assert (box in budget.busy) is box.paused
        if box.queued > MARKS.cut_bytes - 100_000:
            pipe.take()
    pipe.open()
    assert heard(pipe) == sent
    assert (budget.used, budget.busy) == (0, set())


# The same through peers.


@virtual_time
async def test_one_slow_app_costs_the_hub_its_cap_and_the_others_nothing() -> None:
    bench = Bench()
    home, slow, fast = bench.home(), bench.app(), bench.app()
    home.joins()
    slow.join()
    fast.join()
    slow.transport.frozen = True
    for number in range(1, 100):
        home.event(number, data="x" * 100_000)
        await settle()
        assert bench.budget.used <= MARKS.cut_bytes
    assert slow.transport.closed == (1013, "slow")
    assert fast.ids() == list(range(1, 100))
    assert (bench.budget.used, cut(bench.budget)) == (0, {"queue": 1})
    again = bench.app()
    assert again.join({"since_id": str(slow.ids()[-1] if slow.ids() else 60), "epoch": "E"})["recovered"] is True
    await settle()
    assert again.ids()[-1] == 99


@virtual_time
async def test_a_rejoin_purges_what_was_queued_for_the_old_join() -> None:
    bench = Bench()
    home, app = bench.home(), bench.app()
    home.joins()
    app.join()
    home.events(1, 2)
    await settle()
    app.transport.frozen = True
    home.events(3, 4)
    await settle()
    home.events(5, 9)
    await settle()
    assert app.peer.outbox.queued > 0
    app.send("phx_join", {"since_id": "2", "epoch": "E"})
    app.transport.thaw()
    await settle()
    by_join = [
        (got.join_ref, int(got.payload["event"]["event_id"])) for got in app.all() if got.event == "session_event"
    ]
    # 3 and 4 had been handed over before the rejoin; all of the new join comes once and in order.
    assert by_join == [("1", n) for n in (1, 2, 3, 4)] + [("2", n) for n in range(3, 10)]
