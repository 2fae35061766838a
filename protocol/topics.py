"""The grammar of topics: build them, parse them, and refuse the names that some client can't take.

A topic or event name never holds a comma, a quote, a backslash or a control character (one Kotlin client cuts frames
at commas by hand) and is at most 255 bytes of UTF-8 (the binary frame has one byte for its length).
"""

import re

from protocol.errors import BadTopic

SERVER_ID = re.compile(r"[a-z2-7]{26}", re.ASCII)
"""A server id: 26 characters of lowercase base32 (130 bits)."""

_FORBIDDEN = re.compile(r'[,"\\\x00-\x1f\x7f]')


def server_topic(server_id: str) -> str:
    """The topic a home joins and pushes its events to."""
    return f"server:{server_id}"


def app_topic(server_id: str) -> str:
    """The topic an app joins to receive the events of one home."""
    return f"app:{server_id}"


def events_topic(server_id: str) -> str:
    """The PubSub topic between the two; never seen by a client."""
    return f"events:server:{server_id}"


def check_name(name: str) -> str:
    """Return `name` if every client can take it as a topic or event name. Raises BadTopic otherwise."""
    if not name or _FORBIDDEN.search(name) or len(name.encode("utf-8", "surrogatepass")) > 255:
        raise BadTopic(f"{name[:60]!r}: 1 to 255 bytes without comma, quote, backslash or control character")
    return name


def check_server_id(text: str) -> str:
    """Return `text` if it is a server id. Raises BadTopic otherwise."""
    if not SERVER_ID.fullmatch(text):
        raise BadTopic(f"{text[:60]!r} is not a server id (26 characters a-z and 2-7)")
    return text


def matches(pattern: str, topic: str) -> bool:
    """Whether `topic` is `pattern`, or starts with it when the pattern ends in `*` (Phoenix rule 28)."""
    return topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern
