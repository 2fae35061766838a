"""What can be wrong with a home, looked at one after the other: each check is a finding and, where needed, a remedy.

Looking changes nothing: no file is made, no event published, no credential sent anywhere but to its own hub.
"""

import asyncio
import os
import shutil
import ssl
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

import aiohttp

from bridge_client import keys, render
from bridge_client.config import LOCAL_HUB_URL, Config
from bridge_client.cursor import CursorFile, DamagedCursor
from bridge_client.dial import MAX_PROXY_ANSWER, PROXY_ALONE, from_proxy
from bridge_client.keys import BadKeyFile, Credential
from bridge_client.retention_report import Outlook
from bridge_client.store import EventStore, StoreError
from protocol.pairing import ME_PATH

TIMEOUT: Final = 5.0
SKEW_SUSPECT: Final = 5.0
SKEW_BAD: Final = 60.0
"""Seconds by which this machine's clock may differ from the hub's; a Date header is exact to one second."""

SPACE_SUSPECT: Final = 1 << 30
SPACE_BAD: Final = 100 << 20
CERTIFICATE_DAYS: Final = 14
OLD_ACK: Final = 60.0
"""Seconds without an acknowledgement after which events that wait are worth a warning."""


OpenStore = Callable[[Config], AbstractAsyncContextManager[EventStore]]
LookAhead = Callable[[Config], Awaitable[Outlook | None]]
Standing = Callable[[Config], Awaitable[Mapping[str, Any]]]
"""How the home stands: the members of `status`, but for what the hub says."""


Status = Literal["ok", "warning", "failed"]


class Finding(NamedTuple):
    """What one check found, in the words of the hub's `doctor`; `remedy` says what to do where there is something."""

    check: str
    status: Status
    text: str
    remedy: str | None = None


async def examine(config: Config, open_store: OpenStore, look: LookAhead, standing: Standing) -> AsyncIterator[Finding]:
    """Every finding, in the order in which one thing depends on the other."""
    yield state_dir(config.state_dir)
    yield disk(config.state_dir)
    check, credential = credential_file(config)
    yield check
    epoch: str | None = None
    head: int | None = None
    if config.source is None:
        check, epoch, head = await store(config, open_store)
        yield check
        if check.status == "ok":
            yield retention(await look(config), CursorFile(config.cursor_path), epoch)
    yield cursor(config, credential, epoch, head)
    try:
        stands = await standing(config)
    except (StoreError, BadKeyFile, OSError):
        pass  # said above, and nothing more can be seen before that is put right
    else:
        for check in home(stands):
            yield check
    hub_url = credential.hub_url if credential is not None else config.hub_url or LOCAL_HUB_URL
    async for check in hub(hub_url, credential):
        yield check


