"""Answers what apps ask through the hub: checks it again, runs it once, and says what became of it.

What changes something is written down before it runs, with its answer after: the same id of the same device asked again
gets that answer, for a day, whatever happened in between. If the home died in the middle, nobody knows what was done;
then the answer is 409 `unknown_outcome`, and it is still not run again.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct

from bridge_client.clock import Clock
from bridge_client.link import Session, read_json
from bridge_client.store import StoreError
from protocol import requests as rules
from protocol.client import NotJoined

KEPT_SECONDS: Final = 24 * 3600.0
"""How long an id is remembered."""

MAX_KEPT: Final = 2_000
"""Ids of one device that are remembered at a time; more are refused until the oldest is forgotten."""

MAX_KEPT_BYTES: Final = 64 << 20
"""All answers of one device that are remembered."""

MAX_AT_ONCE: Final = 64
"""Requests of all devices that are being answered."""

MAX_AUDITED: Final = 10_000
"""Lines of the audit table; the oldest go first."""

RETRY_MS: Final = 60_000
GOODBYE_SECONDS: Final = 1.0
"""How long a home that stops lets what it has begun go on."""

log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What the API said."""

    status: int
    headers: dict[str, str]
    body: bytes


class Refusal(NamedTuple):
    """Why there is no answer: one of the hub's PASSED_ON, and members that say more."""

    reason: str
    details: dict[str, Any]


class Kept(NamedTuple):
    """An id that was used: for what, and its answer; None while there is none."""

    fingerprint: bytes
    answer: Answer | None


class Audited(NamedTuple):
    """One line of the audit. `outcome` is a status, a reason, or `begun`."""

    at: float
    device_id: str
    method: str
    path: str
    outcome: str


class Full(Exception):
    """The device has used as many ids as are remembered."""


class Answers(Protocol):
    """What survives a crash of what apps have asked. Everything is durable when it returns; raises StoreError."""

    async def begin(self, device_id: str, request_id: str, fingerprint: bytes, line: Audited) -> Kept | None:
        """Remember the id and write the line; returns what the id was used for before instead. Raises Full."""

    async def finish(self, device_id: str, request_id: str, answer: Answer) -> None:
        """Remember the answer too; the line says its status."""

    async def audit(self, line: Audited) -> None:
        """Write a line about what was not begun."""

    async def audited(self, limit: int) -> Sequence[Audited]:
        """The last lines, the newest first."""


class Asked(Struct):
    """The hub's push `request`."""

    id: str
    call: int
    device_id: str
    scopes: list[str]
    method: str
    path: str
    body: Raw = Raw(b"null")
    expires_in: float = rules.TIMEOUT_SECONDS


class _Running(NamedTuple):
    fingerprint: bytes
    task: "asyncio.Task[Answer | Refusal]"


_ASKED: Final = msgspec.json.Decoder(Asked)
_encode: Final = msgspec.json.encode
Ask = Callable[[str, str, bytes | None], Awaitable[Answer]]
"""Asks the home's API: method, path, body."""


class Requests:
    """Answers for one home, over however many links. `close` it before the API that `ask` asks."""

    def __init__(self, ask: Ask, answers: Answers, clock: Clock) -> None:
        self._ask = ask
        self._answers = answers
        self._clock = clock
        self._running: dict[tuple[str, str], _Running] = {}

    async def answer(self, asked: Asked) -> Answer | Refusal:
        """What to say. Cancelled, it goes on with what changes something, and the answer is kept for the next who asks.

        Raises aiohttp.ClientError when the home is stopping.
        """
        body = bytes(asked.body)
        size = 0 if body == b"null" else len(body)
        try:
            rules.check(asked.method, asked.path, asked.scopes, size, asked.id)
        except rules.RequestRefused as refused:
            # The hub has looked before: it does not do what it should.
            await self._note(asked, refused.reason)
            return Refusal(refused.reason, {"message": str(refused), **refused.details})
        if asked.method == "GET":
            answer = await self._ask(asked.method, asked.path, None)
            self._log(asked, str(answer.status))
        else:
            found = await self._once(asked, body if size else None)
            if isinstance(found, Refusal):
                return found
            answer = found
        if len(answer.body) > rules.MAX_ANSWER_BYTES:
            return Refusal("too_large", {"limit": rules.MAX_ANSWER_BYTES, "message": "ask for less at a time"})
        return answer

    async def close(self) -> None:
        """Let what has begun end, if it does so soon."""
        if self._running:
            tasks = [running.task for running in self._running.values()]
            await asyncio.wait(tasks, timeout=GOODBYE_SECONDS)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _once(self, asked: Asked, body: bytes | None) -> Answer | Refusal:
        key = asked.device_id, asked.id
        text = b"\0".join((asked.method.encode(), asked.path.encode(), body or b""))
        fingerprint = hashlib.sha256(text).digest()
        running = self._running.get(key)
        if running is None:
            task = asyncio.create_task(self._run(asked, body, fingerprint), name=f"request {asked.id}")
            running = self._running[key] = _Running(fingerprint, task)
            task.add_done_callback(lambda ended: self._ended(key, ended))
        elif running.fingerprint != fingerprint:
            return await self._mismatch(asked)
        return await asyncio.shield(running.task)

    def _ended(self, key: tuple[str, str], task: "asyncio.Task[Answer | Refusal]") -> None:
        del self._running[key]
        if not task.cancelled() and (error := task.exception()) is not None:  # whoever asked may be gone
            log.warning("request %s of device %s failed: %s", key[1], key[0], error)

    async def _run(self, asked: Asked, body: bytes | None, fingerprint: bytes) -> Answer | Refusal:
        try:
            kept = await self._answers.begin(asked.device_id, asked.id, fingerprint, self._line(asked, "begun"))
        except Full:
            self._log(asked, "rate_limited")
            return Refusal("rate_limited", {"retry_after_ms": RETRY_MS, "message": "too many requests in a day"})
        except StoreError as error:
            self._log(asked, "store_unavailable")
            return _problem(503, "store_unavailable", str(error))
        if kept is None:
            answer = await self._ask(asked.method, asked.path, body)
            self._log(asked, str(answer.status))
            try:
                await self._answers.finish(asked.device_id, asked.id, answer)
            except StoreError as error:
                log.warning("the answer to request %s of device %s is not kept: %s", asked.id, asked.device_id, error)
            return answer
        if kept.fingerprint != fingerprint:
            return await self._mismatch(asked)
        if kept.answer is None:
            await self._note(asked, "unknown_outcome")
            return _problem(409, "unknown_outcome", "the home stopped while it did this; look whether it was done")
        self._log(asked, f"{kept.answer.status}, as before")
        return kept.answer

    async def _mismatch(self, asked: Asked) -> Refusal:
        await self._note(asked, "idempotency_mismatch")
        return Refusal("idempotency_mismatch", {"message": f"the id {asked.id} was used for something else"})

    async def _note(self, asked: Asked, outcome: str) -> None:
        self._log(asked, outcome)
        try:
            await self._answers.audit(self._line(asked, outcome))
        except StoreError as error:
            log.warning("a request could not be written into the audit: %s", error)

    def _line(self, asked: Asked, outcome: str) -> Audited:
        # Of what was asked neither query nor body: they may hold what is nobody's business.
        device_id = asked.device_id[:64] if asked.device_id.isprintable() else "?"
        return Audited(self._clock.wall(), device_id, asked.method[:10], rules.bare(asked.path), outcome)

    def _log(self, asked: Asked, outcome: str) -> None:
        line = self._line(asked, outcome)
        # An open page looks again and again: what it reads would bury what somebody has changed.
        level = logging.DEBUG if asked.method == "GET" and outcome.isdecimal() else logging.INFO
        log.log(level, "device %s asked for %s %s: %s", line.device_id, line.method, line.path, line.outcome)


