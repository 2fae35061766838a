"""Which requests may reach a port that listens on this machine, and whose address counts as the client's.

Loopback is not a wall: any page in a browser can send requests to it, and a name that resolves to 127.0.0.1 makes them
same-origin (DNS rebinding). So the names in `Host` and `Origin` are checked before anything else. Pure functions;
header pairs are `request.headers.items()` in aiohttp and `request.headers.raw_items()` in websockets.
"""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

Pairs = Iterable[tuple[str, str]]

LOOPBACK_NAMES = frozenset({"127.0.0.1", "::1", "localhost"})

_LONGEST = 128
_LONGEST_HOST = 260
"""A name of 253 characters (RFC 1035), a colon and a port."""
"""Characters of the longest text that may be an address: a zone may follow an IPv6 one."""

_VISIBLE = re.compile(r"[!-~]+", re.ASCII)

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


def expected_hosts(public_url: str | None = None) -> frozenset[str]:
    """The names that a port on loopback answers to: the loopback names, and the host of its public URL."""
    public = urlsplit(public_url).hostname if public_url else None
    return LOOPBACK_NAMES | ({public} if public else frozenset())


def own_origins(port: int, public_url: str | None = None) -> frozenset[str]:
    """The web origins of the pages that are served on `port` itself."""
    names = (f"[{name}]" if ":" in name else name for name in LOOPBACK_NAMES)
    urls = [f"http://{name}:{port}" for name in names] + ([public_url] if public_url else [])
    return frozenset(origin for url in urls if (origin := normal_origin(url)))


def normal_origin(text: str) -> str | None:
    """`scheme://host[:port]` in lower case, without a default port; None if `text` names no host (`null`, `file://`).

    None too for one that no browser writes: what is not ASCII stands there as `xn--`, and nothing is blank.
    """
    text = text.strip(" \t")
    if not _VISIBLE.fullmatch(text):
        return None  # urlsplit would drop some characters, and keep others
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or not parts.scheme:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}")


def origin_entry(text: str) -> str | None:
    """An entry of a list of origins in the form that `listed` compares; None if it is none.

    `scheme://host[:port]` is that origin. Without a scheme (`//host`) every scheme and, unless one is given, every port
    of the host; `*.` before the host adds every name below it, at any depth (Phoenix rule 4).
    """
    if not text.startswith("//"):
        return normal_origin(text)
    normal = normal_origin(f"any:{text}")
    return normal and normal.removeprefix("any:")


def listed(origin: str, origins: Collection[str]) -> bool:
    """Whether the value of an Origin header is one of `origins`, which are in the form of `origin_entry`."""
    normal = normal_origin(origin)
    if normal is None:
        return False
    return normal in origins or any(_covers(entry, normal) for entry in origins if entry[:2] == "//" or "*" in entry)


def _covers(entry: str, origin: str) -> bool:
    allowed, asked = urlsplit(entry), urlsplit(origin)
    port, name = allowed.port or _DEFAULT_PORTS.get(allowed.scheme), allowed.hostname or ""
    return (
        allowed.scheme in ("", asked.scheme)
        and port in (None, asked.port or _DEFAULT_PORTS.get(asked.scheme))
        and (f".{asked.hostname}".endswith(name[1:]) if name.startswith("*.") else asked.hostname == name)
    )


def check_request(
    headers: Pairs, hosts: frozenset[str] | None, origins: Collection[str], *, link: bool = False
) -> str | None:
    """Why a request may not be served (`bad_host`, `bad_origin`), or None.

    `hosts` are names without port, None on a port that strangers may reach anyway; `origins` are in the form of
    `origin_entry`. Exactly one Host must be sent. An Origin, if sent, must be listed; without one, a browser that says
    `Sec-Fetch-Site: cross-site` is refused; not with `link`, where a browser opens a page that is the same for all
    (`Sec-Fetch-Mode: navigate`) from a link on another site, such as a pairing link in a web mail.
    """
    found: dict[str, list[str]] = {"host": [], "origin": [], "sec-fetch-site": [], "sec-fetch-mode": []}
    for name, value in headers:
        if (lowered := name.lower()) in found:
            found[lowered].append(value.strip())
    if hosts is not None and (len(found["host"]) != 1 or _host_name(found["host"][0]) not in hosts):
        return "bad_host"
    if found["origin"]:
        return None if len(found["origin"]) == 1 and listed(found["origin"][0], origins) else "bad_origin"
    if link and [mode.lower() for mode in found["sec-fetch-mode"]] == ["navigate"]:
        return None
    return "bad_origin" if any(site.lower() == "cross-site" for site in found["sec-fetch-site"]) else None


