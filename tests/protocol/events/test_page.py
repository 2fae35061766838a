"""docs/events.md, held to the code: its tables, limits and conversions."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bridge_client.runners.json_lines import FORMATS
from bridge_client.runners.turn import MAX_TEXT_CHARS
from protocol.events import agent_app, session_manager, streaming
from protocol.events.normalize import ALIASES, INFERENCES, REFINEMENTS
from protocol.events.provider_error import KINDS, PROVIDERS
from protocol.events.session_manager import MEMBERS, Draft, stamp
from protocol.events.truncation import (
    ERROR_TEXT_BYTES,
    ERROR_TEXT_LINES,
    LLM_OUTPUT_CHARS,
    THINKING_CHARS,
    TOOL_OBSERVATION_CHARS,
)
from protocol.events.views import AgentAppView, to_streaming
from tests.protocol.events.making import context
from tests.protocol.events.test_vocabulary import AGENT_APP

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "events.md").read_text("utf-8")
SAYS: dict[str, Any] = {"delta": "x", "content": "x"}


def rows(first_column: str) -> list[list[str]]:
    """The rows of the table whose first column has this heading, and that has as many columns as its heading says."""
    (found,) = (
        block for block in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE) if block.startswith(f"| {first_column} |")
    )
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in found.splitlines()[2:]]


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_agent_applications_types() -> None:
    told = {codes(name)[0]: set(codes(members)) for name, members, _ in rows("type | members")}
    assert {*told, "session_checkpoint"} == set(agent_app.VOCABULARY.types)
    common = {"type", "event_id", "session_id", "request_id"}
    for example in AGENT_APP:
        if example["type"] in told:
            named = told[example["type"]]
            model = agent_app.VOCABULARY.read(example)
            assert named - {"start", "end", "message.content"} <= set(fields(model)) | {"notification.id"}, example[
                "type"
            ]
            required = {name for name in example if name not in common}
            optional = {"display"}
            assert required - named <= optional, example["type"]


def fields(model: Any) -> Mapping[str, Any]:
    return dict.fromkeys(model.__struct_fields__)


def test_the_canonical_types_their_aliases_and_their_telling() -> None:
    table = rows("group | type")
    assert [(group, *codes(type)) for group, type, *_ in table] == [
        (group, type) for group, types in session_manager.GROUPS.items() for type in types
    ]
    for _, type, aliases, application, workflow in table:
        (name,) = codes(type)
        assert codes(aliases) == [alias for alias, means in ALIASES.items() if means == name != alias]
        event = stamp(Draft(name, SAYS if name.startswith("message_") else {}), context(), 0)
        told = [line["type"] for line in AgentAppView().tell(event)]
        assert (codes(application) if application != "the same" else [name]) == told
        assert codes(workflow) == [line["type"] for line in to_streaming(event)]


def test_the_refinements() -> None:
    told = {(codes(type)[0], codes(status)[0]): codes(becomes)[0] for type, status, becomes in rows("type | status")}
    assert told == REFINEMENTS


def test_the_inferences() -> None:
    sentence = PAGE[PAGE.index("An unknown name is judged") : PAGE.index("What says nothing at all")]
    assert re.findall(r"`(\w+)` → `(\w+)`", sentence) == [*INFERENCES]


def test_the_workflows_types_and_what_is_not_kept() -> None:
    assert {group: tuple(codes(types)) for group, types in rows("group | types")} == streaming.GROUPS
    sentence = PAGE[PAGE.index("Not kept for ever") : PAGE.index("Types\nnobody knows")]
    assert set(codes(sentence)) == streaming.EPHEMERAL


def test_the_formats() -> None:
    assert [codes(name)[0] for name, _ in rows("format")] == [*FORMATS]


def test_the_modules() -> None:
    real = {path.stem for path in (Path(agent_app.__file__).parent).glob("*.py")} - {"__init__", "vocabulary"}
    assert {name for cell, _ in rows("module") for name in codes(cell)} == real


def test_the_limits_and_names() -> None:
    for number in (LLM_OUTPUT_CHARS, TOOL_OBSERVATION_CHARS, ERROR_TEXT_BYTES, MAX_TEXT_CHARS):
        assert f"{number:,}" in PAGE
    assert f"first {ERROR_TEXT_LINES} lines" in PAGE
    assert f"{THINKING_CHARS} for\n`AGENT_THINKING`" in PAGE
    for name in (*PROVIDERS, *KINDS, *MEMBERS):
        assert f"`{name}`" in PAGE
