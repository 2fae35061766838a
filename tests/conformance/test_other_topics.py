"""Clients of other products that speak the protocol on topics of their own, which the test registers as an embedder."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from bridge_server.app import Hub
from bridge_server.channels import Channel
from protocol.frames import Binary
from tests.conformance.channels import DocumentChannel, RealtimeChannel, Room
from tests.conformance.driver import Client, Order, driver, javascript, python
from tests.conformance.journey import join_drop_resume_leave
from tests.support.cable import Cable

CommandLine = Callable[[str], tuple[str | Path, ...]]


@pytest.fixture
async def cable(hub: Hub) -> AsyncIterator[Cable]:
    async with Cable(hub.port) as cable:
        yield cable


def order(hub: Hub, cable: Cable, name: str, topic: str) -> Order:
    server, _ = hub.credentials.add_server(name)
    _, token = hub.credentials.add_device(server.server_id, name)
    return {"name": name, "url": f"ws://127.0.0.1:{cable.port}/socket", "token": token, "topic": topic}


@pytest.mark.parametrize(
    ("run", "program_file"), [(javascript, "realtime.mjs"), (python, "realtime_client.py")], ids=["npm", "PyPI"]
)
async def test_realtime_clients(run: CommandLine, program_file: str, hub: Hub, cable: Cable, tmp_path: Path) -> None:
    """npm `@supabase/realtime-js` (version 2.0.0) and PyPI `realtime` (version 1.0.0, heartbeats with `ref: null`)."""
    room = Room(hub.topics, "realtime:lobby")
    hub.router.add("realtime:*", lambda socket: RealtimeChannel(socket, room))
    orders = [order(hub, cable, program_file, "lobby")]
    async with driver(*run(program_file), log=tmp_path / "clients.log", orders=orders) as program:
        await join_drop_resume_leave(program, room, cable)


async def test_y_phoenix_channel_keeps_two_documents_in_step(hub: Hub, cable: Cable, tmp_path: Path) -> None:
    """npm `y-phoenix-channel`: nothing but binary messages, pushed to one (kind 0) and broadcast to all (kind 2)."""
    members: dict[Channel, Binary | None] = {}
    hub.router.add("yjs:*", lambda socket: DocumentChannel(socket, hub.topics, members))
    orders = [order(hub, cable, name, "yjs:note") for name in ("ann", "bob")]
    async with driver(*javascript("yjs.mjs"), log=tmp_path / "clients.log", orders=orders) as program:
        ann, bob = program.clients

        def reads(*words: str) -> Callable[[Client], bool]:
            return lambda it: set(text(it).split()) == set(words)

        await program.until(lambda it: it.of("joined"), "its join")
        await program.command("write a")
        await program.until(reads("ann:a", "bob:a"), "what the other wrote")

        cable.cut()
        await program.until(lambda it: it.of("closed"), "the drop")
        await program.command("write b")
        await program.until(lambda it: f"{it.name}:b" in text(it), "what it wrote itself")
        assert "bob:b" not in text(ann)
        assert "ann:b" not in text(bob)
        cable.mend()

        await program.until(reads("ann:a", "bob:a", "ann:b", "bob:b"), "what the other wrote while it was away")
        assert text(ann) == text(bob)
        await program.until(lambda it: len(it.of("opened")) == len(it.of("joined")) == 2, "its rejoin")
        for client in program.clients:
            assert {sight["event"] for sight in client.of("binary")} == {"yjs"}, "what came was binary"
        await program.command("leave")
        await program.until(lambda it: it.of("left"), "the answer to its leave")
        assert not members


def text(client: Client) -> str:
    """What its document reads now."""
    return client.of("text")[-1]["text"] if client.of("text") else ""
