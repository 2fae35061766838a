"""The client's half of a socket: every state with every input, and the two halves talking to each other."""

import itertools
import json
from typing import Any

import pytest
from msgspec import Raw

from protocol.client import (
    TRANSITIONS,
    Action,
    ChannelClosed,
    ChannelErrored,
    ClientConnection,
    HubMute,
    Input,
    Joined,
    JoinRefused,
    JoinTimedOut,
    NotJoined,
    Received,
    Replied,
    State,
)
from protocol.codec import V1, V2, Codec
from protocol.errors import MalformedMessage, ProtocolError
from protocol.frames import EMPTY, raw
from protocol.server import JoinRequested, LeaveRequested, PushReceived, ServerConnection

TOPIC = "app:x"


def sent(client: ClientConnection) -> list[list[Any]]:
    return [json.loads(message.data) for message in client.data_to_send()]


def feed(client: ClientConnection, *slots: Any, now: float = 0.0) -> list[Any]:
    return client.receive(json.dumps(slots).encode(), binary=False, now=now)


def reply(join_ref: Any, ref: Any, status: str = "ok", response: Any = None, topic: str = TOPIC) -> tuple[Any, ...]:
    return join_ref, ref, topic, "phx_reply", {"status": status, "response": response or {}}


def in_state(state: State) -> ClientConnection:
    """A connection whose channel is in `state`: join_ref 1, and where it has them an unanswered push 2, a leave 3."""
    client = ClientConnection(0.0)
    if state is not State.CLOSED:
        client.join(TOPIC, EMPTY, 0.0)
    if state in (State.JOINED, State.LEAVING, State.ERRORED):
        feed(client, *reply("1", "1"))
        client.push(TOPIC, "hello", EMPTY)
    if state is State.LEAVING:
        client.leave(TOPIC)
    if state is State.ERRORED:
        feed(client, "1", "1", TOPIC, "phx_error", {})
    client.data_to_send()
    assert client.state(TOPIC) is state
    return client


def give(client: ClientConnection, given: Input) -> list[Any]:
    match given:
        case Input.JOIN:
            client.join(TOPIC, EMPTY, 0.0)
        case Input.LEAVE:
            client.leave(TOPIC)
        case Input.PUSH:
            client.push(TOPIC, "hello", EMPTY)
        case Input.JOIN_OK:
            return feed(client, *reply("1", "1"))
        case Input.JOIN_ERROR:
            return feed(client, *reply("1", "1", "error", {"reason": "no"}))
        case Input.JOIN_TIMEOUT:
            return client.tick(10.0)
        case Input.LEAVE_REPLY:
            return feed(client, *reply("1", "3"))
        case Input.REPLY:
            return feed(client, *reply("1", "2"))
        case Input.MESSAGE:
            return feed(client, "1", None, TOPIC, "session_event", {"a": 1})
        case Input.ERROR:
            return feed(client, "1", "1", TOPIC, "phx_error", {"reason": "channel_crash"})
        case Input.CLOSE:
            return feed(client, "1", "1", TOPIC, "phx_close", {})
    return []


TOLD = {
    Input.JOIN_OK: Joined(TOPIC, EMPTY),
    Input.JOIN_ERROR: JoinRefused(TOPIC, raw({"reason": "no"})),
    Input.JOIN_TIMEOUT: JoinTimedOut(TOPIC),
    Input.LEAVE_REPLY: ChannelClosed(TOPIC),
    Input.REPLY: Replied(TOPIC, "2", True, EMPTY),
    Input.MESSAGE: Received(TOPIC, "session_event", raw({"a": 1})),
    Input.ERROR: ChannelErrored(TOPIC, raw({"reason": "channel_crash"})),
    Input.CLOSE: ChannelClosed(TOPIC),
}


def plain(event: Any) -> Any:
    """An event with its JSON decoded, so that two can be compared."""
    return type(event), [json.loads(bytes(part)) if isinstance(part, Raw) else part for part in event]


