"""What becomes of parts of texts that wait: which are joined, which vanish, and what no merging may touch."""

import json
from typing import Any

import pytest

from bridge_server.backlog import Backlog, Entry, Level, Marks
from bridge_server.history import Kept
from bridge_server.merging import condense, merged, merged_page
from bridge_server.message import Form, Message
from protocol.codec import V2, Encoded
from protocol.server import Channel

Json = dict[str, Any]

MARKS = Marks(64 * 1024, 4_000, 1.0, 16_000, 5.0, 64_000, 15.0)
APP = Channel("app:x", "1", b'["1"')
OTHER = Channel("room:y", "2", b'["2"')
FORM = Form(V2, "app:x", b'["1"', lambda message: message.data)


def part(number: int, text: str, request: str = "r", **more: Any) -> Json:
    message = {"role": "assistant", "content": text}
    base = {"event_id": str(number), "type": "partial", "session_id": "s", "request_id": request}
    return base | {"message": message} | more


def final(number: int, text: str, request: str = "r") -> Json:
    messages = [{"role": "assistant", "content": text}]
    return {"event_id": str(number), "type": "final", "session_id": "s", "request_id": request, "messages": messages}


def other(number: int, request: str = "r") -> Json:
    return {"event_id": str(number), "type": "tool_call", "session_id": "s", "request_id": request}


def message(event: Json) -> Message:
    return Message.of_event(int(event["event_id"]), json.dumps(event).encode(), event["type"], event["session_id"])


def left(events: list[Json], *, repeated: bool = False) -> list[Json]:
    data = [(event["type"], json.dumps(event).encode()) for event in events]
    return [json.loads(new or data[at][1]) for at, new in condense(data, repeated=repeated)]


def shown(events: list[Json]) -> list[tuple[int, Any]]:
    return [(int(event["event_id"]), event.get("message", {}).get("content")) for event in events]


def test_adjacent_parts_become_one_under_the_id_of_the_last() -> None:
    """Settled decision 2.14: text of all, every other member of the last."""
    events = [part(1, "Hel", at=1, first=True), part(2, "lo ", at=2), part(5, "you", at=5)]
    assert left(events) == [part(5, "Hello you", at=5)]


@pytest.mark.parametrize(
    "make",
    [
        lambda n, text: {"type": "partial", "message": {"content": text}},
        lambda n, text: {"type": "tool_partial", "phase": "stream", "tool_call_id": "c", "payload": {"part": text}},
        lambda n, text: {"type": "message_streamed", "data": {"delta": text}},
        lambda n, text: {"type": "LLM_PARTIAL", "message": text},
    ],
    ids=["partial", "tool_partial", "message_streamed", "LLM_PARTIAL"],
)
def test_each_kind_of_part_is_joined_where_it_keeps_its_text(make: Any) -> None:
    one, two, both = ({"event_id": str(n), **make(n, text)} for n, text in ((1, "żó"), (2, '"w'), (2, 'żó"w')))
    assert left([one, two]) == [both]


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(other(2), id="an event of the request"),
        pytest.param(other(2, "q"), id="an event of another request"),
        pytest.param(part(2, "x", "q"), id="a part of another request"),
        pytest.param(part(2, "x", phase="thinking"), id="a part of another phase"),
        pytest.param(part(2, "x", message=7), id="a part without a text"),
        pytest.param(part(2, "x", session_id="t"), id="a part of another session"),
    ],
)
def test_parts_are_never_joined_across_anything(between: Json) -> None:
    """Who has had the event between them and resumes from it has had the part before it."""
    events = [part(1, "a"), between, part(3, "b")]
    assert left(events) == events


def test_parts_vanish_only_into_a_whole_that_follows_and_says_the_same() -> None:
    """Settled decision 2.15."""
    events = [part(1, "Hel"), other(2, "q"), part(3, "lo"), final(4, "Hello"), part(5, "next")]
    assert shown(left(events, repeated=True)) == [(2, None), (4, None), (5, "next")]
    assert left(events) == events, "not before the second mark"
    changed = [*events[:3], final(4, "Bye")]
    assert left(changed, repeated=True) == changed
    assert left([part(1, "a"), part(2, "b")], repeated=True) == [part(2, "ab")], "no whole: merged, and there"


def test_what_can_not_be_decoded_is_passed_on_as_it_is() -> None:
    bad = b'{"event_id":"2","type":"partial","message":{"content":"x","n":1e999}}'
    good = json.dumps(part(1, "a")).encode()
    assert condense([("partial", good), ("partial", bad), ("partial", bad)], repeated=True) == [
        (0, None),
        (1, None),
        (2, None),
    ]


def test_a_merged_text_is_bounded() -> None:
    events = [part(number, "x" * 1_000) for number in range(1, 401)]
    result = left(events)
    assert "".join(event["message"]["content"] for event in result) == "x" * 400_000
    assert 3 <= len(result) <= 5


def test_a_message_that_carries_no_event_keeps_its_place() -> None:
    status = Message("server_status", b"{}")
    messages = [message(part(1, "a")), message(part(2, "b")), status, message(part(3, "c")), message(part(4, "d"))]
    result = merged(messages)
    assert [one.event_id for one in result] == [2, None, 4]
    assert result[1] is status
    assert json.loads(result[0].payload) == {"event": part(2, "ab")}


def test_what_is_not_merged_is_not_touched() -> None:
    messages = [message(other(1)), message(part(2, "a")), message(final(3, "x"))]
    assert all(one is another for one, another in zip(merged(messages), messages, strict=True))


