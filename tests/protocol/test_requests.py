"""The closed table of what apps may ask, its scopes, and the one spelling of a path."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.requests import MAX_BODY_BYTES, MAX_PATH, ROUTES, RequestRefused, bare, check, find, part_bytes, parts

ALL = ("view", "approve", "control")
ID = "request-1"


def filled(template: str) -> str:
    return template.replace("{", "").replace("}", "")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.template}")
def test_each_route_is_open_to_its_scope_and_closed_to_the_others(route: tuple[str, str, str]) -> None:
    method, template, scope = route
    assert check(method, filled(template), [scope], 0, ID) == route
    with pytest.raises(RequestRefused) as refused:
        check(method, filled(template), [other for other in ALL if other != scope], 0, ID)
    assert (refused.value.reason, refused.value.details) == ("forbidden", {"scope": scope})


def test_reading_is_view_answering_is_approve_and_the_rest_is_control() -> None:
    assert {route.scope for route in ROUTES if route.method == "GET"} == {"view"}
    assert {route.scope for route in ROUTES if route.template.endswith(("/dismiss", "{approval_id}"))} == {"approve"}
    others = [r for r in ROUTES if r.method != "GET" and not r.template.endswith(("/dismiss", "{approval_id}"))]
    assert {route.scope for route in others} == {"control"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/status"),
        ("GET", "/health"),
        ("POST", "/events"),
        ("HEAD", "/sessions"),
        ("get", "/sessions"),
        ("OPTIONS", "/sessions"),
        ("GET", "/sessions/a/send"),
        ("GET", "/Sessions"),
        ("DELETE", "/sessions/a"),
    ],
)
def test_what_is_not_in_the_table_is_forbidden(method: str, path: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        check(method, path, ALL, 0, ID)
    assert refused.value.reason == "forbidden"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "sessions",
        "//sessions",
        "/sessions/",
        "/sessions//messages",
        "/sessions/../status",
        "/sessions/./messages",
        "/sessions/%2e%2e/status",
        "/sessions/%2E./status",
        "/sessions/a%2eb",
        "/sessions/a%2fsend",
        "/sessions/a%5csend",
        "/sessions/a\\send",
        "/sessions/a%252e",
        "/sessions/%",
        "/sessions/%zz",
        "/sessions/%ff",
        "/sessions/a%00",
        "/sessions/a%0d%0a",
        "/sessions/a b",
        "/sessions/é",
        "/sessions/a;v=1",
        "/sessions/a#b",
        "/sessions/a?b#c",
        "/sessions\n",
        "http://elsewhere/sessions",
        "/sessions/" + "a" * MAX_PATH,
    ],
)
def test_a_path_that_could_be_read_in_two_ways_is_refused(path: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        check("GET", path, ALL, 0, ID)
    assert refused.value.reason == "bad_push"


@given(st.text(max_size=60))
def test_a_path_that_passes_has_the_segments_it_seems_to_have(tail: str) -> None:
    try:
        route = find("GET", "/sessions/" + tail)
    except RequestRefused:
        return
    path = tail.partition("?")[0]
    assert path.count("/") + 1 == route.template.count("/") - 1
    assert ".." not in path.split("/")
    assert "%2e" not in path.lower()
    assert "\\" not in path


def test_a_segment_may_be_escaped_and_a_GET_may_have_a_query() -> None:
    assert find("GET", "/sessions/a%3Ab/messages?limit=5&offset=-1").template == "/sessions/{session_id}/messages"
    with pytest.raises(RequestRefused):
        find("POST", "/sessions?x=1")


def test_ids_and_bodies_are_bounded() -> None:
    for bad in ("", "short", "a" * 129, "with blank", "new\nline", "né-né-né-né"):
        with pytest.raises(RequestRefused) as refused:
            check("GET", "/sessions", ALL, 0, bad)
        assert refused.value.details == {"field": "id"}
    check("POST", "/sessions", ALL, MAX_BODY_BYTES, ID)
    with pytest.raises(RequestRefused) as refused:
        check("POST", "/sessions", ALL, MAX_BODY_BYTES + 1, ID)
    assert (refused.value.reason, refused.value.details) == ("too_large", {"limit": MAX_BODY_BYTES})
    with pytest.raises(RequestRefused):
        check("GET", "/sessions", ALL, 2, ID)


def test_a_log_shows_no_query_and_no_control_character() -> None:
    assert bare("/events?token=secret") == "/events"
    assert bare("/a\x1b[31m\nb") == "/a\\x1b[31m\\nb"
    assert len(bare("/" + "a" * 5000)) == 200


@given(st.text(), st.integers(4, 9))
def test_parts_are_short_whole_characters_and_together_the_text(text: str, size: int) -> None:
    data = text.encode("utf-8", "ignore")
    pieces = list(parts(data, size))
    assert "".join(pieces).encode() == data
    assert all(0 < len(piece.encode()) <= size for piece in pieces)


def test_a_part_fits_the_messages_a_hub_takes() -> None:
    assert part_bytes(1 << 20) == 128 * 1024
    assert part_bytes(1024) == 512
