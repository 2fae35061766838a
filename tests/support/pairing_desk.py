"""A hub's pairings without the hub: the real database, and a clock that a test sets."""

import itertools
from pathlib import Path

import pytest

from bridge_server.auth import Credentials, Device, Server
from bridge_server.pairing import Issued, PairingRefused, Pairings
from protocol.pairing import CODE_LETTERS, Code

VIEW = ("view", "approve")
START = 1_700_000_000.0
HERE = "203.0.113.7"


class Desk:
    """A hub's pairings in a folder; `restart` opens them again, as another process would."""

    def __init__(self, folder: Path) -> None:
        self.now = START
        self.path = folder / "hub.db"
        self.start()
        self.home, _ = self.credentials.add_server("Attic")

    def start(self) -> None:
        self.credentials = Credentials(self.path, clock=lambda: self.now)
        self.pairings = Pairings(self.credentials, clock=lambda: self.now)

    def restart(self) -> None:
        self.credentials.close()
        self.start()

    def open(self, home: Server | None = None, seconds: float = 300) -> Issued:
        return self.pairings.open((home or self.home).server_id, VIEW, seconds)

    def redeem(self, code: Code, address: str = HERE) -> Device:
        return self.pairings.redeem(code, "Phone", address)[0]

    def refusal(self, code: Code, address: str = HERE) -> str:
        with pytest.raises(PairingRefused) as caught:
            self.redeem(code, address)
        assert (caught.value.retry_after is not None) == (caught.value.code == "rate_limited")
        assert code.secret not in str(caught.value)
        return caught.value.code

    def dump(self) -> bytes:
        return b"".join(file.read_bytes() for file in self.path.parent.iterdir() if file.is_file())


def wrong(code: Code, turn: int = 1) -> Code:
    """Another secret for the same handle."""
    letters = list(code.secret)
    at, step = turn % 8, 1 + turn // 8
    letters[at] = CODE_LETTERS[(CODE_LETTERS.index(letters[at]) + step) % len(CODE_LETTERS)]
    return Code(code.handle, "".join(letters))


def unknown(*taken: Issued) -> Code:
    handles = {issued.code.handle for issued in taken}
    return Code(next(h for h in map("".join, itertools.product(CODE_LETTERS, repeat=4)) if h not in handles), "B" * 8)
