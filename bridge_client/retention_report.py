"""What a store holds and what retention does with it, for programs and in words."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from bridge_client.clock import rfc3339
from bridge_client.retention import Extent, Rules


class Outlook(NamedTuple):
    """A store and its rules. `due`: up to this event everything may go by the rules, 0 = nothing."""

    extent: Extent
    rules: Rules
    due: int
    told: bool = False
    """Whether the running home said so; else these are the rules of who asks, which the home may not have."""

    def as_told(self, status: Mapping[str, Any] | None) -> Self:
        """The same with the rules in the `status` of the home that runs on the store; None: none runs."""
        match status and status.get("stored"):
            case {"retain_days": float() | int() | None as days, "retain_bytes": int() | None as size, "due_to": due}:
                rules = Rules(None if days is None else days * 86_400, size)
                return self._replace(rules=rules, due=int(due or 0), told=True)
        return self

    def facts(self) -> dict[str, Any]:
        """As `GET /status` and `bridge-client status --json` show it: docs/home-api.md explains each member."""
        extent, rules = self.extent, self.rules
        return {
            "events": extent.events,
            "bytes": extent.size,
            "oldest_id": _id(extent.oldest),
            "oldest_at": None if extent.oldest_at is None else rfc3339(extent.oldest_at),
            "removed_to": _id(extent.floor),
            "due_to": _id(self.due),
            "file_bytes": extent.file_size,
            "free_bytes": extent.free,
            "wal_bytes": extent.wal,
            "retain_days": None if rules.seconds is None else rules.seconds / 86_400,
            "retain_bytes": rules.size,
        }

    @property
    def holds(self) -> str:
        """What the store holds."""
        extent = self.extent
        free = f"{_size(extent.free)} of it free for events to come" if extent.free else ""
        log = f"{_size(extent.wal)} of it a log of late changes" if extent.wal else ""
        aside = " and ".join(filter(None, (free, log)))
        file = f"a file of {_size(extent.file_size)}" + (f" ({aside})" if aside else "")
        if extent.oldest is None:
            return f"no event, in {file}"
        at = "" if extent.oldest_at is None else f", published {rfc3339(extent.oldest_at)} or before"
        size = f"{extent.events} event{'s' if extent.events != 1 else ''} of {_size(extent.size)}"
        return f"{size} in {file}; oldest event {extent.oldest}{at}"

    @property
    def keeps(self) -> str:
        """What the rules say, and what they have done."""
        days, size = self.rules.seconds, self.rules.size
        kept = [f"{days / 86_400:g} days"] if days is not None else []
        kept += [f"at most {_size(size)}"] if size is not None else []
        gone = f"; removed up to event {self.extent.floor}" if self.extent.floor else ""
        whose = "" if self.told else ", as configured here"
        return f"keeps {' and '.join(kept) or 'everything'}{whose}{gone}"

    def waits(self, acked: int | None) -> str:
        """Why events that are due are still there, empty when they are not; `acked`: what the hub has acknowledged."""
        if self.due <= (acked or 0):
            return ""
        return f"events up to {self.due} may go once the hub has acknowledged them; it has up to {acked or 'none'}"


def _id(event_id: int | None) -> str | None:
    return str(event_id) if event_id else None


def _size(size: int) -> str:
    if size < 1 << 10:
        return f"{size} byte{'s' if size != 1 else ''}"
    unit, name = next(row for row in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")) if size >= row[0])
    return f"{size / unit:.1f} {name}"
