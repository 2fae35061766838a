"""What a home's store holds."""

from bridge_client.store import EventStore, Stored


async def all_events(store: EventStore, request_id: str | None = None) -> list[Stored]:
    """Everything the store holds, or all of one request, in order, however many pages it takes."""
    events: list[Stored] = []
    while page := await store.list(since_id=events[-1].event_id if events else 0, limit=5_000, request_id=request_id):
        events += page
    return events
