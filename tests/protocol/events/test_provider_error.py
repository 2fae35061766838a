"""Error payloads, the same for every provider: rows B16 to B23."""

from typing import Any

import pytest
from hypothesis import given, settings

from protocol.events.provider_error import KINDS, MESSAGE_CHARS, NO_MESSAGE, failure, provider_error
from tests.protocol.events.making import objects


def test_B16_B17_the_data_of_an_error_event() -> None:
    data = failure("codex", "exit 1", kind="transport_exit", exit_code=1, stderr="no such file", details={"cwd": "/"})
    assert data == {
        "error_message": "exit 1",
        "provider_error": {
            "provider": "codex",
            "kind": "transport_exit",
            "message": "exit 1",
            "exit_code": 1,
            "stderr": "no such file",
            "truncated?": None,
        },
        "details": {"cwd": "/"},
    }
    assert "details" not in failure("codex", "exit 1")


@pytest.mark.parametrize("provider", ["codex", "amp", "claude", "gemini", "unknown"])
def test_B18_a_known_provider(provider: str) -> None:
    assert provider_error(provider, {}).payload["provider"] == provider


def test_B18_another_provider_is_unknown_and_said_in_the_details() -> None:
    payload, details = provider_error("llama", {"message": "no"})
    assert payload["provider"] == "unknown"
    assert details == {"provider": "llama"}


@pytest.mark.parametrize(
    ("report", "kind", "exit_code"),
    [
        *(({"kind": kind}, kind, None) for kind in sorted(KINDS)),
        ({"kind": " Timeout "}, "timeout", None),
        ({"kind": "rate_limit"}, "unknown", None),
        ({"kind": 7}, "unknown", None),
        ({"exit_code": "-9"}, "unknown", -9),
        ({"exit_status": 2}, "unknown", 2),
        ({"exit_code": True}, "unknown", None),
        ({"exit_code": "1.5"}, "unknown", None),
        ({"details": {"kind": "timeout", "exit_code": 3}}, "timeout", 3),
    ],
)
def test_B19_kind_and_exit_code(report: dict[str, Any], kind: str, exit_code: int | None) -> None:
    payload = provider_error("claude", report).payload
    assert (payload["kind"], payload["exit_code"]) == (kind, exit_code)


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({"message": "short"}, "short"),
        ({"details": {"message": "inner"}}, "inner"),
        ({"stderr": "\n\n  first line  \nsecond"}, "first line"),
        ({"stderr": " \n "}, NO_MESSAGE),
        ({}, NO_MESSAGE),
    ],
)
def test_B20_the_message_is_a_short_summary(report: dict[str, Any], message: str) -> None:
    assert provider_error("claude", report).payload["message"] == message
    long = failure("claude", "x" * 5000)
    assert len(long["provider_error"]["message"]) == MESSAGE_CHARS
    assert long["error_message"] == "x" * 5000


def test_B21_stderr_comes_along_where_there_is_any() -> None:
    assert provider_error("claude", {"stderr": "trouble"}).payload["stderr"] == "trouble"
    assert provider_error("claude", {"details": {"stderr": "trouble"}}).payload["stderr"] == "trouble"
    assert provider_error("claude", {}).payload["stderr"] is None


def test_B22_stderr_is_cut_by_lines_and_by_bytes() -> None:
    lines = provider_error("claude", {"stderr": "line\n" * 201}).payload
    assert lines["stderr"] == "\n".join(["line"] * 200)
    assert lines["truncated?"] is True
    whole = provider_error("claude", {"stderr": "line\n" * 200}).payload
    assert (whole["stderr"], whole["truncated?"]) == ("line\n" * 200, None)
    wide = provider_error("claude", {"stderr": "é" * 16_384}).payload
    assert wide["stderr"] == "é" * 8_192
    assert wide["truncated?"] is True
    small = provider_error("claude", {"stderr": "a\nb\nc"}, max_bytes=2, max_lines=2).payload
    assert small["stderr"] == "a\n"


@pytest.mark.parametrize("report", [{"truncated?": True}, {"details": {"stderr_truncated?": True}}])
def test_B22_what_was_cut_before_stays_marked(report: dict[str, Any]) -> None:
    assert provider_error("claude", report).payload["truncated?"] is True


def test_B23_what_else_a_provider_says_is_a_detail() -> None:
    report = {"message": "no", "request_id": "req", "details": {"code": 429, "stderr": "x"}}
    assert provider_error("claude", report).details == {"request_id": "req", "code": 429}
    assert provider_error("claude", {"details": "text"}).details == {"details": "text"}
    assert provider_error("claude", {"kind": "rate_limit"}).details == {"kind": "rate_limit"}


@given(objects(("error",)))
@settings(max_examples=60)
def test_any_report_has_the_shape(report: dict[str, Any]) -> None:
    payload = provider_error("claude", report).payload
    assert list(payload) == ["provider", "kind", "message", "exit_code", "stderr", "truncated?"]
    assert payload["kind"] in KINDS
    assert payload["message"]
    assert payload["exit_code"] is None or type(payload["exit_code"]) is int
    assert payload["stderr"] is None or isinstance(payload["stderr"], str)
    assert payload["truncated?"] in (None, True)
