"""A real nginx in front of the hub, with kept-alive connections to it, as an operator would run one."""

import grp
import os
import pwd
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.ports import free_port
from tests.support.programs import require
from tests.support.proxies import running

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
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, hub_port=hub_port, port=port, user=_user()))
    command = (program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(config))
    async with running(command, folder, port):
        yield port


def _user() -> str:
    """Root's nginx hands its workers to another user, who could not write into the test's folder: name ourselves."""
    if os.geteuid() != 0:
        return ""
    return f"user {pwd.getpwuid(os.geteuid()).pw_name} {grp.getgrgid(os.getegid()).gr_name};"
