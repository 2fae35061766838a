"""Connections that are no peer yet, or never will be: their request head is being read, or they ask for HTTP.

An address may hold so many of them, or anybody could take every descriptor of the hub with connections that say
nothing. They are counted by the address at the other end of the socket, before a byte of them is read.
"""

import asyncio

from bridge_server.limits import Limits
from protocol.loopback import client_address, network


class Strangers:
    """Open transports by the network they come from. One that became a peer is dropped; one that ended, by `sweep`."""

    def __init__(self, limits: Limits, trusted_proxies: tuple[str, ...]) -> None:
        self._limits = limits
        self._trusted = trusted_proxies
        self._counts: dict[str, int] = {}
        self._networks: dict[asyncio.BaseTransport, str] = {}

    def __len__(self) -> int:
        return len(self._networks)

    def take(self, transport: asyncio.BaseTransport) -> bool:
        """Count a new connection; False when its address holds too many, and it is not counted."""
        address = client_address(transport.get_extra_info("peername"), (), ())
        most = self._limits.strangers(address, self._trusted)
        if most is None:
            return True
        key = network(address)
        if self._counts.get(key, 0) >= most:
            self.sweep()
            if self._counts.get(key, 0) >= most:
                return False
        self._networks[transport] = key
        self._counts[key] = self._counts.get(key, 0) + 1
        return True

    def drop(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection no longer. Nothing happens if it never was."""
        key = self._networks.pop(transport, None)
        if key is not None:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    def sweep(self) -> None:
        """Drop what has ended. Called about once a second: aiohttp, which has most of them, does not say."""
        for transport in [one for one in self._networks if one.is_closing()]:
            self.drop(transport)
