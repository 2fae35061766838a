"""Looks at what a hub stands on, before somebody's events depend on it: settings, port, database, TLS, clock, limits.

Nothing is changed or created. Every check says what it found and, if that is not good, what to do.
"""

import asyncio
import errno
import os
import shutil
import socket
import sqlite3
import ssl
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from bridge_server import open_files
from bridge_server.config import LOOPBACK, Config
from bridge_server.database import VERSION
from bridge_server.listening import url_of

Status = Literal["ok", "warning", "failed"]

TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
MIB: Final = 1 << 20
LITTLE_SPACE: Final = 1024 * MIB
NO_SPACE: Final = 100 * MIB
CERTIFICATE_DAYS: Final = 14
CLOCK_SECONDS: Final = 60
BUILT: Final = 1_767_225_600
"""No clock that goes right shows a time before this (2026-01-01)."""


class Finding(NamedTuple):
    """What one check found; `remedy` says what to do unless the status is ok."""

    check: str
    status: Status
    text: str
    remedy: str | None = None


async def examine(config: Config) -> list[Finding]:
    """Every check, in the order in which one depends on another. Takes a few network time-outs at most."""
    findings = [*_settings(config), await _port(config), _database(config), _disk(config), _files(config)]
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        outside = [finding async for finding in _public(config, session)] if config.public_url else [_no_public(config)]
        return [*findings, *outside, await _clock(config, session)]


# Here.


def _settings(config: Config) -> Iterator[Finding]:
    found = Finding("settings", "ok", "every setting can be used")
    if config.allow_query_credentials:
        remedy = "set allow_query_credentials to false as soon as no client needs it"
        found = Finding("settings", "warning", "credentials may stand in URLs, which proxies log", remedy)
    yield found
    if config.public_url is not None and not config.trusted_proxies and config.host in LOOPBACK:
        text = "no trusted proxy is named: all clients count as one address, and share one limit of pairing attempts"
        yield Finding(
            "proxy", "warning", text, f'set trusted_proxies to the proxy\'s address, such as ["{config.host}"]'
        )


async def _port(config: Config) -> Finding:
    where = f"{config.host} port {config.port}"
    if config.port == 0:
        return Finding("port", "ok", "the system chooses one")
    try:
        for family, kind, number, _, address in socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, number) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return Finding("port", "failed", f"{where} can't be used: {error.strerror}", "choose another host or port")
    else:
        return Finding("port", "ok", f"{where} is free: the hub does not run")
    async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
        status = await _ready(session, url_of(config.host, config.port))
    if status is None:
        remedy = "stop what listens there, or choose another port"
        return Finding("port", "failed", f"{where} is taken by something that is no hub", remedy)
    if status != "ready":
        return Finding("port", "warning", f"the hub on {where} says {status!r}", "wait until it has restarted")
    return Finding("port", "ok", f"a hub answers on {where}")


