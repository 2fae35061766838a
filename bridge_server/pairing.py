"""Pairing, the hub's side: codes that a home asks for and an app redeems, and what a stranger may try.

What holds, whatever is tried, in however many processes and over restarts (all of it is in the hub's database):

- A code serves once, until its end. The home may end it before.
- Five wrong secrets, and the pairing is dead: from then on even the right secret gets `wrong`.
- Twenty wrong codes an hour from one address (IPv4) or network (IPv6, /64), and that address has to wait.
- An attempt is counted before it is compared, and both happen in one transaction; what turns out right is uncounted.
- `expired` and `reused` are said to the right secret only, for an hour after the end; anybody else hears `wrong`.

Codes and addresses are kept as keyed hashes; the key lies in a file beside the database, so that a copy of the database
opens nothing. Times in the tables are milliseconds since 1970. A clock that is set forward ends codes early and forgets
attempts; one that is set back forgets none, and prolongs an open code by as much, unless it is set to before its start.
"""

import hmac
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, NamedTuple

from bridge_server.auth import Credentials, Device, clean_name
from bridge_server.database import BadDatabase
from protocol.loopback import network
from protocol.pairing import CODE_LETTERS, HANDLE_LENGTH, SECRET_LENGTH, Code

MAX_WRONG: Final = 5
"""Wrong secrets that one pairing survives, the last one excepted."""

MAX_ATTEMPTS: Final = 20
"""Wrong codes that one address may send within ATTEMPT_MS."""

ATTEMPT_MS: Final = 3_600_000
MAX_OPEN: Final = 3
"""Codes of one home that are open at a time."""

MAX_CODES: Final = 60
"""Codes that one home may ask for while the earlier ones are remembered, which is REMEMBER_MS from their end."""

REMEMBER_MS: Final = 3_600_000
MAX_DEVICES: Final = 256
"""Apps of one home that stand at a time; of the revoked ones as many are remembered."""

MAX_ROWS: Final = 100_000
"""Attempts that are remembered in all. More than that within an hour push out the oldest: the limit for each pairing,
which is what keeps codes from being guessed, does not depend on them."""

CLOCK_SLACK_MS: Final = 60_000
"""How far the clock may be set back before codes from its future are dropped."""

KEY_BYTES: Final = 32

_log = logging.getLogger("bridge_server.pairing")

Verdict = Literal["redeem", "wrong", "expired", "reused"]
Status = Literal["open", "redeemed", "expired", "closed"]


