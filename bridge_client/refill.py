"""Where to start for a hub that lost its memory: far enough back for apps to resume, not so far that it takes long.

And where that can't be, because what the hub lacks is gone here.
"""

from collections import deque

from bridge_client.sources import Source


async def refill_from(source: Source, head: int, *, events: int, size: int) -> int:
    """The id behind which the newest events lie: at most `events` of them and at most `size` bytes.

    Ids need not be dense: what lies behind an ever earlier guess is read until that is enough.
    """
    span = events
    while True:
        start = max(0, head - span)
        newest: deque[tuple[int, int]] = deque()  # of each event: the id before it, its size
        total, enough = 0, start == 0
        while page := await source.page(start):
            for event in sorted(page):
                newest.append((start, len(event.data)))
                total += len(event.data)
                start = event.event_id
                while newest and (len(newest) > events or total > size):
                    total -= newest.popleft()[1]
                    enough = True
        if enough or len(newest) == events:
            return newest[0][0] if newest else start
        span *= 2


async def gone_behind(source: Source, held: int) -> int | None:
    """The id up to which events behind `held` were removed from the source, None where none were."""
    page = await source.page(held, 1)
    previous = page[0].prev_id if page else None
    return previous if previous is not None and previous > held else None