def state_dir(path: Path) -> Finding:
    """The directory of the home's files: there, ours, closed to others, writable."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return Finding("state directory", "ok", f"{path} is not there yet; the first start makes it")
    except OSError as error:
        return Finding("state directory", "failed", f"{path}: {error.strerror}", "name another: --state-dir")
    if not stat.S_ISDIR(facts.st_mode):
        return Finding("state directory", "failed", f"{path} is no directory", "name another: --state-dir")
    if facts.st_uid != os.geteuid():
        return Finding("state directory", "failed", f"{path} belongs to uid {facts.st_uid}", "chown it, or --state-dir")
    if not os.access(path, os.W_OK | os.X_OK):
        return Finding("state directory", "failed", f"{path} can't be written", f"chmod 700 {path}")
    if facts.st_mode & 0o022:
        return Finding("state directory", "failed", f"others may write to {path}", f"chmod 700 {path}")
    loose = [file for file in sorted(path.iterdir()) if _private(file) and file.stat().st_mode & 0o077]
    if loose:
        return Finding("state directory", "failed", f"others may read {loose[0]}", f"chmod 600 {loose[0]}")
    return Finding("state directory", "ok", str(path))


def _private(file: Path) -> bool:
    kept = file.suffix in (".token", ".key", ".json", ".db") or ".db" in file.name
    return kept and file.is_file() and not file.is_symlink()


def disk(path: Path) -> Finding:
    """Room for more events."""
    while not path.exists() and path != path.parent:
        path = path.parent
    free = shutil.disk_usage(path).free
    state: Status = "failed" if free < SPACE_BAD else "warning" if free < SPACE_SUSPECT else "ok"
    found = f"{free / (1 << 30):.1f} GiB free"
    return Finding("disk space", state, found, None if state == "ok" else "make room: a full disk refuses events")


def credential_file(config: Config) -> tuple[Finding, Credential | None]:
    """The home's credential: there, private, whole, for the hub that is meant."""
    path = config.credential_path
    try:
        kept = keys.load(path)
    except BadKeyFile as error:
        return Finding("credential", "failed", str(error)), None
    if kept is None:
        local = keys.is_local(config.hub_url or LOCAL_HUB_URL)
        remedy = None if local else "on the hub: bridge-server servers add NAME --out FILE; then --credential-file FILE"
        found = f"there is no {path}" + ("; `serve` gets one from the hub on this machine" if local else "")
        return Finding("credential", "ok" if local else "failed", found, remedy), None
    if kept.device_id is not None:
        found = f"{path} is an app's, not a home's"
        return Finding("credential", "failed", found, "name the home's: --credential-file"), None
    if config.hub_url is not None and config.hub_url.rstrip("/") != kept.hub_url.rstrip("/"):
        found = f"{path} is for {kept.hub_url}, not {config.hub_url}"
        return Finding("credential", "failed", found, "name another file, or leave out the hub's URL"), None
    return Finding("credential", "ok", f"home {kept.server_id} of {kept.hub_url}"), kept


async def store(config: Config, open_store: OpenStore) -> tuple[Finding, str | None, int | None]:
    """The event store: readable, and its write lock can be had. Also its epoch and head."""
    path = config.store_path
    if not path.exists():
        return Finding("event store", "ok", f"{path} is not there yet; the first event makes it"), None, None
    try:
        async with open_store(config) as events:
            epoch, head = events.epoch, await events.head()
    except StoreError as error:
        return Finding("event store", "failed", str(error)), None, None
    return Finding("event store", "ok", f"{path}, epoch {epoch}, last event {head or 'none yet'}"), epoch, head


def retention(found: Outlook | None, cursor: CursorFile, epoch: str | None) -> Finding:
    """What the store holds, and whether what may go can go."""
    if found is None:
        return Finding("retention", "ok", "nothing is stored yet")
    try:
        saved = cursor.load()
    except (DamagedCursor, OSError):
        saved = None
    acked = saved.event_id if saved is not None and saved.epoch == epoch else None
    if waits := found.waits(acked):
        return Finding(
            "retention", "warning", f"{found.keeps}; {waits}", "run `bridge-client serve` with its hub in reach"
        )
    if found.extent.free > found.extent.file_size // 2 and not found.extent.gives_back:
        remedy = "nothing: it is used again. Or, with the home stopped: docs/operations.md, Retention"
        return Finding("retention", "ok", f"{found.keeps}; {found.holds}, more than half of it free", remedy)
    return Finding("retention", "ok", f"{found.keeps}; {found.holds}")


def cursor(config: Config, credential: Credential | None, epoch: str | None, head: int | None) -> Finding:
    """How far the hub has acknowledged: a place that the store has, for this hub and this home."""
    path = config.cursor_path
    try:
        saved = CursorFile(path).load()
    except (DamagedCursor, OSError) as error:
        return Finding("cursor", "warning", str(error), f"rm {path}: the hub says where to go on, nothing is lost")
    if saved is None:
        return Finding("cursor", "ok", "nothing was acknowledged yet")
    if credential is not None and (saved.hub_url, saved.server_id) != (credential.hub_url, credential.server_id):
        found = f"it is for home {saved.server_id} at {saved.hub_url}"
        return Finding("cursor", "warning", found, "nothing: this hub says where to go on")
    if epoch is not None and saved.epoch != epoch:
        return Finding("cursor", "warning", "it is for another epoch of the store", "nothing: all is sent again")
    if epoch is not None and saved.event_id > (head or 0):
        found = f"event {saved.event_id} was acknowledged, but the last one stored is {head or 0}"
        return Finding("cursor", "warning", found, "nothing if the store was restored: the next start sends all again")
    return Finding("cursor", "ok", f"acknowledged up to event {saved.event_id}")


