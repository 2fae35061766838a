"""How what a home announces is shown: who may choose which presentation, whose the display is, and how long it is news.

A display (`ActionDisplayPayload` of source document 000) is a JSON object. The members that mean something here:
`presentation`, `owner`, `session_id`, `ttl_seconds`; all others (`title`, `body`, what a producer adds) pass through.

Ownership says where it is shown, not where it is kept (row A187): a display of the *connection* belongs to a home as a
whole, one of a *session* to that session alone.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

BANNER: Final = "banner"
INLINE: Final = "inline"
MODAL: Final = "modal"
PRESENTATIONS: Final = (BANNER, INLINE, MODAL)
"""Row A170."""

CONNECTION: Final = "connection"
SESSION: Final = "session"
OWNERS: Final = (CONNECTION, SESSION)

MAX_TTL_SECONDS: Final = 366 * 24 * 3600


class Producer(NamedTuple):
    """Who shows something, and what they may choose."""

    name: str
    default: str
    """The presentation of a display that names none."""
    allowed: tuple[str, ...]
    owner: str | None
    """None: the display may say; otherwise it is the session's where there is one (row A188)."""


APPLICATION_NOTIFICATION: Final = Producer("an application notification", BANNER, (BANNER, MODAL), CONNECTION)
"""Rows A172, A186: inline needs a place in a session, and it has none."""
SESSION_NOTIFICATION: Final = Producer("a session notification", INLINE, PRESENTATIONS, SESSION)
"""Row A185."""
ACTION_RESPONSE: Final = Producer("an action's response", MODAL, PRESENTATIONS, None)
"""Rows A184, A188: what an action answers with, shown at once and kept nowhere."""


class BadDisplay(ValueError):
    """A display that its producer may not have; the text says which member and why."""


def complete(display: Mapping[str, Any], producer: Producer, session_id: str | None = None) -> dict[str, Any]:
    """The display with its presentation, its owner, and the session it belongs to. Raises BadDisplay.

    `session_id` is the session that the producer speaks of, None for one that speaks of none.
    """
    presentation = display.get("presentation", producer.default)
    if presentation not in producer.allowed:
        raise BadDisplay(f"display.presentation: {producer.name} is {_either(producer.allowed)}")
    named = display.get("session_id", session_id)
    if named is not None and (not isinstance(named, str) or not named):
        raise BadDisplay("display.session_id: the id of a session is a string")
    owner = display.get("owner", producer.owner or (CONNECTION if named is None else SESSION))
    if owner not in OWNERS:
        raise BadDisplay(f"display.owner: {_either(OWNERS)}")
    if producer.owner is not None and (owner != producer.owner or named != session_id):
        raise BadDisplay(f"display.owner and display.session_id: {producer.name} belongs to the {producer.owner} alone")
    if owner == SESSION and named is None:
        raise BadDisplay("display.owner: what a session owns needs session_id")
    _check_ttl(display.get("ttl_seconds"))
    whole = {**display, "presentation": presentation, "owner": owner}
    return whole if named is None else {**whole, "session_id": named}


def is_news(display: Mapping[str, Any], age: float) -> bool:
    """Whether a display may still be shown to somebody who has not seen it, `age` seconds after it was made.

    Row A130: asked once, when a frontend is about to show it for the first time. What is shown already stays, and
    nothing is told when the time is over (row A131).
    """
    ttl = display.get("ttl_seconds")
    return isinstance(ttl, bool) or not isinstance(ttl, int | float) or age <= ttl


def _check_ttl(ttl: object) -> None:
    if ttl is None:
        return
    number = isinstance(ttl, int | float) and not isinstance(ttl, bool) and isfinite(ttl)
    if not number or not 0 < ttl <= MAX_TTL_SECONDS:  # type: ignore[operator]
        raise BadDisplay(f"display.ttl_seconds: a number above 0, at most {MAX_TTL_SECONDS}")


def _either(names: tuple[str, ...]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]])
