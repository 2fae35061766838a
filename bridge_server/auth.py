"""Who a credential belongs to. Identities exist before peers do: the tenant comes from here, never from a client.

Credentials are opaque tokens of 256 random bits, kept as SHA-256 in SQLite; the token itself is shown once, when it is
made. Several processes may use one database: the hub reads, the command line adds and revokes.
"""

import re
import secrets
import time
import unicodedata
from base64 import b32encode, b64decode
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from bridge_server.database import Database
from protocol.topics import check_server_id

SCOPES = ("view", "approve", "control")
"""What a device may be allowed to do, from least to most."""

MAX_TOKEN = 512
"""Longer texts are refused before they are hashed."""

MAX_NAME = 64

BEARER_SUBPROTOCOL = "base64url.bearer.phx."
"""A WebSocket subprotocol entry that carries a credential: the Phoenix JavaScript client's `authToken`."""

QUERY_NAMES = ("token", "api_key", "apikey")


class Server(NamedTuple):
    """A home: may join `server:<server_id>` and nothing else."""

    credential_id: int
    server_id: str
    name: str


class Device(NamedTuple):
    """An app paired with one home: may join `app:<server_id>` and nothing else."""

    credential_id: int
    device_id: str
    server_id: str
    name: str
    scopes: frozenset[str]


class Operator(NamedTuple):
    """Whoever runs the hub: may read `/metrics`; opens no topic."""

    credential_id: int
    name: str


Identity = Server | Device | Operator


def shown(identity: Identity | None) -> str:
    """Who somebody is, for a log: by ids, not by names."""
    if isinstance(identity, Device):
        return f"app {identity.device_id} of home {identity.server_id}"
    return f"home {identity.server_id}" if isinstance(identity, Server) else "a peer"


class Entry(NamedTuple):
    """One credential as the command line lists it. Times are seconds since 1970."""

    identity: Identity
    created_at: int
    revoked_at: int | None