def forwarded(headers: Pairs) -> bool:
    """Whether a header says that a proxy or tunnel stood between: then the peer's address is not the client's."""
    return any(
        lowered in ("forwarded", "x-real-ip", "via") or lowered.startswith("x-forwarded-")
        for lowered in (name.lower() for name, _ in headers)
    )


def client_address(peername: object, headers: Pairs, trusted_proxies: tuple[str, ...]) -> str:
    """The client's address: the peer's or, behind trusted proxies, the last in X-Forwarded-For that is none of them.

    `peername` is what the transport says (a tuple whose first item is the address, or anything else for a Unix socket:
    then "local"). An entry may carry a port, an IPv6 address brackets. One that is no address ends the walk: what a
    stranger wrote is never believed.
    """
    if not (isinstance(peername, tuple) and peername):
        return "local"
    if not trusted_proxies:
        text = str(peername[0])
        return _normal(text) if len(text) <= _LONGEST else "local"
    address = _address(peername[0])
    if address is None:
        return "local"
    networks = _networks(trusted_proxies)
    chain = [part for name, value in headers if name.lower() == "x-forwarded-for" for part in value.split(",")]
    while chain and any(address in network for network in networks):
        before = _forwarded_address(chain.pop().strip())
        if before is None:
            break
        address = before
    return str(address)


# Each connection asks several times, about few addresses and names, which are short: answers are remembered.
@lru_cache(maxsize=1024)
def _normal(text: str) -> str:
    address = _address(text)
    return "local" if address is None else str(address)


@lru_cache(maxsize=1024)
def network(address: str) -> str:
    """What counts as one address: an IPv4 address, an IPv6 /64; anything else (a Unix socket) as it is."""
    parsed = _address(address.partition("%")[0])
    if parsed is None:
        return address
    if isinstance(parsed, IPv6Address):
        return str(IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)


def is_trusted(address: str, trusted_proxies: tuple[str, ...]) -> bool:
    """Whether an answer of `client_address` is one of these proxies."""
    parsed = _address(address)
    return parsed is not None and any(parsed in network for network in _networks(trusted_proxies))


@lru_cache(maxsize=1024)
def is_loopback(address: str) -> bool:
    """Whether an answer of `client_address` is this machine."""
    parsed = _address(address)
    return address == "local" or (parsed is not None and parsed.is_loopback)


def _host_name(value: str) -> str | None:
    return _named(value) if len(value) <= _LONGEST_HOST else None


@lru_cache(maxsize=1024)
def _named(value: str) -> str | None:
    try:
        parts = urlsplit(f"//{value}")
        name, _port = parts.hostname, parts.port
    except ValueError:
        return None
    # user@host, a path or a query in Host is nothing an honest client sends.
    return name if name and parts.netloc == value and "@" not in value else None


def _address(value: object) -> IPv4Address | IPv6Address | None:
    text = str(value)
    return _parsed(text) if len(text) <= _LONGEST else None


@lru_cache(maxsize=1024)
def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _forwarded_address(text: str) -> IPv4Address | IPv6Address | None:
    # Some proxies write the port too (`1.2.3.4:5678`, `[::1]:1`), some only the brackets.
    with_port = _WITH_PORT.fullmatch(text)
    return _address((with_port[1] or with_port[2]) if with_port else text)


_WITH_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d{1,5})?|(\d+\.\d+\.\d+\.\d+):\d{1,5}", re.ASCII)


@lru_cache(maxsize=64)
def _networks(texts: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(text) for text in texts)
