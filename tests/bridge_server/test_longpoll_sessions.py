"""Who may hold a long-poll session, how one ends, and what an aborted poll costs: nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge_server import app
from bridge_server.app import Hub
from bridge_server.auth import Device
from bridge_server.transports.longpoll import LongPolling
from bridge_server.transports.longpoll_session import Session
from tests.support.longpoll_client import LongPollClient, longpoll_client
from tests.support.raw_socket import RawSocket
from tests.support.running_hub import running_hub
from tests.support.scripted_home import ScriptedHome, scripted_home


class Scene:
    """A hub, a home on it, and a device with the credential `token`."""

    def __init__(self, hub: Hub, home: ScriptedHome, device: Device, token: str) -> None:
        self.hub = hub
        self.home = home
        self.device = device
        self.token = token
        self.topic = f"app:{device.server_id}"

    @property
    def longpoll(self) -> LongPolling:
        assert self.hub.longpoll is not None
        return self.hub.longpoll

    @property
    def session(self) -> Session:
        """The one session there is."""
        (session,) = self.longpoll.sessions.values()
        return session

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)

    async def until_waiting(self) -> None:
        await self.until(lambda: any(session.waiting for session in self.longpoll.sessions.values()))

    async def joined(self, client: LongPollClient, **payload: str) -> list[Any]:
        """Join, and poll until the replay is complete; what came."""
        assert await client.post(["1", "1", self.topic, "phx_join", payload]) == 200
        found: list[Any] = []
        while not any(message[3] == "replay_complete" for message in found):
            found += await client.poll()
        return found


@asynccontextmanager
async def stage(folder: Path, **settings: Any) -> AsyncIterator[Scene]:
    async with running_hub(folder, **settings) as hub:
        server, home_token = hub.credentials.add_server("home")
        device, token = hub.credentials.add_device(server.server_id, "phone")
        async with scripted_home(hub.url, server.server_id, home_token) as home:
            yield Scene(hub, home, device, token)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with stage(tmp_path) as scene:
        yield scene


@pytest.fixture
async def client(scene: Scene) -> AsyncIterator[LongPollClient]:
    async with longpoll_client(scene.hub.url, scene.token) as client:
        yield client


def ids(messages: list[Any]) -> list[str]:
    return [message[4]["event"]["event_id"] for message in messages if message[3] == "session_event"]


# Who gets in.


@pytest.mark.parametrize("name", ["X-Phoenix-AuthToken", "X-API-Key", "Authorization"])
async def test_rule_61_a_credential_comes_in_a_header(scene: Scene, name: str) -> None:
    value = f"Bearer {scene.token}" if name == "Authorization" else scene.token
    target = f"{scene.hub.url}/socket/longpoll?vsn=2.0.0"
    async with aiohttp.ClientSession() as http, http.get(target, headers={name: value}) as answer:
        assert (await answer.json())["status"] == 410
    assert scene.session.peer is not None
    assert scene.session.peer.identity == scene.device


async def test_without_a_good_credential_there_is_no_session(scene: Scene) -> None:
    url = f"{scene.hub.url}/socket/longpoll?vsn=2.0.0"
    for query, headers, reason in (
        ("", {}, "credential_missing"),
        ("", {"X-Phoenix-AuthToken": "wrong"}, "credential_invalid"),
        (f"&token={scene.token}", {}, "credential_in_query"),
        (f"&token={scene.token}", {"X-Phoenix-AuthToken": scene.token}, "credential_in_query"),
        ("&token=lp1.of-another-hub", {}, "credential_missing"),
        ("", {"Sec-Fetch-Site": "cross-site"}, "bad_origin"),
        ("", {"Host": "rebound.example"}, "bad_host"),
    ):
        async with aiohttp.ClientSession() as http, http.get(url + query, headers=headers) as answer:
            assert answer.status == 200
            assert await answer.json() == {"status": 403, "reason": reason}
    assert scene.longpoll.sessions == {}


async def test_a_token_forged_or_of_another_session_opens_nothing(scene: Scene, client: LongPollClient) -> None:
    mine = str(client.token)
    async with longpoll_client(scene.hub.url, scene.token) as other:
        forged = mine[:5] + ("A" if mine[5] != "A" else "B") + mine[6:]
        mixed = f"{mine.rpartition('.')[0]}.{str(other.token).rpartition('.')[2]}"
        for token in (forged, mixed, mine[:-1], mine + "A", ""):
            client.token = token
            assert await client.post([None, "1", "phoenix", "heartbeat", {}]) == 410
            found = await client.ask("GET", headers=client.headers)
            assert (found["status"], found["messages"]) == (410, [])
            assert found["token"] not in (token, mine, other.token)
        # What one session is told, another never sees.
        client.token = mine
        await client.post([None, "mine", "phoenix", "heartbeat", {}])
        await other.post([None, "other", "phoenix", "heartbeat", {}])
        assert [message[1] for message in await other.poll()] == ["other"]
        assert [message[1] for message in await client.poll()] == ["mine"]


async def test_a_revoked_credential_ends_the_poll_that_waits(scene: Scene, client: LongPollClient) -> None:
    polling = asyncio.create_task(client.ask("GET", headers=client.headers))
    await scene.until_waiting()
    scene.hub.credentials.revoke_device(scene.device.device_id)
    assert await polling == {"messages": [], "status": 410, "token": None}
    assert scene.longpoll.sessions == {}
    assert await client.post([None, "1", "phoenix", "heartbeat", {}]) == 410
    assert await client.ask("GET", headers=client.headers) == {"status": 403, "reason": "credential_revoked"}


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_revocation_is_seen_at_the_next_request_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(app, "REVOCATION_SECONDS", 3600.0)  # nobody looks
    async with stage(tmp_path) as scene, longpoll_client(scene.hub.url, scene.token) as client:
        await client.post(["1", "1", scene.topic, "phx_join", {}])
        scene.hub.credentials.revoke_device(scene.device.device_id)
        if method == "POST":
            assert await client.post([None, "1", "phoenix", "heartbeat", {}]) == 410
        else:
            assert await client.ask("GET", headers=client.headers) == {"status": 403, "reason": "credential_revoked"}
        assert scene.longpoll.sessions == {}


async def test_a_session_counts_as_a_connected_peer(scene: Scene, client: LongPollClient) -> None:
    server = next(entry.identity for entry in scene.hub.credentials.servers())
    _, home_token = scene.hub.credentials.add_server("home", server.server_id)  # type: ignore[union-attr]
    headers = {"Authorization": f"Bearer {home_token}"}
    async with client.http.get(
        f"{scene.hub.url}/api/servers/{scene.device.server_id}/devices", headers=headers
    ) as answer:
        assert [device["online"] for device in (await answer.json())["devices"]] == [True]
    metrics = scene.hub.metrics.text().decode()
    assert 'bridge_connections{peer="device"} 1.0' in metrics
    assert "bridge_longpoll_sessions 1.0" in metrics
    assert "bridge_busy_peers 0.0" in metrics


# Aborted polls.


def request(scene: Scene, client: LongPollClient) -> bytes:
    lines = (
        f"GET /socket/longpoll?vsn=2.0.0&token={client.token} HTTP/1.1",
        "Host: localhost",
        f"X-API-Key: {scene.token}",
        "",
        "",
    )
    return "\r\n".join(lines).encode()


async def test_a_poll_cut_at_any_byte_of_its_request_takes_nothing_with_it(
    scene: Scene, client: LongPollClient
) -> None:
    found = await scene.joined(client)
    sent = []
    whole = request(scene, client)
    for length in range(0, len(whole), 16):
        async with RawSocket(scene.hub.port) as socket:
            socket.send(whole[:length])
            await socket.sent()
            sent += await scene.home.publish(1)
        found += await client.poll()
    assert ids(found) == sent


async def test_a_waiting_poll_whose_client_vanishes_takes_nothing_with_it(scene: Scene, client: LongPollClient) -> None:
    found = await scene.joined(client)
    sent: list[str] = []
    for _ in range(5):
        async with RawSocket(scene.hub.port) as socket:
            socket.send(request(scene, client))
            await scene.until_waiting()
        await scene.until(lambda: not scene.session.waiting)
        sent += await scene.home.publish(2)
        found += await client.poll()
        assert ids(found) == sent


@pytest.mark.lint_allows("json")  # what it puts into the session are numbers, not messages
@pytest.mark.parametrize("turns", range(5))
async def test_a_poll_cancelled_in_any_turn_leaves_its_batch_to_the_next(
    scene: Scene, client: LongPollClient, turns: int
) -> None:
    await scene.joined(client)
    session, peer = scene.session, scene.session.peer
    assert peer is not None
    polling = asyncio.create_task(session.poll())
    await scene.until(lambda: session.waiting)
    peer.outbox.put(None, b"1,")
    for _ in range(turns):
        await asyncio.sleep(0)
    polling.cancel()
    await asyncio.gather(polling, return_exceptions=True)
    peer.outbox.put(None, b"2,")
    taken = b""
    while len(taken) < 4:
        assert await session.poll()
        taken += session.take()
    assert taken == b"1,2,"


async def test_a_client_that_lost_an_answer_halfway_rejoins_and_misses_nothing(scene: Scene) -> None:
    found: list[Any] = []
    sent: list[str] = []
    for taken in (0, 1, 40, 200, 300, 400):
        async with longpoll_client(scene.hub.url, scene.token) as client:
            payload = {"since_id": ids(found)[-1], "epoch": scene.home.epoch} if ids(found) else {"since_id": "0"}
            found += await scene.joined(client, **payload)
            async with RawSocket(scene.hub.port) as socket:
                socket.send(request(scene, client))
                await scene.until_waiting()
                sent += await scene.home.publish(3)
                if taken:
                    await socket.take(taken)
            # It does not know what was in there: it begins again, with its cursor.
            await client.open()
            payload = {"since_id": ids(found)[-1], "epoch": scene.home.epoch} if ids(found) else {"since_id": "0"}
            found += await scene.joined(client, **payload)
            assert ids(found) == sent


async def test_an_answer_that_is_not_read_ends_the_session_when_the_client_polls_again(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as scene, longpoll_client(scene.hub.url, scene.token) as client:
        await scene.joined(client)
        async with RawSocket(scene.hub.port) as socket:
            socket.stop_reading()
            socket.send(request(scene, client))
            await scene.until_waiting()
            await scene.home.publish(1, text="x" * 1_000_000)
            for _ in range(8):
                await scene.home.publish(1, text="x" * 400_000)
            stuck = scene.session
            await scene.until(lambda: stuck.writing is not None)
            found = await client.ask("GET", headers=client.headers)
        assert (found["status"], found["messages"]) == (410, [])
        assert stuck.ended == (1001, "an answer was lost")
        client.token = found["token"]
        messages = await scene.joined(client, since_id="0", epoch=scene.home.epoch)
        assert ids(messages) == [str(number) for number in range(1, 10)]


async def test_a_slow_client_may_post_and_take_its_time_while_an_answer_is_on_its_way(tmp_path: Path) -> None:
    async with stage(tmp_path) as scene, longpoll_client(scene.hub.url, scene.token) as client:
        await scene.joined(client)
        async with RawSocket(scene.hub.port) as socket:
            socket.stop_reading()
            socket.send(request(scene, client))
            await scene.until_waiting()
            sent = await scene.home.publish(1, text="x" * 1_000_000)
            session = scene.session
            await scene.until(lambda: session.writing is not None)
            now, rounds, found = scene.hub.clock.now(), 0, b""
            while (answer := session.writing) is not None:
                assert await client.post([None, "9", "phoenix", "heartbeat", {}]) == 200
                unsent = answer.get_write_buffer_size()
                while session.writing is answer and answer.get_write_buffer_size() == unsent:
                    socket.read_on()
                    found += await socket.take(16 * 1024)
                    socket.stop_reading()
                if session.writing is answer:
                    now, rounds = now + 16.0, rounds + 1
                    session.tick(now)  # a second more than the time after which it would be idle
            assert rounds
            head, _, body = found.partition(b"\r\n\r\n")
            socket.read_on()
            body += await socket.take(int(head.lower().partition(b"content-length: ")[2].split()[0]) - len(body))
        assert session.ended is None
        events = [json.loads(text) for text in json.loads(body)["messages"]]
        assert ids(events) == sent
        assert {message[1] for message in await client.poll()} == {"9"}


# How a session ends.


async def test_a_client_that_vanishes_frees_everything(tmp_path: Path) -> None:
    async with stage(tmp_path, poll_window=0.6) as scene:
        drivers = len(scene.hub._listener.drivers)  # type: ignore[union-attr]
        for how in ("between two polls", "in the middle of one"):
            async with longpoll_client(scene.hub.url, scene.token) as client, RawSocket(scene.hub.port) as socket:
                await scene.joined(client)
                topic = f"events:server:{scene.device.server_id}"
                assert scene.hub.topics.listeners(topic)
                if how == "in the middle of one":
                    socket.send(request(scene, client))
                    await scene.until_waiting()
                await scene.home.publish(5)
            await scene.until(lambda: not scene.longpoll.sessions)
            assert scene.hub.topics.listeners(topic) == ()
            assert len(scene.hub._listener.drivers) == drivers  # type: ignore[union-attr]
            assert (scene.hub.budget.used, scene.hub.budget.busy) == (0, set())


async def test_what_is_not_polled_is_counted_and_a_client_that_never_polls_is_cut(
    scene: Scene, client: LongPollClient, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.joined(client)
    await scene.home.publish(1, text="x" * 1000)
    assert 1000 < scene.hub.budget.used < 2000
    while scene.longpoll.sessions:
        await scene.home.publish(1, text="x" * 900_000)
        assert scene.hub.budget.used <= 4 * 2**20
    assert (scene.hub.budget.used, scene.hub.budget.cuts["queue"]) == (0, 1)
    assert f"app {scene.device.device_id} of home {scene.device.server_id} reads too slowly" in caplog.text
    found = await client.ask("GET", headers=client.headers)
    assert (found["status"], found["messages"]) == (410, [])


async def test_drain_ends_polls_and_says_when_to_come_back(scene: Scene, client: LongPollClient) -> None:
    async with aiohttp.ClientSession() as http:
        polling = asyncio.create_task(client.ask("GET", headers=client.headers))
        await scene.until_waiting()
        listener = scene.hub._listener
        assert listener is not None
        draining = asyncio.create_task(listener.drain(0.0))
        assert await polling == {"messages": [], "status": 410, "token": None}
        listener.draining = True
        async with http.get(f"{scene.hub.url}/socket/longpoll?vsn=2.0.0", headers=client.headers) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "5"
            assert await answer.json() == {"status": 500, "reason": "draining"}
        await draining


async def test_a_full_hub_says_so(tmp_path: Path) -> None:
    async with (
        stage(tmp_path, max_connections=2) as scene,
        longpoll_client(scene.hub.url, scene.token) as client,
        client.http.get(f"{client.url}?vsn=2.0.0", headers=client.headers) as answer,
    ):
        assert (answer.status, await answer.json()) == (503, {"status": 500, "reason": "overloaded"})


async def test_case_91_events_are_byte_equal_to_those_of_a_websocket(scene: Scene, client: LongPollClient) -> None:
    async with RawSocket(scene.hub.port) as socket:
        await socket.upgrade("/socket/websocket?vsn=2.0.0", f"X-API-Key: {scene.token}")
        socket.send_text(json.dumps(["1", "1", scene.topic, "phx_join", {}]))
        texts = [await socket.text(), await socket.text()]
        await client.post(["1", "1", scene.topic, "phx_join", {}])
        polled: list[str] = []
        while len(polled) < 2:
            polled += (await client.ask("GET", headers=client.headers))["messages"]
        for text in ("plain", 'é \u2028 🙂 \\ " \n \x00', "x" * 70_000):
            await scene.home.publish(3, text=text)
            texts += [await socket.text() for _ in range(3)]
            while len(polled) < len(texts):
                polled += (await client.ask("GET", headers=client.headers))["messages"]
        assert polled == texts


async def test_case_91_clients_that_flap_leak_nothing(tmp_path: Path) -> None:
    """A WebSocket that dies right after it opened, then long polling, twenty times."""
    async with stage(tmp_path, poll_window=2.0) as scene:
        drivers = scene.hub._listener.drivers  # type: ignore[union-attr]
        before = len(drivers)
        for _ in range(20):
            async with RawSocket(scene.hub.port) as socket:
                await socket.upgrade("/socket/websocket?vsn=2.0.0", f"X-API-Key: {scene.token}")
                socket.send_text(json.dumps(["1", "1", scene.topic, "phx_join", {}]))
                await socket.text()
            async with longpoll_client(scene.hub.url, scene.token) as client:
                await scene.joined(client)
        await scene.until(lambda: len(drivers) == before)
        assert scene.longpoll.sessions == {}
        assert scene.hub.topics.listeners(f"events:server:{scene.device.server_id}") == ()


async def test_a_home_may_poll_too(scene: Scene, client: LongPollClient) -> None:
    server, token = scene.hub.credentials.add_server("another home")
    _, app_token = scene.hub.credentials.add_device(server.server_id, "phone")
    topic = f"server:{server.server_id}"
    async with (
        longpoll_client(scene.hub.url, token) as home,
        longpoll_client(scene.hub.url, app_token) as phone,
    ):
        await home.post(["1", "1", topic, "phx_join", {"protocol": 1, "epoch": "e", "head_id": None, "instance": "i"}])
        assert (await home.poll())[0][4]["status"] == "ok"
        await phone.post(["1", "1", f"app:{server.server_id}", "phx_join", {"since_id": "0", "epoch": "e"}])
        event = {"event_id": "1", "type": "final", "session_id": "s"}
        await home.post(["1", "2", topic, "session_event", {"event": event, "prev_id": None}])
        assert (await home.poll())[0][4] == {"status": "ok", "response": {"acked_id": "1"}}
        found: list[Any] = []
        while not ids(found):
            found += await phone.poll()
        assert found[-1][4] == {"event": event}


@pytest.mark.parametrize("query", ["%ff=1", "a=1&" * 200])
async def test_a_query_that_cannot_be_read_is_400(scene: Scene, client: LongPollClient, query: str) -> None:
    async with RawSocket(scene.hub.port) as socket:
        head = f"GET /socket/longpoll?vsn=2.0.0&{query} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {scene.token}\r\n\r\n"
        socket.send(head.encode())
        answer = await socket.response()
    assert answer.status == 400
    assert json.loads(answer.body)["status"] == 403
    assert json.loads(answer.body)["reason"] == "bad_request"
