"""What went wrong at a provider, in one shape for all of them (rows B16 to B23).

`{provider, kind, message, exit_code, stderr, truncated?}`: the document writes the last member's name with its question
mark, and so does the JSON.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from protocol.events.truncation import ERROR_TEXT_BYTES, ERROR_TEXT_LINES, cut_chars, cut_error_text

PROVIDERS: Final = frozenset({"codex", "amp", "claude", "gemini", "unknown"})
KINDS: Final = frozenset(
    {"transport_exit", "process_error", "parse_error", "protocol_error", "cli_not_found", "timeout", "unknown"}
)
MESSAGE_CHARS: Final = 500
"""`message` is a short summary (row B20); what is cut off of it stays in `error_message`."""

NO_MESSAGE: Final = "the provider failed and did not say why"

# What is a member of the payload itself, and so no detail.
_OWN: Final = frozenset({"provider", "kind", "message", "exit_code", "exit_status", "stderr", "truncated?", "details"})


class ProviderError(NamedTuple):
    """The payload, and what a provider adds to it (row B23)."""

    payload: dict[str, Any]
    details: dict[str, Any]

    def data(self, error_message: str | None = None) -> dict[str, Any]:
        """The `data` of an error_occurred, run_failed or session_failed event (rows B16, B17, B23)."""
        data = {"error_message": error_message or self.payload["message"], "provider_error": self.payload}
        return {**data, "details": self.details} if self.details else data


def provider_error(
    provider: str,
    report: Mapping[str, Any],
    *,
    max_bytes: int = ERROR_TEXT_BYTES,
    max_lines: int = ERROR_TEXT_LINES,
) -> ProviderError:
    """Bring a provider's report of an error into the common shape. Never raises on JSON values.

    A provider or kind that is not one of PROVIDERS and KINDS becomes "unknown" (rows B18, B19). `message`, `exit_code`
    and `stderr` are also looked for in `details`; without a message the first line of `stderr` that says something is
    taken. `stderr` is cut to the limits here, before anybody stores or sends it (row B22); `truncated?` is true if
    something was cut, here or before, else null. Every other member of the report is a detail.
    """
    inner = report.get("details")
    nested: Mapping[str, Any] = inner if isinstance(inner, Mapping) else {}
    details = {name: value for name, value in {**report, **nested}.items() if name not in _OWN}
    if inner is not None and not isinstance(inner, Mapping):
        details["details"] = inner
    kind = report.get("kind", nested.get("kind"))
    known_kind = isinstance(kind, str) and kind.strip().lower() in KINDS
    if kind is not None and not known_kind:
        details.setdefault("kind", kind)
    if provider not in PROVIDERS:
        details.setdefault("provider", provider)

    stderr = _text(_first(report, nested, "stderr"))
    kept, cut = (None, False) if stderr is None else cut_error_text(stderr, max_bytes, max_lines)
    before = any(place.get(name) is True for place in (report, nested) for name in ("truncated?", "stderr_truncated?"))
    said = _first(report, nested, "message")
    message = _text(said) or _first_line(kept) or NO_MESSAGE
    payload = {
        "provider": provider if provider in PROVIDERS else "unknown",
        "kind": str(kind).strip().lower() if known_kind else "unknown",
        "message": cut_chars(message, MESSAGE_CHARS),
        "exit_code": _whole(_first(report, nested, "exit_code"), _first(report, nested, "exit_status")),
        "stderr": kept,
        "truncated?": True if cut or before else None,
    }
    return ProviderError(payload, details)


def failure(provider: str, message: str, **report: Any) -> dict[str, Any]:
    """The `data` of an error event whose cause is known: `message` in full, and the payload."""
    return provider_error(provider, {"message": message, **report}).data(message)


def _first(report: Mapping[str, Any], nested: Mapping[str, Any], name: str) -> Any:
    return report[name] if report.get(name) is not None else nested.get(name)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else str(value)


def _first_line(text: str | None) -> str | None:
    return next((line.strip() for line in (text or "").split("\n") if line.strip()), None)


def _whole(*values: Any) -> int | None:
    for value in values:
        if type(value) is int:
            return value
        if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii() and len(value) < 12:
            return int(value)
    return None
