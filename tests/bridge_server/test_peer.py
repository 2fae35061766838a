"""One peer and its channels: what waits for what, what crashes what, and in which order it is told."""

import asyncio
import json
from typing import Any

import pytest

from bridge_server.channels import Channel, Handled, Reply, Socket, Stop
from bridge_server.message import Message
from bridge_server.peer import MAX_WAITING
from protocol.frames import Payload, raw
from tests.support.probe_channel import Probe
from tests.support.raw_socket import CLOSE, RawSocket, frame
from tests.support.recorded_server import RecordedServer, connected, text

OK: dict[str, Any] = {"status": "ok", "response": {}}
CRASH = {"reason": "channel_crash"}


def heartbeat(ref: str) -> bytes:
    return text(None, ref, "phoenix", "heartbeat", {})


async def read(socket: RawSocket) -> list[Any]:
    slots = json.loads(await socket.text())
    assert isinstance(slots, list)
    return slots


async def until(socket: RawSocket, ref: str) -> list[list[Any]]:
    """Everything up to the answer to a heartbeat, without that answer."""
    socket.send(heartbeat(ref))
    slots = []
    while (one := await read(socket))[1] != ref:
        slots.append(one)
    return slots


async def joined(socket: RawSocket, topic: str, ref: str = "1", **payload: Any) -> None:
    socket.send(text(ref, ref, topic, "phx_join", payload))
    assert await read(socket) == [ref, ref, topic, "phx_reply", OK]


@pytest.fixture
def log(server: RecordedServer) -> list[str]:
    """What the probes of a test recorded."""
    log: list[str] = []
    server.router.add("probe:*", lambda socket: Probe(socket, log))
    return log


# Slow joins.


async def test_rule23_a_slow_join_holds_up_its_own_socket_and_no_other(server: RecordedServer) -> None:
    async with connected(server) as slow, connected(server) as other:
        slow.send(
            text("1", "1", "slow:1", "phx_join", {"gate": "g"})
            + text("1", "2", "slow:1", "echo", {"n": 2})
            + heartbeat("3")
            + text("4", "4", "room:1", "phx_join", {})
            + text("4", "5", "room:1", "ping", {"n": 5})
        )
        for number in range(3):
            assert await until(other, f"o{number}") == []
        slow.send(text("4", "6", "room:1", "ping", {"n": 6}))
        assert await until(other, "still") == []
        server.open_gate("g")
        assert [(await read(slow))[1] for _ in range(6)] == ["1", "2", "3", "4", "5", "6"]


async def test_two_slow_joins_in_one_segment_are_decided_one_after_the_other(server: RecordedServer) -> None:
    async with connected(server) as socket, connected(server) as other:
        socket.send(
            text("1", "1", "slow:1", "phx_join", {"gate": "first"})
            + text("2", "2", "slow:2", "phx_join", {"gate": "second"})
            + heartbeat("3")
        )
        server.open_gate("second")
        assert await until(other, "o") == []
        server.open_gate("first")
        assert [(await read(socket))[1] for _ in range(3)] == ["1", "2", "3"]


@pytest.mark.parametrize(("asked", "reason"), [("crash", "join crashed"), ("deny", "late")])
async def test_a_slow_join_may_fail_and_the_socket_goes_on(server: RecordedServer, asked: str, reason: str) -> None:
    async with connected(server) as socket:
        socket.send(text("1", "1", "slow:1", "phx_join", {"gate": "g", asked: True}) + heartbeat("2"))
        server.open_gate("g")
        refused = {"status": "error", "response": {"reason": reason}}
        assert await read(socket) == ["1", "1", "slow:1", "phx_reply", refused]
        assert (await read(socket))[1] == "2"
        await joined(socket, "slow:1", "3")


async def test_a_client_that_leaves_during_its_slow_join_takes_the_join_with_it(server: RecordedServer) -> None:
    async with connected(server) as other:
        async with connected(server) as socket:
            socket.send(text("1", "1", "slow:1", "phx_join", {"gate": "g"}))
            await socket.sent()
            assert await until(other, "o") == []
        server.open_gate("g")
        assert await until(other, "p") == []


# Handlers that wait.


async def test_rule23_answers_are_in_order_within_a_channel_and_not_across(server: RecordedServer) -> None:
    async with connected(server) as socket:
        await joined(socket, "slow:1", "1")
        await joined(socket, "slow:2", "2")
        socket.send(
            text("1", "3", "slow:1", "wait", {"gate": "a"})
            + text("1", "4", "slow:1", "echo", {"n": 4})
            + text("1", "5", "slow:1", "wait", {"gate": "b"})
            + text("1", "6", "slow:1", "echo", {"n": 6})
            + text("2", "7", "slow:2", "echo", {"n": 7})
            + text("2", "8", "slow:2", "wait", {"gate": "c"})
        )
        assert (await read(socket))[1] == "7", "another channel does not wait"
        server.open_gate("b")
        assert await until(socket, "h1") == [], "the first holds up what came after it"
        server.open_gate("c")
        assert (await read(socket))[1] == "8"
        server.open_gate("a")
        assert [(await read(socket))[1] for _ in range(4)] == ["3", "4", "5", "6"]


