"""What an operator may choose: one frozen `Config`, read from a TOML file and the environment, later ones winning.

Every setting has one name in three spellings: `idle_timeout` in code, `idle_timeout` under `[hub]` in the file that
`SESSION_BRIDGE_CONFIG` names, `SESSION_BRIDGE_IDLE_TIMEOUT` in the environment. Nothing else reads the environment.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from protocol.loopback import origin_entry

PREFIX = "SESSION_BRIDGE_"
TABLE = "hub"

Port = Annotated[int, Meta(ge=0, le=65_535)]
Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]

MAX_CONNECTIONS = 20_000
"""The default of `max_connections`."""

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""The hosts that only this machine can reach."""


class BadConfig(ValueError):
    """A setting that can't be used; the text names it as the operator wrote it, and says what would do."""


def default_state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_STATE_HOME/session-bridge`, else `~/.local/state/session-bridge` (XDG: a relative value is ignored)."""
    environ = os.environ if environ is None else environ
    base = Path(environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "session-bridge"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The settings of one hub. Times are seconds, sizes bytes. Raises ValueError for a text that names nothing."""

    host: str = "127.0.0.1"
    """The address to listen on. Anything but loopback turns `auto_enrol` off."""

    port: Port = 4000
    """The one TCP port of the hub; 0 lets the system choose."""

    state_dir: Path = field(default_factory=default_state_dir)
    """Where the hub keeps its database and the key of local enrolment; made 0700 when missing."""

    database: Path | None = None
    """The credential database; None means `hub.db` in `state_dir`. See `database_path`."""

    public_url: str | None = None
    """The URL under which apps reach the hub through a proxy or tunnel; `Host` and `Origin` may then name its host."""

    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks (`10.0.0.0/8`) whose X-Forwarded-For is believed."""

    origins: tuple[str, ...] = ()
    """Web origins (`https://app.example`, `//*.app.example`) whose pages may talk to this hub, beside its own."""

    auto_enrol: bool = True
    """Whether a home on this machine may enrol itself by proving that it reads the key file (`local_enrolment`)."""

    allow_query_credentials: bool = False
    """Whether `?token=`, `?api_key=` or `?apikey=` may carry a long-lived credential. URLs get logged: leave it off."""

    log_level: Annotated[str, Meta(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    """The least severe log record to write."""

    log_json: bool = False
    """Whether each log record is one JSON object a line."""

    idle_timeout: Seconds = 90.0
    """How long a peer may be silent before its socket is closed with 1001. Anything shorter than 1 s is for tests."""

    ping_interval: Annotated[float, Meta(ge=0)] = 0.0
    """How often the hub pings each socket; one that sends nothing until the next ping is closed with 1001. 0: never."""

    compression: bool = False
    """Whether sockets may agree on permessage-deflate (RFC 7692)."""

    poll_window: Seconds = 10.0
    """How long a long poll without messages waits; a session not polled for half as long again ends."""

    handshake_timeout: Seconds = 10.0
    """How long a new connection may take to send a whole request head."""

    max_event_bytes: Bytes = 1 << 20
    """The longest event taken from a home; a WebSocket message may be 64 KiB longer (see `max_frame_bytes`)."""

    channel_limit: Count = 100
    """How many topics one socket may have joined at a time."""

    max_connections: Count = MAX_CONNECTIONS
    """How many sockets are open at most; further ones get 503. Fewer where too few files may be open."""

    address_connections: Count | None = None
    """How many sockets one address (IPv4, or IPv6 /64) may hold; homes do not count. See `limits.DEFAULTS`."""

    address_attempts: Count | None = None
    """How many upgrades one address may ask for a minute; those of homes do not count."""

    address_messages: Count | None = None
    """How many messages a second all sockets of one address may send on average; homes do not count."""

    credential_connections: Count | None = None
    """How many sockets one app may hold."""

    credential_messages: Count | None = None
    """How many messages a second all sockets of one app may send on average."""

    home_connections: Count | None = None
    """How many sockets one credential of a home may hold."""

    home_messages: Count | None = None
    """How many messages a second one credential of a home may send on average."""

    status_grace: Annotated[float, Meta(ge=0)] = 5.0
    """How long a home may be away before its apps are told that it is offline."""

    presence_grace: Annotated[float, Meta(ge=0)] = 15.0
    """How long a device that lost its connection is still shown as watching, in case it comes back."""

    cold_wait: Seconds = 10.0
    """How long an app whose cursor this hub can't judge waits for the home before it is told `hub_reset`."""

    window_events: Count = 2_000
    """How many unacknowledged events a home may have under way."""

    window_bytes: Bytes = 1 << 20
    """How many unacknowledged bytes a home may have under way."""

    history_events: Count = 10_000
    """How many events of one home the live tier keeps at most."""

    history_bytes: Bytes = 8 << 20
    """How many bytes of events of one home the live tier keeps at most."""

    history_seconds: Seconds = 86_400.0
    """How long the live tier keeps an event at most."""

    merge_window: Seconds = 0.25
    """How long pieces of a text wait for further ones on their way to an app that asked for merged ones."""

    queue_handover_bytes: Bytes = 64 << 10
    """How much a socket is handed at a time; what it holds can't be taken back."""

    queue_merge_bytes: Bytes = 256 << 10
    """From how many bytes on, waiting for one slow peer, pieces of a text are merged."""

    queue_merge_seconds: Seconds = 1.0
    """How long something may wait for one slow peer before pieces of a text are merged."""

    queue_hold_bytes: Bytes = 1 << 20
    """From how many waiting bytes on pieces of a text are held back, and left out once their whole waits as well."""

    queue_hold_seconds: Seconds = 5.0
    """How long something may wait for one slow peer before pieces of a text are held back."""

    queue_cut_bytes: Bytes = 4 << 20
    """How many bytes may wait for one slow peer before it is cut; it comes back with its cursor."""

    queue_cut_seconds: Seconds = 15.0
    """How long a slow peer may take nothing before it is cut."""

    queue_total_bytes: Bytes = 256 << 20
    """How many bytes may wait for all peers together before those with the longest queues are cut."""

    drain_seconds: Annotated[float, Meta(ge=0)] = 5.0
    """Over how long a stopping hub spreads the closing of its sockets."""

    drain_code: Literal[1001, 1012, 1013, "abort"] = 1012
    """The code that a stopping hub closes its sockets with; `abort` ends them without a close frame."""

    def __post_init__(self) -> None:
        if self.public_url is not None and not re.match(r"https?://[^/]", self.public_url):
            raise ValueError("public_url: must start with http:// or https:// and name a host")
        for unit in ("bytes", "seconds"):
            for lower, higher in (("merge", "hold"), ("hold", "cut")):
                if getattr(self, f"queue_{lower}_{unit}") > getattr(self, f"queue_{higher}_{unit}"):
                    raise ValueError(f"queue_{higher}_{unit}: must not be below queue_{lower}_{unit}")
        for origin in self.origins:
            if not re.fullmatch(r"([a-z][a-z0-9+.-]*:)?//(\*\.)?[^/?#*]+", origin) or origin_entry(origin) is None:
                raise ValueError(
                    f"origins: {origin!r} is no origin; write scheme://host or scheme://host:port, //host for every "
                    "scheme and port, *.host for the host and all below it"
                )
        for proxy in self.trusted_proxies:
            try:
                ip_network(proxy)
            except ValueError as error:
                raise ValueError(f"trusted_proxies: {error}; write an address or a network (10.0.0.0/8)") from None

    @property
    def database_path(self) -> Path:
        """The file of the credential database."""
        return self.database if self.database is not None else self.state_dir / "hub.db"

    @property
    def max_frame_bytes(self) -> int:
        """The longest WebSocket message taken: an event of the longest size, and 64 KiB for what surrounds it."""
        return self.max_event_bytes + 65_536

    @property
    def local_enrolment(self) -> bool:
        """Whether homes on this machine may enrol by file: only where no other machine can reach the port."""
        return self.auto_enrol and self.host in LOOPBACK and self.public_url is None and not self.trusted_proxies

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> "Config":
        """Read the file that SESSION_BRIDGE_CONFIG names, then the environment, then `overrides` that are not None.

        Lists are comma-separated in the environment; an empty variable counts as absent. Raises BadConfig.
        """
        environ = os.environ if environ is None else environ
        named: dict[str, Any] = {"state_dir": str(default_state_dir(environ))}
        sources: dict[str, str] = {}
        known = {row.name: row.type for row in fields(cls)}
        path = environ.get(PREFIX + "CONFIG")
        if path:
            for name, value in _table(Path(path)).items():
                if name not in known:
                    near = get_close_matches(name, known, 1)
                    meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
                    raise BadConfig(f"{path}: [{TABLE}] has no setting {name!r}; {meant}")
                named[name], sources[name] = value, f"{path}: {name}"
        for name, kind in known.items():
            value = environ.get(PREFIX + name.upper())
            if value:
                listed = kind == tuple[str, ...]
                named[name] = [part.strip() for part in value.split(",") if part.strip()] if listed else value
                sources[name] = PREFIX + name.upper()
        for name, value in overrides.items():
            if value is not None:
                named[name], sources[name] = value, f"--{name.replace('_', '-')}"
        try:
            return msgspec.convert(named, cls, strict=False, dec_hook=_path)
        except msgspec.ValidationError as error:
            raise BadConfig(_explain(str(error), named, sources)) from None


def _table(path: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get(TABLE, {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadConfig(f"{PREFIX}CONFIG: {path} can't be read: {error}") from None
    if not isinstance(table, dict):
        raise BadConfig(f"{path}: [{TABLE}] must be a table")
    return table


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str | Path):
        return Path(value).expanduser()
    raise ValueError("must be a path")


_EXPECTED = re.compile(r"Expected `(\w+)(?: \| null)?`, got `\w+`")
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text", "array": "a list"}


def _explain(text: str, named: Mapping[str, Any], sources: Mapping[str, str]) -> str:
    reason, _, place = text.partition(" - at `$.")
    if place:
        name = re.split(r"[`.\[]", place)[0]
        kind = _EXPECTED.fullmatch(reason)
        reason = f"must be {_KINDS[kind[1]]}" if kind and kind[1] in _KINDS else reason
        return f"{sources.get(name, name)} = {named.get(name)!r}: {reason}"
    name, _, reason = text.partition(": ")
    return f"{sources.get(name, name)}: {reason}"
