"""Another server's `GET /events` as a source: `since_id` in, `{"events", "epoch"?, "latest_event_id"?, "reset"?}` out.

Nothing but `since_id` need be known there. `limit` and `wait_timeout_ms` are asked for and left out when the server
refuses them; one that answers an empty page at once instead of waiting is asked again after 50 ms, then ever more
rarely, up to 2 s. Ids may be decimal strings or numbers, and stand in any order within a page.

A hole between ids is not waited for unless told so (`dense`): a server that merges or drops partials makes holes with
every page, and one that lets its readers poll with `since_id` keeps its order.

A server that says no epoch, and was away, may be another one now, or have been restored, and may have outgrown its old
end meanwhile: it is known again by the last event it gave, which it is asked for once more. Parts of texts are no such
event, for servers merge them.
"""

import asyncio
import logging
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final, Self

import aiohttp
import msgspec
from msgspec import Raw, Struct

from bridge_client.clock import Clock, SystemClock
from bridge_client.dead_letters import DeadLetters
from bridge_client.sources import Mark, SourceEvent, SourceRefused
from bridge_client.sources.absence import Absence, Unreadable
from bridge_client.sources.event_text import find_id, place
from bridge_client.sources.holes import Holes
from bridge_client.sources.own_epoch import OwnEpoch
from bridge_client.store import StoreError
from bridge_client.tombstones import tombstone
from protocol import envelope
from protocol import event_id as ids
from protocol.codec import open_json
from protocol.errors import BadEventId, InvalidEvent, ProtocolError
from protocol.events.compaction import PARTS

FASTEST: Final = 0.05
SLOWEST: Final = 2.0
"""Seconds between two looks at a server that does not wait itself: doubled from the fastest while nothing comes."""

LONG_POLL_MS: Final = 25_000
HELD: Final = 1.0
"""Seconds after which an empty answer counts as one that was waited for."""

ANSWER_SECONDS: Final = 15.0
MAX_ANSWER: Final = 64 << 20
PAGE: Final = 500

_REFUSALS: Final = {
    401: "it wants a token; --source-token-file names the file that holds it",
    403: "it refuses; --source-token-file names the file that holds its token",
    404: "there is no such path; name the whole address of its events, such as http://127.0.0.1:8000/events",
}

log = logging.getLogger(__name__)