async def test_rule35_a_leave_waits_its_turn_behind_a_busy_handler(server: RecordedServer) -> None:
    async with connected(server) as socket:
        await joined(socket, "slow:1")
        socket.send(
            text("1", "2", "slow:1", "wait", {"gate": "a"})
            + text("1", "3", "slow:1", "phx_leave", {})
            + text("1", "4", "slow:1", "echo", {})
        )
        assert [slots[1] for slots in await until(socket, "h")] == ["4"], "the topic is not joined any more"
        server.open_gate("a")
        assert [(await read(socket))[1:4:2] for _ in range(3)] == [
            ["2", "phx_reply"],
            ["3", "phx_reply"],
            ["1", "phx_close"],
        ]


async def test_a_handler_that_crashes_late_takes_the_channel_and_what_waited(server: RecordedServer) -> None:
    async with connected(server) as socket:
        await joined(socket, "slow:1")
        socket.send(
            text("1", "2", "slow:1", "wait", {"gate": "a", "crash": True}) + text("1", "3", "slow:1", "echo", {})
        )
        server.open_gate("a")
        assert await read(socket) == ["1", "1", "slow:1", "phx_error", CRASH]
        assert await until(socket, "h") == []


async def test_a_handler_may_stop_late_with_a_reply(server: RecordedServer) -> None:
    async with connected(server) as socket:
        await joined(socket, "slow:1")
        socket.send(
            text("1", "2", "slow:1", "wait", {"gate": "a", "stop": True}) + text("1", "3", "slow:1", "echo", {})
        )
        server.open_gate("a")
        assert [(await read(socket))[1:4:2] for _ in range(2)] == [["2", "phx_reply"], ["1", "phx_close"]]
        assert await until(socket, "h") == []


async def test_what_waits_behind_a_busy_handler_is_bounded(server: RecordedServer) -> None:
    async with connected(server) as socket, connected(server) as other:
        await joined(socket, "slow:1")
        socket.send(text("1", "2", "slow:1", "wait", {"gate": "a"}))
        socket.send(text("1", "3", "slow:1", "echo", {}) * MAX_WAITING)
        assert await until(socket, "h") == []
        socket.send(text("1", "4", "slow:1", "echo", {}))
        assert await read(socket) == ["1", "1", "slow:1", "phx_error", CRASH]
        assert await until(socket, "i") == []
        assert await until(other, "j") == []


async def test_a_rejoin_ends_the_handler_that_was_busy(server: RecordedServer) -> None:
    async with connected(server) as socket:
        await joined(socket, "slow:1")
        socket.send(text("1", "2", "slow:1", "wait", {"gate": "a"}) + text("3", "3", "slow:1", "phx_join", {}))
        assert (await read(socket))[:4] == ["3", "3", "slow:1", "phx_reply"]
        assert (await read(socket))[:4] == ["1", "1", "slow:1", "phx_close"]
        server.open_gate("a")
        assert await until(socket, "h") == [], "its answer would be taken for the new channel's"


# Ends and crashes.


async def test_rule36_a_leave_lets_the_channel_say_a_last_word(server: RecordedServer, log: list[str]) -> None:
    async with connected(server) as socket:
        await joined(socket, "probe:1")
        socket.send(text("1", "2", "probe:1", "phx_leave", {}))
        assert [(await read(socket))[3] for _ in range(3)] == ["last", "phx_reply", "phx_close"]
        assert log == ["left"]


@pytest.mark.parametrize(
    ("event", "told", "reason"),
    [
        ("stop", ["phx_reply", "last", "phx_close"], "stopped"),
        ("unsendable", ["last", "phx_error"], "failed"),
        ("badname", ["last", "phx_error"], "failed"),
        ("task", ["last", "phx_error"], "failed"),
        ("fail", ["last", "phx_error"], "failed"),
    ],
)
async def test_a_channel_ends_once_and_says_nothing_after_its_end(
    server: RecordedServer, log: list[str], event: str, told: list[str], reason: str
) -> None:
    async with connected(server) as socket:
        await joined(socket, "probe:1")
        await joined(socket, "room:1", "2")
        socket.send(text("1", "3", "probe:1", event, {}))
        assert [(await read(socket))[3] for _ in told] == told
        assert await until(socket, "h") == []
        assert log == [reason]
        socket.send(text("2", "4", "room:1", "ping", {}))
        assert (await read(socket))[1] == "4", "the other channels live"


