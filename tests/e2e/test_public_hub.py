"""The walk-through of docs/operations.md, played on three machines with a router in between that lets nothing in."""

import json
import re
from pathlib import Path

import pytest

from tests.docs_walk import Step, says, walk
from tests.support.machines import ADDRESSES, Machine, Running, Site, site
from tests.support.processes import ROOT
from tests.support.programs import missing

pytestmark = [pytest.mark.requires("nginx", "openssl", "curl", "ip", "nft"), pytest.mark.timeout(300)]

PAGE = ROOT / "docs" / "operations.md"
HEADING = "A hub on a public host, a home behind a router"

# Programs that run until somebody ends them: what each says when it is ready.
FOREGROUND = {
    "bridge-server serve": "listens on",
    "bridge-client serve": " forwards ",
    "bridge-client pair": "#pair=",
    "bridge-client watch": "live from here on",
}


class Play:
    """The steps so far: what runs, what was published and not seen yet, and what the placeholders turned out to be."""

    def __init__(self, machines: Site) -> None:
        self.machines = machines
        self.running: dict[str, list[Running]] = {name: [] for name in machines._fields}
        self.watches: list[Running] = []
        self.published: list[str] = []
        self._awaited: list[str] = []
        self._code = self._device = ""

    async def step(self, step: Step) -> None:
        """Run one command, compare what it says with the page, and wait until the app shows what it can show by now."""
        machine: Machine = getattr(self.machines, step.machine)
        running = self.running[step.machine]
        command = step.command.replace("BCDF-GHJK-LMNP", self._code).replace("DEVICE_ID", self._device)
        if command == "^C":
            assert await running.pop().interrupt() == 0
            return
        if command.startswith("export "):
            machine.exports.append(command)
            return
        if ready := next((FOREGROUND[name] for name in FOREGROUND if f"{command} ".startswith(f"{name} ")), None):
            program = await machine.start(command)
            await program.says(ready)
            output = program.text
            if ready == FOREGROUND["bridge-client watch"]:
                self.watches.append(program)
            if ready != FOREGROUND["bridge-client pair"]:  # which ends by itself when an app came
                running.append(program)
        else:
            code, output = await machine.run(command)
            assert code == 0, f"{step.machine}: {command}\n{output}"
        assert says(step.shown, output), f"{step.machine}: {command}\n{output}"
        self._learn(command, output)
        if self.running["hub"] and self.running["app"]:
            for text in self._awaited:
                await self.watches[-1].says(text)
            self._awaited = []

    def _learn(self, command: str, output: str) -> None:
        if (code := re.search(r"#pair=([A-Z]{4}-[A-Z]{4}-[A-Z]{4})", output)) is not None:
            self._code = code[1]
        if (device := re.search(r"as app ([a-z2-7]{16})", output)) is not None:
            self._device = device[1]
        if (published := re.search(r'"content": "([^"]+)"', command)) is not None:
            self.published.append(published[1])
            self._awaited.append(published[1])


async def test_the_walk_through_works_command_by_command(tmp_path: Path) -> None:
    async with site(tmp_path) as machines:
        await _fresh_host(machines.hub)
        await _nothing_gets_in(machines)
        play = Play(machines)
        for step in walk(PAGE, HEADING):
            await play.step(step)

        # Each event came once, over all that the app watched. (With bad luck in its waits, a home takes longer to dial
        # a new hub than that hub waits; the app is then told so, and still gets everything.)
        assert len(play.published) == 3
        shown = "".join(watch.text for watch in play.watches)
        assert [shown.count(text) for text in play.published] == [1, 1, 1]
        assert set(re.findall(r"gap: (\w+)", shown)) <= {"hub_reset"}

        # The last step ended the app.
        app = play.running["app"].pop()
        assert await app.ended() == 3
        assert "revoked" in app.text

        await _encrypted_and_unlogged(machines)
        for programs in play.running.values():
            for program in programs:
                assert await program.interrupt() == 0
                assert "Traceback" not in program.text
        await machines.hub.run("nginx -s stop")
        assert json.loads((machines.app.home / "app.json").read_text())["hub_url"] == "https://hub.example"


async def _fresh_host(hub: Machine) -> None:
    (hub.home / "session-bridge").symlink_to(ROOT)
    code, said = await hub.run("nginx; nginx -T")
    assert code == 0, said
    if "/etc/nginx/conf.d/*.conf" not in said:
        missing("this nginx reads no folder conf.d")


async def _nothing_gets_in(machines: Site) -> None:
    """Who dials out is answered; who dials in is not, neither by the home's own address nor by the router's."""
    for machine in (machines.hub, machines.home):
        await (await machine.start("exec python3 -m http.server 8000")).says("Serving HTTP")
    get = "curl --silent --show-error --noproxy '*' --connect-timeout 2 --output /dev/null"
    for machine, address in (
        (machines.home, "127.0.0.1"),
        (machines.home, "hub.example"),
        (machines.app, "hub.example"),
    ):
        code, said = await machine.run(f"{get} http://{address}:8000/")
        assert code == 0, f"{machine.name} to {address}: {said}"
    for machine in (machines.hub, machines.app):
        for address in (ADDRESSES["home"], "203.0.113.1"):
            code, _ = await machine.run(f"{get} http://{address}:8000/")
            assert code in (7, 28), f"{machine.name} reaches the home under {address}"  # refused, or no answer


async def _encrypted_and_unlogged(machines: Site) -> None:
    """All went through TLS, from where it should, and the proxy's logs hold no query."""
    code, log = await machines.hub.run("cat /var/log/nginx/session-bridge.log")
    assert code == 0
    lines = log.splitlines()
    assert {line.split()[0] for line in lines if '"GET /socket/websocket" 101' in line} == {
        "203.0.113.1",
        ADDRESSES["app"],
    }
    assert "vsn=" not in log
    code, said = await machines.app.run(
        "curl --silent --noproxy '*' --head 'http://hub.example/socket/websocket?token=x'"
    )
    assert code == 0
    assert said.startswith("HTTP/1.1 308")
    code, said = await machines.app.run("unset SSL_CERT_FILE; curl --silent --noproxy '*' https://hub.example/ready")
    assert code == 60, said  # the certificate is trusted only where the page says so
