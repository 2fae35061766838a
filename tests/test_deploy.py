"""deploy/, held to what it deploys: every command exists, every variable is a setting, every file is there.

The image and the proxies have files of their own: test_deploy_image.py, test_deploy_proxies.py.
"""

import asyncio
import configparser
import ipaddress
import os
import re
import shlex
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest
import yaml
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from bridge_server.auth import Credentials
from tests.support.deployed import DEPLOY, SECRET, checked_command, checked_settings, environment, stages
from tests.support.processes import ROOT
from tests.support.programs import require

COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNITS = {"bridge-server": "session-bridge-hub.service", "bridge-client": "session-bridge-home.service"}


# Compose.


def test_compose_holds_no_secret_and_asks_for_the_name_alone() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert {name for name, _ in re.findall(r"\$\{(\w+)(:\?)?", text)} == {"HUB_HOST"}
    assert text.count("${HUB_HOST:?") == text.count("${")
    for service in COMPOSE["services"].values():
        assert [name for name in service.get("environment", {}) if SECRET.search(name)] == []
        assert "env_file" not in service
    assert "secrets" not in COMPOSE


def test_compose_settings_are_settings_and_fit_the_proxy() -> None:
    hub, proxy = COMPOSE["services"]["hub"], COMPOSE["services"]["proxy"]
    variables = {name: re.sub(r"\$\{HUB_HOST:[^}]*\}", "hub.example", v) for name, v in hub["environment"].items()}
    config = checked_settings("bridge-server", environment() | variables)
    assert config.public_url == "https://hub.example"
    address = proxy["networks"]["inner"]["ipv4_address"]
    assert config.trusted_proxies == (address,)
    (pool,) = COMPOSE["networks"]["inner"]["ipam"]["config"]
    assert ipaddress.ip_address(address) in ipaddress.ip_network(pool["subnet"])
    upstream = proxy["environment"]["HUB_UPSTREAM"]
    assert upstream == f"hub:{config.port}"
    caddyfile = (DEPLOY / "caddy" / "Caddyfile").read_text()
    assert set(re.findall(r"\{\$(\w+)", caddyfile)) == proxy["environment"].keys()
    seconds = int(re.fullmatch(r"(\d+)s", hub["stop_grace_period"])[1])  # type: ignore[index]
    assert seconds >= config.drain_seconds + 2
    assert hub["ulimits"]["nofile"] > config.max_connections


def test_compose_shuts_in_what_it_starts() -> None:
    services, declared = COMPOSE["services"], COMPOSE["volumes"]
    assert "ports" not in services["hub"]
    assert services["proxy"]["depends_on"]["hub"]["condition"] == "service_healthy"
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["networks"].keys() <= COMPOSE["networks"].keys()
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith(".") else source in declared
    build = services["hub"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    final = dict(stages()[-1])
    assert final["VOLUME"] in [volume.split(":")[1] for volume in services["hub"]["volumes"]]


# systemd.


def unit(name: str) -> configparser.ConfigParser:
    """A unit file, in which a key that comes again keeps all its values, a line each."""

    class Values(dict[str, Any]):
        def __setitem__(self, key: str, value: Any) -> None:
            if key in self and isinstance(value, list):
                value = self[key] + value
            super().__setitem__(key, value)

    parser = configparser.ConfigParser(interpolation=None, strict=False, dict_type=Values, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "systemd" / name).read_text())
    return parser


def variables(service: configparser.SectionProxy) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(service["Environment"]))


@pytest.mark.parametrize("program", UNITS)
def test_a_unit_starts_what_there_is_with_settings_that_there_are(program: str) -> None:
    service = unit(UNITS[program])["Service"]
    command = shlex.split(service["ExecStart"])
    assert command[0] == f"/opt/session-bridge/bin/{program}"
    checked_command(command)
    config = checked_settings(program, variables(service))
    assert str(config.state_dir) == f"/var/lib/{service['StateDirectory']}"
    assert service["User"] in (DEPLOY / "systemd" / "session-bridge.sysusers").read_text().split()
    assert (service["Restart"], service["KillSignal"]) == ("on-failure", "SIGTERM")
    if program == "bridge-server":
        assert service["RestartPreventExitStatus"].split() == ["2"]
        assert int(service["TimeoutStopSec"]) >= config.drain_seconds + 2
        assert int(service["LimitNOFILE"]) >= config.max_connections + 100
    else:
        assert service["RestartPreventExitStatus"].split() == ["2", "3"]


@pytest.mark.requires("systemd-analyze")
@pytest.mark.parametrize("program", UNITS)
def test_systemd_takes_the_unit_and_finds_it_shut_in(program: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / UNITS[program]).read_text()
    start = re.search(r"^ExecStart=(\S+)", text, re.MULTILINE)
    assert start
    copy = tmp_path / UNITS[program]
    startable = text.replace(start[1], require("true"))  # ours need not be installed where the tests run
    copy.write_text(startable)
    analyze = require("systemd-analyze")
    assert output(analyze, "verify", copy) == ""
    copy.write_text(startable.replace("NoNewPrivileges=", "NoNewPrivilegs="))
    assert "NoNewPrivilegs" in output(analyze, "verify", copy)
    copy.write_text(text)
    output(analyze, "security", "--offline=true", "--threshold=15", copy)


def output(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


async def test_the_hub_of_the_unit_says_goodbye_at_sigterm(tmp_path: Path) -> None:
    service = unit(UNITS["bridge-server"])["Service"]
    settings = variables(service) | {"SESSION_BRIDGE_STATE_DIR": str(tmp_path), "SESSION_BRIDGE_PORT": "0"}
    (tmp_path / "session-bridge.toml").write_text('[hub]\npublic_url = "https://hub.example"\ndrain_seconds = 0.1\n')
    settings["SESSION_BRIDGE_CONFIG"] = str(tmp_path / "session-bridge.toml")
    credentials = Credentials(tmp_path / "hub.db")
    _, token = credentials.add_server("home")
    credentials.close()
    words = shlex.split(service["ExecStart"])[1:]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bridge_server.cli", *words),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **settings},
        stdout=PIPE,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().split()[3]
        address = f"{url.replace('http', 'ws')}/socket/websocket?vsn=2.0.0"
        async with connect(address, additional_headers={"X-API-Key": token}, proxy=None) as socket:
            process.send_signal(getattr(signal, service["KillSignal"]))
            with pytest.raises(ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 20)
            assert socket.close_code == 1012
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


# The pages.


@pytest.mark.parametrize("page", ["operations.md", "cli-hub.md"])
def test_the_pages_name_files_and_commands_that_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [path for path in re.findall(r"\bdeploy/[\w./-]+\w", text) if not (ROOT / path).exists()] == []
    shown = re.findall(r"^(?:hub|home|app)?[$#] (bridge-(?:server|client) .*)$", text, re.MULTILINE)
    assert len(shown) >= 5
    for line in shown:
        checked_command(shlex.split(line.partition("  #")[0]))