def home(stands: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether a home runs, whether events get through, which the hub would not take, and whether messages find ears."""
    yield _runs(stands)
    yield _lag(stands)
    letters = stands["dead_letters"]
    if letters:
        found = f"{_events(letters)} the hub would not take {'is' if letters == 1 else 'are'} set aside"
        yield Finding("dead letters", "warning", found, "see which and why: bridge-client dead-letters list")
    else:
        yield Finding("dead letters", "ok", "none")
    name, problem = stands["runner"], stands["runner_problem"]
    if problem is not None:
        found, _, remedy = problem.partition(": ")
        yield Finding("runner", "warning", f"{name} can't answer: {found}", remedy or None)
    else:
        yield Finding("runner", "ok", name or "none is chosen: nobody answers messages")


def _runs(stands: Mapping[str, Any]) -> Finding:
    api = stands["api"]
    if stands["running"]:
        where = f"answers at {api}" if stands["connected"] is not None else api or "answers no programs (--no-api)"
        return Finding("home", "ok", f"process {stands['pid']} runs here and {where}")
    start = "bridge-client serve" if "store" in stands else "bridge-client forward --source …"
    found = "none runs on this state directory: nothing is forwarded" + (f" ({api})" if api else "")
    return Finding("home", "warning", found, f"start it: {start}")


def _lag(stands: Mapping[str, Any]) -> Finding:
    waiting, age = stands["waiting"], stands["last_ack_age_seconds"]
    ago = "nothing was acknowledged yet" if age is None else f"the last acknowledgement came {render.age(age)} ago"
    if not waiting:
        return Finding("lag", "ok", f"{'how much waits is unknown' if waiting is None else 'no event waits'}; {ago}")
    found = f"{_events(waiting)} {'waits' if waiting == 1 else 'wait'} for the hub; {ago}"
    if not stands["running"]:
        return Finding("lag", "warning", found, "start the home: it sends what waits")
    old = age is None or age > OLD_ACK
    if not old or (stands["connected"] and stands["lag"]["seconds"] < OLD_ACK):
        return Finding("lag", "ok", found)
    if stands["connected"]:
        remedy = "the hub is connected and acknowledges nothing: its log, and `bridge-server doctor` there, say why"
    elif stands["connected"] is None:
        remedy = "the home answers no programs: its log says why"
    else:
        why = f" ({stands['last_error']})" if stands["last_error"] else ""
        remedy = f"the home is not connected{why}: see what is said of the hub below, and the home's log"
    return Finding("lag", "warning", found, remedy)


def _events(count: int) -> str:
    return f"{count} event{'s' if count != 1 else ''}"


async def hub(url: str, credential: Credential | None) -> AsyncIterator[Finding]:
    """The hub: its name, its port, its certificate, its answer, its clock, and whether it knows the credential."""
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TIMEOUT):
            found = await loop.getaddrinfo(host, port, type=1)
    except (OSError, TimeoutError) as error:
        yield Finding(
            "hub: name", "failed", f"{host} has no address: {_said(error)}", "check the URL and this machine's DNS"
        )
        return
    yield Finding("hub: name", "ok", f"{host} is {', '.join(dict.fromkeys(str(row[4][0]) for row in found))}")
    check = await _port(host, port)
    yield check
    if check.status == "failed":
        return
    if secure:
        check = await _certificate(host, port)
        yield check
        if check.status == "failed":
            return
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session:
        try:
            async with session.get(url.rstrip("/") + "/ready", allow_redirects=False) as response:
                here, date = time.time(), response.headers.get("Date")
                yield _ready(response.status, await response.content.read(MAX_PROXY_ANSWER))
        except (aiohttp.ClientError, TimeoutError) as error:
            yield Finding(
                "hub: answer", "failed", f"none: {_said(error)}", "something else listens there: check the URL"
            )
            return
        yield _clock(date, here)
        if credential is not None:
            yield await _known(session, url, credential)


async def _port(host: str, port: int) -> Finding:
    try:
        async with asyncio.timeout(TIMEOUT):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        remedy = "start the hub (bridge-server serve), or check the port and the firewalls between"
        return Finding("hub: port", "failed", f"{host}:{port} takes no connection: {_said(error)}", remedy)
    await _closed(writer)
    return Finding("hub: port", "ok", f"{host}:{port} takes connections")


async def _certificate(host: str, port: int) -> Finding:
    try:
        async with asyncio.timeout(TIMEOUT):
            _, writer = await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
    except ssl.SSLCertVerificationError as error:
        remedy = "renew the hub's certificate, or make this machine trust who signed it"
        return Finding("hub: TLS", "failed", f"the certificate is not valid: {error.verify_message}", remedy)
    except (OSError, TimeoutError) as error:
        return Finding("hub: TLS", "failed", f"no TLS there: {_said(error)}", "is it http:// instead?")
    until = writer.get_extra_info("peercert").get("notAfter", "")
    await _closed(writer)
    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86_400 if until else 0.0
    if days < CERTIFICATE_DAYS:
        return Finding("hub: TLS", "warning", f"the certificate ends in {days:.0f} days", "renew it on the hub")
    return Finding("hub: TLS", "ok", f"the certificate is valid for {days:.0f} days")


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(1.0):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()


def _ready(status: int, body: bytes) -> Finding:
    if status == 200:
        return Finding("hub: answer", "ok", "it is ready")
    if from_proxy(status, body):
        found, _, remedy = PROXY_ALONE.partition(": ")
        return Finding("hub: answer", "failed", f"{found} (HTTP {status})", remedy)
    if status == 503:
        return Finding(
            "hub: answer", "warning", "it is shutting down or overloaded", "wait; `serve` comes back by itself"
        )
    remedy = "something else is at that URL, or a proxy hides the hub's paths"
    return Finding("hub: answer", "failed", f"/ready answers {status}", remedy)


def _clock(date: str | None, here: float) -> Finding:
    try:
        there = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return Finding("clock", "warning", "the hub does not say what time it is")
    skew = here - there - 0.5  # a Date header leaves out the fraction
    state: Status
    state = "failed" if abs(skew) > SKEW_BAD else "warning" if abs(skew) > SKEW_SUSPECT else "ok"
    if state == "ok":
        return Finding("clock", "ok", "the same as the hub's, within a few seconds")
    found = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the hub's"
    return Finding("clock", state, found, "set the clock of whichever is wrong (timedatectl set-ntp true)")


async def _known(session: aiohttp.ClientSession, url: str, credential: Credential) -> Finding:
    headers = {"Authorization": f"Bearer {credential.credential}"}
    try:
        async with session.get(url.rstrip("/") + ME_PATH, headers=headers, allow_redirects=False) as response:
            status: int = response.status
            about: Any = await response.json() if status == 200 else None
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        return Finding("hub: credential", "warning", f"the hub did not say whether it knows it: {_said(error)}")
    if status == 200 and isinstance(about, dict) and about.get("server_id") == credential.server_id:
        return Finding("hub: credential", "ok", "the hub knows this home")
    if status in (401, 403):
        remedy = "it was revoked, or is another hub's: enrol again to get a new one"
        return Finding("hub: credential", "failed", f"the hub refuses it ({status})", remedy)
    return Finding(
        "hub: credential", "warning", f"the hub did not say whether it knows it ({ME_PATH} answers {status})"
    )


def _said(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT:.0f} s"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200]
