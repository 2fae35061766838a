"""Tokens, bodies and answers of long polling, without a hub."""

import json
from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_server.transports.longpoll_wire import (
    MAX_LINES,
    TOKEN_SECONDS,
    Line,
    Tokens,
    TooManyLines,
    batch,
    is_token,
    messages,
    wrap,
)
from protocol.codec import Encoded
from protocol.errors import MalformedMessage

ID = bytes(range(16))
TOKENS = Tokens(b"s" * 32)


def test_rule_53_a_token_names_its_session_until_it_expires() -> None:
    token = TOKENS.sign(ID, 1_000.5)
    assert is_token(token)
    assert TOKENS.read(token, 1_000.5) == ID
    assert TOKENS.read(token, 1_000 + TOKEN_SECONDS - 1) == ID
    assert TOKENS.read(token, 1_000 + TOKEN_SECONDS) is None


def test_rule_53_a_token_of_another_process_is_none() -> None:
    assert Tokens(b"t" * 32).read(TOKENS.sign(ID, 0.0), 0.0) is None


@given(st.data())
def test_rule_53_a_token_with_any_character_changed_is_none(data: st.DataObject) -> None:
    token = TOKENS.sign(ID, 7.0)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("AZaz09-_.=é \n\0").filter(lambda char: char != token[at]))
    changed = token[:at] + other + token[at + 1 :]
    # The last character of each part carries bits that base64 throws away; the text is signed, so it matters too.
    assert TOKENS.read(changed, 7.0) is None


@settings(max_examples=50)
@given(st.text(max_size=60))
def test_no_other_text_is_a_token(text: str) -> None:
    assert TOKENS.read(text, 0.0) is None
    assert TOKENS.read(f"lp1.{text}", 0.0) is None


def test_rule_32_lines_are_text_or_base64() -> None:
    body = b'[1]\r\n\r\n{"topic":1}\n' + b64encode(b"\0\1\xff") + b"\n  \n[2]\n"
    wanted = [Line(b"[1]", False), Line(b'{"topic":1}', False), Line(b"\0\1\xff", True), Line(b"[2]", False)]
    assert list(messages(body, ndjson=True)) == wanted


def test_rule_32_a_plain_body_is_one_message() -> None:
    assert list(messages(b"[1]\n[2]", ndjson=False)) == [Line(b"[1]\n[2]", False)]


@pytest.mark.parametrize("line", [b"nonsense!", b"AAE", b'"a string"', b"\xff\xfe", b"AA==AA=="])
def test_a_line_that_is_neither_is_malformed_and_those_before_it_are_taken(line: bytes) -> None:
    found = messages(b"[1]\n" + line + b"\n[2]", ndjson=True)
    assert next(found) == Line(b"[1]", False)
    with pytest.raises(MalformedMessage):
        next(found)


def test_rule_57_line_101_is_refused_and_the_first_hundred_are_taken() -> None:
    found = messages(b"\n".join(b"[%d]" % number for number in range(MAX_LINES + 1)), ndjson=True)
    assert [next(found).data for _ in range(MAX_LINES)] == [b"[%d]" % number for number in range(MAX_LINES)]
    with pytest.raises(TooManyLines):
        next(found)


def test_a_line_end_behind_the_hundredth_line_is_no_line() -> None:
    assert len(list(messages(b"[1]\r\n" * MAX_LINES + b"\r\n\n", ndjson=True))) == MAX_LINES


def test_newlines_alone_are_nothing() -> None:  # case 67
    assert list(messages(b"\n" * 100_000, ndjson=True)) == []
    with pytest.raises(TooManyLines):
        list(messages(b"\n" * 100_000 + b"[]", ndjson=True))


@given(st.binary(max_size=200))
def test_any_body_is_lines_or_refused(body: bytes) -> None:
    try:
        for line in messages(body, ndjson=True):
            assert isinstance(line.data, bytes)
    except MalformedMessage:
        pass


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5))
def test_rule_54_each_message_is_a_string_that_holds_its_text(texts: list[str]) -> None:
    entries = b"".join(wrap(Encoded(text.encode())) for text in texts)
    assert json.loads(batch(entries, "t")) == {"status": 200, "token": "t", "messages": texts}


def test_a_binary_message_is_base64() -> None:
    assert json.loads(batch(wrap(Encoded(b"\0\xff", True)), "t"))["messages"] == ["AP8="]
