"""Topics and groups: one write a turn, shared frames, references for the busy, and listeners that go inside a flush."""

import asyncio
import gc
from typing import Any

from bridge_server.channels import Channel, Joined, Ok, Reply, Socket
from bridge_server.hub import Group, Hub, Topic
from bridge_server.message import EVERYTHING, Filter, Form, Message
from bridge_server.pubsub.memory import MemoryPubSub
from protocol.codec import V1, V2
from tests.support.virtual_time import settle, virtual_time
from tests.support.wire_bench import Bench, Wire, event, unwrap, wrap


class Live(Channel):
    """Joins anybody; hears its own topic from the start."""

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self.listener = socket.listen(socket.topic)

    def join(self, payload: Any) -> Joined:
        return Ok()

    def joined(self) -> None:
        self.listener.go_live()

    def handle_in(self, event: str, payload: Any, ref: Any) -> Reply:
        return Reply()


def room(bench: Bench) -> None:
    bench.router.add("room:*", Live)


def member(bench: Bench, codec: Any = V2, topic: str = "room:a") -> Wire:
    wire = Wire(bench, None, codec)
    wire.topic = topic
    wire.join()
    return wire


def texts(wire: Wire) -> list[str]:
    return [got.payload["n"] for got in wire.all() if got.event == "said"]


def say(bench: Bench, number: int, size: int = 0, topic: str = "room:a") -> None:
    bench.hub.publish(topic, Message("said", b'{"n":%d,"x":"%b"}' % (number, b"x" * size)))


@virtual_time
async def test_the_events_of_one_turn_reach_each_idle_peer_in_one_write() -> None:
    bench = Bench()
    room(bench)
    members = [member(bench) for _ in range(3)]
    before = [len(wire.transport.writes) for wire in members]
    for number in range(50):
        say(bench, number)
    assert [len(wire.transport.writes) for wire in members] == before
    await settle()
    for wire, count in zip(members, before, strict=True):
        assert len(wire.transport.writes) == count + 1
        assert texts(wire) == list(range(50))
    # Equal forms share the very same bytes object, not a copy for each.
    assert len({id(wire.transport.writes[-1]) for wire in members}) == 1
    assert bench.hub.deliveries == 150


@virtual_time
async def test_a_burst_is_cut_into_writes_of_64_kib_and_keeps_its_order() -> None:
    bench = Bench()
    room(bench)
    wire = member(bench)
    wire.transport.writes.clear()
    wire._writes_seen = 0
    for number in range(40):
        say(bench, number, 5000 if number != 20 else 100_000)
    await settle()
    assert texts(wire) == list(range(40))
    big = [write for write in wire.transport.writes if len(write) > 64 * 1024]
    assert [len(unwrap(write)) for write in big] == [1]  # only a message that is larger by itself
    assert len(wire.transport.writes) <= 6


def test_listeners_with_equal_forms_share_one_frame_object() -> None:
    message = Message("said", b"{}")
    one, two = (Form(V2, "room:a", b'["1"', wrap) for _ in range(2))
    assert one.frame(message) is two.frame(message)
    assert Form(V2, "room:a", b'["2"', wrap).frame(message) != one.frame(message)
    assert Form(V1, "room:a", b"", wrap).frame(message) != one.frame(message)


def test_a_shared_message_keeps_only_a_few_frames() -> None:
    message = Message("said", b'{"x":"' + b"x" * 1000 + b'"}')
    frames = [Form(V2, "room:a", b'["%d"' % number, wrap).frame(message) for number in range(100)]
    assert len(set(frames)) == 100
    assert len(message._frames) <= 4


@virtual_time
async def test_the_live_tier_keeps_an_event_once_and_no_frame_of_it() -> None:
    bench = Bench()
    home, app, old = bench.home(), bench.app(), bench.app(codec=V1)
    home.joins()
    app.join()
    old.join()
    home.events(1, 100)
    await settle()
    assert app.ids() == old.ids() == list(range(1, 101))
    app.transport.writes.clear()
    old.transport.writes.clear()
    gc.collect()
    left = [thing for thing in gc.get_objects() if isinstance(thing, Message)]
    assert left == []
    log: Any = bench.record().log
    kept = log.page(0, 100, 2**20)
    # Each event is its own slice: it does not pin the batch it came in.
    assert [len(one.data) for one in kept[:9]] == [len(str(event(1)).replace(" ", "").replace("'", '"'))] * 9


