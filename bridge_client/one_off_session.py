"""The session of a command that is run once: one like any other, of which another program holds the request."""

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bridge_client.request_locks import RequestLocks
from bridge_client.runners import Message
from bridge_client.session_rules import NoSuchSession, RequestRunning, check_id
from bridge_client.sessions import Sessions
from bridge_client.store import EventStore, StoreError
from protocol.events.truncation import cut_chars

MAX_LINE_CHARS: Final = 20_000
"""Of a command line, as it stands in the history."""

Json = dict[str, Any]


class OneOffSession:
    """`begin` first, `end` or `close` last. Methods raise StoreError, SessionError and InvalidEvent."""

    def __init__(
        self,
        sessions: Sessions,
        store: EventStore,
        locks: RequestLocks,
        command: Sequence[str],
        session_id: str,
    ) -> None:
        """Raises BadSession for an id that no session takes."""
        self.session_id: Final = check_id(session_id)
        self.request_id: Final = secrets.token_hex(8)
        self._sessions = sessions
        self._store = store
        self._locks = locks
        self._command = command
        self._held = ExitStack()

    async def check(self) -> None:
        """Raises RequestRunning if the session is busy now."""
        try:
            record = await self._sessions.get(self.session_id)
        except NoSuchSession:
            return
        if record.request_id is not None:
            raise RequestRunning(self.session_id, record.request_id)

    async def begin(self) -> None:
        """Make the session unless it is there; the command line is the user's message, and the request starts."""
        try:
            self._held.enter_context(self._locks.hold(self.request_id))
        except OSError as error:
            raise StoreError(f"no request can be begun beside the store: {error}") from None
        try:
            await self._sessions.get(self.session_id)
        except NoSuchSession:
            await self._sessions.create(agent_id=agent_of(self._command[0]), session_id=self.session_id)
        asked = Message(role="user", content=cut_chars(_readable(shlex.join(self._command)), MAX_LINE_CHARS))
        await self._sessions.begin(self.session_id, self.request_id, asked, stream=True)

    async def tell(self, event: Mapping[str, Any]) -> None:
        """An event of the request."""
        await self._store.publish({**event, "session_id": self.session_id, "request_id": self.request_id})

    async def checkpoint(self, messages: Sequence[Message]) -> None:
        """What the command has said becomes part of the history."""
        await self._sessions.checkpoint(self.session_id, self.request_id, messages)

    async def end(self, events: Sequence[Mapping[str, Any]]) -> None:
        """The request is over, with these events."""
        whose = {"session_id": self.session_id, "request_id": self.request_id}
        await self._sessions.end(self.session_id, self.request_id, [{**event, **whose} for event in events])

    def close(self) -> None:
        """Let go: a request that did not end is ended by the home."""
        self._held.close()


def agent_of(word: str) -> str:
    """The program's name as an agent's id."""
    return re.sub(r"[^A-Za-z0-9._:-]+|^[^A-Za-z0-9]+", "-", Path(word).name).lstrip("._:-")[:128] or "command"


def _readable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
