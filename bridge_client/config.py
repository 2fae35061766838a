"""What a home owner may choose: one frozen `Config`, read from a TOML file and the environment, later ones winning.

Every setting has one name in three spellings: `hub_url` in code, `hub_url` under `[home]` in the file that
`SESSION_BRIDGE_CONFIG` names, `SESSION_BRIDGE_HUB_URL` in the environment. Nothing else reads the environment.
"""

import os
import re
import shlex
import socket
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from bridge_client import source_spec
from bridge_client.retention import Rules
from protocol.loopback import normal_origin

PREFIX = "SESSION_BRIDGE_"
TABLE = "home"

LOCAL_HUB_URL = "http://127.0.0.1:4000"

Count = Annotated[int, Meta(ge=1)]
Bytes = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Days = Annotated[float, Meta(gt=0)]


class BadConfig(ValueError):
    """A setting that can't be used; the text names it as its owner wrote it, and says what would do."""


def default_state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """`$XDG_STATE_HOME/session-bridge`, else `~/.local/state/session-bridge` (XDG: a relative value is ignored)."""
    environ = os.environ if environ is None else environ
    base = Path(environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "session-bridge"


def check_hub_url(url: str, setting: str = "hub_url") -> str:
    """Return `url` if a server can have it. Raises ValueError otherwise, which names the setting."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
        usable = usable and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"{setting}: must be http:// or https:// and a host, such as https://hub.example")
    return url


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The settings of one home. Times are seconds, sizes bytes. Raises ValueError for a text that names nothing."""

    hub_url: str | None = None
    """Where the hub is: scheme, host, port, and the path before `/socket` if a proxy adds one.

    None means the hub that the credential is for; without a credential, the one on this machine (LOCAL_HUB_URL).
    """

    state_dir: Path = field(default_factory=default_state_dir)
    """Where the home keeps store, cursor and credential; a hub on this machine leaves its enrolment key there too."""

    store: Path | None = None
    """The event store, a SQLite file; None means `home.db` in `state_dir`. See `store_path`."""

    source: str | None = None
    """What `bridge-client forward` reads instead of a store of ours: `http://...` or `sqlite:PATH?table=...`."""

    source_token_file: Path | None = None
    """A 0600 file that holds the token which the source's server wants as `Authorization: Bearer`."""

    credential_file: Path | None = None
    """The home's credential; None means `home-credential.json` in `state_dir`. See `credential_path`."""

    name: str = field(default_factory=socket.gethostname)
    """The display name that apps see for this home."""

    instance: str = ""
    """What tells this process from another serving the same home, in a takeover notice; empty: host and process id."""

    api: bool = True
    """Whether the home answers programs on this machine over HTTP (`GET /events`, `GET /status`)."""

    api_host: str = "127.0.0.1"
    """The address that the home's API listens on."""

    api_port: Annotated[int, Meta(ge=0, le=65_535)] = 4_100
    """The port of the home's API; 0: any free one, which `bridge-client status` finds."""

    api_origins: tuple[str, ...] = ()
    """Web origins (`https://app.example`) whose pages may ask the home's API, if they know its token."""

    runner: Annotated[str, Meta(pattern="^(echo|openai|claude|codex|command)$")] | None = None
    """Who answers what is sent to a session; None: nobody.

    `echo` says it back, `openai` asks an endpoint for chat completions, `claude` and `codex` run these command lines,
    `command` runs `runner_command`.
    """

    runner_url: str = "https://api.openai.com/v1"
    """Of `openai`: the endpoint, without `/chat/completions`."""

    runner_model: str = ""
    """Of `openai`: the model's name there."""

    runner_key_env: str | None = None
    """Of `openai`: the name of the environment variable that holds the API key."""

    runner_key_file: Path | None = None
    """Of `openai`: a 0600 file that holds the API key."""

    runner_system: str = ""
    """Of `openai`: what the model is told before every conversation."""

    runner_tools: Path | None = None
    """Of `openai`: a folder whose files the model may read, by the tools read_file and list_files; None: no tools."""

    runner_ask: bool = True
    """Of `openai`: whether a person approves each call of a tool first."""

    runner_command: str = ""
    """Of `command`: the command line, quoted as for a shell, though none reads it."""

    runner_resume: str = ""
    """Of `command`: the command line for a session that the program knows, there named `{provider_session_id}`."""

    runner_format: str | None = None
    """Of `command`: the format of what it prints (docs/events.md); None: found out."""

    runner_dir: Path | None = None
    """Of `claude`, `codex` and `command`: the folder they work in; None: where the home was started."""

    runner_timeout: Seconds = 3_600.0
    """Seconds that a command line may take for one answer."""

    runner_silence: Seconds = 600.0
    """Seconds that a command line, or an endpoint's stream, may say nothing."""

    retain_days: Days | None = None
    """For how many days the store keeps events that the hub has acknowledged; None: for ever. Exact to an hour."""

    retain_bytes: Bytes | None = None
    """How many bytes of events the store keeps, beyond which the oldest acknowledged ones go; None: all."""

    window_events: Count = 2_000
    """How many unacknowledged events may be under way; the hub may ask for fewer."""

    window_bytes: Bytes = 1 << 20
    """How many unacknowledged bytes may be under way; the hub may ask for fewer."""

    refill_events: Count = 2_000
    """How many of the newest events a hub that lost its memory is sent again."""

    refill_bytes: Bytes = 4 << 20
    """How many bytes of the newest events a hub that lost its memory is sent again at most."""

    heartbeat: Seconds = 30.0
    """Seconds between heartbeats; a hub that is mute for two of them counts as gone."""

    log_level: Annotated[str, Meta(pattern="^(DEBUG|INFO|WARNING|ERROR)$")] = "INFO"
    """The least severe log record to write."""

    log_json: bool = False
    """Whether each log record is one JSON object a line."""

    def __post_init__(self) -> None:
        if self.hub_url is not None:
            check_hub_url(self.hub_url)
        if self.source is not None:
            try:
                source_spec.parse(self.source)
            except ValueError as error:
                raise ValueError(f"source: {error}") from None
        if self.store is not None and str(self.store).startswith(("postgres:", "postgresql:")):
            raise ValueError(
                "store: name a file; a home keeps its sessions beside its events, in SQLite and nothing else"
            )
        self._check_runner()
        for origin in self.api_origins:
            if normal_origin(origin) is None or "*" in origin:
                raise ValueError(f"api_origins: {origin!r} is no origin; write scheme://host or scheme://host:port")

    def _check_runner(self) -> None:
        if self.runner == "openai":
            check_hub_url(self.runner_url, "runner_url")
            if not self.runner_model:
                raise ValueError("runner_model: name the model that the endpoint is to run")
            if self.runner_key_env is not None and self.runner_key_file is not None:
                raise ValueError("runner_key_env: the key is in runner_key_file already; name one of them")
        for name in ("runner_command", "runner_resume"):
            try:
                words = shlex.split(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name}: its quotes do not match ({error})") from None
            if self.runner == "command" and name == "runner_command" and not words:
                raise ValueError("runner_command: name the command line that answers")

    def runner_key(self, environ: Mapping[str, str] | None = None) -> str:
        """The API key that the environment holds for the endpoint, empty if none is named. Raises BadConfig."""
        if self.runner_key_env is None:
            return ""
        key = (os.environ if environ is None else environ).get(self.runner_key_env, "").strip()
        if not key:
            raise BadConfig(
                f"runner_key_env: the environment has no {self.runner_key_env}, which is to hold the API key"
            )
        return key

    @property
    def retention(self) -> Rules:
        """How long the store keeps its events."""
        return Rules(None if self.retain_days is None else self.retain_days * 86_400, self.retain_bytes)

    @property
    def store_path(self) -> Path:
        """The file of the event store."""
        return self.store if self.store is not None else self.state_dir / "home.db"

    @property
    def locks_path(self) -> Path:
        """The folder of the locks of requests that other programs run in the store: beside it."""
        return self.store_path.with_name(self.store_path.name + ".requests")

    @property
    def groups_path(self) -> Path:
        """The folder that says which programs of ours run."""
        return self.state_dir / "programs"

    @property
    def source_name(self) -> str:
        """What is forwarded, as its owner calls it."""
        return self.source if self.source is not None else str(self.store_path)

    @property
    def credential_path(self) -> Path:
        """The file of the home's credential."""
        return self.credential_file if self.credential_file is not None else self.state_dir / "home-credential.json"

    @property
    def cursor_path(self) -> Path:
        """The file that holds how far the hub has acknowledged: beside the store it speaks of; one for each source."""
        return self._beside(".cursor")

    @property
    def epoch_path(self) -> Path:
        """The file that holds the epoch of a source that is not ours."""
        return self._beside(".epoch")

    @property
    def dead_letters_path(self) -> Path:
        """The SQLite file of the events that can't be forwarded: the store, or one beside the cursor of a source."""
        return self.store_path if self.source is None else self._beside(".dead-letters")

    @property
    def address_path(self) -> Path:
        """The file that says, while the home runs, where its API listens."""
        return self._beside(".api")

    def _beside(self, suffix: str) -> Path:
        if self.source is None:
            return self.store_path.with_name(self.store_path.name + suffix)
        # A name for each source, because what is kept of one must never be taken for another's.
        return self.state_dir / f"source-{sha256(self.source.encode()).hexdigest()[:12]}{suffix}"

    @property
    def instance_name(self) -> str:
        """`instance`, or host name and process id."""
        return self.instance or f"{socket.gethostname()}:{os.getpid()}"

    @classmethod
    def from_env(
        cls, environ: Mapping[str, str] | None = None, defaults: Mapping[str, Any] | None = None, **overrides: Any
    ) -> "Config":
        """Read the file that SESSION_BRIDGE_CONFIG names, then the environment, then `overrides` that are not None.

        `defaults` take the place of a setting's own default. Lists are comma-separated in the environment; an empty
        variable counts as absent. Raises BadConfig.
        """
        environ = os.environ if environ is None else environ
        named: dict[str, Any] = {"state_dir": str(default_state_dir(environ)), **(defaults or {})}
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
