"""The reverse proxies of deploy/, started for real with all their files in one folder."""

import asyncio
import json
import os
import ssl
import subprocess
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.ports import free_port
from tests.support.processes import PATIENCE, ROOT
from tests.support.programs import require

NGINX = ROOT / "deploy" / "nginx" / "session-bridge.conf"
CADDY = ROOT / "deploy" / "caddy" / "Caddyfile"

_NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/main-error.log notice;
worker_processes 1;
{user}
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{site}
}}
"""


class Proxy(NamedTuple):
    """A proxy that runs: where, whom to trust if it has TLS, and where it logs."""

    url: str
    tls: ssl.SSLContext | None
    logs: Path

    @property
    def logged(self) -> str:
        """All that it has logged."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.logs.glob("*.log")))


@asynccontextmanager
async def nginx(folder: Path, hub_port: int, *, without: str = "", tls: bool = True) -> AsyncIterator[Proxy]:
    """nginx with the site of deploy/, its addresses, certificate and log files replaced.

    Lines that contain `without` are left out; without `tls` it speaks plain HTTP.
    """
    program = require("nginx")
    folder.mkdir()
    certificate(folder)
    site = NGINX.read_text()
    assert without in site
    site = "".join(line for line in site.splitlines(keepends=True) if not without or without not in line)
    port = free_port()
    for there, here in {
        "127.0.0.1:4000": f"127.0.0.1:{hub_port}",
        "listen 443 ssl": f"listen 127.0.0.1:{port}{' ssl' if tls else ''}",
        "    listen [::]:443 ssl;\n": "",
        "    listen [::]:80;\n": "",
        "listen 80": f"listen 127.0.0.1:{free_port()}",
        "/etc/letsencrypt/live/hub.example": str(folder),
        "/var/log/nginx": str(folder),
    }.items():
        assert there in site, there
        site = site.replace(there, here)
    config = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(_NGINX.format(folder=folder, site=site, user=user))
    command = (program, "-p", str(folder), "-e", str(folder / "main-error.log"), "-c", str(config))
    async with running(command, folder, port):
        trust = ssl.create_default_context(cafile=str(folder / "fullchain.pem")) if tls else None
        yield Proxy(f"http{'s' if tls else ''}://localhost:{port}", trust, folder)


@asynccontextmanager
async def caddy(folder: Path, hub_port: int) -> AsyncIterator[Proxy]:
    """Caddy with the Caddyfile of deploy/, without TLS (it would ask an authority for a certificate)."""
    program = require("caddy")
    folder.mkdir()
    port = free_port()
    environment = {
        **os.environ,
        "HUB_HOST": f"http://localhost:{port}",
        "HUB_UPSTREAM": f"127.0.0.1:{hub_port}",
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }
    (folder / "caddy.json").write_text(_adapted(program, environment))
    command = (program, "run", "--config", str(folder / "caddy.json"))
    async with running(command, folder, port, environment):
        yield Proxy(f"http://localhost:{port}", None, folder)


def _adapted(program: str, environment: dict[str, str]) -> str:
    adapt = (program, "adapt", "--config", str(CADDY), "--adapter", "caddyfile")
    adapted = subprocess.run(adapt, env=environment, capture_output=True, check=True)
    # The admin port is one for the machine; several of these may run at once.
    return json.dumps(json.loads(adapted.stdout) | {"admin": {"disabled": True}})


def certificate(folder: Path) -> None:
    """A certificate for localhost that vouches for itself."""
    name = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder / "privkey.pem")
    command = (require("openssl"), "req", "-x509", "-days", "2", *key, *name, "-out", folder / "fullchain.pem")
    subprocess.run(command, check=True, capture_output=True)


@asynccontextmanager
async def running(
    command: tuple[str, ...], folder: Path, port: int, environment: dict[str, str] | None = None
) -> AsyncIterator[None]:
    """Run a server in `folder`, from the moment it takes connections on `port`. What it prints goes into output.log."""
    with (folder / "output.log").open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=output, stderr=output, env=environment, cwd=folder
        )
    try:
        if not await _accepts(process, port):
            logs = (path.read_text(errors="replace") for path in sorted(folder.glob("*.log")))
            raise AssertionError(f"{command[0]} did not start: {''.join(logs)}")
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _accepts(process: Process, port: int) -> bool:
    """Wait until something listens on `port`; False if the process ends first."""
    ended = asyncio.create_task(process.wait())
    try:
        async with asyncio.timeout(PATIENCE):
            while not ended.done():
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.wait([ended], timeout=0.02)
                    continue
                writer.close()
                return True
    except TimeoutError:
        pass
    finally:
        ended.cancel()
    return False
