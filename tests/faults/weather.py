"""A TCP relay that treats its connections as bad networks do: at random, by a seed, it cuts, stalls and trickles."""

import asyncio
import random

from tests.support.cable import Cable, reset


class Weather(Cable):
    """Relays connections on a port of its own to `port` on 127.0.0.1; bad until `clear`."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(port)
        self._random = random.Random(seed)
        self._bad = True
        self.cuts = self.stalls = self.trickles = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def clear(self) -> None:
        """From here on carry everything at once."""
        self._bad = False

    async def carry(self, data: bytes, sink: asyncio.StreamWriter) -> None:
        """Hand on what one end has sent, as the weather allows."""
        chance = self._random.random() if self._bad else 1.0
        if chance < 0.01:
            self.cuts += 1
            await super().carry(data[: self._random.randint(0, len(data))], sink)  # what is in the way still arrives
            reset(sink)
            raise ConnectionResetError("cut")
        if chance < 0.04:
            self.stalls += 1
            await asyncio.sleep(self._random.choice((0.05, 0.3, 1.0)))
        elif chance < 0.12:
            self.trickles += 1
            while len(data) > 1 and self._bad:
                size = self._random.randint(1, max(1, len(data) // 3))
                await super().carry(data[:size], sink)
                data = data[size:]
                await asyncio.sleep(0.002)
        await super().carry(data, sink)
