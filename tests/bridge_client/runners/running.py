"""A request that a runner answers, watched as whoever runs it would; and an endpoint that says what it is told to."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web

from bridge_client.runners import Checkpoint, Message, Request, Runner, RunnerError
from protocol.events import agent_app

Json = dict[str, Any]


class Person:
    """Answers every question the same way, and remembers it."""

    def __init__(self, allows: bool = True) -> None:
        self.allows = allows
        self.asked: list[Mapping[str, Any]] = []

    async def approve(self, tool_call: Mapping[str, Any]) -> bool:
        self.asked.append(tool_call)
        return self.allows

    async def notify(self, notification: Mapping[str, Any]) -> None: ...


class Answered:
    """What came of a request."""

    def __init__(self) -> None:
        self.events: list[Json] = []
        self.messages: list[Message] = []
        """All that checkpoints held."""
        self.error: RunnerError | None = None
        self.order: list[str] = []

    @property
    def text(self) -> str:
        """What the replies say."""
        return "".join(message["content"] for event in self.of("final") for message in event["messages"])

    @property
    def streamed(self) -> str:
        return "".join(event["message"]["content"] for event in self.of("partial"))

    def of(self, type: str) -> list[Json]:
        return [event for event in self.events if event["type"] == type]

    @property
    def types(self) -> list[str]:
        """The types in their order, each run of one type once."""
        return [type for at, type in enumerate(self.order) if at == 0 or self.order[at - 1] != type]


def asking(text: str, *before: Message, stream: bool = True, stream_tools: bool = False) -> Request:
    history = [*before, Message(role="user", content=text)]
    return Request("s-1", "r-1", "default", history, stream, stream_tools)


async def answer(
    runner: Runner,
    request: Request | str,
    person: Person | None = None,
    seen: Callable[[Json], None] | None = None,
) -> Answered:
    """Let the runner answer, and hold it to its promises."""
    request = asking(request) if isinstance(request, str) else request
    answered = Answered()
    try:
        async with aclosing(runner.run(request, person or Person())) as yielded:
            async for one in yielded:
                if isinstance(one, Checkpoint):
                    answered.order.append("Checkpoint")
                    answered.messages += one.messages
                    assert one.messages
                else:
                    event = json.loads(json.dumps(one))
                    answered.order.append(event["type"])
                    answered.events.append(event)
                    if seen is not None:
                        seen(event)
    except RunnerError as error:
        answered.error = error
    check(answered, request)
    return answered


def check(answered: Answered, request: Request) -> None:
    """What `bridge_client.runners` promises of every runner."""
    never = {"request_started", "request_completed", "request_cancelled", "error", "checkpoint", "session_checkpoint"}
    assert never.isdisjoint(answered.order)
    for event in answered.events:
        assert "session_id" not in event
        assert "request_id" not in event
        agent_app.VOCABULARY.read({**event, "session_id": "s", "request_id": "r"})
    if request.stream:
        replies = [event["messages"][0] for event in answered.of("final")]
        if not any("streamed" in message["metadata"] for message in replies):
            assert answered.streamed == answered.text
    else:
        assert {"partial", "assistant_message"}.isdisjoint(answered.order)
    if not request.stream_tools:
        assert "tool_partial" not in answered.order
    # Row A93: what a checkpoint holds was public before; and all that was public is held in the end.
    assert not answered.messages or "Checkpoint" in answered.order
    told = [
        (m["role"], m["content"])
        for e in answered.events
        if e["type"] in ("final", "tool_results")
        for m in e["messages"]
    ]
    told = [one for one in told if one != ("assistant", "")]
    kept = [(m.role, m.content) for m in answered.messages if (m.role, m.content) != ("assistant", "")]
    assert kept == told


Reply = Callable[[web.Request, Json], "AsyncIterator[bytes] | web.Response"]


class Endpoint:
    """An OpenAI-compatible endpoint: the n-th request gets the n-th reply, the last one again and again."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self._replies = replies
        self.bodies: list[Json] = []
        self.headers: list[Mapping[str, str]] = []
        self.left = asyncio.Event()
        """Set when a client went away in the middle of a stream."""
        self.url = ""

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        reply = self._replies[min(len(self.bodies), len(self._replies) - 1)]
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        made = reply(request, body)
        if isinstance(made, web.Response):
            return made
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            async for piece in made:
                await response.write(piece)
        except asyncio.CancelledError:
            self.left.set()
            raise
        except ConnectionResetError:  # raised by a reply, to cut
            assert request.transport is not None
            request.transport.abort()
        return response


@asynccontextmanager
async def endpoint(*replies: Reply) -> AsyncIterator[Endpoint]:
    served = Endpoint(replies)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", served.completions)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield served
    finally:
        await runner.cleanup()


def sse(lines: Sequence[Any]) -> list[bytes]:
    """Server-sent events: lines as text, or values that are to be JSON."""
    return [b"data: %b\n\n" % (line if isinstance(line, str) else json.dumps(line)).encode() for line in lines]


def streaming(lines: Sequence[Any], *, done: bool = True) -> Reply:
    async def reply(request: web.Request, body: Json) -> AsyncIterator[bytes]:
        for piece in sse(lines):
            yield piece
        if done:
            yield b"data: [DONE]\n\n"

    return reply


def cut_behind(data: bytes) -> Reply:
    """These bytes, then the connection is reset."""

    async def reply(request: web.Request, body: Json) -> AsyncIterator[bytes]:
        yield data
        await asyncio.sleep(0)
        raise ConnectionResetError

    return reply


def stalling_behind(data: bytes) -> Reply:
    async def reply(request: web.Request, body: Json) -> AsyncIterator[bytes]:
        yield data
        await asyncio.Event().wait()

    return reply


def refusing(status: int, message: str, **headers: str) -> Reply:
    def reply(request: web.Request, body: Json) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response({"error": {"message": message}}, status=status, headers=named)

    return reply