class Refused(Exception):
    """No identity. `reason` is a key of `protocol.errors.REFUSALS`; the text never holds any part of a credential."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Credentials:
    """The credential database. Belongs to the thread that opened it; every call is synchronous and short.

    Writes are durable when they return. Raises database.BadDatabase when the file can't be opened or is of a newer
    version.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.database = Database(path)
        self._db = self.database.connection
        self._clock = clock
        self._data_version = self.database.scalar("PRAGMA data_version")
        self._revocation = self.database.scalar("SELECT coalesce(max(revocation), 0) FROM credentials")
        self._disconnection = self.database.scalar("SELECT coalesce(max(disconnection), 0) FROM credentials")

    def close(self) -> None:
        """Let go of the file. Closing twice is harmless."""
        self.database.close()

    def authenticate(self, token: str) -> Identity:
        """The identity behind `token`: one indexed look-up, the same for unknown, malformed and oversized tokens.

        Raises Refused with `credential_missing`, `credential_invalid` or `credential_revoked`.
        """
        if not token:
            raise Refused("credential_missing")
        digest = _digest(token) if len(token) <= MAX_TOKEN else b""
        row = self._db.execute(
            "SELECT id, kind, server_id, device_id, name, scopes, revocation FROM credentials WHERE hash = ?", (digest,)
        ).fetchone()
        if row is None:
            raise Refused("credential_invalid")
        if row[6] is not None:
            raise Refused("credential_revoked")
        return _identity(*row[:6])

    def is_live(self, identity: Identity) -> bool:
        """Whether the credential behind `identity` still stands."""
        return bool(
            self._db.execute(
                "SELECT 1 FROM credentials WHERE id = ? AND revocation IS NULL", (identity.credential_id,)
            ).fetchone()
        )

    def changed(self) -> bool:
        """Whether anything was written since the last call, by this process or another. Reads no table.

        Raises database.BadDatabase when the file was replaced or removed: revocations can't be seen then.
        """
        self.database.check_same()
        version = self.database.scalar("PRAGMA data_version")
        changed = self.database.wrote or version != self._data_version
        self.database.wrote, self._data_version = False, version
        return changed

    def revoked(self) -> frozenset[int]:
        """The credential ids revoked since the last call (or since opening) by any process. Costs what it returns."""
        rows = self._db.execute(
            "SELECT revocation, id FROM credentials WHERE revocation > ?", (self._revocation,)
        ).fetchall()
        self._revocation = max((row[0] for row in rows), default=self._revocation)
        return frozenset(row[1] for row in rows)

    def disconnected(self) -> frozenset[int]:
        """The credential ids whose sockets are to end since the last call (or opening). Costs what it returns."""
        rows = self._db.execute(
            "SELECT disconnection, id FROM credentials WHERE disconnection > ?", (self._disconnection,)
        ).fetchall()
        self._disconnection = max((row[0] for row in rows), default=self._disconnection)
        return frozenset(row[1] for row in rows)

    def add_server(self, name: str, server_id: str | None = None) -> tuple[Server, str]:
        """A credential for a home: a new one, or one more for `server_id`, which must exist. Returns it with its token.

        Raises ValueError for an unusable name, BadTopic (a ValueError) for a malformed id, KeyError for an unknown one.
        """
        name = clean_name(name)
        with self.database.writing():
            if server_id is None:
                server_id = b32encode(secrets.token_bytes(17))[:26].decode().lower()
            else:
                self._known(server_id)
            credential_id, token = self._insert("server", "sbs_", name, server_id)
        return Server(credential_id, server_id, name), token

    def add_device(self, server_id: str, name: str, scopes: Sequence[str] = ("view", "approve")) -> tuple[Device, str]:
        """A credential for an app of the home `server_id`. Returns it with its token.

        Raises ValueError for an unusable name or scope, KeyError for a home that is unknown or revoked.
        """
        with self.database.writing():
            return self.insert_device(server_id, name, scopes)

    def insert_device(self, server_id: str, name: str, scopes: Sequence[str]) -> tuple[Device, str]:
        """`add_device` within a transaction of the caller's."""
        name = clean_name(name)
        if not scopes or not set(scopes) <= set(SCOPES):
            raise ValueError(f"scopes are one or more of {', '.join(SCOPES)}")
        device_id = b32encode(secrets.token_bytes(10)).decode().lower()
        self._known(server_id)
        credential_id, token = self._insert("device", "sbd_", name, server_id, device_id, scopes)
        return Device(credential_id, device_id, server_id, name, frozenset(scopes)), token

    def add_operator(self, name: str) -> tuple[Operator, str]:
        """A credential for whoever reads the metrics. Returns it with its token. Raises ValueError for a bad name."""
        name = clean_name(name)
        with self.database.writing():
            credential_id, token = self._insert("operator", "sbo_", name)
        return Operator(credential_id, name), token

    def servers(self) -> list[Entry]:
        """Every credential of a home, oldest first, the revoked ones too."""
        return self._entries("server")

    def server_name(self, server_id: str) -> str:
        """The name in the newest standing credential of a home. Raises KeyError when none stands."""
        row = self._db.execute(
            "SELECT name FROM credentials WHERE server_id = ? AND kind = 'server' AND revocation IS NULL"
            " ORDER BY id DESC LIMIT 1",
            (server_id,),
        ).fetchone()
        if row is None:
            raise KeyError(server_id)
        return str(row[0])

    def device(self, server_id: str, device_id: str) -> Device | None:
        """An app of a home, revoked or not; None when this home has no such app, whoever else may have it."""
        row = self._db.execute(
            "SELECT id, kind, server_id, device_id, name, scopes FROM credentials"
            " WHERE device_id = ? AND server_id = ?",
            (device_id, server_id),
        ).fetchone()
        found = _identity(*row) if row is not None else None
        return found if isinstance(found, Device) else None

    def devices(self, server_id: str | None = None) -> list[Entry]:
        """Every credential of an app (of one home), oldest first, the revoked ones too."""
        return self._entries("device", server_id)

    def operators(self) -> list[Entry]:
        """Every operator credential, oldest first, the revoked ones too."""
        return self._entries("operator")

    def revoke_server(self, server_id: str) -> int:
        """End a home: all its credentials and those of its apps. Returns how many stood until now."""
        return self._revoke(server_id=server_id)

    def revoke_device(self, device_id: str) -> int:
        """End one app. Returns how many credentials stood until now (0 or 1)."""
        return self._revoke(device_id=device_id)

    def revoke_credential(self, credential_id: int) -> int:
        """End one credential by its number. Returns how many stood until now (0 or 1)."""
        return self._revoke(credential_id=credential_id)

    def disconnect(
        self, *, server_id: str | None = None, device_id: str | None = None, credential_id: int | None = None
    ) -> int:
        """End the open sockets of a home and its apps, of an app, or of one credential; all may come back.

        Returns how many credentials stand that this is for.
        """
        with self.database.writing():
            (last,) = self._db.execute("SELECT coalesce(max(disconnection), 0) FROM credentials").fetchone()
            return self._db.execute(
                "UPDATE credentials SET disconnection = ?"
                " WHERE revocation IS NULL AND (server_id = ? OR device_id = ? OR id = ?)",
                (last + 1, server_id, device_id, credential_id),
            ).rowcount

    def _known(self, server_id: str) -> None:
        known = "SELECT 1 FROM credentials WHERE server_id = ? AND kind = 'server' AND revocation IS NULL"
        if not self._db.execute(known, (check_server_id(server_id),)).fetchone():
            raise KeyError(server_id)

    def _insert(
        self,
        kind: str,
        prefix: str,
        name: str,
        server_id: str | None = None,
        device_id: str | None = None,
        scopes: Iterable[str] = (),
    ) -> tuple[int, str]:
        token = prefix + secrets.token_urlsafe(32)
        row = self._db.execute(
            "INSERT INTO credentials (hash, kind, server_id, device_id, name, scopes, created_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
            (_digest(token), kind, server_id, device_id, name, " ".join(sorted(scopes)), int(self._clock())),
        ).fetchone()
        return int(row[0]), token

    def _revoke(
        self, server_id: str | None = None, device_id: str | None = None, credential_id: int | None = None
    ) -> int:
        with self.database.writing():
            (last,) = self._db.execute("SELECT coalesce(max(revocation), 0) FROM credentials").fetchone()
            return self._db.execute(
                "UPDATE credentials SET revoked_at = ?, revocation = ?"
                " WHERE revocation IS NULL AND (server_id = ? OR device_id = ? OR id = ?)",
                (int(self._clock()), last + 1, server_id, device_id, credential_id),
            ).rowcount

    def _entries(self, kind: str, server_id: str | None = None) -> list[Entry]:
        rows = self._db.execute(
            "SELECT id, kind, server_id, device_id, name, scopes, created_at, revoked_at FROM credentials"
            " WHERE kind = ?1 AND (?2 IS NULL OR server_id = ?2) ORDER BY id",
            (kind, server_id),
        ).fetchall()
        return [Entry(_identity(*row[:6]), row[6], row[7]) for row in rows]


