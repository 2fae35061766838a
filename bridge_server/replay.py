"""Join-since: history and live meet without gap or repeat.

A joining listener is held: it gets nothing from its topic. The replay reads the live tier from the app's cursor to the
head there was at the join, in pages the app sets the pace of, and the listener goes live in the very turn in which it
has had everything; so nothing can come in between, nothing is buffered for it meanwhile, and each event is sent once.
The log is the buffer: what is evicted before its turn comes is fetched from the home's store; a replay that can't have
it is told so, instead of holding what the live tier could not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bridge_server.history import Kept, Log

PAGE_BYTES: Final = 64 * 1024

Fetch = Callable[[int, int], Awaitable[tuple[Sequence[Kept], int] | None]]
"""`fetch(place, to)`: events behind `place`, at most up to `to`, which the live tier no longer has; and the place up to
which these are all. None if they are not to be had."""


async def replay(
    log: Log,
    since: int,
    to: int,
    *,
    send: Callable[[Sequence[Kept]], None],
    drained: Callable[[], Awaitable[None]],
    complete: Callable[[int, bool, int], bool],
    fetch: Fetch,
) -> bool:
    """Send `(since, to]`, call `complete(to, recovered, last_sent)` once, then send what was appended meanwhile.

    True: the listener has had everything in `log`; make it live before anything else runs. False: something was neither
    in `log` nor to be fetched after `complete`, and the app has to join again. If that happens before, `complete` is
    called with the head and `recovered` False; the rest of the history is given up, and the listener goes on from the
    head. `complete` returns whether the listener wants what follows; if not, so does this function end: with False.
    """
    place = await _send_until(log, since, lambda: to, send, drained, fetch)
    if place < to:
        to = log.head
        wanted = complete(to, False, place)
        place = to
    else:
        wanted = complete(to, True, place)
    return wanted and await _send_until(log, place, lambda: log.head, send, drained, fetch) == log.head


async def _send_until(
    log: Log,
    place: int,
    end: Callable[[], int],
    send: Callable[[Sequence[Kept]], None],
    drained: Callable[[], Awaitable[None]],
    fetch: Fetch,
) -> int:
    """Send pages until `end()`, one at a time.

    The last id reached, below it when the next page is not to be had. Does not yield after the last page.
    """
    while place < end():
        await drained()
        page = log.page(place, end(), PAGE_BYTES)
        if page is None:
            found = await fetch(place, min(end(), log.floor))
            if found is None:
                return place
            page, reached = found
        else:
            reached = page[-1].event_id if page else end()
        send(page)
        place = reached
        if place < end():
            await asyncio.sleep(0)  # a long replay to a fast app must not hold up the others
    return place
