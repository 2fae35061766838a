"""Application notifications as they are kept: the contract between `notifications.py` and a store (row A125).

What a backend promises (proved for each of them by tests/contracts/test_notification_store.py):

- `apply` stores a record and the event that tells it as one: after a crash, or a failure, both are there or neither.
  It is durable when it returns.
- A change is made on the state it was thought out on, `before`. If what is stored is not that, or another active record
  has the same key, nothing is stored and RecordMoved is raised.
- Terminal records stay, the last MAX_ENDED of them (row A129); active ones are never forgotten.
- The store, not the events, says what there is (row A133).
"""

from collections.abc import Mapping
from typing import Any, Protocol

from bridge_client.notification_rules import Record

_Listed = list[Record]  # inside the class, `list` is a method


class ApplicationNotificationStore(Protocol):
    """Where application notifications are kept. Every method raises StoreError."""

    async def apply(self, record: Record, before: Record | None, event: Mapping[str, Any]) -> None:
        """Store it in the place of `before`; None: it is new. Raises RecordMoved, NotificationsFull, InvalidEvent."""

    async def get(self, notification_id: str) -> Record | None:
        """None if there is none."""

    async def active(self, key: str) -> Record | None:
        """The active one of this key."""

    async def list(self, *, include_terminal: bool = False) -> _Listed:
        """The last changed first."""
