"""Requests under way: a runner's events into the store, its checkpoints into the session (rows A40 to A47, A80 to A94).

One request a session: a second one is refused while it runs. What is told of a request, in this order:

    message_appended, checkpoint   the user's message; they belong to the session, not to the request
    request_started                first and once (A42, A43)
    …                              what the runner yields, in its order (A41)
    checkpoint                     for each Checkpoint, with its messages in the history (A82, A84, A93)
    error | request_cancelled      if it failed, or was cancelled (A44, A47)
    request_completed              last and once, whatever happened (A45, A46)

What arrives while other events are being stored is stored together. Events are durable before anything that depends on
them: a checkpoint, a question to the person, a notification, the last lines; and before a runner goes on that has told
what messages come of. The last two lines and the end of the request are stored as one. A request that a home leaves
behind, because it stops or is killed, ends with an `error`: when it stops, or at its next start (`recover`). What a
request has told whole is in the history when it is over, also where its runner did not come to the checkpoint: who
loads the session later reads on behind its cursor, and would miss it (row A96).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import chain, repeat
from secrets import token_urlsafe
from typing import Any, Final

import msgspec

from bridge_client import session_rules as rules
from bridge_client.clock import Clock
from bridge_client.notification_rules import without as without_notifications
from bridge_client.publishing import Publishing
from bridge_client.request_endings import error_event, failure_event, last_events, raised
from bridge_client.runners import Checkpoint, Message, Request, Runner
from bridge_client.running_request import (
    APPROVAL_SECONDS,
    MAX_APPROVALS,
    Approval,
    NotRunning,
    RequestIdTaken,
    Running,
    TooManyRequests,
)
from bridge_client.session_rules import RequestRunning, SessionError
from bridge_client.sessions import Sessions
from bridge_client.store import EventStore, StoreClosed, StoreError
from bridge_client.told_messages import CAPTURED, ToldMessages
from protocol.errors import InvalidEvent
from protocol.events import agent_app

MAX_RUNNING: Final = 64
"""Requests at the same time, over all sessions."""

CLEANUP_SECONDS: Final = 10.0
"""How long a cancelled runner may take to end. One that takes longer is left behind, and the log says so."""

STOPPED: Final = "the home stopped during this request"
GONE: Final = "the program that ran this request was ended"

RECOVER_SECONDS: Final = 15.0
"""Between two looks for requests of other programs that ended without ending them."""

_RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)

log = logging.getLogger(__name__)

Json = dict[str, Any]
Notify = Callable[[str, Mapping[str, Any]], Awaitable[None]]
"""Makes a notification of a session."""
OnCheckpoint = Callable[[str, str, Sequence[Message]], object]
"""Gets session, request and messages of each checkpoint once it is durable (row A83)."""


class RequestExecution:
    """The requests of one home. `recover` comes first, `close` last."""

    def __init__(
        self,
        sessions: Sessions,
        store: EventStore,
        clock: Clock,
        *,
        notify: Notify | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        max_running: int = MAX_RUNNING,
        elsewhere: Callable[[str], bool] = lambda request_id: False,
    ) -> None:
        """`elsewhere` says of a request whether another program runs it, which ends it then."""
        self._sessions = sessions
        self._store = store
        self._clock = clock
        self._notify = notify
        self._on_checkpoint = on_checkpoint
        self._max_running = max_running
        self._elsewhere = elsewhere
        self._running: dict[str, Running] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def recover(self, why: str = STOPPED) -> int:
        """End what nobody runs any more; how many requests that were. `why` is told of each. Raises StoreError."""
        ended = 0
        for left in await self._sessions.with_request():
            session_id, request_id = left.session_id, left.request_id
            if request_id is None or session_id in self._running or self._elsewhere(request_id):
                continue
            if (await self._sessions.get(session_id)).request_id != request_id:
                continue  # whoever ran it has ended it meanwhile
            await self._capture(session_id, request_id)
            about = {"session_id": session_id, "request_id": request_id}
            await self._sessions.end(session_id, request_id, last_events(about, error_event(why)))
            log.warning("request %s of session %s: %s", request_id, session_id, why)
            ended += 1
        return ended

    async def keep_recovering(self) -> None:
        """Recover now and then, without end: other programs may run requests in this store, and be killed."""
        while True:
            await self._clock.sleep(RECOVER_SECONDS)
            try:
                await self.recover(GONE)
            except StoreError as error:
                log.warning("looking for requests that nobody runs any more failed: %s", error)

    def running(self, session_id: str) -> Running | None:
        """The request under way in this session."""
        return self._running.get(session_id)

    async def start(
        self,
        session_id: str,
        message: Message,
        *,
        runner: Runner,
        stream: bool = True,
        stream_tools: bool = True,
        request_id: str | None = None,
    ) -> str:
        """Begin a request in the background (row A40); its id. The message is durable when this returns.

        A `request_id` of the caller makes it repeatable: one that this session has had is not run again.

        Raises RequestRunning, TooManyRequests, RequestIdTaken, and what `Sessions.begin` raises.
        """
        if request_id is not None:
            rules.check_id(request_id, "request_id")
        publishing = Publishing(self._store)
        running = Running(session_id, request_id or token_urlsafe(12), stream, stream_tools, publishing)
        # Whoever asked may go away meanwhile: what has begun goes on.
        return await asyncio.shield(self._spawn(self._begin(running, message, runner, fresh=request_id is None)))

    async def _had(self, session_id: str, request_id: str) -> bool:
        found = await self._store.list(request_id=request_id, limit=1)
        if found and msgspec.json.decode(found[0].data).get("session_id") != session_id:
            raise RequestIdTaken(f"another session has had a request {request_id!r}")
        return bool(found)

    async def _begin(self, running: Running, message: Message, runner: Runner, *, fresh: bool) -> str:
        session_id, before = running.session_id, self._running.get(running.session_id)
        if self._closing.done():
            raise StoreClosed("the home is stopping")
        if before is not None:
            if before.request_id == running.request_id:
                return running.request_id
            raise RequestRunning(session_id, before.request_id)
        if len(self._running) >= self._max_running:
            raise TooManyRequests(f"{self._max_running} requests run already; wait until one has ended")
        self._running[session_id] = running  # before it is told: who hears of it may cancel it
        try:
            if not fresh and await self._had(session_id, running.request_id):
                del self._running[session_id]
                return running.request_id
            await self._sessions.begin(session_id, running.request_id, message, stream=running.stream)
        except BaseException:
            self._running.pop(session_id, None)
            raise
        self._spawn(self._conduct(running, runner))
        return running.request_id

    def cancel(self, session_id: str, request_id: str) -> None:
        """Cancel it; `request_cancelled` tells when it has ended (row A44). Raises NotRunning."""
        running = self._find(session_id, request_id)
        running.stop("cancelled")
        if running.stopped.result() != "cancelled":
            raise NotRunning(f"request {request_id} is ending already")

    def decide(self, session_id: str, request_id: str, approval_id: str, allow: bool) -> None:
        """Answer a question of a request. Raises NotRunning, NoSuchApproval, AlreadyDecided."""
        self._find(session_id, request_id).decide(approval_id, allow)

    def _find(self, session_id: str, request_id: str) -> Running:
        running = self._running.get(session_id)
        if running is None or running.request_id != request_id:
            raise NotRunning(f"no request {request_id[:128]!r} runs in session {session_id[:128]!r}")
        return running

    async def close(self) -> None:
        """Stop what runs; each request ends with an `error`. May be called again."""
        if not self._closing.done():
            self._closing.set_result(None)
        for running in self._running.values():
            running.stop("stopped")
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # One request.

    async def _conduct(self, running: Running, runner: Runner) -> None:
        work = asyncio.create_task(self._work(running, runner))
        failed = running.publishing.failed
        ends: set[asyncio.Future[Any]] = {work, running.stopped, failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
            await asyncio.wait({work}, timeout=CLEANUP_SECONDS)
        for approval_id in list(running.open):
            running.settle(approval_id, False)
        about = {"session_id": running.session_id, "request_id": running.request_id}
        if not work.done():
            log.error("runner %s does not end request %s: it is left behind", runner.name, running.request_id)
            work.add_done_callback(_retrieve)
        why = running.stopped.result() if running.stopped.done() else None
        running.stop("over")  # what an abandoned runner still yields goes nowhere
        with suppress(Exception):  # `failed` has it
            await running.publishing.flush()
        ended = raised(work)  # looked at whatever happens: nobody else does, and asyncio would complain
        error = failed.result() if failed.done() else ended
        failure = None if error is None else failure_event(error, runner, running.request_id)
        if why == "cancelled":
            failure = {"type": "request_cancelled"}
        elif why == "stopped":
            failure = error_event(STOPPED)
        await self._end(running, about, failure)

    async def _end(self, running: Running, about: Mapping[str, str], failure: Json | None) -> None:
        for pause in chain(_RETRY_SECONDS, repeat(_RETRY_SECONDS[-1])):
            try:
                async with running.capturing:  # a checkpoint that is under way comes first
                    if running.uncaptured:
                        await self._capture(running.session_id, running.request_id)
                        running.uncaptured = False
                await self._sessions.end(running.session_id, running.request_id, last_events(about, failure))
                break
            except InvalidEvent as error:
                failure = error_event(f"the request failed, and what its runner reported can't be stored: {error}")
                continue
            except (StoreError, SessionError) as error:
                log.error("request %s could not be ended: %s", running.request_id, error)
                if self._closing.done() or isinstance(error, StoreClosed | SessionError):
                    break  # the next start of the home ends it
            sleep = asyncio.ensure_future(self._clock.sleep(pause))
            waits: set[asyncio.Future[None]] = {sleep, self._closing}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            sleep.cancel()
        del self._running[running.session_id]

    async def _work(self, running: Running, runner: Runner) -> None:
        record, messages = await self._sessions.history(running.session_id)
        request = Request(
            running.session_id,
            running.request_id,
            record.agent_id,
            messages,
            running.stream,
            running.stream_tools,
            without_notifications(record.metadata),
        )
        async with aclosing(runner.run(request, _Context(self, running))) as items:
            async for item in items:
                if running.stopped.done():
                    return
                if isinstance(item, Checkpoint):
                    # Whole even when cancelled now: the events of these messages are told already.
                    await asyncio.shield(self._spawn(self._checkpoint(running, item)))
                elif running.wants(item):
                    await self._put(running, item)
                    if item.get("type") in CAPTURED:
                        await running.publishing.flush()

    async def _capture(self, session_id: str, request_id: str) -> None:
        """A checkpoint of what was told whole behind the last one. Raises StoreError."""
        after = (await self._sessions.get(session_id)).cursor_event_id
        told = ToldMessages()
        while page := await self._store.list(since_id=after, session_id=session_id, request_id=request_id):
            for stored in page:
                told.add(msgspec.json.decode(stored.data))
            after = page[-1].event_id
        messages = told.take_answered()
        if messages:
            try:
                await self._sessions.checkpoint(session_id, request_id, messages)
            except SessionError as error:
                log.warning("request %s: what it said last stays out of its session: %s", request_id, error)

    async def _checkpoint(self, running: Running, checkpoint: Checkpoint) -> None:
        session_id, request_id = running.session_id, running.request_id
        async with running.capturing:
            await running.publishing.flush()
            await self._sessions.checkpoint(session_id, request_id, checkpoint.messages)
            running.uncaptured = False
        if self._on_checkpoint is not None:
            try:
                self._on_checkpoint(session_id, request_id, checkpoint.messages)
            except Exception:
                log.exception("a follower of checkpoints failed")

    async def tell(self, running: Running, event: Mapping[str, Any]) -> None:
        """Publish an event of the request, durable when this returns, and all that was told before it."""
        await self._put(running, event)
        await running.publishing.flush()

    async def _put(self, running: Running, event: Mapping[str, Any]) -> None:
        """It is told, unless the request is over or the event is internal (A56, A80)."""
        shown = agent_app.public(event)
        if shown is not None and not running.stopped.done():
            running.uncaptured = running.uncaptured or shown.get("type") in CAPTURED
            named = {"session_id": running.session_id, "request_id": running.request_id}
            await running.publishing.put({**shown, **named})

    async def notify(self, running: Running, notification: Mapping[str, Any]) -> None:
        """Rows A153, A154: what goes wrong with it is logged, and no more."""
        if self._notify is None:
            return
        try:
            await running.publishing.flush()
            await self._notify(running.session_id, notification)
        except Exception as error:
            log.warning("a notification of session %s is lost: %s", running.session_id, error)

    def _spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _Context:
    """The `Context` of one request."""

    def __init__(self, execution: RequestExecution, running: Running) -> None:
        self._execution = execution
        self._running = running

    async def approve(self, tool_call: Mapping[str, Any]) -> bool:
        running, tell = self._running, self._execution.tell
        if running.stopped.done() or len(running.open) >= MAX_APPROVALS:
            return False
        approval = Approval(token_urlsafe(9), dict(tool_call))
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        running.open[approval.approval_id] = (approval, answer)
        event = {"approval_id": approval.approval_id, "tool_call": approval.tool_call}
        try:
            await tell(running, {"type": "tool_approval_requested", **event})
            async with asyncio.timeout(APPROVAL_SECONDS):
                allowed = await answer
        except TimeoutError:
            running.settle(approval.approval_id, False)
            allowed = running.decided[approval.approval_id]
        finally:
            running.open.pop(approval.approval_id, None)
        await tell(running, {"type": f"tool_approval_{'granted' if allowed else 'denied'}", **event})
        return allowed

    async def notify(self, notification: Mapping[str, Any]) -> None:
        await self._execution.notify(self._running, notification)


def _retrieve(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()
