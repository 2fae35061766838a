"""What a translator makes of lines, and what all of them promise."""

import json
from collections.abc import Iterable
from typing import Any

from bridge_client.runners.translation import Translator
from protocol.events.agent_app import text_of
from protocol.events.session_manager import TYPES, Context, Draft, stamp
from protocol.events.views import AgentAppView, to_streaming
from tests.protocol.events.making import NOW

CONTEXT = Context(session_id="s", run_id="r", new_id=lambda: "0" * 32, now=lambda: NOW, provider="claude")


def translate(translator: Translator, lines: Iterable[Any]) -> list[Draft]:
    """The drafts of a whole stream: lines as text, bytes, or values that are to be JSON. Checks the promises."""
    drafts: list[Draft] = []
    for line in lines:
        drafts += translator.feed(line if isinstance(line, str | bytes) else json.dumps(line))
    drafts += translator.finish()
    check(drafts)
    return drafts


def check(drafts: list[Draft]) -> None:
    """Only canonical types, but for what is new to us; the deltas of each reply add up to it, in every vocabulary."""
    streamed, thought = "", ""
    for draft in drafts:
        assert draft.type in TYPES or draft.type.startswith(("claude.", "codex.")), draft
        if draft.type == "message_streamed" and draft.data.get("role") != "tool":
            streamed += draft.data["delta"]
            thought += draft.data.get("thinking", "")
        elif draft.type == "message_received":
            assert draft.data.get("streamed", draft.data["content"]) == streamed
            assert draft.data.get("streamed_thinking", draft.data.get("thinking", "")) == thought
            streamed = thought = ""
    assert (streamed, thought) == ("", ""), "a reply has no end"
    view = AgentAppView()
    events = [stamp(draft, CONTEXT, number) for number, draft in enumerate(drafts)]
    lines = [line for event in events for line in view.tell(event)]
    finals = [message for line in lines if line["type"] == "final" for message in line["messages"]]
    partials = [line["message"] for line in lines if line["type"] == "partial"]
    if not any("streamed" in draft.data for draft in drafts):
        assert "".join(part["content"] for part in partials) == "".join(message["content"] for message in finals)
    for event in events:
        to_streaming(event)


def shown(drafts: list[Draft]) -> list[tuple[str, Any]]:
    """The drafts without the deltas, each as its type and what it is about."""
    about = {
        "message_received": "content",
        "message_sent": "content",
        "tool_call_started": "tool_input",
        "tool_call_completed": "tool_output",
        "tool_call_failed": "tool_output",
        "error_occurred": "error_message",
        "run_failed": "error_message",
        "turn_completed": "stop_reason",
    }
    return [
        (draft.type, draft.data.get(about[draft.type]) if draft.type in about else None)
        for draft in drafts
        if draft.type != "message_streamed"
    ]


def said(drafts: list[Draft]) -> str:
    """All that replies say."""
    return "".join(text_of(draft.data["content"]) for draft in drafts if draft.type == "message_received")


def of_type(drafts: list[Draft], type: str) -> list[dict[str, Any]]:
    return [draft.data for draft in drafts if draft.type == type]
