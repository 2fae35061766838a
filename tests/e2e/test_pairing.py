"""Pairing as people do it: the real programs, as processes, on one machine."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from websockets.asyncio.client import connect

SECONDS = 30.0


class Done(NamedTuple):
    code: int
    out: str
    err: str


class Bench:
    """The programs, all with one state directory; what they write on standard error is kept."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.url = ""
        self._stack = stack

    @property
    def errors(self) -> str:
        return "".join(file.read_text() for file in self.folder.glob("*.err"))

    async def start(self, module: str, *arguments: str) -> Process:
        """Start a program that runs on; it is ended with the test."""
        # A setting of whoever runs the tests must not reach the programs under test.
        env = {name: value for name, value in os.environ.items() if not name.startswith("SESSION_BRIDGE_")}
        with (self.folder / f"{module}-{len(list(self.folder.glob('*.err')))}.err").open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments, "--state-dir", str(self.folder)),
                stdout=PIPE,
                stderr=errors,
                env=env,
            )
        self._stack.push_async_callback(_end, process)
        return process

    async def client(self, *arguments: str) -> Done:
        """Run a command of the home's to its end."""
        hub = () if arguments[0] in ("ingest", "watch") or "#pair=" in arguments[-1] else ("--hub-url", self.url)
        return await self._finish("bridge_client.cli", *arguments, *hub)

    async def server(self, *arguments: str) -> Done:
        """Run a command of the hub's to its end."""
        return await self._finish("bridge_server.cli", *arguments)

    async def _finish(self, module: str, *arguments: str) -> Done:
        before = set(self.folder.glob("*.err"))
        process = await self.start(module, *arguments)
        assert process.stdout is not None
        async with asyncio.timeout(SECONDS):
            out = await process.stdout.read()
            code = await process.wait()
        (errors,) = set(self.folder.glob("*.err")) - before
        return Done(code, out.decode(), errors.read_text())


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(SECONDS):
        assert process.stdout is not None
        await process.stdout.read()
        await process.wait()


async def line(process: Process) -> Any:
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        return json.loads(await process.stdout.readline())


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        bench = Bench(folder, stack)
        hub = await bench.start("bridge_server.cli", "serve", "--port", "0", "--json", "--log-level", "DEBUG")
        bench.url = (await line(hub))["url"]
        home = await bench.start(
            *("bridge_client.cli", "serve", "--name", "Attic", "--api-port", "0"),
            *("--json", "--log-level", "DEBUG", "--hub-url", bench.url),
        )
        await line(home)
        yield bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as started:
        yield started


async def ask(url: str, path: str, credential: dict[str, Any]) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {credential['credential']}"}
    async with aiohttp.ClientSession() as session, session.get(url + path, headers=headers) as answer:
        return answer.status, await answer.json()


async def paired(bench: Bench, out: Path, name: str = "Laptop") -> tuple[dict[str, Any], dict[str, Any]]:
    """Pair an app: what `pair` printed when the code opened, and the app's credential file."""
    pairing = await bench.start("bridge_client.cli", "pair", "--json", "--hub-url", bench.url)
    opened = await line(pairing)
    done = await bench.client("redeem", opened["link"], "--name", name, "--out", str(out), "--json")
    assert done.code == 0, done
    came = await line(pairing)
    assert came["name"] == name
    assert json.loads(done.out)["device_id"] == came["device_id"]
    assert await asyncio.wait_for(pairing.wait(), SECONDS) == 0
    return opened, json.loads(out.read_text())


