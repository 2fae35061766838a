"""What users of other servers reported about sockets and joins: each must not happen here. Numbers are those cases'."""

import gc
import json
import os
import re
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from bridge_server import open_files
from bridge_server.app import Hub
from bridge_server.auth import Device, Server
from bridge_server.backlog import Marks
from bridge_server.channels import Channel
from bridge_server.outbox import Outbox
from bridge_server.peer import Peer
from bridge_server.transports.port import Port
from bridge_server.transports.websocket import WebSocketDriver
from protocol import server as machine
from protocol.errors import CLOSE_CODES
from tests.support.processes import until
from tests.support.raw_socket import CLOSE, TEXT, RawSocket, frame, head
from tests.support.recorded_server import RecordedServer, connected, recorded_server, text
from tests.support.scripted_home import scripted_home

ROOT = Path(__file__).resolve().parents[2]
OK: dict[str, Any] = {"status": "ok", "response": {}}


async def read(socket: RawSocket) -> Any:
    return json.loads(await socket.text())


async def until_beat(socket: RawSocket, ref: str) -> list[Any]:
    """All that comes before the answer to a heartbeat sent now."""
    socket.send(text(None, ref, "phoenix", "heartbeat", {}))
    came = []
    while (slots := await read(socket))[1:3] != [ref, "phoenix"]:
        came.append(slots)
    return came


@pytest.fixture
def phone(hub: Hub) -> tuple[Server, str, Device, str]:
    """A home and an app of it, each with its token."""
    server, home_token = hub.credentials.add_server("home")
    device, token = hub.credentials.add_device(server.server_id, "phone")
    return server, home_token, device, token


# Closes.


def test_case_2_the_hub_never_starts_a_close_with_1000_nor_with_a_code_of_its_own() -> None:
    """Every number that a close is given anywhere in the hub is in the table, and the table has no 1000."""
    named = {
        int(code)
        for path in (ROOT / "bridge_server").rglob("*.py")
        for code in re.findall(r"(?:close|fail|send_close|drain)\((\d{4})\b", path.read_text("utf-8"))
    }
    assert named
    assert named <= set(CLOSE_CODES)
    assert not any(code == 1000 or code >= 4000 for code in CLOSE_CODES)


async def test_case_10_a_thousand_clients_that_come_back_at_once_all_join(
    tmp_path: Path, hub: Hub, phone: tuple[Server, str, Device, str]
) -> None:
    """No refusal, whatever the load: phoenix.js has no jitter."""
    _, _, device, token = phone
    count = 1_000
    open_files.raise_limit(2 * count, chosen=False)
    joining = text("1", "1", f"app:{device.server_id}", "phx_join", {"since_id": "0"})
    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(RawSocket(hub.port)) for _ in range(count)]
        for socket in sockets:
            socket.send(head("/socket/websocket?vsn=2.0.0", f"X-API-Key: {token}") + joining)
        for socket in sockets:
            assert (await socket.response()).status == 101
            assert (await read(socket))[4]["status"] == "ok"


async def test_case_25_a_client_that_slept_goes_on_or_is_told_why(server: RecordedServer) -> None:
    """45 s of sleep are nothing; past the idle timeout the close is one that every client comes back from."""
    async with connected(server) as socket, connected(server) as other:
        server.hands.time += 45
        assert await until_beat(socket, "1") == []
        server.hands.time += server.hub.config.idle_timeout - 1
        assert await until_beat(other, "1") == []
        server.hands.time += 1
        closed = await socket.receive()
        assert closed is not None
        assert (closed.close_code, CLOSE_CODES[closed.close_code].come_back) == (1001, True)


