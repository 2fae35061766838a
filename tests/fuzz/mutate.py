"""Inputs for a target without a guide: a seed with pieces cut out, doubled, replaced, put in."""

import random
from collections.abc import Iterator

from tests.fuzz.targets import Target

MAX_BYTES = 20_000
MAX_EDITS = 6


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """Without end; the same for the same `seed`."""
    chance = random.Random(seed)
    while True:
        data = chance.choice(target.seeds)
        for _ in range(chance.randint(1, MAX_EDITS)):
            data = _edited(chance, target, data)[:MAX_BYTES]
        yield data


def _edited(chance: random.Random, target: Target, data: bytes) -> bytes:
    start = chance.randint(0, len(data))
    end = min(len(data), start + chance.choice((1, 1, 2, 4, 8, 32)))
    match chance.randrange(7):
        case 0 | 1:
            return data[:start] + chance.choice(target.tokens) + data[start:]
        case 2:
            return data[:start] + chance.choice(target.tokens) + data[end:]
        case 3:
            return data[:start] + data[end:]
        case 4:
            return data[:end] + data[start:end] * chance.randint(1, 40) + data[end:]
        case 5:
            return data[:start] + chance.choice(target.seeds)[chance.randint(0, 8) :]
        case _:
            return (
                data[:start]
                + bytes(byte ^ 1 << chance.randrange(8) for byte in data[start:end][:1])
                + data[start + 1 :]
            )