async def test_pair_watch_and_revoke_at_the_hub_and_at_home(bench: Bench, tmp_path: Path) -> None:
    opened, phone = await paired(bench, tmp_path / "phone.json", "Phone")
    assert opened["link"] == f"{bench.url}/#pair={opened['code']}"
    assert opened["scopes"] == ["view", "approve"]
    assert (tmp_path / "phone.json").stat().st_mode & 0o777 == 0o600
    _, tablet = await paired(bench, tmp_path / "tablet.json", "Tablet")

    listed = json.loads((await bench.client("devices", "list", "--json")).out)
    assert [(device["name"], device["online"]) for device in listed] == [("Phone", False), ("Tablet", False)]
    status, about = await ask(bench.url, "/api/me", phone)
    assert (status, about["server_name"], about["server"]["online"]) == (200, "Attic", True)

    for app, end in ((phone, (bench.client, "devices", "revoke")), (tablet, (bench.server, "revoke"))):
        url = bench.url.replace("http", "ws", 1) + "/socket/websocket?vsn=2.0.0"
        headers = {"Authorization": f"Bearer {app['credential']}"}
        async with connect(url, additional_headers=headers, proxy=None) as socket:
            run, *words = end
            done = await run(*words, app["device_id"], "--json")
            assert done.code == 0, done
            async with asyncio.timeout(20):
                await socket.wait_closed()
            assert (socket.close_code, socket.close_reason) == (1001, "credential_revoked")
        status, refused = await ask(bench.url, "/api/me", app)
        assert (status, refused["error"]["code"]) == (403, "credential_revoked")

    everything = (await bench.client("devices", "list", "--all")).out
    assert [row.split("\t")[1::3] for row in everything.splitlines()] == [["Phone", "revoked"], ["Tablet", "revoked"]]
    # Neither program, at DEBUG, wrote a code or a credential down.
    secrets = [opened["code"], opened["code"][5:], phone["credential"], tablet["credential"]]
    home = json.loads((tmp_path / "home-credential.json").read_text())["credential"]
    assert [secret for secret in (*secrets, home) if secret in bench.errors] == []
    assert f"app {phone['device_id']}" in bench.errors


async def test_an_app_that_watches_learns_of_its_end(bench: Bench, tmp_path: Path) -> None:
    _, app = await paired(bench, tmp_path / "app.json")
    watching = await bench.start(
        "bridge_client.cli", "watch", "--json", "--credential-file", str(tmp_path / "app.json")
    )
    events = tmp_path / "events.jsonl"
    events.write_text('{"type": "final", "text": "hello"}\n')
    home = json.loads((tmp_path / "home-credential.json").read_text())
    async with asyncio.timeout(SECONDS):
        while not (await ask(bench.url, f"/api/servers/{home['server_id']}/devices", home))[1]["devices"][0]["online"]:
            await asyncio.sleep(0.1)
    done = await bench.client("ingest", str(events), "--session", "s-1")
    assert done.code == 0, done
    assert (await line(watching))["data"]["text"] == "hello"
    await bench.client("devices", "revoke", app["device_id"])
    assert await asyncio.wait_for(watching.wait(), SECONDS) == 3


async def test_people_see_code_link_and_qr_and_stopping_closes_the_code(bench: Bench, tmp_path: Path) -> None:
    pairing = await bench.start("bridge_client.cli", "pair", "--hub-url", bench.url)
    assert pairing.stdout is not None
    async with asyncio.timeout(SECONDS):
        shown = (await pairing.stdout.readuntil(b"(serves once, until ")).decode()
    assert "▀" in shown
    assert "█" in shown
    link = next(word for word in shown.split() if "#pair=" in word)
    assert link.partition("#pair=")[2] in shown.replace(link, "")
    pairing.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(pairing.wait(), SECONDS) == 0
    done = await bench.client("redeem", link, "--out", str(tmp_path / "x.json"))
    assert (done.code, "(expired)" in done.err) == (1, True), done
    assert not (tmp_path / "x.json").exists()


async def test_mistakes_are_told_in_a_sentence(bench: Bench, tmp_path: Path) -> None:
    for arguments, code, said in (
        (("redeem", "BCDF"), 2, "a code is 12 letters"),
        (("redeem", "BCDF-GHJK-LMNP"), 1, "(wrong)"),
        (("pair", "--scopes", "root"), 2, "--scopes: one or more of view, approve, control"),
        (("pair", "--expires-in", "301"), 2, "1<=x<=300"),
        (("pair", "--credential-file", str(tmp_path / "none.json")), 1, "this home is not enrolled yet"),
        (("devices", "revoke", "a" * 16), 1, "this home has no app"),
    ):
        done = await bench.client(*arguments)
        assert (done.code, said in done.err) == (code, True), done
    (tmp_path / "app-credential.json").write_text("mine")
    done = await bench.client("redeem", "BCDF-GHJK-LMNP")
    assert (done.code, "paired already" in done.err) == (1, True), done
    assert (tmp_path / "app-credential.json").read_text() == "mine"