@virtual_time
async def test_v1_and_v2_listeners_of_one_topic_hear_the_same() -> None:
    bench = Bench()
    room(bench)
    members = [member(bench, V1), member(bench, V2), member(bench, V1)]
    say(bench, 1)
    say(bench, 2)
    await settle()
    assert [texts(wire) for wire in members] == [[1, 2]] * 3


@virtual_time
async def test_a_reply_comes_after_what_was_published_before_it() -> None:
    bench = Bench()
    room(bench)
    wire = member(bench)
    say(bench, 1)
    wire.send("ping", {})
    say(bench, 2)
    await settle()
    assert [got.event for got in wire.all()] == ["phx_reply", "said", "phx_reply", "said"]
    assert texts(wire) == [1, 2]


@virtual_time
async def test_two_channels_of_one_peer_on_one_topic_keep_their_order_inside_one_read() -> None:
    bench = Bench()

    class Twin(Live):
        """Hears `room:a`, whatever its own topic; the second one publishes a message before it goes live."""

        def __init__(self, socket: Socket) -> None:
            Channel.__init__(self, socket)
            self.listener = socket.listen("room:a")

        def joined(self) -> None:
            if self.socket.topic == "twin:b":
                say(bench, 1)
            self.listener.go_live()

    bench.router.add("twin:*", Twin)
    wire = member(bench, topic="twin:a")
    # Both messages come in one read: the answer to the first is corked while the second makes the topic flush.
    wire.peer.outbox.cork()
    for ref, topic, name in (("7", "twin:a", "ping"), ("8", "twin:b", "phx_join")):
        join_ref = "1" if name == "ping" else ref
        wire.peer.receive(f'["{join_ref}","{ref}","{topic}","{name}",{{}}]'.encode(), binary=False)
    wire.peer.outbox.uncork()
    await settle()
    heard = [(got.event, got.ref) for got in wire.all() if got.topic == "twin:a"]
    assert heard == [("phx_reply", "1"), ("phx_reply", "7"), ("said", None)]


@virtual_time
async def test_a_busy_peer_is_given_references_and_the_idle_ones_get_their_bytes_at_once() -> None:
    bench = Bench()
    room(bench)
    slow, fast = member(bench), member(bench)
    slow.transport.frozen = True
    say(bench, 0)
    await settle()
    assert slow.peer.outbox.paused
    messages = [Message("said", b'{"n":%d}' % number) for number in (1, 2)]
    for message in messages:
        bench.hub.publish("room:a", message)
    await settle()
    assert texts(fast) == [0, 1, 2]
    queued = [entry[1] for entry in slow.peer.outbox._queue or ()]
    assert queued == messages
    assert all(one is other for one, other in zip(queued, messages, strict=True))
    slow.transport.thaw()
    say(bench, 3)
    await settle()
    assert texts(slow) == [0, 1, 2, 3]


@virtual_time
async def test_the_order_holds_through_busy_and_idle_at_every_segment_boundary() -> None:
    bench = Bench()
    room(bench)
    for stop in range(1, 9):
        wire, other = member(bench), member(bench)
        sizes = [100, 70_000, 30_000, 30_000, 30_000, 100, 65_000, 64_000, 500]

        def freeze(data: bytes, wire: Wire = wire, write: Any = wire.transport.write, stop: int = stop) -> None:
            """Stop taking in the middle of a flush: after the `stop`-th write of it."""
            wire.stops = getattr(wire, "stops", 0) + 1  # type: ignore[attr-defined]
            if wire.stops == stop:  # type: ignore[attr-defined]
                wire.transport.frozen = True
            write(data)

        wire.transport.write = freeze  # type: ignore[method-assign]
        bench.hub.listeners("room:a")[-2].hold()
        bench.hub.listeners("room:a")[-2].go_live()
        for number, size in enumerate(sizes):
            say(bench, number, size)
        await settle()
        for number in range(9, 12):
            say(bench, number)
            wire.transport.take()
            say(bench, number + 100, 40_000)
            await settle()
        wire.transport.thaw()
        say(bench, 999)
        await settle()
        expected = [*range(9), 9, 109, 10, 110, 11, 111, 999]
        assert texts(other) == expected
        assert texts(wire) == expected, f"stopped at write {stop}"
        wire.drop()
        other.drop()


