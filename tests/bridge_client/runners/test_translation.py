"""What all translators promise, whatever the lines."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_client.runners.json_lines import FORMATS, JsonLinesTranslator
from bridge_client.runners.translation import (
    MAX_IGNORED_TYPES,
    LineTranslator,
    line_data,
    parse,
)
from bridge_client.runners.turn import MAX_OPEN_CALLS, MAX_TEXT_CHARS, Turn, mend
from tests.bridge_client.runners.drafts import check, of_type, said, shown, translate
from tests.bridge_client.runners.excerpts import EXCERPTS
from tests.protocol.events.making import values


def test_a_reply_is_ended_by_what_it_said() -> None:
    turn = Turn("x")
    turn.think("Hm.")
    turn.say("Hel")
    turn.say("")
    turn.say(None)
    turn.say("lo")
    turn.end(usage=1)
    turn.end()
    drafts = turn.drain()
    check(drafts)
    received = {"role": "assistant", "content": "Hello", "thinking": "Hm.", "usage": 1}
    assert of_type(drafts, "message_received") == [received]
    assert turn.drain() == []


@pytest.mark.parametrize(
    ("streamed", "whole", "content", "beside"),
    [
        ("Hel", "Hello", "Hello", None),
        ("Hello", "Hello", "Hello", None),
        ("", "Hello", "Hello", None),
        ("Hello", "Goodbye", "Goodbye", "Hello"),
        ("Hello", "", "", "Hello"),
    ],
)
def test_a_provider_that_repeats_itself(streamed: str, whole: str, content: str, beside: str | None) -> None:
    turn = Turn("x")
    turn.say(streamed)
    turn.whole(whole)
    turn.end()
    drafts = turn.drain()
    check(drafts)
    (received,) = of_type(drafts, "message_received")
    assert (received["content"], received.get("streamed")) == (content, beside)


def test_a_character_that_comes_in_halves_comes_whole() -> None:
    turn = Turn("x")
    for piece in ("a\ud83d", "\ude00b", "\ud83d"):
        turn.say(piece)
    turn.end()
    drafts = turn.drain()
    check(drafts)
    assert said(drafts) == "a😀b\ufffd"
    assert [data["delta"] for data in of_type(drafts, "message_streamed")] == ["a", "😀b", "\ufffd"]


def test_halves_of_a_character_within_json_lines() -> None:
    lines = [r'{"choices":[{"delta":{"content":"x\ud83d"}}]}', r'{"choices":[{"delta":{"content":"\ude00"}}]}']
    assert said(translate(FORMATS["openai"](), lines)) == "x😀"
    assert mend({"a\ud83d": ["\ude00", 1, "\ud83d\ude00"]}) == {"a\ufffd": ["\ufffd", 1, "😀"]}


def test_a_reply_without_end_becomes_several() -> None:
    turn = Turn("x")
    text = "字" * (MAX_TEXT_CHARS - 1) + "e\u0301" + "x" * MAX_TEXT_CHARS
    turn.say(text)
    turn.whole(text + "!")
    turn.end()
    drafts = turn.drain()
    check(drafts)
    received = of_type(drafts, "message_received")
    assert "".join(data["content"] for data in received) == text + "!"
    assert [data.get("continued", False) for data in received] == [True, True, False]
    assert all(len(data["content"]) <= MAX_TEXT_CHARS for data in received)
    assert not received[0]["content"].endswith("e"), "no character is split"


def test_a_tool_call_is_told_once_with_its_whole_input() -> None:
    turn = Turn("x")
    turn.say("Let me look.")
    turn.call(0, "c-1", "ls")
    turn.arguments(0, '{"path"')
    turn.arguments(0, ':"."}')
    turn.called(0)
    turn.called(0)
    turn.result("c-1", "a\n")
    drafts = turn.drain()
    check(drafts)
    assert shown(drafts) == [
        ("message_received", "Let me look."),
        ("tool_call_started", {"path": "."}),
        ("tool_call_completed", "a\n"),
    ]
    assert drafts[-1].data["tool_name"] == "ls"


def test_input_that_is_no_json_stays_text() -> None:
    turn = Turn("x")
    turn.call("k", "c-1", "ls")
    turn.arguments("k", '{"path": "unfini')
    turn.break_off()
    (data,) = of_type(turn.drain(), "tool_call_started")
    assert (data["tool_input"], data["incomplete"]) == ('{"path": "unfini', True)


@pytest.mark.parametrize("output", ["x" * (MAX_TEXT_CHARS + 1), [{"text": "y" * MAX_TEXT_CHARS}, {"text": "z"}]])
def test_an_output_without_end_is_cut(output: Any) -> None:
    turn = Turn("x")
    turn.result("c", output)
    (data,) = of_type(turn.drain(), "tool_call_completed")
    assert len(data["tool_output"]) == MAX_TEXT_CHARS
    assert data["truncated"] is True
    turn.tool("c", "write", output)
    (data,) = of_type(turn.drain(), "tool_call_started")
    assert (len(data["tool_input"]), data["truncated"]) == (MAX_TEXT_CHARS, True)


def test_calls_without_end_are_bounded() -> None:
    turn = Turn("x")
    for number in range(MAX_OPEN_CALLS + 5):
        turn.call(number, f"c-{number}", "ls")
    assert len(of_type(turn.drain(), "tool_call_started")) == 5
    turn.break_off()
    assert len(of_type(turn.drain(), "tool_call_started")) == MAX_OPEN_CALLS
    assert turn.name_of("c-0") == ""
    assert turn.name_of(f"c-{MAX_OPEN_CALLS + 4}") == "ls"


class Echo(LineTranslator):
    def translate(self, event: dict[str, Any]) -> None:
        self.ignore(event.get("type"))


def test_what_becomes_nothing_is_counted() -> None:
    echo = Echo()
    assert translate(echo, [{"type": "ping"}, {"type": "ping"}, {"type": []}, "", ": comment", "event: ping"]) == []
    assert dict(echo.ignored) == {"ping": 2, "?": 1}
    translate(echo, [{"type": f"t{number}"} for number in range(2 * MAX_IGNORED_TYPES)])
    assert len(echo.ignored) == MAX_IGNORED_TYPES


@pytest.mark.parametrize("line", ["no json", "[1]", '{"a":', b"\xff", "7", "{" * 5000])
def test_a_line_that_is_no_object_ends_nothing(line: str | bytes) -> None:
    (draft,) = Echo().feed(line)
    assert draft.type == "error_occurred"
    assert draft.data["fatal"] is False
    assert draft.data["provider_error"]["kind"] == "parse_error"
    assert len(draft.data["details"]["line"]) <= 500


def test_server_sent_events_and_lines_are_the_same() -> None:
    assert line_data("data: {}\r\n") == line_data(b"{}\n") == line_data("data:{}") == b"{}"
    assert line_data("data:") is line_data("id: 7") is line_data("retry: 5") is line_data(" \n") is None
    assert parse(b'"\\ud800"') == "\ud800"
    assert parse(b"nope") is None


LINES = st.lists(
    st.sampled_from([line for lines in EXCERPTS.values() for line in lines]).map(json.dumps)
    | values.map(json.dumps)
    | st.text(max_size=10),
    max_size=8,
)


@pytest.mark.parametrize("format", [*FORMATS, None])
@given(lines=LINES)
@settings(max_examples=25, deadline=None)
def test_no_line_raises_and_every_reply_adds_up(format: str | None, lines: list[str]) -> None:
    translate(JsonLinesTranslator(format) if format is None else FORMATS[format](), lines)


@pytest.mark.parametrize("format", EXCERPTS)
def test_a_stream_that_is_cut_anywhere_keeps_what_it_said(format: str) -> None:
    lines = EXCERPTS[format]
    whole = said(translate(FORMATS[format](), lines))
    assert whole
    for end in range(len(lines)):
        assert whole.startswith(said(translate(FORMATS[format](), lines[:end])))


@pytest.mark.parametrize("format", EXCERPTS)
def test_a_member_of_another_type_raises_nothing(format: str) -> None:
    """Each member of each line, replaced by a value of another type."""
    for number, line in enumerate(EXCERPTS[format]):
        for broken in damaged(line):
            lines = [*EXCERPTS[format][:number], broken, *EXCERPTS[format][number + 1 :]]
            translate(FORMATS[format](), lines)


def damaged(value: Any) -> list[Any]:
    """The value with one part replaced, for every part."""
    found: list[Any] = [None, [], {"x": 1}, 7]
    if isinstance(value, dict):
        found += [{**value, name: other} for name in value for other in damaged(value[name])]
    elif isinstance(value, list):
        found += [[*value[:at], other, *value[at + 1 :]] for at in range(len(value)) for other in damaged(value[at])]
    return found