def clean_name(name: str) -> str:
    """A display name of at most MAX_NAME characters, without control or format characters, its white space single.

    Raises ValueError when nothing is left.
    """
    visible = (" " if char.isspace() else char for char in name[: 8 * MAX_NAME])
    cleaned = " ".join("".join(char for char in visible if unicodedata.category(char)[0] != "C").split())[:MAX_NAME]
    if not cleaned:
        raise ValueError("a name needs at least one visible character")
    return cleaned


def credential(
    headers: Iterable[tuple[str, str]],
    subprotocols: Sequence[str] = (),
    query: Iterable[tuple[str, str]] = (),
    *,
    allow_query: bool = False,
) -> str:
    """The credential a request carries: `Authorization: Bearer`, else `X-API-Key`, else a bearer subprotocol entry.

    `headers` and `query` are all pairs as they came, names in any case; `subprotocols` the offered entries, trimmed.
    With `allow_query` a query parameter of QUERY_NAMES comes last; without, it is refused even beside a good header,
    because the URL has been logged by then. Raises Refused: `credential_missing`, `credential_invalid` (given twice, or
    an undecodable subprotocol), `credential_in_query`.
    """
    in_query = [value for name, value in query if name in QUERY_NAMES and value]
    if in_query and not allow_query:
        raise Refused("credential_in_query")
    bearers, keys = [], []
    for name, value in headers:
        lowered = name.lower()
        if lowered == "authorization":
            scheme, _, token = value.strip().partition(" ")
            if scheme.lower() == "bearer":
                bearers.append(token.strip())
        elif lowered == "x-api-key":
            keys.append(value.strip())
    entries = [entry[len(BEARER_SUBPROTOCOL) :] for entry in subprotocols if entry.startswith(BEARER_SUBPROTOCOL)]
    for found in (bearers, keys, [_unpack(entry) for entry in entries], in_query):
        if len(found) > 1:
            raise Refused("credential_invalid")
        if found and found[0]:
            return found[0]
    raise Refused("credential_missing")


def _unpack(text: str) -> str:
    # Both alphabets, padded or not: clients differ, and none of the four readings is ambiguous.
    plain = text.rstrip("=").translate(_STANDARD)
    if not _BASE64.fullmatch(plain):
        raise Refused("credential_invalid")
    try:
        return b64decode(plain + "=" * (-len(plain) % 4)).decode()
    except ValueError:
        raise Refused("credential_invalid") from None


_STANDARD = str.maketrans("-_", "+/")
_BASE64 = re.compile(r"[A-Za-z0-9+/]{1,700}", re.ASCII)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def _identity(
    credential_id: int, kind: str, server_id: str | None, device_id: str | None, name: str, scopes: str
) -> Identity:
    if kind == "operator" or server_id is None:
        return Operator(credential_id, name)
    if device_id is None:
        return Server(credential_id, server_id, name)
    return Device(credential_id, device_id, server_id, name, _scopes(scopes))


@lru_cache(maxsize=16)
def _scopes(text: str) -> frozenset[str]:
    return frozenset(text.split())  # one object for all devices that may do the same