@pytest.mark.parametrize(("state", "given"), list(itertools.product(State, Input)))
def test_every_state_with_every_input(state: State, given: Input) -> None:
    after, action = TRANSITIONS[state, given]
    client = in_state(state)
    if action is Action.REFUSE:
        with pytest.raises(NotJoined):
            give(client, given)
        told = []
    else:
        told = give(client, given)
    assert client.state(TOPIC) is after
    events = [frame[3] for frame in sent(client) if frame[3] != "heartbeat"]
    match action:
        case Action.TELL:
            expected = TOLD[given] if (state, given) != (State.LEAVING, Input.ERROR) else ChannelClosed(TOPIC)
            assert [plain(event) for event in told] == [plain(expected)]
            assert events == []
        case Action.GIVE_UP:
            assert told == [JoinTimedOut(TOPIC)]
            assert events == ["phx_leave"]
        case Action.SEND:
            assert told == []
            assert events == [{Input.JOIN: "phx_join", Input.LEAVE: "phx_leave", Input.PUSH: "hello"}[given]]
        case Action.REJOIN:
            assert events == ["phx_leave", "phx_join"]
        case Action.IGNORE | Action.REFUSE:
            assert (told, events) == ([], [])


def test_the_table_is_total() -> None:
    assert set(TRANSITIONS) == set(itertools.product(State, Input))


def test_refs_are_strings_that_count_up_and_pushes_carry_the_join_ref() -> None:
    """Phoenix rules 70 and 71."""
    client = ClientConnection(0.0)
    client.join(TOPIC, raw({"since_id": "4"}), 0.0)
    feed(client, *reply("1", "1"))
    assert client.push(TOPIC, "a", EMPTY) == "2"
    client.tick(30.0)
    assert sent(client) == [
        ["1", "1", TOPIC, "phx_join", {"since_id": "4"}],
        ["1", "2", TOPIC, "a", {}],
        [None, "3", "phoenix", "heartbeat", {}],
    ]


@pytest.mark.parametrize("join_ref", ["2", 1, "01", True])
def test_frames_of_another_join_are_dropped(join_ref: Any) -> None:
    client = in_state(State.JOINED)
    for event in ("session_event", "phx_error", "phx_close"):
        assert feed(client, join_ref, None, TOPIC, event, {}) == []
    assert client.state(TOPIC) is State.JOINED


def test_what_the_old_join_still_says_after_a_rejoin_is_dropped() -> None:
    client = in_state(State.JOINED)
    client.join(TOPIC, EMPTY, 0.0)
    assert [frame[:2] for frame in sent(client)] == [["1", "3"], ["4", "4"]]
    assert feed(client, *reply("1", "2")) == []
    assert feed(client, *reply("1", "3")) == []
    assert feed(client, "1", "1", TOPIC, "phx_close", {}) == []
    assert client.state(TOPIC) is State.JOINING
    assert [type(event) for event in feed(client, *reply("4", "4"))] == [Joined]


def test_a_reply_is_told_once() -> None:
    client = in_state(State.JOINED)
    assert len(feed(client, *reply("1", "2"))) == 1
    assert feed(client, *reply("1", "2")) == []
    assert feed(client, *reply("1", 2)) == []


def test_a_broadcast_without_join_ref_is_received() -> None:
    client = in_state(State.JOINED)
    assert [type(event) for event in feed(client, None, None, TOPIC, "room", {})] == [Received]
    assert feed(client, None, None, "app:other", "room", {}) == []
    assert feed(client, None, None, 5, "room", {}) == []


def test_a_late_answer_to_a_join_given_up_is_ignored() -> None:
    client = in_state(State.JOINING)
    assert client.next_deadline == 10.0
    assert client.tick(10.0) == [JoinTimedOut(TOPIC)]
    assert [frame[:4] for frame in sent(client)] == [["1", "2", TOPIC, "phx_leave"]]
    assert feed(client, *reply("1", "1")) == []
    client.join(TOPIC, EMPTY, 11.0)
    assert feed(client, *reply("1", "1")) == []
    assert [type(event) for event in feed(client, *reply("3", "3"))] == [Joined]


