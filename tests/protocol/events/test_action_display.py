"""Who may show what how, and whose it is (rows A130, A131, A170, A172, A184 to A188)."""

from typing import Any

import pytest

from protocol.events.action_display import (
    ACTION_RESPONSE,
    APPLICATION_NOTIFICATION,
    MAX_TTL_SECONDS,
    PRESENTATIONS,
    SESSION_NOTIFICATION,
    BadDisplay,
    Producer,
    complete,
    is_news,
)

APPLICATION, SESSION, RESPONSE = APPLICATION_NOTIFICATION, SESSION_NOTIFICATION, ACTION_RESPONSE


def test_A170_there_are_three_presentations() -> None:
    assert PRESENTATIONS == ("banner", "inline", "modal")


@pytest.mark.parametrize(
    ("producer", "session_id", "default"),
    [(APPLICATION, None, "banner"), (SESSION, "s", "inline"), (RESPONSE, None, "modal"), (RESPONSE, "s", "modal")],
)
def test_A184_A185_a_display_that_names_no_presentation_gets_that_of_its_producer(
    producer: Producer, session_id: str | None, default: str
) -> None:
    whole = complete({"title": "t", "more": [1]}, producer, session_id)
    assert (whole["presentation"], whole["title"], whole["more"]) == (default, "t", [1])


@pytest.mark.parametrize("presentation", [*PRESENTATIONS, "toast", "", None, 7, ["banner"], {}])
@pytest.mark.parametrize(
    ("producer", "session_id", "allowed"),
    [(APPLICATION, None, {"banner", "modal"}), (SESSION, "s", {*PRESENTATIONS}), (RESPONSE, None, {*PRESENTATIONS})],
)
def test_A172_A186_every_producer_and_every_presentation(
    producer: Producer, session_id: str | None, allowed: set[str], presentation: Any
) -> None:
    if isinstance(presentation, str) and presentation in allowed:
        assert complete({"presentation": presentation}, producer, session_id)["presentation"] == presentation
    else:
        with pytest.raises(BadDisplay, match=r"display\.presentation"):
            complete({"presentation": presentation}, producer, session_id)


def owner(display: dict[str, Any], producer: Producer, session_id: str | None = None) -> tuple[str, str | None]:
    whole = complete(display, producer, session_id)
    return whole["owner"], whole.get("session_id")


def test_A187_a_notification_is_its_owners_whatever_the_display_says() -> None:
    assert owner({}, APPLICATION) == ("connection", None)
    assert owner({}, SESSION, "s") == owner({"session_id": "s", "owner": "session"}, SESSION, "s") == ("session", "s")
    for display in ({"owner": "session"}, {"session_id": "s"}, {"owner": "session", "session_id": "s"}):
        with pytest.raises(BadDisplay, match="belongs to the connection"):
            complete(display, APPLICATION)
    for display in ({"owner": "connection"}, {"session_id": "other"}):
        with pytest.raises(BadDisplay, match="belongs to the session"):
            complete(display, SESSION, "s")
    with pytest.raises(BadDisplay, match="needs session_id"):
        complete({}, SESSION)


def test_A188_a_response_belongs_to_its_session_unless_it_keeps_to_the_connection() -> None:
    assert owner({}, RESPONSE) == ("connection", None)
    assert owner({"session_id": "s"}, RESPONSE) == owner({}, RESPONSE, "s") == ("session", "s")
    assert owner({"session_id": "s", "owner": "connection"}, RESPONSE) == ("connection", "s")
    for display in ({"owner": "session"}, {"owner": "room"}, {"owner": 1}, {"session_id": 5}, {"session_id": ""}):
        with pytest.raises(BadDisplay, match=r"display\."):
            complete(display, RESPONSE)


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), MAX_TTL_SECONDS + 1, True, "60"])
def test_a_ttl_that_is_none_is_refused(ttl: Any) -> None:
    with pytest.raises(BadDisplay, match="ttl_seconds"):
        complete({"ttl_seconds": ttl}, APPLICATION)


def test_A130_ttl_decides_only_whether_something_unseen_is_still_shown() -> None:
    display = complete({"ttl_seconds": 60}, APPLICATION)
    assert [is_news(display, age) for age in (-5, 0, 60, 60.1)] == [True, True, True, False]
    assert is_news({}, 1e12)
    assert is_news({"ttl_seconds": "soon"}, 1e12)  # of a record that somebody else wrote