async def test_a_channel_that_crashes_after_its_join_was_accepted_is_errored(
    server: RecordedServer, log: list[str]
) -> None:
    async with connected(server) as socket:
        await joined(socket, "probe:joined")
        assert [(await read(socket))[3] for _ in range(2)] == ["last", "phx_error"]
        assert await until(socket, "h") == []
        assert log == ["failed"]


async def test_a_terminate_that_crashes_is_no_obstacle(server: RecordedServer, log: list[str]) -> None:
    async with connected(server) as socket:
        await joined(socket, "probe:raises")
        socket.send(text("1", "2", "probe:raises", "phx_leave", {}))
        assert [(await read(socket))[3] for _ in range(3)] == ["last", "phx_reply", "phx_close"]
        await joined(socket, "probe:raises", "3")


async def test_rule38_a_socket_that_ends_ends_its_channels_without_a_word(
    server: RecordedServer, log: list[str]
) -> None:
    async with connected(server) as socket:
        await joined(socket, "probe:1")
        await joined(socket, "probe:raises", "2")
        await joined(socket, "probe:3", "3")
        socket.send(text("3", "4", "probe:3", "forever", {}))
        assert await until(socket, "h") == []
        socket.send_frame((1000).to_bytes(2), CLOSE)
        assert (await socket.closed()).close_code == 1000
    while "task ended" not in log:
        await asyncio.sleep(0)
    assert sorted(log) == ["closed"] * 3 + ["task ended"]


async def test_a_malformed_message_ends_one_peer_after_its_answers_and_no_other(server: RecordedServer) -> None:
    async with connected(server) as bad, connected(server) as good:
        await joined(bad, "room:1")
        await joined(good, "room:1")
        bad.send(
            text("1", "2", "room:1", "ping", {"n": 1})
            + text("1", "3", "room:1", "shout", {"n": 2})
            + frame(b"[")
            + text("1", "4", "room:1", "shout", {"n": 3})
        )
        assert (await read(bad))[1] == "2"
        rest = []
        while (one := await bad.receive()) is not None:
            rest.append(one)
        assert rest[-1].close_code == 1003
        assert [json.loads(one.text)[4] for one in rest[:-1]] in ([], [{"n": 2}])
        assert [slots[3:] for slots in await until(good, "h")] == [["shout", {"n": 2}]]


# Order with what is published.


async def test_rule17_a_broadcast_reaches_its_sender_before_the_answer(server: RecordedServer) -> None:
    class Acking(Channel):
        def __init__(self, socket: Socket) -> None:
            super().__init__(socket)
            self._listener = socket.listen("acking")

        def joined(self) -> None:
            self._listener.go_live()

        def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
            server.hub.topics.publish("acking", Message("said", b'{"n":1}'))
            return Stop(Reply()) if event == "stop" else Reply()

    server.router.add("acking:*", Acking)
    async with connected(server) as sender, connected(server, "1.0.0") as other:
        await joined(sender, "acking:1")
        other.send_text('{"topic":"acking:1","event":"phx_join","payload":{},"ref":"1"}')
        await other.text()
        sender.send(text("1", "2", "acking:1", "say", {}) * 2 + text("1", "3", "acking:1", "stop", {}))
        told = [(await read(sender))[1:4:2] for _ in range(7)]
        said, answered = [None, "said"], ["2", "phx_reply"]
        assert told == [said, answered, said, answered, said, ["3", "phx_reply"], ["1", "phx_close"]]
        for _ in range(3):
            assert json.loads(await other.text()) == {
                "event": "said",
                "payload": {"n": 1},
                "ref": None,
                "topic": "acking:1",
            }


async def test_a_channel_that_was_left_hears_nothing_more_and_its_successor_only_what_follows(
    server: RecordedServer,
) -> None:
    async with connected(server) as socket, connected(server) as other:
        await joined(socket, "room:1")
        await joined(other, "room:1")
        shout = text("1", "9", "room:1", "shout", {"n": 1})
        socket.send(shout + text("1", "2", "room:1", "phx_leave", {}))
        assert [(await read(socket))[3] for _ in range(3)] == ["shout", "phx_reply", "phx_close"]
        other.send(shout)
        assert [(await read(other))[3] for _ in range(2)] == ["shout", "shout"]
        assert await until(socket, "h") == []
        await joined(socket, "room:1", "3")
        other.send(shout)
        assert await read(socket) == ["3", None, "room:1", "shout", {"n": 1}]


async def test_every_listener_of_one_topic_gets_its_own_join_ref(server: RecordedServer) -> None:
    async with connected(server) as one, connected(server) as two:
        await joined(one, "room:1", "a")
        await joined(two, "room:1", "b")
        server.hub.topics.publish("room:1", Message("said", bytes(raw({"n": 1}))))
        assert await read(one) == ["a", None, "room:1", "said", {"n": 1}]
        assert await read(two) == ["b", None, "room:1", "said", {"n": 1}]