def _database(config: Config) -> Finding:
    path = config.database_path
    if not path.exists():
        parent = _existing(path)
        if not os.access(parent, os.W_OK | os.X_OK):
            return Finding("database", "failed", f"{path} is not there and can't be made: {parent} is read-only", _WHO)
        return Finding("database", "ok", f"{path} is not there yet; the first start makes it")
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        return Finding("database", "failed", f"this user may not read and write {path} and its folder", _WHO)
    open_to_others = [one for one in (path, path.parent) if one.stat().st_mode & (0o077 if one == path else 0o022)]
    if open_to_others:
        one = open_to_others[0]
        mode, right = stat.S_IMODE(one.stat().st_mode), "600" if one == path else "700"
        return Finding("database", "failed", f"{one} has mode {mode:04o}", f"chmod {right} {one}")
    try:
        with closing(_open(path)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            (health,) = database.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.Error as error:
        return Finding("database", "failed", f"{path} can't be read: {error}", _RESTORE)
    if version > VERSION:
        text = f"{path} was written by a newer version (schema {version})"
        return Finding("database", "failed", text, "upgrade bridge-server, or restore the backup from before")
    if health != "ok":
        return Finding("database", "failed", f"{path} is damaged: {health}", _RESTORE)
    return Finding("database", "ok", f"{path} is whole, and this user's alone")


_WHO = "run bridge-server as the user of the hub, or choose another state_dir"
_RESTORE = "stop the hub and restore a backup"


def _open(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5.0)


def _disk(config: Config) -> Finding:
    place = _existing(config.database_path)
    free = shutil.disk_usage(place).free
    text = f"{free // MIB} MiB are free in {place}"
    if free < LITTLE_SPACE:
        remedy = "make room: with a full disk no credential can be made or revoked"
        return Finding("disk", "failed" if free < NO_SPACE else "warning", text, remedy)
    return Finding("disk", "ok", text)


def _files(config: Config) -> Finding:
    limit = open_files.limit(config.max_connections)
    if limit.enough:
        most = "any number" if limit.hard is None else limit.hard
        return Finding("open files", "ok", f"{most} allowed, max_connections = {config.max_connections} fits")
    fit = max(1, (limit.hard or 0) - open_files.BESIDE_SOCKETS)
    text = (
        f"{limit.hard} allowed, so the hub takes {fit} connections;"
        f" max_connections = {config.max_connections} needs {limit.needed}"
    )
    return Finding("open files", "warning", text, "raise the limit (ulimit -Hn, LimitNOFILE=) or lower max_connections")


def _existing(path: Path) -> Path:
    return next(parent for parent in path.absolute().parents if parent.exists())


# From outside.


def _no_public(config: Config) -> Finding:
    if config.host in LOOPBACK:
        return Finding("public URL", "ok", "none: this hub is for this machine")
    remedy = "set public_url, and put a proxy with TLS in front"
    return Finding("public URL", "warning", "none, although other machines reach this hub", remedy)


async def _public(config: Config, session: aiohttp.ClientSession) -> Any:
    url = (config.public_url or "").rstrip("/")
    parts = urlsplit(url)
    if parts.scheme == "https":
        finding = await _certificate(str(parts.hostname), parts.port or 443)
        yield finding
        if finding.status == "failed":
            return
    elif parts.hostname not in LOOPBACK:
        remedy = "put a proxy with TLS in front, and write https:// in public_url"
        yield Finding("TLS", "warning", f"{url} is not encrypted: whoever is on the way reads credentials", remedy)
    status = await _ready(session, url)
    if status is None:
        remedy = f"start hub and proxy; from this machine: curl {url}/ready"
        yield Finding("public URL", "failed", f"no hub answers at {url}/ready", remedy)
        return
    yield Finding("public URL", "ok", f"a hub answers at {url}")
    yield await _upgrade(session, url)
    if parts.port != config.port:
        yield await _metrics(session, url)


async def _certificate(host: str, port: int) -> Finding:
    try:
        async with asyncio.timeout(10):
            _, writer = await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
    except ssl.SSLCertVerificationError as error:
        remedy = "get a certificate for that name from a known authority, or let SSL_CERT_FILE name your own"
        return Finding("TLS", "failed", f"the certificate of {host} is not trusted: {error.verify_message}", remedy)
    except (OSError, TimeoutError) as error:
        remedy = "look at DNS, firewall and proxy; some routers don't let a machine reach its own public address"
        why = str(error) or "no answer within 10 s"
        return Finding("TLS", "failed", f"{host} port {port} can't be reached: {why}", remedy)
    certificate = writer.get_extra_info("peercert")
    writer.close()
    days = int((ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()) // 86_400)
    text = f"the certificate of {host} is good for {days} more days"
    if days < CERTIFICATE_DAYS:
        return Finding("TLS", "warning", text, "renew it, and see why that did not happen by itself")
    return Finding("TLS", "ok", text)


async def _ready(session: aiohttp.ClientSession, url: str) -> str | None:
    try:
        async with session.get(f"{url}/ready", allow_redirects=False) as answer:
            said = await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
    status = said.get("status") if isinstance(said, dict) else None
    return status if status in ("ready", "draining", "failing") else None


async def _upgrade(session: aiohttp.ClientSession, url: str) -> Finding:
    # Without a credential: the hub's own refusal proves that the upgrade came through whole.
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    try:
        async with session.get(f"{url}/socket/websocket?vsn=2.0.0", headers=headers, allow_redirects=False) as answer:
            said: Any = await answer.json(content_type=None)
            status = answer.status
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        said, status = None, 0
    reason = said.get("reason") if isinstance(said, dict) else None
    if reason == "credential_missing":
        return Finding("WebSocket", "ok", "upgrades reach the hub")
    text = f"an upgrade was answered {status} {reason or ''}".rstrip()
    return Finding("WebSocket", "failed", text, "let the proxy pass on Host, Connection and Upgrade (see deploy/nginx)")


async def _metrics(session: aiohttp.ClientSession, url: str) -> Finding:
    try:
        async with session.get(f"{url}/metrics", allow_redirects=False) as answer:
            is_open = answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        is_open = False
    if is_open:
        text = "anybody can read /metrics through the proxy: its requests look like those of this machine"
        return Finding("metrics", "failed", text, "let the proxy send X-Forwarded-For (see deploy/nginx)")
    return Finding("metrics", "ok", "not open to strangers")


async def _clock(config: Config, session: aiohttp.ClientSession) -> Finding:
    now = time.time()
    remedy = "set the clock, and let NTP keep it"
    if now < max(BUILT, _last_write(config) - CLOCK_SECONDS):
        return Finding("clock", "failed", f"it shows {time.ctime(now)}, which is past already", remedy)
    if config.public_url is not None:
        try:
            async with session.get(config.public_url.rstrip("/") + "/health", allow_redirects=False) as answer:
                shown = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        except (aiohttp.ClientError, TimeoutError, OSError, KeyError, ValueError):
            shown = now
        if abs(time.time() - shown) > CLOCK_SECONDS:
            return Finding("clock", "warning", f"{abs(now - shown):.0f} s off the clock of the proxy", remedy)
    return Finding("clock", "ok", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)))


def _last_write(config: Config) -> int:
    try:
        with closing(_open(config.database_path)) as database:
            query = "SELECT coalesce(max(max(created_at, coalesce(revoked_at, 0))), 0) FROM credentials"
            return int(database.execute(query).fetchone()[0])
    except sqlite3.Error:
        return 0
