"""Whether an upgrade request becomes a Phoenix socket. Refused before the upgrade, never accepted and then closed.

Everything here is a decision about one parsed request; `port.py` reads it from the wire and writes the answer.
"""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from websockets.datastructures import Headers
from websockets.http11 import Request, Response
from websockets.utils import accept_key

from bridge_server.auth import BEARER_SUBPROTOCOL, Identity, Refused
from bridge_server.channels import Router
from bridge_server.limits import RETRY_SECONDS, Admission
from bridge_server.transports.deflate import Negotiated
from bridge_server.transports.deflate import negotiate as negotiate_deflate
from protocol.codec import Codec, negotiate
from protocol.loopback import check_request, listed

_KEY: Final = re.compile(r"[A-Za-z0-9+/]{22}==", re.ASCII)  # 16 bytes in base64

Pairs = list[tuple[str, str]]
Authenticate = Callable[[Pairs, Sequence[str], Pairs], Identity | None]
"""From header pairs, offered subprotocols and query pairs to an identity. Raises auth.Refused."""


@dataclass(frozen=True)
class Mount:
    """A path that speaks the Phoenix protocol, and its options.

    `path` has no trailing slash: sockets open at `<path>/websocket`, long-poll sessions at `<path>/longpoll`.
    """

    path: str
    router: Router
    authenticate: Authenticate
    idle_timeout: float = 90.0
    max_frame_bytes: int = 2**20 + 65_536
    channel_limit: int = 100
    poll_window: float = 10.0
    """How long a poll without messages waits. A session that is not polled for half as long again ends."""
    ping_interval: float = 0.0
    """Seconds between two pings of the hub; a peer that sends nothing from one to the next is closed. 0: no pings."""
    compression: bool = False
    """Whether permessage-deflate is agreed on with who offers it; otherwise offers are ignored (rule 28)."""
    origins: frozenset[str] | None = frozenset()
    """Web origins that may connect, in the form of `loopback.origin_entry`. None asks nobody for an origin."""
    own_host: bool = True
    """Whether pages of the hub's own host may connect too, whatever their scheme and port (rule 4)."""
    subprotocols: tuple[str, ...] = ()
    """What is offered; empty ignores what the client asks for."""


class Accepted(NamedTuple):
    """The request becomes a socket with these properties."""

    mount: Mount
    codec: Codec
    identity: Identity | None
    query: dict[str, str]
    subprotocol: str | None
    deflate: Negotiated | None = None
    admission: Admission | None = None


class HttpRefusal(NamedTuple):
    """The request is answered with this status and `{"reason": …}`.

    `hint` explains a 400, `retry_after` is what a 429 or 503 asks to wait, in seconds.
    """

    status: int
    reason: str
    hint: str | None = None
    retry_after: int = RETRY_SECONDS


def decide(request: Request, mounts: Sequence[Mount], hosts: frozenset[str] | None) -> Accepted | HttpRefusal:
    """Check one upgrade request in Phoenix's order: path, handshake, origin, subprotocol, version, credential.

    `hosts` are the names this hub answers to when it listens on loopback; None where anybody may reach it anyway.
    """
    path, _, query_text = request.path.partition("?")
    if not request.path.isascii():
        return HttpRefusal(400, "bad_request", "the path and query are ASCII; write other characters as %XX")
    mount = next((mount for mount in mounts if same_path(path, mount.path + "/websocket")), None)
    if mount is None:
        return HttpRefusal(404, "not_found")
    headers = request.headers
    if hint := _bad_handshake(request):
        return HttpRefusal(400, "bad_request", hint)
    if reason := bad_site(headers, mount, hosts):
        return HttpRefusal(403, reason)
    offered = [entry.strip() for value in headers.get_all("Sec-WebSocket-Protocol") for entry in value.split(",")]
    decision = admit(headers, [entry for entry in offered if entry], parse_query(query_text), mount)
    if isinstance(decision, Accepted) and mount.compression:
        try:
            deflate = negotiate_deflate(headers.get_all("Sec-WebSocket-Extensions"))
        except ValueError as error:
            return HttpRefusal(400, "bad_request", f"'sec-websocket-extensions' header: {error}")
        return decision._replace(deflate=deflate)
    return decision


def parse_query(text: str) -> Pairs | HttpRefusal:
    """The pairs of a query, in order; a refusal if it can't be read."""
    if text == "vsn=2.0.0":  # what most clients send, and all of it
        return [("vsn", "2.0.0")]
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=100, errors="strict")
    except ValueError:
        return HttpRefusal(400, "bad_request", "the query is not UTF-8, or has more than 100 fields")


