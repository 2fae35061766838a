"""What a reader who catches up need not see: rows A29 to A33, settled decisions 2.14 and 2.15."""

import copy
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.events.agent_app import text_of
from protocol.events.compaction import MAX_MERGED_CHARS, compact, part_key, plan
from tests.protocol.events.making import objects

Json = dict[str, Any]


def numbered(*events: Json) -> list[Json]:
    return [{"event_id": str(number), **event} for number, event in enumerate(events, 1)]


def of(request: str = "r-1") -> Json:
    return {"session_id": "s-1", "request_id": request}


def partial(text: str, request: str = "r-1", **message: Any) -> Json:
    return {"type": "partial", **of(request), "message": {"role": "assistant", "content": text, **message}}


def final(*texts: str, request: str = "r-1", **message: Any) -> Json:
    messages = [{"role": "assistant", "content": text, **message} for text in texts]
    return {"type": "final", **of(request), "messages": messages}


def tool(part: Any, phase: str = "stream", call: str = "c-1", name: str = "part") -> Json:
    return {"type": "tool_partial", **of(), "tool_call_id": call, "phase": phase, "payload": {name: part}}


def results(*calls: str) -> Json:
    messages = [{"role": "tool", "content": "x", "metadata": {"tool_call_id": call}} for call in calls]
    return {"type": "tool_results", **of(), "messages": messages}


DONE = {"type": "request_completed", **of()}


def shown(events: list[Json]) -> list[tuple[str, str]]:
    return [(event["event_id"], event["type"]) for event in events]


def test_A29_partials_whose_text_a_final_repeats_are_dropped() -> None:
    events = numbered(partial("Hel"), partial("lo"), final("Hello"), DONE)
    assert shown(compact(events)) == [("3", "final"), ("4", "request_completed")]


def test_A29_a_page_may_begin_in_the_middle_of_a_reply() -> None:
    assert shown(compact(numbered(partial("lo "), final("Hello")))) == [("2", "final")]


def test_A29_several_messages_of_a_final_count_together() -> None:
    events = numbered(partial("one"), partial("two"), final("one", "two"))
    assert shown(compact(events)) == [("3", "final")]


@pytest.mark.parametrize("last", [DONE, {"type": "request_cancelled", **of()}, {"type": "error", **of(), "detail": ""}])
def test_A29_rule_15_partials_of_a_request_without_a_final_stay(last: Json) -> None:
    """Settled decision 2.15: what was said before a cancellation or a failure is nowhere else."""
    merged, end = compact(numbered(partial("Hel"), partial("lo"), last))
    assert merged == {"event_id": "2", **partial("Hello")}
    assert end["event_id"] == "3"


def test_A29_rule_15_partials_that_the_final_does_not_repeat_stay() -> None:
    assert shown(compact(numbered(partial("Hi"), final("Hello")))) == [("1", "partial"), ("2", "final")]


def test_A29_rule_15_each_phase_has_its_own_final() -> None:
    events = numbered(partial("one"), final("one"), partial("two"), partial("!"), DONE)
    assert shown(compact(events)) == [("2", "final"), ("4", "partial"), ("5", "request_completed")]
    broken = numbered(
        {"type": "assistant_message", **of(), "phase": "start"},
        partial("Hel"),
        {"type": "assistant_message", **of(), "phase": "start"},
        partial("Hello"),
        final("Hello"),
    )
    assert shown(compact(broken))[1:] == [("2", "partial"), ("3", "assistant_message"), ("5", "final")]


def test_A29_rule_15_a_final_of_another_request_or_session_drops_nothing() -> None:
    other = {**final("Hello"), "session_id": "s-2"}
    events = numbered(partial("Hello"), final("Hello", request="r-2"), other)
    assert shown(compact(events)) == [("1", "partial"), ("2", "final"), ("3", "final")]


def test_A29_thinking_must_be_repeated_too() -> None:
    thought = partial("", metadata={"thinking": "Hm."})
    assert shown(compact(numbered(thought, final("", metadata={"thinking": "Hm."})))) == [("2", "final")]
    assert shown(compact(numbered(thought, final("")))) == [("1", "partial"), ("2", "final")]


def test_A30_parts_of_a_tool_are_dropped_before_its_result() -> None:
    events = numbered(
        *(tool("begin", "start"), tool("a"), tool("b"), tool({"content": "ab"}, "end", name="result")),
        *(tool("other", call="c-2"), results("c-1"), DONE),
    )
    assert shown(compact(events)) == [("5", "tool_partial"), ("6", "tool_results"), ("7", "request_completed")]
    assert shown(compact(numbered(tool("a"), tool({}, "end", name="result")))) == [("2", "tool_partial")]


def test_A30_parts_of_a_tool_without_a_result_stay() -> None:
    merged, _ = compact(numbered(tool("a\n"), tool("b\n"), DONE))
    assert merged == {"event_id": "2", **tool("a\nb\n")}


def test_A31_rule_14_consecutive_partials_become_one_under_the_last_id() -> None:
    events = numbered(
        partial("a", metadata={"model": "m", "index": 1}),
        partial("b", metadata={"index": 2, "thinking": "t"}),
        partial("c"),
    )
    (merged,) = compact(events)
    assert merged["event_id"] == "3"
    metadata = {"model": "m", "index": 2, "thinking": "t"}
    assert merged["message"] == {"role": "assistant", "content": "abc", "metadata": metadata}


