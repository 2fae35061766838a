"""A home's events from its own API, as an app client would give them: in order, each once, also over a restart.

async with LocalEvents(find, token, cursor=saved) as events:
    async for item in events:
        ...                    # an Event, a Gap, a ServerStatus or a CaughtUp, as of AppClient
"""

import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from msgspec import Raw, Struct

from bridge_client.app_client import CaughtUp, Event, Gap, Item, Place, ServerStatus
from bridge_client.clock import Clock, SystemClock
from bridge_client.dial import Stopped
from protocol import envelope
from protocol.errors import InvalidEvent

PAGE: Final = 500
WAIT_MS: Final = 20_000
"""How long the home may wait for the next event before it answers that there is none."""

LONGEST_PAUSE: Final = 5.0
MAX_PAGE_BYTES: Final = 16 << 20
_TIMEOUT: Final = aiohttp.ClientTimeout(total=WAIT_MS / 1000 + 30, connect=5.0)


class _Page(Struct):
    events: list[Raw]
    latest_event_id: str
    epoch: str | None = None
    reset: bool = False
    floor: str | None = None
    """With `expired`: up to where events are gone."""


_PAGE: Final = msgspec.json.Decoder(_Page)


class _Lost(Exception):
    """The home can't be asked now; the text says why."""


class LocalEvents:
    """Follows `GET /events`. An async context manager and, inside it, an async iterator; use each once.

    `find` says where the home listens, None while none runs. Without a cursor it begins with what happens next.
    Iteration ends by an exception only: Stopped, when the home refuses the token.
    """

    def __init__(
        self,
        find: Callable[[], str | None],
        token: str,
        *,
        cursor: tuple[str | None, int] | None = None,
        session_id: str | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.connected = False
        """Whether the home answered the last time it was asked."""
        self.behind: int | None = 0
        """How many ids the home's last event is ahead of the last item, as far as is known."""
        self._find = find
        self._token = token
        self._session_id = session_id
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._place = None if cursor is None else Place(*cursor)
        self._items: deque[Item] = deque()
        self._online: bool | None = None
        self._caught_up = False
        self._http: aiohttp.ClientSession

    @property
    def cursor(self) -> Place | None:
        """Where to resume behind."""
        return self._place

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(timeout=_TIMEOUT, headers={"Authorization": f"Bearer {self._token}"})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        failures = 0
        while not self._items:
            try:
                self._take(await self._ask())
                failures = 0
            except _Lost:
                self._tell(False)
                failures += 1
                await self._clock.sleep(self._rng.uniform(0, min(LONGEST_PAUSE, 0.1 * 2 ** min(failures, 10))))
        return self._items.popleft()

    async def _ask(self) -> _Page:
        """Raises _Lost, Stopped."""
        url = self._find()
        if url is None:
            raise _Lost("no home runs")
        query: dict[str, str] = {}
        if self._place is not None:
            wait = str(WAIT_MS if self._caught_up else 0)
            query = {"since_id": str(self._place.event_id), "limit": str(PAGE), "wait_timeout_ms": wait}
            query["compact"] = "false"  # each event as it is stored
            if self._session_id is not None:
                query["session_id"] = self._session_id
        try:
            async with self._http.get(f"{url}/events?{urlencode(query)}", allow_redirects=False) as response:
                if response.status in (401, 403):
                    raise Stopped(f"the home at {url} refuses the token in its state directory ({response.status})")
                if response.status != 200:
                    raise _Lost(f"{url} answers {response.status}")
                if (response.content_length or 0) > MAX_PAGE_BYTES:
                    raise _Lost(f"{url} answers too much")
                return _PAGE.decode(await response.read())
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _Lost(str(error) or type(error).__name__) from None

    def _take(self, page: _Page) -> None:
        self._tell(True)
        latest = int(page.latest_event_id)
        place = self._place
        if place is None:
            self._place = Place(page.epoch, latest)
        elif page.reset or (None not in (place.epoch, page.epoch) and place.epoch != page.epoch):
            self._items.append(Gap("epoch_changed", place.event_id, 0))
            self._place = Place(page.epoch, 0)
            self._caught_up = False
            return  # asked again from the start: what this page holds may begin anywhere
        else:
            last = place.event_id
            if page.floor is not None:
                last = max(last, int(page.floor))
                self._items.append(Gap("expired", place.event_id, last))
            for raw in page.events:
                try:
                    event_id, type, session_id = envelope.read(data := bytes(raw))
                except InvalidEvent as error:
                    raise _Lost(f"the home sent an event that can't be read: {error.args[0]}") from None
                if event_id > last:
                    last = event_id
                    self._items.append(Event(event_id, type, session_id, data))
            self._place = Place(page.epoch, last)
        self.behind = max(0, latest - self._place.event_id) if self._session_id is None else 0
        if not page.events and not self._caught_up:
            self._caught_up = True
            self._items.append(CaughtUp(self._place.event_id))

    def _tell(self, online: bool) -> None:
        self.connected = online
        if online != self._online:
            self._online = online
            self._items.append(ServerStatus(online, None))
