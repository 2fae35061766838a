"""Says back what it is told, in pieces, as a model would: for trying out a home without a provider or a key."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from bridge_client.clock import Clock, SystemClock
from bridge_client.runners import Checkpoint, Context, EventCallback, Request
from bridge_client.runners.telling import Telling
from bridge_client.runners.turn import Turn
from protocol.events.agent_app import text_of
from protocol.events.truncation import boundary

PIECE_CHARS: Final = 12
MOST_PIECES: Final = 400
"""A longer text comes in larger pieces, not in more."""


class EchoRunner:
    """`pause` is in seconds, between two pieces."""

    name = "echo"

    def __init__(
        self, *, pause: float = 0.03, clock: Clock | None = None, on_event: EventCallback | None = None
    ) -> None:
        self._pause = pause
        self._clock = clock or SystemClock()
        self._on_event = on_event

    async def run(self, request: Request, context: Context) -> AsyncGenerator[Mapping[str, Any] | Checkpoint, None]:
        """Never fails."""
        telling = Telling(request, self.name, on_event=self._on_event, clock=self._clock)
        text = text_of(request.messages[-1].content) if request.messages else ""
        turn = Turn(self.name)
        for piece in pieces(text or "(nothing was said)"):
            turn.say(piece)
            for told in telling.tell(turn.drain()):
                yield told
            await self._clock.sleep(self._pause)
        turn.end()
        for told in [*telling.tell(turn.drain()), *telling.checkpoint()]:
            yield told
        telling.outcome()


def pieces(text: str) -> list[str]:
    """`text` in at most about MOST_PIECES pieces; none splits a character."""
    size = max(PIECE_CHARS, -(-len(text) // MOST_PIECES))
    found, start = [], 0
    while start < len(text):
        end = boundary(text, min(len(text), start + size))
        end = end if end > start else min(len(text), start + size)
        found.append(text[start:end])
        start = end
    return found