@pytest.mark.parametrize(
    "between",
    [tool("x"), {"type": "assistant_message", **of(), "phase": "end"}, {"type": "never_heard_of", **of()}],
)
def test_A31_another_event_of_the_request_stands_between(between: Json) -> None:
    events = numbered(partial("a"), between, partial("b"))
    assert compact(events) == events


def test_A32_partials_of_different_requests_are_never_one() -> None:
    events = numbered(partial("a1"), partial("b1", "r-2"), partial("a2"), partial("b2", "r-2"))
    merged = compact(events)
    assert [(event["event_id"], event["request_id"], event["message"]["content"]) for event in merged] == [
        ("3", "r-1", "a1a2"),
        ("4", "r-2", "b1b2"),
    ]
    sessions = numbered(partial("a"), {**partial("b"), "session_id": "s-2"})
    assert compact(sessions) == sessions


def test_A33_the_events_stay_as_they_were() -> None:
    events = numbered(partial("a"), partial("b"), tool("x"), tool("y"), DONE)
    before = copy.deepcopy(events)
    compact(events)
    assert events == before


def test_canonical_and_streaming_events_are_compacted_alike() -> None:
    run = {"session_id": "s-1", "run_id": "r-1"}
    streamed = [{"type": "message_streamed", **run, "data": {"delta": text, "thinking": text}} for text in "ab"]
    received = {"type": "message_received", **run, "data": {"content": "ab", "thinking": "ab"}}
    assert shown(compact(numbered(*streamed, received))) == [("3", "message_received")]
    (merged,) = compact(numbered(*streamed))
    assert merged["data"] == {"delta": "ab", "thinking": "ab"}
    chunks = [{"type": "LLM_PARTIAL", "workflow_id": "w", "message": text, "seq": n} for n, text in enumerate("ab")]
    whole = {"type": "LLM_OUTPUT", "workflow_id": "w", "message": "ab"}
    assert shown(compact(numbered(*chunks, whole))) == [("3", "LLM_OUTPUT")]
    assert compact(chunks) == [{**chunks[1], "message": "ab"}]
    output = {"role": "tool", "tool_call_id": "c"}
    tools = [{"type": "message_streamed", **run, "data": {"delta": text, **output}} for text in "ab"]
    assert [event["type"] for event in compact(numbered(*tools, received))] == ["message_streamed", "message_received"]


def test_a_merged_part_does_not_grow_without_end() -> None:
    half = "x" * (MAX_MERGED_CHARS // 2)
    events = numbered(partial(half), partial(half), partial("y"), partial("z"))
    merged = compact(events)
    assert [event["event_id"] for event in merged] == ["2", "4"]
    assert "".join(event["message"]["content"] for event in merged) == half + half + "yz"


@pytest.mark.parametrize("event", [partial(""), tool(""), tool({"x": 1}), tool("", "start"), DONE, {"type": []}, {}])
def test_what_is_a_part(event: Json) -> None:
    text_part = event in (partial(""), tool(""))
    assert (part_key(event) is not None) is text_part


REQUESTS = st.sampled_from(["r-1", "r-2"])
EVENTS = st.lists(
    st.builds(partial, st.text(max_size=3), REQUESTS)
    | st.builds(
        lambda request, texts: final(*texts, request=request), REQUESTS, st.lists(st.text(max_size=5), max_size=2)
    )
    | st.builds(tool, st.text(max_size=3), st.sampled_from(["start", "stream", "end"]))
    | st.just(DONE)
    | st.just(results("c-1")),
    max_size=14,
)


@given(EVENTS)
@settings(max_examples=100)
def test_A29_to_A33_no_text_is_lost_and_ids_rise(events: list[Json]) -> None:
    events = numbered(*events)
    groups, merged = plan(events), compact(events)
    kept = [index for group in groups for index in group]
    assert len(kept) == len(set(kept))
    ids = [int(event["event_id"]) for event in merged]
    assert all(before < after for before, after in itertools.pairwise(ids))
    assert not events or ids[-1] == len(events)
    for request in ("r-1", "r-2"):
        said_after = "".join(said(event) for event in merged if event["request_id"] == request)
        finals = "".join(whole(event) for event in merged if event["request_id"] == request)
        for event in (event for event in events if event["request_id"] == request):
            assert said(event).strip() in said_after + finals
    assert compact(merged) == merged, "and nothing is left to do"


def said(event: Json) -> str:
    return text_of(event["message"]["content"]) if event["type"] == "partial" else ""


def whole(event: Json) -> str:
    return "".join(message["content"] for message in event["messages"]) if event["type"] == "final" else ""


@given(
    st.lists(
        objects(("partial", "tool_partial", "final", "tool_results", "message_streamed", "LLM_PARTIAL")), max_size=5
    )
)
@settings(max_examples=60)
def test_any_objects_can_be_compacted(events: list[Json]) -> None:
    for group, event in zip(plan(events), compact(events), strict=True):
        assert len(group) > 1 or event == events[group[0]]
