"""A runner that does what a test says, step by step."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from bridge_client.runners import Checkpoint, Context, Message, Request

Step = Mapping[str, Any] | Checkpoint | BaseException | Callable[[Context], Awaitable[Any]]


class ScriptedRunner:
    """Yields events and checkpoints, raises exceptions, and awaits what functions of the context return."""

    name = "scripted"

    def __init__(self, *script: Step) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.started = asyncio.Event()
        self.cleaned_up = asyncio.Event()

    async def run(self, request: Request, context: Context) -> AsyncGenerator[Mapping[str, Any] | Checkpoint, None]:
        self.requests.append(request)
        self.started.set()
        try:
            for step in self.script:
                if isinstance(step, BaseException):
                    raise step
                if callable(step):
                    said = await step(context)
                    if said is not None:
                        yield said
                else:
                    yield step
        finally:
            self.cleaned_up.set()


def said(text: str, **metadata: Any) -> Message:
    return Message(role="assistant", content=text, metadata=metadata)


def partial(text: str) -> dict[str, Any]:
    return {"type": "partial", "message": {"role": "assistant", "content": text}}


def final(*texts: str) -> dict[str, Any]:
    messages = [{"role": "assistant", "content": text, "metadata": {}} for text in texts]
    return {"type": "final", "messages": messages}


def reply(*pieces: str) -> list[Step]:
    """One phase as a runner tells it: partials, final, checkpoint (row A93)."""
    text = "".join(pieces)
    start, end = ({"type": "assistant_message", "phase": phase} for phase in ("start", "end"))
    return [start, *map(partial, pieces), end, final(text), Checkpoint([said(text)])]


def gate() -> tuple[asyncio.Event, Callable[[Context], Awaitable[None]]]:
    """An event, and a step that waits for it."""
    event = asyncio.Event()

    async def wait(context: Context) -> None:
        await event.wait()

    return event, wait


def apply(history: list[Any], event: Mapping[str, Any]) -> None:
    """What an app makes of an event: the history behind it, for a runner whose checkpoints hold what it told."""
    match event["type"]:
        case "message_appended":
            history.append(event["message"])
        case "message_modified":
            history[event["index"]]["content"] = event["content"]
        case "messages_deleted":
            for index in sorted(event["indices"], reverse=True):
                del history[index]
        case "final" | "tool_results":
            history += event["messages"]
