"""Streams recorded from real providers: every one yields canonical events, and no text is lost.

What a stream says is found a second time here, by looking at each format's text members and nothing else.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client.runners.json_lines import JsonLinesTranslator
from tests.bridge_client.runners.drafts import of_type, said, translate

STREAMS = Path(__file__).resolve().parents[4] / "shared" / "data" / "streams"
FILES = sorted(path for path in STREAMS.glob("*/*") if path.parent.name != "licenses" and path.suffix != ".md")
pytestmark = pytest.mark.skipif(not FILES, reason=f"no recorded streams in {STREAMS}")

FORMATS = {
    "anthropic-sse": "anthropic",
    "claude-agent-gleam": "claude",
    "happy": "claude",
    "spotter": "claude",
    "anthropic": "anthropic",
    "spliced": "anthropic",
    "openai-text": "openai",
    "openai-completion": "openai",
    "openai": "openai-responses",
    "parallel": "openai-responses",
    "groq": "openai",
    "deepseek": "openai",
    "mistral": "openai",
    "google": "gemini",
    "tool-call": "gemini",
    "cohere": "cohere",
    "amazon": "bedrock",
    "claude": "claude",
    "codex": "codex",
    "opencode": "opencode",
    "pi": "pi",
}


def format_of(path: Path) -> str:
    names = (path.parent.name, path.name)
    return max(
        ((key, name) for key, name in FORMATS.items() if any(n.startswith(key) for n in names)), key=lambda p: len(p[0])
    )[1]


def lines_of(path: Path) -> list[str]:
    text = path.read_text("utf-8")
    return [json.dumps(json.loads(text))] if path.suffix == ".json" else text.splitlines()


def objects(path: Path) -> Iterator[dict[str, Any]]:
    for line in lines_of(path):
        try:
            yield json.loads(line.removeprefix("data:"))
        except ValueError:
            continue


def anthropic_text(path: Path) -> str:
    return "".join(event.get("delta", {}).get("text", "") for event in objects(path))


def claude_text(path: Path) -> str:
    told, texts = set(), []
    for event in objects(path):
        message = event.get("message", {})
        content = message.get("content")
        for block in content if event.get("type") == "assistant" and isinstance(content, list) else []:
            if block["type"] == "text" and (mark := (message["id"], block.get("text"))) not in told:
                told.add(mark)
                texts.append(block.get("text", ""))
        if event.get("type") == "result" and event.get("result", "") not in "".join(texts):
            texts.append(event["result"])
    return "".join(texts)


def openai_text(path: Path) -> str:
    choices = [choice for event in objects(path) for choice in event["choices"]]
    return "".join(choice.get("delta", {}).get("content") or choice.get("text") or "" for choice in choices)


TEXTS: dict[str, Callable[[Path], str]] = {
    "anthropic": anthropic_text,
    "claude": claude_text,
    "openai": openai_text,
    "openai-responses": lambda path: "".join(
        event["delta"] for event in objects(path) if event["type"] == "response.output_text.delta"
    ),
    "gemini": lambda path: "".join(
        part.get("text", "")
        for event in objects(path)
        for candidate in event.get("candidates", [])
        for part in candidate["content"].get("parts", [])
    ),
    "cohere": lambda path: "",
    "bedrock": lambda path: "".join(
        event.get("contentBlockDelta", {}).get("delta", {}).get("text", "") for event in objects(path)
    ),
    "codex": lambda path: "".join(
        event["item"]["text"] for event in objects(path) if event.get("item", {}).get("type") == "agent_message"
    ),
    "opencode": lambda path: "".join(event["part"]["text"] for event in objects(path) if event["type"] == "text"),
    "pi": lambda path: "".join(
        part.get("text", "")
        for event in objects(path)
        if event["type"] == "message_end" and event["message"]["role"] == "assistant"
        for part in event["message"]["content"]
    ),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_recorded_stream_loses_no_text(path: Path) -> None:
    """`translate` also checks that the deltas of each reply add up to it."""
    translator = JsonLinesTranslator()
    drafts = translate(translator, lines_of(path))
    assert translator.format == format_of(path)
    text = said(drafts)
    if path.name.startswith("parallel-tool-call-wrapper"):  # its first line is no JSON: a program's text
        text = text[text.index("\n") + 1 :]
    assert text == TEXTS[format_of(path)](path)
    calls = Counter(data["tool_call_id"] for data in of_type(drafts, "tool_call_started"))
    assert all(count == 1 for count in calls.values()), calls


def test_every_tool_call_of_the_large_transcript_has_its_result() -> None:
    (path,) = (path for path in FILES if path.parent.name == "spotter")
    drafts = translate(JsonLinesTranslator(), lines_of(path))
    started = {data["tool_call_id"]: data["tool_name"] for data in of_type(drafts, "tool_call_started")}
    ended = [*of_type(drafts, "tool_call_completed"), *of_type(drafts, "tool_call_failed")]
    assert len(started) == 177
    assert {data["tool_call_id"] for data in ended} == set(started)
    assert all(data["tool_name"] == started[data["tool_call_id"]] for data in ended)
    assert all(draft.timestamp is not None for draft in drafts)
