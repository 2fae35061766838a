"""The hub's half of a socket: whatever a client sends and a driver decides, a message is answered once at the most."""

import contextlib
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from protocol.codec import V1, V2, Codec
from protocol.errors import MalformedMessage, ProtocolError
from protocol.frames import EMPTY, Binary, raw
from protocol.server import Channel, Event, JoinRequested, LeaveRequested, PushReceived, ServerConnection


def send(machine: ServerConnection, *slots: Any) -> Event | None:
    return machine.receive(json.dumps(slots).encode(), binary=False)


def sent(machine: ServerConnection) -> list[list[Any]]:
    return [json.loads(outgoing.message.data) for outgoing in machine.data_to_send()]


def joined(machine: ServerConnection, topic: str = "t", ref: Any = "1") -> Channel:
    """A channel that was joined, its reply taken."""
    event = send(machine, ref, ref, topic, "phx_join", {})
    assert isinstance(event, JoinRequested)
    machine.accept(event)
    machine.data_to_send()
    return event.channel


def test_what_is_sent_of_a_channel_names_its_channel_and_the_rest_none() -> None:
    """The two lanes: what names no channel may overtake."""
    machine = ServerConnection(V2)
    event = send(machine, "1", "1", "t", "phx_join", {})
    assert isinstance(event, JoinRequested)
    machine.accept(event)
    machine.push(event.channel, "hello", raw({"n": 1}))
    send(machine, None, "2", "phoenix", "heartbeat", {})
    machine.close(event.channel)
    lanes = [outgoing.channel for outgoing in machine.data_to_send()]
    assert lanes == [event.channel, event.channel, None, event.channel]


def test_rule11_the_close_of_a_replaced_channel_follows_the_new_reply_in_the_new_lane() -> None:
    machine = ServerConnection(V2)
    old = joined(machine)
    event = send(machine, "2", "2", "t", "phx_join", {})
    assert isinstance(event, JoinRequested)
    assert event.replaced is old
    assert machine.channels == {}, "the old channel goes before the new join is decided"
    machine.accept(event)
    outgoing = machine.data_to_send()
    assert [one.channel for one in outgoing] == [event.channel, event.channel]
    assert json.loads(outgoing[1].message.data)[:4] == ["1", "1", "t", "phx_close"]


def test_a_channel_that_is_gone_can_not_end_its_successor() -> None:
    machine = ServerConnection(V2)
    old = joined(machine, ref="1")
    new = joined(machine, ref="2")
    machine.close(old)
    machine.fail(old, "channel_crash")
    assert sent(machine) == []
    assert machine.channels == {"t": new}


def test_rule23_messages_wait_behind_an_undecided_join_and_keep_their_order() -> None:
    machine = ServerConnection(V2)
    join = send(machine, "1", "1", "t", "phx_join", {})
    assert isinstance(join, JoinRequested)
    assert machine.joining
    assert send(machine, None, "2", "phoenix", "heartbeat", {}) is None
    assert send(machine, "1", "3", "t", "hello", {}) is None
    assert send(machine, "4", "4", "u", "phx_join", {}) is None
    assert machine.next_event() is None
    assert sent(machine) == [], "a slow join holds up the heartbeat, too"
    machine.accept(join)
    push = machine.next_event()
    assert isinstance(push, PushReceived)
    assert push.channel is join.channel
    assert [slots[1] for slots in sent(machine)] == ["1", "2"]
    second = machine.next_event()
    assert isinstance(second, JoinRequested)
    assert machine.next_event() is None
    machine.refuse(second, raw({"reason": "no"}))
    assert not machine.joining
    assert machine.next_event() is None


def test_a_malformed_message_behind_a_slow_join_is_refused_at_once() -> None:
    machine = ServerConnection(V2)
    send(machine, "1", "1", "t", "phx_join", {})
    with pytest.raises(MalformedMessage):
        machine.receive(b"[", binary=False)


@pytest.mark.parametrize("codec", [V1, V2])
@pytest.mark.parametrize("payload", [b"[1]", b"null", b'"x"', b"1", b""])
def test_a_push_needs_an_object(codec: Codec, payload: bytes) -> None:
    machine = ServerConnection(codec)
    with pytest.raises(ValueError, match="object"):
        machine.push(Channel("t", "1", b""), "hello", Raw(payload))
    assert machine.data_to_send() == []


def test_a_reply_that_can_not_be_carried_leaves_nothing_behind() -> None:
    machine = ServerConnection(V1)
    with pytest.raises(ValueError, match="binary"):
        machine.reply(Channel("t", None, b""), "1", "ok", Binary(b""))
    assert machine.data_to_send() == []