@virtual_time
async def test_a_binary_broadcast_ends_the_channels_that_can_not_carry_it_busy_or_not() -> None:
    bench = Bench()
    room(bench)
    idle, busy, modern = member(bench, V1), member(bench, V1), member(bench, V2)
    busy.transport.frozen = True
    say(bench, 1)
    await settle()
    bench.hub.publish("room:a", Message("bytes", b"\x00\x01", binary=True))
    say(bench, 2)
    await settle()
    busy.transport.thaw()
    await settle()
    for wire in (idle, busy):
        heard = [got.event for got in wire.all() if got.event != "phx_reply"]
        # Nothing follows the end of the channel, and the socket lives.
        assert heard == ["said", "phx_error"] or heard == ["phx_error"]
        assert wire.transport.closed is None
        assert wire.call("phx_join", {})["status"] == "ok"
    assert texts(modern) == [1, 2]
    assert [got.event for got in modern.all()].count("binary") == 1
    assert bench.budget.used == 0


@virtual_time
async def test_a_listener_whose_channel_ends_inside_a_flush_gets_nothing_behind_its_end() -> None:
    bench = Bench()
    room(bench)
    wire, other = member(bench), member(bench)
    channel = next(iter(wire.peer._members.values()))
    wire.transport.frozen = True
    say(bench, 1)
    await settle()
    put = wire.peer.outbox.put_message
    listener = bench.hub.listeners("room:a")[0]

    class Ending:
        """An outlet in whose third call the channel ends, as when the peer is cut for what is put into it."""

        paused = True
        transport = wire.transport

        def put_message(self, owner: Any, message: Message, form: Form) -> None:
            put(owner, message, form)
            if b'"n":3' in message.payload:
                channel.fail("channel_crash")

    listener.outbox = Ending()
    for number in range(2, 6):
        say(bench, number)
    await settle()
    wire.transport.thaw()
    await settle()
    heard = [got.event for got in wire.all() if got.event != "phx_reply"]
    assert heard == ["said", "phx_error"]
    assert texts(other) == [1, 2, 3, 4, 5]


@virtual_time
async def test_a_forgotten_listener_can_not_go_live_again() -> None:
    bench = Bench()
    room(bench)
    wire = member(bench)
    (listener,) = bench.hub.listeners("room:a")
    wire.call("phx_leave", {})
    listener.go_live()
    assert not listener.live
    say(bench, 1)
    await settle()
    assert texts(wire) == []


@virtual_time
async def test_a_listener_joined_in_the_same_turn_gets_nothing_published_before() -> None:
    bench = Bench()
    room(bench)
    early = member(bench)
    say(bench, 1)
    late = member(bench)
    say(bench, 2)
    await settle()
    assert texts(early) == [1, 2]
    assert texts(late) == [2]


@virtual_time
async def test_a_held_listener_gets_nothing_until_it_goes_live() -> None:
    bench = Bench()
    room(bench)
    wire = member(bench)
    (listener,) = bench.hub.listeners("room:a")
    say(bench, 1)
    listener.hold()
    say(bench, 2)
    await settle()
    listener.go_live()
    say(bench, 3)
    await settle()
    assert texts(wire) == [1, 3]


@virtual_time
async def test_a_topic_without_listeners_is_forgotten() -> None:
    pubsub = MemoryPubSub()
    bench = Bench()
    bench.hub = Hub(pubsub)
    room(bench)
    wires = [member(bench) for _ in range(2)]
    say(bench, 1)
    for wire in wires:
        wire.drop()
    await asyncio.sleep(1)
    assert pubsub._receivers == {}
    assert bench.hub._topics == {}
    say(bench, 2)
    assert texts(member(bench)) == []


def test_a_filter_narrows_events_and_nothing_else() -> None:
    everything = EVERYTHING
    assert everything.wants("partial", None)
    none = Filter(partials=False)
    assert not none.wants("LLM_PARTIAL", "s")
    assert none.wants("final", None)
    both = Filter("s", frozenset({"final"}))
    assert both.wants("final", "s")
    assert not both.wants("final", "t")
    assert not both.wants("final", None)
    group = Group(Topic(Hub(MemoryPubSub()), "t"), Form(V2, "t", b"", wrap), both)
    assert group.deliver([Message("server_status", b"{}")]) == 0  # nobody listens, and it is not hidden either
