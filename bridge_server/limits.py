"""How much one client may ask of the hub: the one place for limits on connections and messages, on every transport.

Apps are limited by their address (an IPv4 address, an IPv6 /64) and by their credential; homes, whose traffic everybody
waits for, by their credential only, with limits of their own. A look-up or two at a connect, a comparison or two at a
message: no timer and no task. What is remembered of a client is forgotten once it has no connection and its allowances
are whole again; the number of clients remembered is bounded.
"""

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from bridge_server.auth import Identity, Server
from bridge_server.config import Config
from protocol.loopback import is_loopback, is_trusted, network

BURST_SECONDS: Final = 10.0
"""An allowance of messages may be used up this far ahead at once."""

MAX_CLIENTS: Final = 100_000
"""Addresses and credentials that are remembered. Of more, those without a connection are forgotten first."""

RETRY_SECONDS: Final = 5
"""When to come back after a refusal that depends on others leaving."""


class Rate(NamedTuple):
    """`amount` in `period` seconds, and `burst` at once. Both at least 1."""

    amount: float
    period: float
    burst: float


class Allowance:
    """What may be taken at a rate (the generic cell rate algorithm, ITU-T I.371): one number, and no timer."""

    __slots__ = ("_full_at", "_interval", "_slack")

    def __init__(self, rate: Rate) -> None:
        self._interval = rate.period / rate.amount
        self._slack = self._interval * (rate.burst - 1)
        self._full_at = -math.inf

    def wait(self, now: float) -> float:
        """Seconds until one may be taken; 0 when now."""
        return max(0.0, self._full_at - self._slack - now)

    def take(self, now: float) -> None:
        """Take one. Ask `wait` before."""
        self._full_at = max(self._full_at, now) + self._interval

    def whole(self, now: float) -> bool:
        """Whether nothing is missing, so that forgetting it changes nothing."""
        return self._full_at <= now


class _Client:
    """An address or a credential."""

    __slots__ = ("attempts", "connections", "messages")

    def __init__(self, attempts: Rate | None, messages: Rate | None) -> None:
        self.connections = 0
        self.attempts = Allowance(attempts) if attempts else None
        self.messages = Allowance(messages) if messages else None

    def forgettable(self, now: float) -> bool:
        return not self.connections and all(
            allowance is None or allowance.whole(now) for allowance in (self.attempts, self.messages)
        )


class TooMany(NamedTuple):
    """No. `reason` is a key of `protocol.errors.REFUSALS`, `retry_after` whole seconds."""

    reason: str
    retry_after: int


class Admission:
    """One open connection, as long as nobody calls `release`."""

    __slots__ = ("_clients", "_limits", "_messages")

    def __init__(self, limits: "Limits", clients: tuple[_Client, ...]) -> None:
        self._limits = limits
        self._clients = clients
        self._messages = tuple(client.messages for client in clients if client.messages is not None)
        for client in clients:
            client.connections += 1

    def message(self, now: float) -> int:
        """Count one message: 0, or in how many milliseconds it may come again. One that may not come costs nothing."""
        for allowance in self._messages:
            if allowance.wait(now):
                self._limits.messages_refused += 1
                return math.ceil(1000 * max(allowance.wait(now) for allowance in self._messages))
        for allowance in self._messages:
            allowance.take(now)
        return 0

    def release(self) -> None:
        """The connection is over. Calling it twice is harmless."""
        for client in self._clients:
            client.connections -= 1
        self._clients = ()


@dataclass(frozen=True, kw_only=True)
class _Numbers:
    """The limits of one kind of client; None is no limit."""

    connections: int | None = None
    attempts: Rate | None = None
    messages: Rate | None = None

    def __bool__(self) -> bool:
        return self != _NONE


_NONE: Final = _Numbers()


def _per_second(number: int | None) -> Rate | None:
    return Rate(number, 1.0, max(1.0, number * BURST_SECONDS)) if number else None