class _Answer(Struct):
    events: list[Raw]
    epoch: str | None = None
    latest_event_id: Any = None
    reset: bool = False
    floor: Any = None
    """Up to where the server has removed events, if it says so: who asks from below can't have everything."""


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class HttpSource:
    """`Source` over one URL. Made by `open`; `session` stays the caller's to close."""

    def __init__(
        self,
        url: str,
        epoch: OwnEpoch,
        session: aiohttp.ClientSession,
        *,
        token: str | None = None,
        dense: bool = False,
        clock: Clock | None = None,
        letters: DeadLetters | None = None,
    ) -> None:
        """What can't be forwarded goes to `letters`."""
        self._url = url
        self._letters = letters or DeadLetters.in_memory(clock)
        self._broken: list[tuple[int, bytes, str]] = []  # found in the last answer: place, text, what is wrong
        self._epoch = epoch
        self._session = session
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._clock = clock or SystemClock()
        self._holes = Holes() if dense else None
        self._absence = Absence(url, self._clock)
        self._extras = True
        self._limit = PAGE
        self._seen = 0  # the last id read in this epoch
        self._mark: Mark | None = None  # the last event read in this epoch that is no part
        self._was_away = False  # since it was last known by that
        self._turned = False  # the epoch has changed, and nobody has asked for the head since
        self._waiting: int | None = None
        self._ahead: tuple[int, list[SourceEvent]] | None = None  # read by `wait`, for the next `page`

    @classmethod
    async def open(cls, url: str, epoch: OwnEpoch, session: aiohttp.ClientSession, **options: Any) -> Self:
        """A source whose epoch is known: the server has answered once, however long that took.

        Raises SourceRefused when its answer says that it never will.
        """
        source = cls(url, epoch, session, **options)
        while True:
            try:
                await source._heed(await source._ask({}), None)
                source._turned = False
                return source
            except Unreadable as error:
                if (refusal := error.__cause__) is not None and isinstance(refusal, SourceRefused):
                    raise refusal from None
                await source._absence.wait(error)

    @property
    def epoch(self) -> str:
        return self._epoch.value

    async def head(self) -> int | None:
        while True:
            try:
                answer = await self._ask({})
                await self._heed(answer, None)
                head = _id(answer.latest_event_id)
                if head is None:
                    head = await self._walk()
                self._turned = False
                if self._holes is not None and self._seen == 0:
                    self._holes.restart(head)
                return head or None
            except Unreadable as error:
                await self._absence.wait(error)

    async def page(self, after: int, limit: int = PAGE) -> list[SourceEvent]:
        if self._turned:
            return []
        if self._ahead is not None:
            (start, events), self._ahead = self._ahead, None
            if start == after:
                return self._hand_out(after, events[:limit])
        if self._waiting == after:
            return []  # that very question is being asked
        try:
            return self._hand_out(after, await self._fetch(after, limit))
        except Unreadable as error:
            log.debug("%s: %s", self._url, error)
            return []

    async def wait(self, after: int) -> None:
        pause, self._waiting = FASTEST, after
        try:
            while True:
                asked = self._clock.monotonic()
                try:
                    events = [] if self._turned else await self._fetch(after, PAGE, wait=True)
                except Unreadable as error:
                    await self._absence.wait(error)
                    continue
                if events:
                    self._ahead = (after, events)
                if events or self._turned:
                    return
                if self._clock.monotonic() - asked >= HELD:
                    pause = FASTEST
                else:
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, SLOWEST)
        finally:
            self._waiting = None

    async def peek(self) -> int | None:
        """The last id as the server says it now, else the last one read; notices nothing. Raises Unreadable."""
        latest = _id((await self._ask({})).latest_event_id)
        return (self._seen if latest is None else latest) or None

    async def knows(self, event_id: int, digest: str) -> bool | None:
        while True:
            try:
                return await self._has(Mark(event_id, digest))
            except Unreadable as error:
                await self._absence.wait(error)

    async def renew_epoch(self) -> str:
        await asyncio.to_thread(self._epoch.renew)
        self._begin()
        return self.epoch

    def _begin(self) -> None:
        self._seen, self._ahead, self._mark = 0, None, None
        if self._holes is not None:
            self._holes.restart(0)

    def _hand_out(self, after: int, events: list[SourceEvent]) -> list[SourceEvent]:
        if events:
            self._seen = max(self._seen, events[-1].event_id)
            whole = next((one for one in reversed(events) if envelope.read(one.data).type not in PARTS), None)
            if whole is not None and (self._mark is None or whole.event_id > self._mark.event_id):
                self._mark = Mark(whole.event_id, sha256(whole.data).hexdigest())
            if self._holes is not None:
                self._holes.passed(after, events)
        return events

    async def _walk(self) -> int:
        """The last id of a server that does not say it: read to its end."""
        last = self._seen
        while page := await self._fetch(last, PAGE):
            last = page[-1].event_id
        return last

    async def _fetch(self, after: int, limit: int, *, wait: bool = False) -> list[SourceEvent]:
        if not await self._recognised():
            return []
        query = {"since_id": str(after), "limit": str(min(limit, self._limit))}
        if wait:
            query["wait_timeout_ms"] = str(LONG_POLL_MS)
        answer = await self._ask(query)
        await self._heed(answer, after)
        if self._turned:
            return []
        placed = {number: data for number, data in map(self._placed, answer.events) if number > after}
        await self._bury_broken()
        # What comes before the first of them is unknown: nothing lies between it and `after`, or a floor above it.
        events, previous = [], max(after, _id(answer.floor) or 0) or None
        for number in sorted(placed):
            if previous is None and number > 1:
                previous = number - 1
            events.append(SourceEvent(number, previous, placed[number]))
            previous = number
        if self._holes is not None and events:
            self._holes.note(max(events[-1].event_id, _id(answer.latest_event_id) or 0), self._clock.monotonic())
            events = self._holes.ready(after, events)
        return events[:limit]

    def _placed(self, raw: Raw) -> tuple[int, bytes]:
        text = bytes(raw)
        try:
            return place(text)
        except BadEventId as error:
            log.error("%s gave an event without a usable event_id (%s): it can't be forwarded", self._url, error)
        except InvalidEvent as error:
            number = find_id(text)
            if number is not None:
                self._broken.append((number, text, str(error)))
                return number, tombstone(number, str(error))
            log.error("%s gave an event that can't be forwarded, and has no place: %s", self._url, error)
        return -1, b""

    async def _bury_broken(self) -> None:
        broken, self._broken = self._broken, []
        for number, text, why in broken:
            try:
                fresh = await self._letters.bury(self.epoch, number, text, why)
            except StoreError as error:
                raise Unreadable(f"what can't be forwarded can't be set aside either: {error}") from None
            if fresh:
                log.error("%s gave an event that can't be forwarded (%d): %s", self._url, number, why)

    async def _heed(self, answer: _Answer, after: int | None) -> None:
        """Notice that the server lives another life than before."""
        latest, before = _id(answer.latest_event_id), self.epoch
        if answer.epoch != self._epoch.theirs and await asyncio.to_thread(self._epoch.follow, answer.epoch):
            why = "it has another epoch"
        elif answer.reset and after:
            why = f"it has no event {after} any more"
        elif latest is not None and latest < self._seen:
            why = f"its last event is {latest}, but {self._seen} was read"
        else:
            return
        await self._turn(why, renew=self.epoch == before)

    async def _turn(self, why: str, *, renew: bool) -> None:
        if renew:
            await asyncio.to_thread(self._epoch.renew)
        self._begin()
        self._turned = True
        log.warning("%s went back in time (%s): epoch %s begins, all is sent again", self._url, why, self.epoch)

    async def _recognised(self) -> bool:
        """Whether a server that was away is the one it was, as far as one can tell; if not, another epoch begins."""
        other = self._was_away and self._mark is not None and await self._has(self._mark) is False
        self._was_away = False
        if other and self._mark is not None:
            await self._turn(f"event {self._mark.event_id} is another one now", renew=True)
        return not other

    async def _has(self, mark: Mark) -> bool | None:
        """Whether it gives this event still; None where it says its epoch itself, or that event can't be compared."""
        if self._epoch.theirs is not None:
            return None
        for raw in (await self._ask({"since_id": str(mark.event_id - 1), "limit": "1"})).events:
            with suppress(BadEventId, InvalidEvent):
                number, data = place(bytes(raw))
                if number == mark.event_id:
                    same = sha256(data).hexdigest() == mark.digest
                    return True if same else None if envelope.read(data).type in PARTS else False
        return None

    async def _ask(self, query: dict[str, str]) -> _Answer:
        sent = query if self._extras else {name: value for name, value in query.items() if name == "since_id"}
        seconds = ANSWER_SECONDS + (LONG_POLL_MS / 1000 if "wait_timeout_ms" in sent else 0)
        try:
            async with self._session.get(
                self._url,
                params=sent,
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise self._refused(response, sent)
                body = bytearray()
                async for chunk in response.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > MAX_ANSWER:
                        self._limit = max(1, self._limit // 2)
                        raise Unreadable(f"its answer is longer than {MAX_ANSWER >> 20} MiB: asking for less")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._was_away = True
            raise Unreadable(f"can't be reached: {error or type(error).__name__}") from None
        try:
            answer = open_json(_ANSWER, bytes(body))
        except ProtocolError as error:
            raise Unreadable(f"its answer can't be read ({error}); is it an event endpoint?") from None
        self._absence.over()
        return answer

    def _refused(self, response: aiohttp.ClientResponse, sent: dict[str, str]) -> Unreadable:
        if response.status in (400, 422) and len(sent) > 1:
            self._extras = False
            return Unreadable("it refuses limit or wait_timeout_ms: asking without them", retry_after=0)
        self._was_away = self._was_away or response.status >= 500
        retry_after = None
        with suppress(ValueError):
            retry_after = float(response.headers.get("Retry-After", ""))
        why = Unreadable(f"it answers {response.status}", retry_after=retry_after)
        if response.status in _REFUSALS:
            why.__cause__ = SourceRefused(f"{self._url} answers {response.status}: {_REFUSALS[response.status]}")
        elif 300 <= response.status < 400:
            advice = "it is somewhere else; name where it is, no redirection is followed"
            why.__cause__ = SourceRefused(f"{self._url} answers {response.status}: {advice}")
        return why


def _id(value: Any) -> int | None:
    """`latest_event_id` as servers give it: text or number; None for nothing that could be one."""
    try:
        return None if value is None else ids.parse_since(value)
    except BadEventId:
        return None