def test_a_page_of_a_replay_is_merged_and_leaves_out_what_it_repeats() -> None:
    events = [part(1, "Hel"), part(2, "lo"), final(3, "Hello"), part(4, "a"), part(5, "b")]
    page = [Kept(int(e["event_id"]), json.dumps(e).encode(), e["type"], "s", 0.0) for e in events]
    result = merged_page(page)
    assert [(one.event_id, one.type) for one in result] == [(3, "final"), (5, "partial")]
    assert result[0] is page[2]
    assert json.loads(result[1].data) == part(5, "ab")


# The queue.


def queue(*events: Json | bytes, at: float = 0.0) -> Backlog:
    backlog = Backlog(MARKS)
    for event in events:
        put(backlog, event, at)
    return backlog


def put(backlog: Backlog, event: Json | bytes, at: float = 0.0, channel: Channel = APP) -> None:
    if isinstance(event, bytes):
        backlog.add(Entry(channel, event, None, len(event), at))
    else:
        one = message(event)
        backlog.add(Entry(channel, one, FORM, one.size, at))


def waiting(backlog: Backlog) -> list[Any]:
    return [entry.item if isinstance(entry.item, bytes) else entry.event and entry.event.event_id for entry in backlog]


def test_below_the_first_mark_nothing_is_merged() -> None:
    backlog = queue(part(1, "a"), part(2, "b"))
    assert backlog.shrink(1.0) == (0, 0, Level.NONE)
    assert waiting(backlog) == [1, 2]


def test_past_the_first_mark_by_age_parts_are_merged() -> None:
    backlog = queue(part(1, "a"), part(2, "b"), b"reply", part(3, "c"), part(4, "d"))
    before = backlog.bytes
    freed, parts, level = backlog.shrink(1.1)
    assert (parts, level, backlog.level) == (2, Level.MERGE, Level.MERGE)
    assert waiting(backlog) == [2, b"reply", 4], "an answer keeps its place, and nothing is joined across it"
    assert freed == before - backlog.bytes > 0
    assert backlog.bytes == sum(entry.size for entry in backlog)
    assert [entry.at for entry in backlog] == [0.0] * 3


def test_past_the_first_mark_by_bytes_parts_are_merged() -> None:
    backlog = Backlog(MARKS)
    number = 0
    while not backlog.is_due:
        number += 1
        put(backlog, part(number, "x" * 50))
    assert backlog.bytes >= MARKS.merge_bytes
    assert backlog.shrink(0.0).parts == number - 1
    assert waiting(backlog) == [number]


def test_merging_what_can_not_be_merged_is_not_tried_again_for_every_event() -> None:
    backlog = Backlog(MARKS)
    tries = number = 0
    while backlog.bytes <= MARKS.cut_bytes:
        number += 1
        put(backlog, part(number, "x" * 50, f"r{number % 2}"))
        if backlog.is_due:
            tries += 1
            backlog.shrink(0.0)
    assert 3 <= tries <= 5, "each time when it has doubled"
    assert backlog.level is Level.HOLD


def test_age_alone_merges_at_most_once_in_a_while() -> None:
    backlog = queue(part(1, "a"), part(2, "b"))
    assert backlog.shrink(2.0).parts == 1
    put(backlog, part(3, "c"), 2.0)
    assert backlog.shrink(2.5) == (0, 0, Level.NONE)
    assert backlog.shrink(3.0).parts == 1


def test_past_the_second_mark_parts_vanish_into_their_whole() -> None:
    backlog = queue(part(1, "Hel"), part(2, "lo"), other(3), final(4, "Hello"), part(5, "b"))
    assert backlog.shrink(1.5).parts == 1
    assert waiting(backlog) == [2, 3, 4, 5]
    assert backlog.shrink(5.5).parts == 1
    assert waiting(backlog) == [3, 4, 5]


def test_past_the_second_mark_parts_at_the_end_are_held_back_until_there_is_room_for_them_alone() -> None:
    backlog = queue(other(1), part(2, "a"), final(3, "x"), part(4, "b"), part(5, "c", "q"))
    assert backlog.held(4.0) == 0
    assert backlog.held(5.5) == 2
    first = b"".join(backlog.take(10_000, backlog.held(5.5)))
    assert [b'"%d"' % n in first for n in range(1, 6)] == [True, True, True, False, False]
    assert backlog.held(5.5) == 0, "nothing stands before them any more"
    rest = b"".join(backlog.take(10_000, backlog.held(5.5)))
    assert (b'"4"' in rest, b'"5"' in rest, bool(backlog), backlog.bytes) == (True, True, False, 0)


@pytest.mark.parametrize("kind", ["final", "request_completed", "error", "message_completed", "STREAM_END"])
def test_what_ends_something_is_never_dropped(kind: str) -> None:
    ends = [{"event_id": str(n), "type": kind, "session_id": "s", "request_id": "r", "messages": []} for n in (3, 4, 5)]
    backlog = queue(part(1, "a"), part(2, "b"), *ends)
    backlog.shrink(100.0)
    assert waiting(backlog)[-3:] == [3, 4, 5]


def test_other_channels_of_the_peer_keep_their_messages() -> None:
    backlog = queue(part(1, "a"))
    put(backlog, b"room", channel=OTHER)
    put(backlog, part(2, "b"))
    put(backlog, part(3, "c"))
    backlog.shrink(100.0)
    assert waiting(backlog) == [1, b"room", 3]


def test_a_merged_event_is_framed_like_any_other() -> None:
    backlog = queue(part(1, "a"), part(2, "b"))
    backlog.shrink(2.0)
    [data] = backlog.take(1_000, 0)
    assert Encoded(data) == V2.encode(V2.decode(data, binary=False))
    assert json.loads(data) == ["1", None, "app:x", "session_event", {"event": part(2, "ab")}]