class Limits:
    """What is open, and what was asked lately, by address and by credential.

    A limit that the operator did not choose has its default for clients on other machines, and none for those on this
    one: a program of the operator's own, or everybody behind a proxy that `trusted_proxies` does not name. One that was
    chosen holds for all.
    """

    def __init__(self, config: Config) -> None:
        self.messages_refused = 0
        self._clients: dict[str | int, _Client] = {}
        self._tidy_at = 1024
        self._half = max(1, config.max_connections // 2)
        self._local = _kinds(config, {})
        self._remote = _kinds(config, DEFAULTS)

    def admit(self, identity: Identity | None, address: str, now: float) -> Admission | TooMany | None:
        """A connection of `identity` from `address`, as `loopback.client_address` gives it. None: nothing to count.

        Refusals say `too_many_attempts` (by address only) or `too_many_connections`. Call `release` at its end.
        """
        by_address, by_credential, by_home = self._local if is_loopback(address) else self._remote
        clients = []
        if not isinstance(identity, Server):
            if by_address:
                client = self._client(network(address), by_address, now)
                if refused := _attempted(client, now):
                    return refused
                if _full(client, by_address):
                    return TooMany("too_many_connections", RETRY_SECONDS)
                clients.append(client)
        else:
            by_credential = by_home
        if identity is not None and by_credential:
            client = self._client(identity.credential_id, by_credential, now)
            if _full(client, by_credential):
                return TooMany("too_many_connections", RETRY_SECONDS)
            clients.append(client)
        return Admission(self, tuple(clients)) if clients else None

    def strangers(self, address: str, trusted_proxies: tuple[str, ...]) -> int | None:
        """How many connections that are no sockets of apps an address may hold open: None is no limit.

        Twice as many as sockets, for each session of long polling has one while it polls; but never so many that all
        other addresses share less than half of what the hub takes. A proxy in `trusted_proxies` speaks for many.
        """
        by_address, _, _ = self._local if is_loopback(address) else self._remote
        if by_address.connections is None or is_trusted(address, trusted_proxies):
            return None
        return min(2 * by_address.connections, self._half)

    def refused(self, address: str, now: float) -> TooMany | None:
        """Count a request that was refused for another reason; a refusal instead of that one if there were too many."""
        by_address, _, _ = self._local if is_loopback(address) else self._remote
        return _attempted(self._client(network(address), by_address, now), now) if by_address.attempts else None

    def __len__(self) -> int:
        return len(self._clients)

    def _client(self, key: str | int, numbers: _Numbers, now: float) -> _Client:
        client = self._clients.get(key)
        if client is None:
            if len(self._clients) >= self._tidy_at:
                self._tidy(now)
            client = self._clients[key] = _Client(numbers.attempts, numbers.messages)
        return client

    def _tidy(self, now: float) -> None:
        kept = {key: client for key, client in self._clients.items() if not client.forgettable(now)}
        # So many that do something: those that have no connection lose their count, the oldest first.
        idle = [key for key, client in kept.items() if not client.connections]
        for key in idle[: max(0, len(kept) - MAX_CLIENTS // 2)]:
            del kept[key]
        self._clients = kept
        self._tidy_at = min(max(1024, 2 * len(kept)), max(MAX_CLIENTS, len(kept) + 1024))


def _attempted(client: _Client, now: float) -> TooMany | None:
    if client.attempts is None:
        return None
    if wait := client.attempts.wait(now):
        return TooMany("too_many_attempts", math.ceil(wait))
    client.attempts.take(now)
    return None


def _full(client: _Client, numbers: _Numbers) -> bool:
    return numbers.connections is not None and client.connections >= numbers.connections


DEFAULTS: Final = {
    "address_connections": 1_000,
    "address_attempts": 600,
    "address_messages": 1_000,
    "credential_connections": 100,
    "credential_messages": 50,
    "home_connections": 10,
    "home_messages": 5_000,
}
"""For clients on other machines, where the operator did not choose."""


def _kinds(config: Config, defaults: dict[str, int]) -> tuple[_Numbers, _Numbers, _Numbers]:
    def number(name: str) -> int | None:
        chosen: int | None = getattr(config, name)
        return defaults.get(name) if chosen is None else chosen

    attempts = number("address_attempts")
    return (
        _Numbers(
            connections=number("address_connections"),
            attempts=Rate(attempts, 60.0, attempts) if attempts else None,
            messages=_per_second(number("address_messages")),
        ),
        _Numbers(connections=number("credential_connections"), messages=_per_second(number("credential_messages"))),
        _Numbers(connections=number("home_connections"), messages=_per_second(number("home_messages"))),
    )