def test_heartbeat_every_interval_and_mute_after_two() -> None:
    client = ClientConnection(100.0)
    assert client.next_deadline == 130.0
    assert client.tick(129.9) == []
    assert sent(client) == []
    assert client.tick(130.0) == []
    assert sent(client) == [[None, "1", "phoenix", "heartbeat", {}]]
    assert client.next_deadline == 160.0
    assert client.tick(159.9) == []
    assert client.tick(160.0) == [HubMute(60.0)]


def test_any_frame_is_a_sign_of_life() -> None:
    client = ClientConnection(0.0)
    feed(client, None, None, "elsewhere", "x", {}, now=50.0)
    assert client.tick(109.0) == []
    assert client.tick(110.0) == [HubMute(60.0)]
    client.resumed(200.0)
    assert client.tick(259.0) == []


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[1,2]", b"\xff", b'["1","1","app:x","phx_reply",{}]', b'["1","1","app:x","phx_reply",7]', b"[" * 99],
)
def test_damaged_messages_are_a_protocol_error(data: bytes) -> None:
    client = in_state(State.JOINING)
    with pytest.raises(ProtocolError):
        client.receive(data, binary=False, now=0.0)


def test_a_binary_frame_is_refused() -> None:
    client = in_state(State.JOINED)
    with pytest.raises(MalformedMessage):
        client.receive(b"\x02\x05\x01app:xehello", binary=True, now=0.0)


@pytest.mark.parametrize("codec", [V1, V2])
def test_both_halves_of_the_protocol_understand_each_other(codec: Codec) -> None:
    """Join, push, reply, server push, leave; then a join, a rejoin, and the end by phx_error and phx_close."""
    client, hub = ClientConnection(0.0, codec=codec), ServerConnection(codec)

    def to_hub() -> list[Any]:
        return [event for m in client.data_to_send() if (event := hub.receive(m.data, binary=m.binary)) is not None]

    def to_client() -> list[Any]:
        out = [outgoing.message for outgoing in hub.data_to_send()]
        return [plain(event) for m in out for event in client.receive(m.data, binary=m.binary, now=0.0)]

    client.join(TOPIC, raw({"since_id": "1"}), 0.0)
    (join,) = to_hub()
    assert isinstance(join, JoinRequested)
    hub.accept(join, raw({"epoch": "e"}))
    assert to_client() == [(Joined, [TOPIC, {"epoch": "e"}])]

    ref = client.push(TOPIC, "ping", raw({"n": 1}))
    (push,) = to_hub()
    assert isinstance(push, PushReceived)
    hub.push(join.channel, "news", raw({"n": 2}))
    hub.reply(push.channel, push.ref, "error", raw({"reason": "gap"}))
    assert to_client() == [(Received, [TOPIC, "news", {"n": 2}]), (Replied, [TOPIC, ref, False, {"reason": "gap"}])]

    client.tick(30.0)
    assert to_hub() == []
    assert to_client() == []  # the heartbeat's reply is nobody's news

    client.leave(TOPIC)
    (leave,) = to_hub()
    assert isinstance(leave, LeaveRequested)
    hub.left(leave)
    assert to_client() == [(ChannelClosed, [TOPIC])]

    client.join(TOPIC, EMPTY, 0.0)
    (join,) = to_hub()
    hub.accept(join)
    client.join(TOPIC, EMPTY, 0.0)
    *leaves, rejoin = to_hub()
    assert len(leaves) == (codec is V2)
    for leave in leaves:
        hub.left(leave)
    hub.accept(rejoin)
    assert [kind for kind, _ in to_client()] == [Joined]
    hub.fail(rejoin.channel, "hub_reset")
    assert to_client() == [(ChannelErrored, [TOPIC, {"reason": "hub_reset"}])]

    client.join("nowhere", EMPTY, 0.0)
    (join,) = to_hub()
    hub.refuse(join, raw({"reason": "unmatched topic"}))
    assert to_client() == [(JoinRefused, ["nowhere", {"reason": "unmatched topic"}])]
