"""A sample agent session: publishes what an agent would, with natural pauses, into a home's event store.

    python -m deploy.sample_session --store PATH [--once] [--fast]

The events are those of the agent application's stream (spec rows A10-A72, A105, A120-A142). Everything said in it is
made up: an agent looks for the reason why a balcony garden dried out.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bridge_client.app import open_store
from bridge_client.config import Config

Event = dict[str, Any]

SESSION = "session-balcony"
MODEL = {"provider": "sample", "model": "sample-1"}

QUESTION = "The balcony tomatoes were dry again this morning. Can you find out why the watering did not run?"
FIRST_THOUGHT = "I will look at the controller's log and at last night's weather before I guess at anything. "
ANSWER = (
    "Found it. The controller skipped 05:30 because its rain sensor reported 4.2 mm, but the weather station measured "
    "no rain at all last night. The sensor sits under the drip tray of the upper shelf: what it measures is the "
    "runoff of your own fern. Move it a hand's breadth to the left and the tomatoes get their water. "
    "I have queued one extra run for tonight, so that nothing wilts until then."
)
LOG = [
    "05:29:58 wake",
    "05:30:00 schedule 'balcony' due",
    "05:30:00 rain sensor: 4.2 mm since midnight",
    "05:30:01 skipped: threshold 2.0 mm",
    "05:30:02 sleep",
]
WEATHER = {"station": "roof", "night": {"rain_mm": 0.0, "low_c": 17.5}}


def turn(number: int) -> Iterator[tuple[float, Event]]:
    """One request from the user's message to its completion: (seconds to wait before it, event)."""
    request = {"session_id": SESSION, "request_id": f"request-{number}"}
    user = {"role": "user", "content": QUESTION, "metadata": {}}
    yield (
        0.6,
        {
            "type": "message_appended",
            "session_id": SESSION,
            **user,
            "message": user,
            "session": {"id": SESSION, "agent_id": "default", "message_count": 1},
        },
    )
    yield 0.2, {"type": "request_started", **request, "stream": True}
    yield from _reply(request, FIRST_THOUGHT)

    log_call, sky_call = f"call-log-{number}", f"call-sky-{number}"
    calls = [(log_call, "read_log", {"device": "watering", "lines": 5}), (sky_call, "weather", {"night": "last"})]
    yield (
        0.3,
        {
            "type": "tool_calls",
            **request,
            "tool_calls": [
                {"id": i, "function": {"name": name, "arguments": json.dumps(args)}} for i, name, args in calls
            ],
        },
    )
    log = _tool_message(log_call, "read_log", "\n".join(LOG))
    yield 0.2, _tool_partial(request, log_call, "start", {"part": "opening the controller's log"})
    for line in LOG:
        yield 0.35, _tool_partial(request, log_call, "stream", {"part": line + "\n"})
    yield 0.1, _tool_partial(request, log_call, "end", {"result": log})
    sky = _tool_message(sky_call, "weather", json.dumps(WEATHER))
    sky["metadata"]["display"] = {"type": "text", "content": "no rain last night, low of 17.5 °C"}
    yield 0.1, _tool_partial(request, sky_call, "start", {"part": "asking the roof station"})
    yield 0.9, _tool_partial(request, sky_call, "end", {"result": sky})
    yield 0.1, {"type": "tool_results", **request, "messages": [log, sky]}

    yield 0.4, _notification(number)
    yield from _reply(request, ANSWER)
    yield 0.1, {"type": "checkpoint", **request, "timestamp": _now()}
    yield 0.1, {"type": "request_completed", **request}


def _reply(request: Event, text: str) -> Iterator[tuple[float, Event]]:
    yield 0.3, {"type": "assistant_message", **request, "phase": "start"}
    words = text.split(" ")
    for start in range(0, len(words), 3):
        chunk = " ".join(words[start : start + 3]) + (" " if start + 3 < len(words) else "")
        message = {"role": "assistant", "content": chunk, "metadata": MODEL}
        # Tokens come in bursts: a model thinks at the end of a sentence.
        yield (0.5 if chunk.rstrip().endswith((".", ":")) else 0.12), {"type": "partial", **request, "message": message}
    yield 0.05, {"type": "assistant_message", **request, "phase": "end"}
    yield 0.05, {"type": "final", **request, "messages": [{"role": "assistant", "content": text, "metadata": MODEL}]}


def _tool_partial(request: Event, call: str, phase: str, payload: Event) -> Event:
    return {"type": "tool_partial", **request, "tool_call_id": call, "phase": phase, "payload": payload}


def _tool_message(call: str, name: str, content: str) -> Event:
    return {"role": "tool", "content": content, "metadata": {"tool_call_id": call, "tool_name": name}}


def _notification(number: int) -> Event:
    record = {
        "id": "notification-watering",  # the same key while it is pending: the same record, updated
        "key": "watering.skipped",
        "revision": number,
        "status": "pending",
        "severity": "warning",
        "title": "Watering skipped",
        "body": "The 05:30 run did not start: the rain sensor reported 4.2 mm.",
        "created_at": _now(),
        "source": {"kind": "tool", "name": "read_log"},
        "model_visibility": "hidden",
    }
    display = {"title": record["title"], "body": record["body"], "presentation": "inline", "session_id": SESSION}
    return {
        "type": "session_notification_created" if number == 1 else "session_notification_updated",
        "session_id": SESSION,
        "notification": record,
        "display": display,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def session(once: bool, pace: float) -> AsyncIterator[Event]:
    """The events of one turn, or of turn after turn without end; `pace` scales the pauses."""
    number = 0
    while number == 0 or not once:
        number += 1
        for pause, event in turn(number):
            await asyncio.sleep(pause * pace)
            yield event
        if not once:
            await asyncio.sleep(5 * pace)


async def publish(store_path: Path, once: bool, pace: float) -> int:
    """Publish the session into the store at `store_path` until it ends, or until a signal. Returns the last id."""
    working = asyncio.current_task()
    assert working is not None, "runs as a task"
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    last = 0
    async with open_store(Config(store=store_path)) as store:
        async for event in session(once, pace):
            last = (await store.publish(event)).event_id
    return last


def main() -> None:
    """Publish until done or stopped. Prints the last event id of a session that ended by itself."""
    parser = argparse.ArgumentParser(description="Publish a sample agent session into a home's event store.")
    parser.add_argument("--store", type=Path, required=True, help="the home's event store")
    parser.add_argument("--once", action="store_true", help="one turn instead of turn after turn")
    parser.add_argument("--fast", action="store_true", help="a tenth of the natural pauses")
    options = parser.parse_args()
    try:
        print(asyncio.run(publish(options.store, options.once, 0.1 if options.fast else 1.0)))
    except asyncio.CancelledError:
        sys.exit(0)


if __name__ == "__main__":
    main()
