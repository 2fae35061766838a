"""A real nginx in front of the hub, with kept-alive connections to it, as an operator would run one."""

import asyncio
import grp
import os
import pwd
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.programs import require

START_SECONDS = 10.0
ATTEMPTS = 5

CONFIG = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
worker_processes 1;
{user}
events {{ worker_connections 256; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;

    upstream hub {{
        server 127.0.0.1:{hub_port};
        keepalive 16;
    }}
    map $http_upgrade $connection_upgrade {{
        default upgrade;
        "" "";
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://hub;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_read_timeout 120s;
        }}
    }}
}}
"""


@asynccontextmanager
async def nginx(folder: Path, hub_port: int) -> AsyncIterator[int]:
    """Run nginx with all its files in `folder`; yields its port on 127.0.0.1 once it takes connections."""
    program = require("nginx")
    folder.mkdir()
    process, port = await _start(program, folder, hub_port)
    try:
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _start(program: str, folder: Path, hub_port: int) -> tuple[Process, int]:
    """Start it on a port that was free a moment ago; nginx can't choose one itself, so losing the race means again."""
    for _ in range(ATTEMPTS):
        port = _free_port()
        config = folder / "nginx.conf"
        config.write_text(CONFIG.format(folder=folder, hub_port=hub_port, port=port, user=_user()))
        process = await asyncio.create_subprocess_exec(
            program,
            "-p",
            folder,
            "-e",
            folder / "error.log",
            "-c",
            config,
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        if await _accepts(process, port):
            return process, port
    raise AssertionError(f"nginx did not start {ATTEMPTS} times; its log:\n{(folder / 'error.log').read_text()}")


async def _accepts(process: Process, port: int) -> bool:
    """Wait until something listens on `port`; False if nginx ends first."""
    ended = asyncio.create_task(process.wait())
    try:
        async with asyncio.timeout(START_SECONDS):
            while not ended.done():
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionRefusedError:
                    await asyncio.wait([ended], timeout=0.02)
                    continue
                writer.close()
                await writer.wait_closed()
                return True
    except TimeoutError:
        process.kill()
        await ended
    finally:
        ended.cancel()
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _user() -> str:
    """Root's nginx hands its workers to another user, who could not write into the test's folder: name ourselves."""
    if os.geteuid() != 0:
        return ""
    return f"user {pwd.getpwuid(os.geteuid()).pw_name} {grp.getgrgid(os.getegid()).gr_name};"
