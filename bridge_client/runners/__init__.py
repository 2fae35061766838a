"""Who answers a message, and how what they print or stream becomes canonical events.

    echo.py      says back what it is told, piece by piece: for trying out
    openai.py    any endpoint that streams chat completions as OpenAI does, with tools
    command.py   an agent's command line, or any program that prints JSON lines
    telling.py   what these have in common: canonical drafts -> the events and messages of one request
    tools.py     what a model may call through openai.py
    process.py   what command.py runs
    the others   translators: a provider's stream -> drafts of canonical events (see `translation.py`)

What a runner promises whoever runs it:

- It yields events in the words of an agent application (`protocol.events.agent_app`), without `session_id` and
  `request_id`, which whoever runs it adds. It never yields `request_started`, `request_completed`,
  `request_cancelled`, `error` or `checkpoint`: those are told about it, not by it (rows A42 to A47, A84).
- A `Checkpoint` comes after the public events that it captures (row A93). It holds the messages that came to be since
  the one before, in their order, so that what others appended or changed meanwhile stays.
- What it yields is stored in its order, and what messages come of (`final`, `tool_calls`, `tool_results`) is durable
  before it is asked for more; other events may still be on their way to the disk then, for milliseconds.
- `partial` and `assistant_message` only if the request says `stream`, `tool_partial` only if it says `stream_tools`
  (row A64). The contents of partials add up to that of the `final` behind them.
- It is cancelled by cancelling the task that iterates, or by closing the iterator (`aclose`). Then it ends what it
  began (its process group, its HTTP stream) before CancelledError goes on. Of what no checkpoint has captured, whoever
  runs it takes into the session what was told whole (`told_messages.py`): a `final`, and calls of tools that have
  their results.
- It fails by RunnerError, and by nothing else that it could foresee; the events before it stand.
- One runner serves many requests at the same time and keeps nothing between them: what it has to know of a session
  the next time, it leaves in the metadata of the messages it makes.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct, field

from protocol.events.session_manager import Event

Json = dict[str, Any]


class Message(Struct, kw_only=True):
    """One message of a session."""

    role: str
    """user, assistant, system or tool (row A105)."""
    content: Any
    """Text, or a provider's list of parts."""
    metadata: Json = field(default_factory=dict)
    """Kept whole: a tool's `tool_call_id` and `tool_name` (row A69), an assistant's `tool_calls`, and whatever else."""


class Checkpoint(NamedTuple):
    """Persist these messages now, behind those that the session has (rows A81, A82). Never stored, never sent."""

    messages: Sequence[Message]


class Request(NamedTuple):
    """What a runner is to answer."""

    session_id: str
    request_id: str
    agent_id: str
    messages: Sequence[Message]
    """The session's history; the new message of the user is the last."""
    stream: bool = True
    stream_tools: bool = False
    metadata: Mapping[str, Any] = {}


class RunnerError(Exception):
    """The request failed. The text is for a person (row A47)."""

    def __init__(
        self,
        message: str,
        *,
        provider_error: Mapping[str, Any] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.provider_error = provider_error
        """As `protocol.events.provider_error` makes it (rows B16 to B22)."""
        self.details = details
        """What else the provider said (row B23)."""


class Context(Protocol):
    """What a runner may do with the home while it answers one request."""

    async def approve(self, tool_call: Mapping[str, Any]) -> bool:
        """Ask the person whether this tool call (as in a `tool_calls` event) may be run; waits for the answer."""

    async def notify(self, notification: Mapping[str, Any]) -> None:
        """Best effort: a notification of the session (rows A153, A154). Never raises for one that can't be had.

        Members as in `notification_rules.Draft`: `title`, and what there is of `body`, `severity`, `key`, `source`,
        `display`. One with the key of an active notification updates that one.
        """


class Runner(Protocol):
    """Answers messages. See the module for the promises."""

    name: str

    def run(self, request: Request, context: Context) -> AsyncGenerator[Mapping[str, Any] | Checkpoint, None]:
        """Answer the last message of the request. Raises RunnerError while iterated."""


EventCallback = Callable[[Event], None]
"""Gets each canonical event of a run as it arrives, whatever the provider (rows B110 to B116). Called in the event
loop, in order, before what it becomes is yielded; it must not block, and what it raises ends the run."""