class Attendance:
    """The answering of what the hub asks on one join; `stop` it when the join is over.

    Without `requests` the home has told the hub that it answers nothing, and what is asked all the same is passed over.
    """

    def __init__(self, requests: Requests | None, session: Session, topic: str, max_event_bytes: int) -> None:
        self._requests = requests
        self._session = session
        self._topic = topic
        self._part = rules.part_bytes(max_event_bytes)
        self._tasks: set[asyncio.Task[None]] = set()
        self._parts: dict[str, asyncio.Future[bool]] = {}  # by the ref of a push that the hub will answer

    def asked(self, payload: Raw) -> None:
        """The hub asks. Raises Disconnected if it can't be read."""
        if self._requests is None:
            return
        asked = read_json(_ASKED, payload)
        if len(self._tasks) >= MAX_AT_ONCE:
            self._refuse(asked.call, Refusal("rate_limited", {"retry_after_ms": 1_000}))
            return
        task = asyncio.create_task(self._serve(self._requests, asked), name=f"answer to call {asked.call}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def replied(self, ref: str, ok: bool) -> None:
        """The hub answered a push; those of others are passed over."""
        part = self._parts.pop(ref, None)
        if part is not None and not part.done():
            part.set_result(ok)

    async def stop(self) -> None:
        """Answer nothing more on this join; what has begun goes on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, requests: Requests, asked: Asked) -> None:
        try:
            async with asyncio.timeout(max(0.0, min(asked.expires_in, rules.TIMEOUT_SECONDS))):
                answer = await requests.answer(asked)
        except TimeoutError:
            answer = Refusal("timeout", {})
        except Exception as error:  # whatever it was, the others go on
            log.warning("request %s of device %s failed: %s", asked.id, asked.device_id, error)
            answer = _problem(500, "internal", "the home failed; its log says why")
        with suppress(NotJoined):  # the topic has ended: who asks again gets the same answer
            if isinstance(answer, Refusal):
                self._refuse(asked.call, answer)
            else:
                await self._say(asked.call, answer)

    async def _say(self, call: int, answer: Answer) -> None:
        body = answer.body or b"null"
        if answer.body and not answer.headers.get("content-type", "").startswith("application/json"):
            body = _encode(answer.body.decode("utf-8", "replace"))
        said: dict[str, Any] = {"call": call, "status": answer.status, "headers": answer.headers}
        if len(body) <= self._part:
            self._push("response", {**said, "body": Raw(body)})
            return
        index = 0
        for index, text in enumerate(rules.parts(body, self._part), 1):
            ref = self._push("body_part", {"call": call, "index": index - 1, "text": text})
            taken = self._parts[ref] = asyncio.get_running_loop().create_future()
            if not await taken:
                return  # nobody waits for it any more
        self._push("response", {**said, "parts": index})

    def _refuse(self, call: int, refusal: Refusal) -> None:
        with suppress(NotJoined):
            self._push("response", {"call": call, "error": refusal.reason, **refusal.details})

    def _push(self, event: str, payload: dict[str, Any]) -> str:
        return self._session.push(self._topic, event, _encode(payload))


def _problem(status: int, code: str, message: str) -> Answer:
    body = _encode({"error": {"code": code, "message": message}})
    return Answer(status, {"content-type": "application/json"}, body)
