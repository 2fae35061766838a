"""Topics: built, matched, and refused when some client can't take them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import BadTopic
from protocol.topics import app_topic, check_name, check_server_id, events_topic, matches, server_topic

SERVER_ID = "abcdefghijklmnopqrstuvwx27"


def test_A201_A202_the_topics_of_one_server() -> None:
    assert server_topic(SERVER_ID) == f"server:{SERVER_ID}"
    assert app_topic(SERVER_ID) == f"app:{SERVER_ID}"
    assert events_topic(SERVER_ID) == f"events:server:{SERVER_ID}"


def test_our_own_topics_are_names_that_every_client_takes() -> None:
    for topic in (server_topic(SERVER_ID), app_topic(SERVER_ID)):
        assert check_name(topic) == topic


@pytest.mark.parametrize("name", ["a", "session_event", "room:ünï-☃", "*", "a b", "'", "/", "é" * 127 + "x", "x" * 255])
def test_names_that_every_client_takes(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ",", 'a"b', "a\\b", "a\n", "\0", "\x1f", "\x7f", "x" * 256, "é" * 128, "☃" * 86, "\ud800" * 86]
)
def test_names_that_some_client_can_not_take(name: str) -> None:
    with pytest.raises(BadTopic):
        check_name(name)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_name_is_refused_for_nothing_else(name: str) -> None:
    forbidden = any(char in ',"\\\x7f' or ord(char) < 32 for char in name)
    if 0 < len(name.encode()) <= 255 and not forbidden:
        assert check_name(name) == name
    else:
        with pytest.raises(BadTopic):
            check_name(name)


@pytest.mark.parametrize(
    "text", ["", SERVER_ID[:-1], SERVER_ID + "a", SERVER_ID.upper(), SERVER_ID[:-1] + "1", SERVER_ID[:-1] + "é",
             "*" * 26, SERVER_ID + "\n", "../" + SERVER_ID[:23]],
)  # fmt: skip
def test_texts_that_are_no_server_id(text: str) -> None:
    with pytest.raises(BadTopic):
        check_server_id(text)
    assert check_server_id(SERVER_ID) == SERVER_ID


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("room:*", "room:1", True),
        ("room:*", "room:", True),
        ("room:*", "room:*", True),
        ("room:*", "room", False),
        ("room:*", "Room:1", False),
        ("room:*", "xroom:1", False),
        ("exact", "exact", True),
        ("exact", "exactly", False),
        ("exact", "", False),
        ("*", "", True),
        ("*", "anything", True),
    ],
)
def test_a_pattern_matches_itself_or_what_starts_with_it(pattern: str, topic: str, fits: bool) -> None:
    assert matches(pattern, topic) is fits
