"""An event loop whose time passes only while it has nothing to do, and then at once.

A day of timers runs in milliseconds, and always the same way. Nothing in it may wait for a real socket or a thread.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any


class _Selector(selectors.SelectSelector):
    """Instead of sleeping until the next timer, moves the time there."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("nothing will ever happen again: a test waits for what no timer brings")
            self.time += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time; `time()` starts at 1000."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.time


def virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on virtual time. Fails when it leaves an exception that nobody took."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        loop = VirtualLoop()
        unhandled: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(test(*args, **kwargs))
        assert not unhandled, unhandled

    return run


async def settle() -> None:
    """Let everything that is ready now run, and whatever that makes ready; hardly any time passes."""
    await asyncio.sleep(1e-6)
