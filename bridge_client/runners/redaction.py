"""A secret that an endpoint is given, taken out of what comes back: some repeat the key in the text of an error."""

from typing import Any, Final

from msgspec import structs

from protocol.events.session_manager import Draft

REDACTED: Final = "[redacted]"

MIN_ANYWHERE: Final = 16
"""Characters. A shorter key may be a word (`ollama`, `EMPTY`) and is taken out of errors alone, not out of replies."""

_ERRORS: Final = frozenset({"error_occurred", "run_failed", "run_timeout", "run_cancelled"})


class Redaction:
    """Puts REDACTED in the place of one secret; an empty one changes nothing."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._anywhere = len(secret) >= MIN_ANYWHERE

    def error(self, value: Any) -> Any:
        """A JSON value that tells of an error, without the secret, whatever its length."""
        if not self._secret:
            return value
        if isinstance(value, str):
            return value.replace(self._secret, REDACTED)
        if isinstance(value, dict):
            return {self.error(name): self.error(member) for name, member in value.items()}
        if isinstance(value, list | tuple):
            return [self.error(item) for item in value]
        return value

    def said(self, value: Any) -> Any:
        """Any other JSON value."""
        return self.error(value) if self._anywhere else value

    def draft(self, draft: Draft) -> Draft:
        """An event, by what it tells of."""
        take = self.error if draft.type in _ERRORS else self.said
        return structs.replace(draft, data=take(draft.data), metadata=take(draft.metadata))

    def streamed(self, text: str) -> tuple[str, str]:
        """A piece of text that goes on: without the secret, and its end that may be the secret's beginning, which is
        to be put before the next piece."""
        if not self._anywhere:
            return text, ""
        text = text.replace(self._secret, REDACTED)
        longest = min(len(text), len(self._secret) - 1)
        size = next((size for size in range(longest, 0, -1) if text.endswith(self._secret[:size])), 0)
        return text[: len(text) - size], text[len(text) - size :]