async def test_case_29_a_client_that_vanishes_in_the_middle_of_a_frame_is_nobodys_error(
    hub: Hub, phone: tuple[Server, str, Device, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, _, device, token = phone
    whole = text("1", "1", f"app:{device.server_id}", "phx_join", {})
    for cut in (1, 7, len(whole) - 1, len(whole)):
        async with RawSocket(hub.port) as socket:
            assert (await socket.upgrade("/socket/websocket?vsn=2.0.0", f"X-API-Key: {token}")).status == 101
            socket.send(whole[:cut])
            await socket.sent()
        await until(lambda: not hub._online(), "the socket is forgotten")
    assert [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


# Bursts.


async def test_case_104_a_heartbeat_overtakes_a_burst_of_5000_events(
    hub: Hub, phone: tuple[Server, str, Device, str]
) -> None:
    """The client reads slowly: what is answered it hears after what the kernels hold, not after what the hub holds."""
    count, size = 5_000, 600
    assert count * (size + 200) < Marks().cut_bytes, "the burst alone is no reason to cut it"
    server, home_token, device, token = phone
    async with (
        RawSocket(hub.port) as app,
        scripted_home(hub.url, server.server_id, home_token) as home,
    ):
        assert (await app.upgrade("/socket/websocket?vsn=2.0.0", f"X-API-Key: {token}")).status == 101
        app.send(text("1", "1", f"app:{device.server_id}", "phx_join", {}))
        assert [(await read(app))[3] for _ in range(2)] == ["phx_reply", "replay_complete"]
        app.stop_reading()
        for _ in range(count // 200):
            await home.publish_at_once(200, text="x" * size)
        assert hub.budget.busy, "the burst is more than the kernels take"
        app.send(text(None, "beat", "phoenix", "heartbeat", {}))
        (outbox,) = hub.budget.busy
        await until(lambda: outbox._urgent, "the heartbeat is answered")
        app.read_on()
        before = 0
        while (slots := await read(app))[1] != "beat":
            assert slots[3] == "session_event"
            before += 1
        assert before < count // 2
        ids = [int((await read(app))[4]["event"]["event_id"]) for _ in range(count - before)]
        assert ids == list(range(before + 1, count + 1)), "the events keep their order all the same"


# Joins.


async def test_case_31_joining_twice_on_one_socket_is_one_join(server: RecordedServer) -> None:
    async with connected(server) as socket:
        socket.send(text("1", "1", "room:1", "phx_join", {}) + text("2", "2", "room:1", "phx_join", {}))
        assert [await read(socket) for _ in range(3)] == [
            ["1", "1", "room:1", "phx_reply", OK],
            ["2", "2", "room:1", "phx_reply", OK],
            ["1", "1", "room:1", "phx_close", {}],
        ]
        socket.send(text("2", "3", "room:1", "shout", {"n": 1}))
        assert await read(socket) == ["2", None, "room:1", "shout", {"n": 1}]
        assert await until_beat(socket, "4") == []


async def test_case_32_a_join_that_took_too_long_for_the_client_ends_joined_once(server: RecordedServer) -> None:
    """The client gives up, leaves and joins again; then the first answer comes."""
    async with connected(server) as socket:
        socket.send(text("1", "1", "slow:1", "phx_join", {"gate": "first"}))
        socket.send(text("1", "2", "slow:1", "phx_leave", {}) + text("3", "3", "slow:1", "phx_join", {}))
        server.open_gate("first")
        assert [await read(socket) for _ in range(4)] == [
            ["1", "1", "slow:1", "phx_reply", OK],
            ["1", "2", "slow:1", "phx_reply", OK],
            ["1", "1", "slow:1", "phx_close", {}],
            ["3", "3", "slow:1", "phx_reply", OK],
        ]
        socket.send(text("3", "4", "slow:1", "echo", {"n": 1}))
        assert await until_beat(socket, "5") == [
            ["3", "4", "slow:1", "phx_reply", {"status": "ok", "response": {"n": 1}}]
        ]


async def test_case_34_a_null_join_ref_is_handled_and_a_stale_one_ignored(server: RecordedServer) -> None:
    async with connected(server) as socket:
        socket.send(text("11", "1", "room:1", "phx_join", {}))
        assert await read(socket) == ["11", "1", "room:1", "phx_reply", OK]
        for join_ref, answered in ((None, True), ("11", True), ("stale", False), (11, False), ("", False)):
            socket.send(text(join_ref, "2", "room:1", "ok", {}))
            expected = [["11", "2", "room:1", "phx_reply", OK]] if answered else []
            assert await until_beat(socket, "b") == expected, join_ref
        socket.send(text("stale", "3", "room:1", "phx_leave", {}))
        assert await until_beat(socket, "b") == []
        socket.send(text(None, "4", "room:1", "phx_leave", {}))
        assert await until_beat(socket, "b") == [
            ["11", "4", "room:1", "phx_reply", OK],
            ["11", "11", "room:1", "phx_close", {}],
        ]


@pytest.mark.parametrize("ref", ["7", 7, None, 'ré"f'])
async def test_case_35_and_41_a_push_to_a_topic_that_is_not_joined_is_answered_with_its_ref(
    server: RecordedServer, ref: Any
) -> None:
    async with connected(server) as socket:
        socket.send(text("1", ref, "room:1", "ping", {}))
        (slots,) = await until_beat(socket, "b")
        assert slots[1:] == [ref, "room:1", "phx_reply", {"status": "error", "response": {"reason": "unmatched topic"}}]


async def test_case_37_a_channel_that_crashes_is_told_and_can_be_joined_again(server: RecordedServer) -> None:
    async with connected(server) as socket:
        socket.send(text("1", "1", "room:1", "phx_join", {}) + text("5", "5", "room:2", "phx_join", {}))
        assert [(await read(socket))[4] for _ in range(2)] == [OK, OK]
        socket.send(text("1", "2", "room:1", "crash", {}))
        assert await until_beat(socket, "b") == [["1", "1", "room:1", "phx_error", {"reason": "channel_crash"}]]
        socket.send(text("3", "3", "room:1", "phx_join", {}) + text("5", "6", "room:2", "ok", {}))
        assert await until_beat(socket, "b") == [
            ["3", "3", "room:1", "phx_reply", OK],
            ["5", "6", "room:2", "phx_reply", OK],
        ]


@pytest.mark.parametrize("topic", ["room:1", "slow:1"])
async def test_case_38_a_push_in_the_segment_of_its_join_is_handled_after_it(
    server: RecordedServer, topic: str
) -> None:
    async with connected(server) as socket:
        socket.send(
            text("1", "1", topic, "phx_join", {"gate": "g"})
            + text("1", "2", topic, "ok", {})
            + text("1", "3", topic, "ok", {})
        )
        server.open_gate("g")
        assert [(await read(socket))[1] for _ in range(3)] == ["1", "2", "3"]


@pytest.mark.parametrize("ref", ["1", "001", "1.0", 1, 1.5, "é", [1], {"a": "b"}, True])
async def test_case_41_the_reply_repeats_the_ref_as_it_came(server: RecordedServer, ref: Any) -> None:
    async with connected(server) as socket:
        written = json.dumps(ref, ensure_ascii=False, separators=(",", ":"))
        socket.send_text(f'["1",{written},"room:1","phx_join",{{}}]')
        assert (await socket.text()).startswith(f'["1",{written},"room:1","phx_reply",')


async def test_case_43_an_unknown_event_is_answered_and_the_channel_lives(server: RecordedServer) -> None:
    async with connected(server) as socket:
        socket.send(text("1", "1", "room:1", "phx_join", {}) + text("1", "2", "room:1", "nobody knows this", {}))
        assert await read(socket) == ["1", "1", "room:1", "phx_reply", OK]
        unknown = {"status": "error", "response": {"reason": "unknown event"}}
        assert await read(socket) == ["1", "2", "room:1", "phx_reply", unknown]
        socket.send(text("1", "3", "room:1", "ok", {}))
        assert await read(socket) == ["1", "3", "room:1", "phx_reply", OK]


# What stays behind.


async def test_case_64_connect_join_leave_close_leaves_nothing_behind(
    hub: Hub, phone: tuple[Server, str, Device, str]
) -> None:
    """Half of them close in order, half vanish; some leave before, some do not. FAULTS_EFFORT=25 makes 10,000 of it."""
    server, home_token, device, token = phone
    topic = f"app:{device.server_id}"
    async with scripted_home(hub.url, server.server_id, home_token) as home:
        await home.publish(3)
        kept = _standing(hub)
        for number in range(400 * int(os.environ.get("FAULTS_EFFORT", "1"))):
            async with RawSocket(hub.port) as socket:
                said = text("1", "1", topic, "phx_join", {"since_id": "0", "session_id": f"s-{number}"})
                said += text("1", "2", topic, "phx_leave", {}) if number % 3 else b""
                said += frame((1000).to_bytes(2), CLOSE) if number % 2 else b""
                socket.send(head("/socket/websocket?vsn=2.0.0", f"X-API-Key: {token}") + said)
                assert (await socket.response()).status == 101
                if number % 2:
                    await socket.ended()
                else:
                    assert (await read(socket))[4]["status"] == "ok"
        await until(lambda: _standing(hub) == kept, f"as before ({kept}): {_standing(hub)}")


_KINDS = (Peer, Outbox, WebSocketDriver, Channel, machine.Channel)


def _standing(hub: Hub) -> tuple[object, ...]:
    """How many there are of all that belongs to a socket, and how long the tables are that know of them."""
    gc.collect()
    alive = Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, _KINDS))
    port = hub._listener
    assert isinstance(port, Port)
    homes = [(len(home.watchers), len(home.waiting)) for home in hub.homes]
    topics = {name: len(hub.topics.listeners(name)) for name in hub.topics._topics}
    return alive, len(port.drivers), len(port.splits), len(hub.limits), hub.budget.used, homes, topics


async def test_case_103_a_half_open_client_is_forgotten_at_the_idle_timeout(tmp_path: Path) -> None:
    """Nothing tells the hub that the line is dead, and events sent into it do not keep it alive."""
    async with recorded_server(tmp_path) as recorded:
        hub = recorded.hub
        server, home_token = hub.credentials.add_server("home")
        _, token = hub.credentials.add_device(server.server_id, "phone")
        async with scripted_home(hub.url, server.server_id, home_token) as home, RawSocket(hub.port) as ghost:
            assert (await ghost.upgrade("/socket/websocket?vsn=2.0.0", f"X-API-Key: {token}")).status == 101
            ghost.send(text("1", "1", f"app:{server.server_id}", "phx_join", {}))
            assert (await read(ghost))[4]["status"] == "ok"
            for _ in range(2):  # it takes what comes and says nothing
                await home.publish(1)
                recorded.hands.time += hub.config.idle_timeout / 2
            while (came := await ghost.receive()) is not None and came.opcode == TEXT:
                pass
            assert came is not None
            assert (came.close_code, came.close_reason) == (1001, "idle")
            assert not hub.homes.get(server.server_id).watchers


async def test_case_68_a_device_may_be_called_like_a_property_of_every_object(hub: Hub) -> None:
    server, _ = hub.credentials.add_server("home")
    for name in ("__proto__", "constructor", "hasOwnProperty"):
        device, token = hub.credentials.add_device(server.server_id, name)
        async with RawSocket(hub.port) as socket:
            assert (await socket.upgrade("/socket/websocket?vsn=2.0.0", f"X-API-Key: {token}")).status == 101
            socket.send(text("1", "1", f"app:{device.server_id}", "phx_join", {}))
            assert (await read(socket))[4]["status"] == "ok"