def admit(headers: Headers, offered: Sequence[str], query: Pairs | HttpRefusal, mount: Mount) -> Accepted | HttpRefusal:
    """Decide about a request whose site was checked: subprotocol, version, credential, whatever it will travel over."""
    chosen, matched = _subprotocol(offered, mount)
    if not matched:
        return HttpRefusal(403, "bad_subprotocol")
    if isinstance(query, HttpRefusal):
        return query
    values = dict(query)  # the last duplicate wins (rule 1)
    codec = None if any(name.startswith("vsn[") for name in values) else negotiate(values.get("vsn"))
    if codec is None:
        return HttpRefusal(403, "bad_vsn")
    try:
        identity = mount.authenticate(list(headers.raw_items()), list(offered), query)
    except Refused as refusal:
        return HttpRefusal(403, refusal.reason)
    return Accepted(mount, codec, identity, values, chosen)


def same_path(path: str, wanted: str) -> bool:
    """Whether two paths name the same place: doubled and trailing slashes do not count (rule 3)."""
    return path == wanted or _parts(path) == _parts(wanted)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def switching(request: Request, accepted: Accepted, now: float) -> Response:
    """The answer that opens the socket of a request that `decide` accepted; `now` is seconds since 1970.

    `ServerProtocol.accept` would parse and check all of it once more, at a seventh of what a connection costs, and
    refuse a subprotocol entry whose base64 is padded.
    """
    lines = [("Date", http_date(int(now))), ("Upgrade", "websocket"), ("Connection", "Upgrade")]
    lines.append(("Sec-WebSocket-Accept", accept_key(request.headers["Sec-WebSocket-Key"])))
    if accepted.subprotocol is not None:
        lines.append(("Sec-WebSocket-Protocol", accepted.subprotocol))
    if accepted.deflate is not None:
        lines.append(("Sec-WebSocket-Extensions", accepted.deflate.response))
    headers = Headers()
    for name, value in lines:
        headers[name] = value  # four times as fast as handing it the list
    return Response(101, "Switching Protocols", headers)


@lru_cache(maxsize=2)
def http_date(second: int) -> str:
    """Seconds since 1970 as HTTP writes them."""
    return formatdate(second, usegmt=True)


def _bad_handshake(request: Request) -> str | None:
    headers = request.headers
    if request.protocol != "HTTP/1.1":
        return "a WebSocket handshake is HTTP/1.1"
    connection = {token.strip().lower() for value in headers.get_all("Connection") for token in value.split(",")}
    if "upgrade" not in connection:
        return "'connection' header must contain 'upgrade'"
    upgrade = [token.strip().lower() for value in headers.get_all("Upgrade") for token in value.split(",")]
    if upgrade != ["websocket"]:
        return "not a WebSocket handshake: 'upgrade' header must contain 'websocket', and nothing else"
    keys = headers.get_all("Sec-WebSocket-Key")
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        return "not a WebSocket handshake: 'sec-websocket-key' header must be sent once, 16 bytes in base64"
    if headers.get_all("Sec-WebSocket-Version") != ["13"]:
        return "'sec-websocket-version' header must be '13'"
    return None


def bad_site(headers: Headers, mount: Mount, hosts: frozenset[str] | None) -> str | None:
    """Why a request that names this Host and Origin is refused (`bad_host`, `bad_origin`), or None."""
    origins = headers.get_all("Origin")
    told = ("Host",) if mount.origins is None or origins else ("Host", "Sec-Fetch-Site")
    if reason := check_request([(name, value) for name in told for value in headers.get_all(name)], hosts, ()):
        return reason
    if mount.origins is None or not origins:
        return None
    own = hosts if hosts is not None else {name for value in headers.get_all("Host") if (name := _host(f"//{value}"))}
    allowed = len(origins) == 1 and (
        (mount.own_host and _same_host(origins[0], own)) or listed(origins[0], mount.origins)
    )
    return None if allowed else "bad_origin"


def _same_host(origin: str, own: Set[str | None]) -> bool:
    host = _host(origin)
    return host is not None and host in origin and host in own  # a browser writes it in lower case (rule 4: exactly)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url.strip()).hostname
    except ValueError:
        return None


def _subprotocol(offered: Sequence[str], mount: Mount) -> tuple[str | None, bool]:
    """What to echo, and whether the offer may pass (rules 5 and 6)."""
    bearer = any(entry.startswith(BEARER_SUBPROTOCOL) for entry in offered)
    served = mount.subprotocols + (("phoenix",) if bearer and "phoenix" not in mount.subprotocols else ())
    rest = [entry for entry in offered if not entry.startswith(BEARER_SUBPROTOCOL)]
    if not served or not rest:
        return None, True
    chosen = next((entry for entry in served if entry in rest), None)
    return chosen, chosen is not None
