"""An event loop on virtual time, and the processes that live in it: each can be killed, frozen, or put to sleep.

Nothing here waits for a socket, a thread or a real clock: when nothing is ready, the time jumps to the next timer. So a
run is a function of its seed. What a process does is told from the rest by a context variable that every task and timer
inherits; a killed process never runs again, whatever it was in the middle of.
"""

import asyncio
import heapq
import inspect
import itertools
import warnings
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

WALL_START = 1_800_000_000.0

MOST_STEPS = 200_000
"""Many times what a run takes: somebody goes round in circles."""

_PROCESS: ContextVar["Process | None"] = ContextVar("process", default=None)


def current() -> "Process | None":
    """The process whose code runs now; None in the world around them."""
    return _PROCESS.get()


_TURN = 1e-7  # seconds of one turn of the loop: else who waits for less than a clock can tell would wait for ever


class Endless(SystemExit):
    """A run that comes to no end."""


def _give_up() -> None:
    raise Endless(f"no end after {MOST_STEPS} steps: somebody goes round in circles")


class _Selector:
    """Instead of sleeping until the next timer, moves the time there."""

    def __init__(self) -> None:
        self.time = 1000.0

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again: something waits for what no timer brings")
        self.time += timeout + _TURN
        return []


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `network` makes its connections."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._selector = _Selector()
        self.random = random
        self.network: Any = None
        self.steps = 0

    def time(self) -> float:
        return self._selector.time

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    # Whose callbacks these are.

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        self.steps += 1
        if self.steps == MOST_STEPS:
            self.at_once(_give_up)
        handle = events.Handle(callback, args, self, context)
        process = handle._context.get(_PROCESS)  # type: ignore[attr-defined]
        if process is None or process.schedules(handle):
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        process = timer._context.get(_PROCESS)  # type: ignore[attr-defined]
        if process is None or process.schedules(timer):
            self._push(timer)
        return timer

    def _push(self, timer: Any) -> None:
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True

    def take_back(self, process: "Process") -> list[Any]:
        """Remove everything that `process` has scheduled, and return it in order: what is ready, then timers."""
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined,has-type]
        mine = []
        for place, handle in enumerate(ready):
            if handle._context.get(_PROCESS) is process:
                mine.append(handle)
                ready[place] = _NOTHING  # the loop may be counting on the length
        timed = sorted(timer for timer in timers if timer._context.get(_PROCESS) is process)
        if timed:
            taken = set(map(id, timed))
            self._scheduled = [timer for timer in timers if id(timer) not in taken]
            heapq.heapify(self._scheduled)
        return [handle for handle in (*mine, *timed) if not handle._cancelled]

    def put_back(self, handles: list[Any], later: float) -> None:
        """Schedule again what was taken back; timers `later` seconds after their time."""
        for handle in handles:
            if isinstance(handle, asyncio.TimerHandle):
                handle._when += later  # type: ignore[attr-defined]
                self._push(handle)
            else:
                self._ready.append(handle)  # type: ignore[attr-defined]

    def at_once(self, callback: Callable[[], object]) -> None:
        """Run `callback` next, in the world's own context."""
        handle = events.Handle(callback, (), self, Context())
        self._ready.appendleft(handle)  # type: ignore[attr-defined]

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> Any:
        task = super().create_task(coro, name=name, context=context)
        process = current() if context is None else context.get(_PROCESS)
        if process is not None:
            process.adopt(task)
        return task

    # Threads: their work is done in one piece, a little later.

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()
        process = current()

        def work() -> None:
            if process is not None:
                process.jobs.pop(number, None)
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                future.set_exception(error)
                future.exception()  # who waits for it may be killed before it looks: nobody's fault
            else:
                future.set_result(result)

        if process is not None:
            number = next(_numbers)
            process.jobs[number] = lambda: func(*args)
        self.call_later(self.random.choice((0.0001, 0.001, 0.02)), work)
        return future

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.connect(factory, port)

    async def create_server(self, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return self.network.listen(factory, port)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass


class _Nothing:
    _cancelled = True
    _context = Context()


_NOTHING = _Nothing()
_numbers = itertools.count()


class Process:
    """One program on one machine. `jobs` is what its threads have not done yet."""

    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.alive = True
        self.frozen = False
        self.was_frozen = False
        self.jobs: dict[int, Callable[[], object]] = {}
        self._context = copy_context()
        self._context.run(_PROCESS.set, self)
        self._tasks: list[asyncio.Task[Any]] = []
        self._files: list[Any] = []
        self._held: list[Any] = []
        self._frozen_at = 0.0
        self._asleep = 0.0
        self._fuse: int | None = None
        self._on_fuse: Callable[[], object] | None = None
        self.clock_step = 0.0

    # Its clocks (`bridge_client.clock.Clock`); those of the hub are made of these.

    def monotonic(self) -> float:
        return self.loop.time() - self._asleep

    def wall(self) -> float:
        return WALL_START + self.loop.time() + self.clock_step

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # Its code.

    def run(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call into it from outside."""
        if current() is self:
            return call(*args)
        if self.frozen:
            self._held.append(events.Handle(call, args, self.loop, self._context.copy()))
            return None
        return self._context.copy().run(call, *args)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Run a coroutine in it."""
        task: asyncio.Task[Any] = self.loop.create_task(work, context=self._context.copy())
        return task

    def opened(self, file: Any) -> None:
        """It has opened something that the system closes when it dies."""
        self._files.append(file)

    def adopt(self, task: "asyncio.Task[Any]") -> None:
        if len(self._tasks) > 100:
            self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(task)

    def schedules(self, handle: Any) -> bool:
        """Whether what it schedules may run; a frozen process gets it later, a dead one never."""
        if self._fuse is not None:
            self._fuse -= 1
            if self._fuse <= 0 and self._on_fuse is not None:
                self._fuse = None
                self.loop.at_once(self._on_fuse)
        if not self.alive:
            handle.cancel()
            return False
        if self.frozen:
            self._held.append(handle)
            return False
        return True

    # What befalls it.

    def after_steps(self, steps: int, then: Callable[[], object]) -> None:
        """Call `then` between two of its steps, `steps` of them from now: at any of its awaits."""
        self._fuse, self._on_fuse = steps, then

    def freeze(self) -> None:
        """Stop it, as SIGSTOP does."""
        if self.alive and not self.frozen:
            self._held = self.loop.take_back(self)
            self.frozen = self.was_frozen = True
            self._frozen_at = self.loop.time()

    def thaw(self, *, slept: bool = False) -> None:
        """Let it go on; `slept` = the whole machine slept, and its monotonic clock and timers stood still."""
        if self.alive and self.frozen:
            self.frozen = False
            away = self.loop.time() - self._frozen_at if slept else 0.0
            self._asleep += away
            held, self._held = self._held, []
            self.loop.put_back([handle for handle in held if not handle._cancelled], away)

    def kill(self) -> list[Callable[[], object]]:
        """End it between two steps; everything in its memory is gone. Returns what its threads were about to do."""
        self.alive = False
        for handle in self.loop.take_back(self) + self._held:
            handle.cancel()
        self._held = []
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self._context.copy().run(_end, task.get_coro())
            elif not task.cancelled():
                task.exception()  # nobody is left to ask
        self._tasks = []
        for file in self._files:
            file.close()
        self._files = []
        jobs, self.jobs = list(self.jobs.values()), {}
        return jobs


def _end(coroutine: Any) -> None:
    # Left to the garbage collector, their ends would come at a random moment. Nobody sees what they still do.
    if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
        for value in coroutine.cr_frame.f_locals.values():  # a task that had not begun holds what it would await
            if inspect.iscoroutine(value):
                _end(value)
    for _ in range(50):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # tasks that had not begun hold coroutines unawaited
                coroutine.close()
        except BaseException:  # waits for something in a `finally`: closed again
            continue
        return