class PairingRefused(Exception):
    """No. `code` is a key of `protocol.errors.API_ERRORS`; `retry_after` (seconds) says when it is worth asking again.

    The text never holds any part of a code.
    """

    def __init__(self, code: str, retry_after: float | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.retry_after = retry_after


class Pairing(NamedTuple):
    """One row: a code and what became of it."""

    id: str
    server_id: str
    secret: bytes
    scopes: tuple[str, ...]
    state: str
    wrong: int
    created_at: int
    ends_at: int
    device_id: str | None


class Issued(NamedTuple):
    """A new code, in clear for the only time. `expires_at` is seconds since 1970."""

    id: str
    code: Code
    expires_at: float
    scopes: tuple[str, ...]


def judge(pairing: Pairing | None, right: bool, now: int) -> Verdict:
    """What a redemption gets: `pairing` is where the handle leads, None if nowhere; `right` whether the secret fits."""
    if pairing is None or pairing.wrong >= MAX_WRONG or not right:
        return "wrong"
    if pairing.state == "redeemed":
        return "reused"
    return "redeem" if status(pairing, now) == "open" else "expired"


def status(pairing: Pairing, now: int) -> Status:
    """What the home is told of a pairing."""
    if pairing.state == "redeemed":
        return "redeemed"
    if pairing.state == "closed" or pairing.wrong >= MAX_WRONG:
        return "closed"
    return "open" if pairing.created_at - CLOCK_SLACK_MS <= now < pairing.ends_at else "expired"


def wait_ms(times: Sequence[int], now: int, most: int = MAX_ATTEMPTS, period: int = ATTEMPT_MS) -> int:
    """How long until one more is within `most` in any `period`, given the earlier ones in rising order; 0: now."""
    recent = [at for at in times if at > now - period]
    return max(1, recent[-most] + period - now) if len(recent) >= most else 0


class Pairings:
    """The pairings in the hub's database. Belongs to the thread that opened `credentials`; every call is synchronous.

    `clock` is seconds since 1970, `choose` picks one of a sequence unpredictably. Raises database.BadDatabase when the
    key file can't be used.
    """

    def __init__(
        self,
        credentials: Credentials,
        *,
        clock: Callable[[], float] = time.time,
        choose: Callable[[Sequence[str]], str] = secrets.choice,
    ) -> None:
        self._credentials = credentials
        self._database = credentials.database
        self._clock = clock
        self._choose = choose
        self._key = load_key(self._database.path.with_name(self._database.path.name + ".pairing-key"))

    def open(self, server_id: str, scopes: Sequence[str], seconds: float) -> Issued:
        """A new code for an app of the home `server_id`, for `seconds`.

        Raises PairingRefused: `rate_limited` (MAX_OPEN, MAX_CODES), `too_many_devices`, `overloaded` (no handle free).
        """
        with self._database.writing() as connection:
            now = self._now()
            self._purge(connection, now)
            earlier = [self._row(row) for row in connection.execute(f"{_SELECT} WHERE server_id = ?", (server_id,))]
            ends = sorted(row.ends_at for row in earlier if status(row, now) == "open")
            if len(ends) >= MAX_OPEN:
                raise PairingRefused("rate_limited", max(0.001, (ends[-MAX_OPEN] - now) / 1000))
            if len(earlier) >= MAX_CODES:
                oldest = sorted(row.ends_at for row in earlier)[-MAX_CODES]
                raise PairingRefused("rate_limited", max(0.001, (oldest + REMEMBER_MS - now) / 1000))
            (standing,) = connection.execute(
                "SELECT count(*) FROM credentials WHERE server_id = ? AND kind = 'device' AND revocation IS NULL",
                (server_id,),
            ).fetchone()
            if standing >= MAX_DEVICES:
                raise PairingRefused("too_many_devices")
            code = Code(self._free_handle(connection, now), self._letters(SECRET_LENGTH))
            pairing_id, ends_at = secrets.token_hex(16), now + round(seconds * 1000)
            connection.execute(
                "INSERT INTO pairings (id, server_id, handle, secret, scopes, created_at, ends_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    pairing_id,
                    server_id,
                    self._hash("handle", code.handle),
                    self._hash("secret", code.handle + code.secret),
                    " ".join(scopes),
                    now,
                    ends_at,
                ),
            )
        return Issued(pairing_id, code, ends_at / 1000, tuple(scopes))

    def find(self, server_id: str, pairing_id: str) -> tuple[Status, Device | None]:
        """What became of a pairing of this home, and its app once redeemed. Raises PairingRefused (`not_found`)."""
        pairing = self._own(server_id, pairing_id)
        device = self._credentials.device(server_id, pairing.device_id) if pairing.device_id is not None else None
        return status(pairing, self._now()), device

    def close(self, server_id: str, pairing_id: str) -> None:
        """End a pairing of this home, if it has not ended yet. Raises PairingRefused (`not_found`)."""
        with self._database.writing() as connection:
            pairing, now = self._own(server_id, pairing_id), self._now()
            if status(pairing, now) == "open":
                connection.execute("UPDATE pairings SET state = 'closed', ends_at = ? WHERE id = ?", (now, pairing.id))

    def redeem(self, code: Code, name: str, address: str) -> tuple[Device, str, str]:
        """Redeem `code` for an app called `name` that comes from `address`: the device, its token, the home's name.

        Raises PairingRefused (`wrong`, `expired`, `reused`, `rate_limited`), and ValueError for an unusable name.
        """
        name = clean_name(name)
        place = self._hash("address", network(address))
        # Nothing is raised inside the transaction: what was counted has to stay counted.
        with self._database.writing() as connection:
            now = self._now()
            connection.execute("UPDATE pairing_attempts SET at = ?1 WHERE at > ?1", (now,))
            times = [row[0] for row in connection.execute(_ATTEMPTS, (place, now - ATTEMPT_MS))]
            wait = wait_ms(times, now)
            made, refusal = (None, "rate_limited") if wait else self._attempt(connection, code, name, place, now)
        if made is None:
            raise PairingRefused(refusal, wait / 1000 if wait else None)
        return made

    def _attempt(
        self, connection: sqlite3.Connection, code: Code, name: str, place: bytes, now: int
    ) -> tuple[tuple[Device, str, str] | None, str]:
        self._purge(connection, now)
        pairing, verdict = self._compare(connection, code, place, now)
        if pairing is None or verdict != "redeem":
            return None, verdict
        try:
            server_name = self._credentials.server_name(pairing.server_id)
        except KeyError:
            return None, "expired"  # the home was revoked meanwhile
        device, token = self._credentials.insert_device(pairing.server_id, name, pairing.scopes)
        connection.execute(
            "UPDATE pairings SET state = 'redeemed', ends_at = ?, device_id = ? WHERE id = ?",
            (now, device.device_id, pairing.id),
        )
        self._forget_revoked(connection, pairing.server_id)
        return (device, token, server_name), verdict

    def _compare(
        self, connection: sqlite3.Connection, code: Code, place: bytes, now: int
    ) -> tuple[Pairing | None, Verdict]:
        (attempt,) = connection.execute(
            "INSERT INTO pairing_attempts (address, at) VALUES (?, ?) RETURNING id", (place, now)
        ).fetchone()
        handle = self._hash("handle", code.handle)
        row = connection.execute(f"{_SELECT} WHERE handle = ?", (handle,)).fetchone()
        connection.execute("UPDATE pairings SET wrong = min(wrong + 1, ?) WHERE handle = ?", (MAX_WRONG, handle))
        pairing = self._row(row) if row is not None else None
        # An unknown handle is compared too, with what nothing equals: both take the same time.
        expected = pairing.secret if pairing is not None else bytes(32)
        right = hmac.compare_digest(expected, self._hash("secret", code.handle + code.secret))
        verdict = judge(pairing, right, now)
        if verdict != "wrong":
            connection.execute("DELETE FROM pairing_attempts WHERE id = ?", (attempt,))
            connection.execute("UPDATE pairings SET wrong = wrong - 1 WHERE handle = ?", (handle,))
        elif pairing is not None and pairing.wrong + 1 == MAX_WRONG:
            _log.warning("pairing %s of home %s is dead: too many wrong secrets", pairing.id, pairing.server_id)
        return pairing, verdict

    def _purge(self, connection: sqlite3.Connection, now: int) -> None:
        connection.execute(
            "DELETE FROM pairings WHERE ends_at <= ? OR created_at > ?", (now - REMEMBER_MS, now + CLOCK_SLACK_MS)
        )
        connection.execute("DELETE FROM pairing_attempts WHERE at <= ?", (now - ATTEMPT_MS,))
        connection.execute(
            "DELETE FROM pairing_attempts WHERE id <= (SELECT max(id) FROM pairing_attempts) - ?", (MAX_ROWS,)
        )

    def _forget_revoked(self, connection: sqlite3.Connection, server_id: str) -> None:
        # The newest revocations stay, so the highest number of all does: from it the next one is counted.
        connection.execute(
            "DELETE FROM credentials WHERE id IN (SELECT id FROM credentials WHERE server_id = ? AND kind = 'device'"
            " AND revocation IS NOT NULL ORDER BY revocation DESC LIMIT -1 OFFSET ?)",
            (server_id, MAX_DEVICES),
        )

    def _free_handle(self, connection: sqlite3.Connection, now: int) -> str:
        for patience in range(100, 0, -1):
            handle = self._letters(HANDLE_LENGTH)
            marked = self._hash("handle", handle)
            row = connection.execute(f"{_SELECT} WHERE handle = ?", (marked,)).fetchone()
            if row is None:
                return handle
            # Only when handles are scarce, one is taken from a pairing that has ended: its code then says `wrong`.
            if patience <= 50 and status(self._row(row), now) != "open":
                connection.execute("UPDATE pairings SET handle = NULL WHERE handle = ?", (marked,))
                return handle
        raise PairingRefused("overloaded", 60.0)

    def _own(self, server_id: str, pairing_id: str) -> Pairing:
        # Another home's pairing and none at all are the same question with the same answer.
        row = self._database.connection.execute(
            f"{_SELECT} WHERE id = ? AND server_id = ?", (pairing_id, server_id)
        ).fetchone()
        if row is None:
            raise PairingRefused("not_found")
        return self._row(row)

    @staticmethod
    def _row(row: Sequence[object]) -> Pairing:
        pairing_id, server_id, secret, scopes, *rest = row
        return Pairing(pairing_id, server_id, secret, tuple(str(scopes).split()), *rest)  # type: ignore[arg-type]

    def _letters(self, count: int) -> str:
        return "".join(self._choose(CODE_LETTERS) for _ in range(count))

    def _hash(self, label: str, text: str) -> bytes:
        return hmac.digest(self._key, f"{label}\0{text}".encode(), sha256)

    def _now(self) -> int:
        return int(self._clock() * 1000)


_SELECT = "SELECT id, server_id, secret, scopes, state, wrong, created_at, ends_at, device_id FROM pairings"
_ATTEMPTS = "SELECT at FROM pairing_attempts WHERE address = ? AND at > ? ORDER BY at"


def load_key(path: Path) -> bytes:
    """The key in `path`, made at the first call; of several processes that make it at once, one wins for all."""
    try:
        if not path.exists():
            fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            handle = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(secrets.token_bytes(KEY_BYTES))
                    file.flush()
                    os.fsync(file.fileno())
                os.link(fresh, path)
            except FileExistsError:
                pass
            finally:
                fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            key = file.read(KEY_BYTES + 1)
    except OSError as error:
        raise BadDatabase(f"the key of pairing {path} can't be used: {error}") from None
    if len(key) != KEY_BYTES:
        raise BadDatabase(f"{path} holds no key of pairing; remove it, codes that are open now will then not serve")
    return key
