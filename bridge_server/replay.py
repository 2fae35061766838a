"""Join-since: history and live meet without gap or repeat.

A joining listener is held: it gets nothing from its topic. The replay reads the live tier from the app's cursor to the
head there was at the join, in pages the app sets the pace of, and the listener goes live in the very turn in which it
has had everything; so nothing can come in between, nothing is buffered for it meanwhile, and each event is sent once.
The log is the buffer: a replay that eviction overtakes is told so, instead of holding what the live tier could not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bridge_server.history import Kept, Log

PAGE_BYTES: Final = 64 * 1024


async def replay(
    log: Log,
    since: int,
    to: int,
    *,
    send: Callable[[Sequence[Kept]], None],
    drained: Callable[[], Awaitable[None]],
    complete: Callable[[int, bool, int], bool],
) -> bool:
    """Send `(since, to]`, call `complete(to, recovered, last_sent)` once, then send what was appended meanwhile.

    True: the listener has had everything in `log`; make it live before anything else runs. False: eviction overtook the
    app after `complete`, and it has to join again. If eviction overtakes it before, `complete` is called with the head
    and `recovered` False; the rest of the history is given up, and the listener goes on from the head. `complete`
    returns whether the listener wants what follows; if not, so does this function end: with False.
    """
    place = await _send_until(log, since, lambda: to, send, drained)
    if place < to:
        to = log.head
        wanted = complete(to, False, place)
        place = to
    else:
        wanted = complete(to, True, place)
    return wanted and await _send_until(log, place, lambda: log.head, send, drained) == log.head


async def _send_until(
    log: Log,
    place: int,
    end: Callable[[], int],
    send: Callable[[Sequence[Kept]], None],
    drained: Callable[[], Awaitable[None]],
) -> int:
    """Send pages until `end()`, one at a time.

    The last id reached, below it when the next page is gone. Does not yield after the last page.
    """
    while place < end():
        await drained()
        page = log.page(place, end(), PAGE_BYTES)
        if page is None:
            return place
        send(page)
        place = page[-1].event_id if page else end()
        if place < end():
            await asyncio.sleep(0)  # a long replay to a fast app must not hold up the others
    return place
