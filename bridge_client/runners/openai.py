"""Any endpoint that streams chat completions as OpenAI does: hosted ones, vLLM, llama.cpp, Ollama, LM Studio.

The model may call the tools that the home's owner gave it; each call that wants one waits for a person's approval. The
results go back to the model until it has answered.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NamedTuple

import aiohttp
import msgspec

from bridge_client.clock import Clock, SystemClock
from bridge_client.runners import Checkpoint, Context, EventCallback, Json, Message, Request
from bridge_client.runners.chat_history import to_chat
from bridge_client.runners.chat_stream import Endpoint, EndpointFailed, completion
from bridge_client.runners.openai_chunks import OpenAIChunksTranslator
from bridge_client.runners.redaction import Redaction
from bridge_client.runners.telling import Telling
from bridge_client.runners.tools import Tool, ToolFailed
from bridge_client.runners.turn import MAX_TEXT_CHARS, Turn
from protocol.events.session_manager import Draft

MAX_ROUNDS: Final = 50
"""How often in one request a model may call tools before it answers."""

MAX_CALLS: Final = 32
"""Tool calls of one reply; further ones are answered unrun."""


class Model(NamedTuple):
    """What is asked for."""

    name: str
    system: str = ""
    tool_seconds: float = 60.0
    """How long one call of a tool may take, the wait for an approval not counted."""


class OpenAIRunner:
    """Asks one endpoint for one model's completions."""

    name = "openai"

    def __init__(
        self,
        endpoint: Endpoint,
        model: Model,
        tools: Sequence[Tool] = (),
        *,
        clock: Clock | None = None,
        on_event: EventCallback | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._redaction = Redaction(endpoint.api_key)
        self._model = model
        self._tools = {tool.name: tool for tool in tools}
        self._clock = clock or SystemClock()
        self._on_event = on_event

    async def run(self, request: Request, context: Context) -> AsyncGenerator[Mapping[str, Any] | Checkpoint, None]:
        """Raises RunnerError: the endpoint can't be reached, refuses, is cut or stalls; too many rounds of tools."""
        telling = Telling(request, self.name, on_event=self._on_event, clock=self._clock, redaction=self._redaction)
        messages: list[Message] = list(request.messages)
        async with aiohttp.ClientSession() as http:
            for _ in range(MAX_ROUNDS):
                calls: list[Draft] = []
                try:
                    async with aclosing(self._reply(messages, http)) as drafts:
                        async for draft in drafts:
                            if draft.type == "tool_call_started":
                                draft = _identified(draft)
                                calls.append(draft)
                            for told in telling.tell([draft]):
                                yield told
                except EndpointFailed as error:
                    for told in telling.fail(str(error), kind=error.kind, **error.details):
                        yield told
                    break
                if not calls or telling.failed:
                    break
                for number, call in enumerate(calls):
                    async with aclosing(self._call(call, context, number)) as results:
                        async for draft in results:
                            for told in telling.tell([draft]):
                                if isinstance(told, Checkpoint):
                                    messages += told.messages
                                yield told
            else:
                for told in telling.fail(f"after {MAX_ROUNDS} rounds the model still calls tools", kind="unknown"):
                    yield told
        for told in telling.checkpoint():
            yield told
        if (failure := telling.outcome()) is not None:
            raise failure

    async def _reply(self, messages: Sequence[Message], http: aiohttp.ClientSession) -> AsyncGenerator[Draft, None]:
        """The drafts of one completion; what was said before a failure comes first. Raises EndpointFailed."""
        translator = OpenAIChunksTranslator(self._redaction)
        cut: EndpointFailed | None = None
        told = False  # by the provider itself, what went wrong
        try:
            async with completion(self._endpoint, self._body(messages), http, self._clock) as lines:
                async for line in lines:
                    for draft in translator.feed(line):
                        told = told or (draft.type == "error_occurred" and draft.data.get("fatal") is not False)
                        yield draft
        except EndpointFailed as error:
            cut = error
        for draft in translator.finish():
            yield draft
        unread = translator.unread and not translator.heard
        if cut is None and unread:
            cut = EndpointFailed("the endpoint answers with something else than chat completions", "protocol_error")
        elif cut is None and not translator.ended and not told:
            cut = EndpointFailed("the stream was cut: it ended before the reply did", "transport_exit")
        if cut is not None:
            raise cut

    def _body(self, messages: Sequence[Message]) -> Json:
        chat = to_chat(messages, self._model.system)
        body: Json = {"model": self._model.name, "messages": chat, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if self._tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in self._tools.values()
            ]
        return body

    async def _call(self, call: Draft, context: Context, number: int) -> AsyncGenerator[Draft, None]:
        """Run what the model asks for. The last draft is the result; nothing is raised for a tool that fails."""
        turn = Turn(self.name)
        identity, name, given = (call.data.get(key) for key in ("tool_call_id", "tool_name", "tool_input"))
        output, length = [], 0
        refused = await self._refused(call, context, number)
        if refused is None:
            deadline = asyncio.get_running_loop().time() + self._model.tool_seconds
            try:
                async with aclosing(_run(self._tools[str(name)], given or {})) as pieces:
                    while length <= MAX_TEXT_CHARS:
                        async with asyncio.timeout_at(deadline):
                            piece = await anext(pieces, None)
                        if piece is None:
                            break
                        output.append(piece)
                        length += len(piece)
                        turn.tool_output(identity, piece)
                        for draft in turn.drain():
                            yield draft
            except ToolFailed as error:
                refused = str(error)
            except TimeoutError:
                refused = f"the tool took more than {self._model.tool_seconds:g} s"
        turn.result(identity, "".join(output) if refused is None else refused, failed=refused is not None, name=name)
        for draft in turn.drain():
            yield draft

    async def _refused(self, call: Draft, context: Context, number: int) -> str | None:
        """Why this call is not to be run, None if it is."""
        name, given = call.data.get("tool_name"), call.data.get("tool_input")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            there = ", ".join(self._tools) or "none"
            return f"there is no tool {name!r}; there are: {there}"
        if not isinstance(given, dict) or call.data.get("incomplete"):
            return "the arguments are not a whole JSON object"
        if number >= MAX_CALLS:
            return f"more than {MAX_CALLS} calls at once; this one was not run"
        if tool.ask:
            function = {"name": name, "arguments": msgspec.json.encode(given).decode()}
            if not await context.approve({"id": call.data["tool_call_id"], "function": function}):
                return "the user did not allow this call"
        return None


async def _run(tool: Tool, given: Mapping[str, Any]) -> AsyncGenerator[str, None]:
    pieces = tool.run(given)
    try:
        async for piece in pieces:
            yield piece
    finally:
        if (close := getattr(pieces, "aclose", None)) is not None:
            await close()


def _identified(call: Draft) -> Draft:
    """A call by an endpoint that gives none an id gets one: its result must name it."""
    if call.data.get("tool_call_id"):
        return call
    return Draft(call.type, {**call.data, "tool_call_id": f"call_{secrets.token_hex(8)}"}, call.metadata)