def test_rule10_the_limit_counts_joined_topics_only() -> None:
    machine = ServerConnection(V2, channel_limit=2)
    joined(machine, "a")
    joined(machine, "b")
    assert send(machine, "3", "3", "c", "phx_join", {}) is None
    assert sent(machine)[0][4]["response"] == {"reason": "too many channels joined"}
    joined(machine, "a", "4")
    leave = send(machine, "4", "5", "a", "phx_leave", {})
    assert isinstance(leave, LeaveRequested)
    joined(machine, "c", "6")
    assert machine.channels.keys() == {"b", "c"}


TOPICS = st.sampled_from(["a", "b", "phoenix", "", None, 5, ["a"]])
EVENTS = st.sampled_from(["phx_join", "phx_leave", "hello", "heartbeat", "phx_reply", None, 7])
JOIN_REFS = st.sampled_from([None, "1", "2", 1, "", True])


class AnyTalk(RuleBasedStateMachine):
    """Any messages, any decisions, in any order: nothing but ProtocolError is raised, and nothing is answered twice."""

    @initialize(codec=st.sampled_from([V1, V2]))
    def start(self, codec: Codec) -> None:
        self.machine = ServerConnection(codec, channel_limit=2)
        self.codec = codec
        self.open: list[Event] = []
        self.known: list[Channel] = []
        self.refs = 0
        self.replies: Counter[Any] = Counter()

    def _take(self, event: Event | None) -> None:
        if event is not None:
            self.open.append(event)
            if isinstance(event, JoinRequested):
                assert event.channel not in self.known
                self.known.append(event.channel)
        while (following := self.machine.next_event()) is not None:
            self.open.append(following)
            if isinstance(following, JoinRequested):
                self.known.append(following.channel)

    @rule(topic=TOPICS, event=EVENTS, join_ref=JOIN_REFS, binary=st.booleans())
    def message(self, topic: Any, event: Any, join_ref: Any, binary: bool) -> None:
        self.refs += 1
        slots = {"join_ref": join_ref, "ref": f"r{self.refs}", "topic": topic, "event": event, "payload": {}}
        if self.codec is V1:
            self._take(self.machine.receive(json.dumps(slots).encode(), binary=binary))
        elif binary and all(isinstance(slots[name], str) for name in ("join_ref", "topic", "event")):
            fields = [slots[name].encode() for name in ("join_ref", "ref", "topic", "event")]
            self._take(self.machine.receive(bytes((0, *map(len, fields))) + b"".join(fields), binary=True))
        else:
            self._take(send(self.machine, *slots.values()))

    @rule(data=st.binary(max_size=12), binary=st.booleans())
    def nonsense(self, data: bytes, binary: bool) -> None:
        with contextlib.suppress(ProtocolError):
            self._take(self.machine.receive(data, binary=binary))

    @precondition(lambda self: self.open)
    @rule(at=st.integers(0, 50), yes=st.booleans())
    def decide(self, at: int, yes: bool) -> None:
        event = self.open.pop(at % len(self.open))
        match event:
            case JoinRequested() if yes:
                self.machine.accept(event, raw({"joined": 1}))
            case JoinRequested():
                self.machine.refuse(event, raw({"reason": "no"}))
            case LeaveRequested():
                self.machine.left(event)
            case PushReceived() if yes:
                self.machine.reply(event.channel, event.ref, "ok", EMPTY)
        self._take(None)

    @precondition(lambda self: self.known)
    @rule(at=st.integers(0, 50), how=st.sampled_from(["push", "close", "fail"]))
    def act(self, at: int, how: str) -> None:
        channel = self.known[at % len(self.known)]
        if how == "push":
            if self.machine.channels.get(channel.topic) is channel:
                self.machine.push(channel, "hello", raw({"n": 1}))
        elif how == "close":
            self.machine.close(channel)
        else:
            self.machine.fail(channel, "channel_crash")

    @invariant()
    def nothing_is_answered_or_ended_twice(self) -> None:
        for outgoing in self.machine.data_to_send():
            message = json.loads(outgoing.message.data)
            if self.codec is V2:
                join_ref, ref, topic, event, _ = message
            else:
                assert message.keys() == {"topic", "event", "payload", "ref"}
                join_ref, ref, topic, event = None, message["ref"], message["topic"], message["event"]
            if event == "phx_reply":
                self.replies[ref] += 1
                assert self.replies[ref] == 1, f"{ref} was answered twice"
            elif event in ("phx_close", "phx_error"):
                assert ref == join_ref or self.codec is V1
                assert outgoing.channel is None or outgoing.channel.topic == topic
        assert len(self.machine.channels) <= 2
        assert all(topic == channel.topic for topic, channel in self.machine.channels.items())


AnyTalk.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)
TestAnyTalk = AnyTalk.TestCase
