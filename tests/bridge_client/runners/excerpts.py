"""Short streams of our own making, one in each format: a thought, a reply in pieces, a tool call, the end."""

from typing import Any

Json = dict[str, Any]


def _block(index: int, start: Json, *deltas: Json) -> list[Json]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


ANTHROPIC: list[Json] = [
    {"type": "message_start", "message": {"id": "m-1", "model": "small", "usage": {"input_tokens": 3}}},
    *_block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "Look first."}),
    {"type": "ping"},
    *_block(1, {"type": "text", "text": ""}, *({"type": "text_delta", "text": text} for text in ("I'll ", "look. 👀"))),
    *_block(
        2,
        {"type": "tool_use", "id": "t-1", "name": "ls", "input": {}},
        *({"type": "input_json_delta", "partial_json": text} for text in ('{"path"', ': "."}')),
    ),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
    {"type": "message_stop"},
    {"type": "message_start", "message": {"id": "m-2", "model": "small", "usage": {"input_tokens": 20}}},
    *_block(0, {"type": "text", "text": "One"}, {"type": "text_delta", "text": " file."}),
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}},
    {"type": "message_stop"},
]


def _claude(role: str, identity: str, *content: Json) -> Json:
    message = {"id": identity, "role": role, "model": "small", "content": list(content)}
    return {"type": role, "message": message, "session_id": "theirs", "uuid": f"u-{identity}-{len(content)}"}


CLAUDE: list[Json] = [
    {"type": "system", "subtype": "init", "session_id": "theirs", "model": "small", "cwd": "/home", "tools": ["ls"]},
    _claude(
        "assistant", "m-1", {"type": "thinking", "thinking": "Look first."}, {"type": "text", "text": "I'll look."}
    ),
    _claude("assistant", "m-1", {"type": "tool_use", "id": "t-1", "name": "ls", "input": {"path": "."}}),
    _claude(
        "user", "u-1", {"type": "tool_result", "tool_use_id": "t-1", "content": [{"type": "text", "text": "a.py"}]}
    ),
    _claude("assistant", "m-2", {"type": "text", "text": "One file."}),
    {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "result": "One file.",
        "num_turns": 2,
        "total_cost_usd": 0.01,
        "usage": {"input_tokens": 23, "output_tokens": 13},
    },
]

CODEX: list[Json] = [
    {"type": "thread.started", "thread_id": "theirs"},
    {"type": "turn.started"},
    {"type": "item.completed", "item": {"id": "i-0", "type": "reasoning", "text": "Look first."}},
    {"type": "item.started", "item": {"id": "i-1", "type": "agent_message", "text": ""}},
    {"type": "item.updated", "item": {"id": "i-1", "type": "agent_message", "text": "I'll"}},
    {"type": "item.completed", "item": {"id": "i-1", "type": "agent_message", "text": "I'll look."}},
    {
        "type": "item.started",
        "item": {"id": "i-2", "type": "command_execution", "command": "ls", "aggregated_output": "", "exit_code": None},
    },
    {"type": "item.updated", "item": {"id": "i-2", "type": "command_execution", "aggregated_output": "a.py\n"}},
    {
        "type": "item.completed",
        "item": {
            "id": "i-2",
            "type": "command_execution",
            "command": "ls",
            "aggregated_output": "a.py\nb.py\n",
            "exit_code": 0,
            "status": "completed",
        },
    },
    {"type": "item.completed", "item": {"id": "i-3", "type": "agent_message", "text": " Two files."}},
    {"type": "turn.completed", "usage": {"input_tokens": 5, "cached_input_tokens": 1, "output_tokens": 6}},
]


def _chunk(delta: Json, finish: str | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "model": "small", "choices": [choice], **more}


OPENAI: list[Json] = [
    _chunk({"role": "assistant", "content": None, "reasoning_content": "Look first."}),
    _chunk({"content": "I'll "}),
    _chunk({"content": "look."}),
    _chunk(
        {"tool_calls": [{"index": 0, "id": "t-1", "type": "function", "function": {"name": "ls", "arguments": ""}}]}
    ),
    _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"path":'}}]}),
    _chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"."}'}}]}),
    _chunk({"tool_calls": [{"index": 1, "id": "t-2", "function": {"name": "pwd", "arguments": "{}"}}]}),
    _chunk({}, "tool_calls"),
    {"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}},
]

RESPONSES: list[Json] = [
    {"type": "response.created", "response": {"id": "r", "model": "small", "status": "in_progress", "output": []}},
    {"type": "response.output_item.added", "output_index": 0, "item": {"id": "rs", "type": "reasoning", "summary": []}},
    {"type": "response.reasoning_summary_text.delta", "item_id": "rs", "delta": "Look first."},
    {
        "type": "response.output_item.done",
        "item": {"id": "rs", "type": "reasoning", "summary": [{"text": "Look first."}]},
    },
    {"type": "response.output_item.added", "item": {"id": "ms", "type": "message", "content": []}},
    {"type": "response.output_text.delta", "item_id": "ms", "delta": "I'll "},
    {"type": "response.output_text.delta", "item_id": "ms", "delta": "look."},
    {
        "type": "response.output_item.done",
        "item": {"id": "ms", "type": "message", "content": [{"type": "output_text", "text": "I'll look."}]},
    },
    {
        "type": "response.output_item.added",
        "item": {"id": "fc", "type": "function_call", "call_id": "t-1", "name": "ls"},
    },
    {"type": "response.function_call_arguments.delta", "item_id": "fc", "delta": '{"path":"."}'},
    {
        "type": "response.output_item.done",
        "item": {"id": "fc", "type": "function_call", "call_id": "t-1", "name": "ls", "arguments": '{"path":"."}'},
    },
    {
        "type": "response.completed",
        "response": {"status": "completed", "usage": {"input_tokens": 3, "output_tokens": 9, "total_tokens": 12}},
    },
]


def _candidate(*parts: Json, **more: Any) -> Json:
    return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **more}], "modelVersion": "small"}


GEMINI: list[Json] = [
    _candidate({"text": "Look first.", "thought": True}),
    _candidate({"text": "I'll "}),
    _candidate({"text": "look."}, {"functionCall": {"name": "ls", "args": {"path": "."}}}),
    _candidate({"functionCall": {"name": "cat", "willContinue": True}}),
    _candidate({"functionCall": {"partialArgs": [{"jsonPath": "$.a[0].b", "stringValue": "x"}], "willContinue": True}}),
    _candidate({"functionCall": {"partialArgs": [{"jsonPath": "$.a[0].b", "stringValue": "y"}], "willContinue": True}}),
    _candidate({"functionCall": {"partialArgs": [{"jsonPath": "$.n", "numberValue": 2}]}}),
    {**_candidate(finishReason="STOP"), "usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 9}},
]


def _cohere(type: str, index: int | None = None, **message: Any) -> Json:
    return {"type": type, **({} if index is None else {"index": index}), "delta": {"message": message}}


COHERE: list[Json] = [
    {"id": "m", "type": "message-start", "delta": {"message": {"role": "assistant"}}},
    _cohere("tool-plan-delta", tool_plan="Look first."),
    _cohere("content-start", 0, content={"type": "text", "text": "I'll "}),
    _cohere("content-delta", 0, content={"text": "look."}),
    _cohere("tool-call-start", 0, tool_calls={"id": "t-1", "function": {"name": "ls", "arguments": ""}}),
    _cohere("tool-call-delta", 0, tool_calls={"function": {"arguments": '{"path":"."}'}}),
    {"type": "tool-call-end", "index": 0},
    {
        "type": "message-end",
        "delta": {"finish_reason": "TOOL_CALL", "usage": {"tokens": {"input_tokens": 3, "output_tokens": 9}}},
    },
]

BEDROCK: list[Json] = [
    {"messageStart": {"role": "assistant"}},
    {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Look first."}}}},
    {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "I'll "}}},
    {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"text": "look."}}},
    {"contentBlockStart": {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t-1", "name": "ls"}}}},
    {"contentBlockDelta": {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"path":"."}'}}}},
    {"contentBlockStop": {"contentBlockIndex": 2}},
    {"messageStop": {"stopReason": "tool_use"}},
    {"metadata": {"usage": {"inputTokens": 3, "outputTokens": 9}}},
]

OPENCODE: list[Json] = [
    {"type": "step_start", "part": {"type": "step-start"}},
    {"type": "reasoning", "part": {"type": "reasoning", "text": "Look first."}},
    {"type": "text", "part": {"type": "text", "text": "I'll look."}},
    {
        "type": "tool_use",
        "part": {
            "type": "tool",
            "callID": "t-1",
            "tool": "ls",
            "state": {"status": "completed", "input": {"path": "."}, "output": "a.py\n"},
        },
    },
    {"type": "step_finish", "part": {"reason": "stop", "cost": 0.1, "tokens": {"input": 3, "output": 9}}},
]


def _pi(*content: Json, **more: Any) -> Json:
    return {"role": "assistant", "model": "small", "content": list(content), **more}


PI: list[Json] = [
    {"type": "agent_start"},
    {"type": "message_start", "message": _pi()},
    {"type": "message_update", "assistantMessageEvent": {"type": "thinking_delta", "delta": "Look first."}},
    {"type": "message_update", "assistantMessageEvent": {"type": "text_delta", "delta": "I'll "}},
    {
        "type": "message_end",
        "message": _pi(
            {"type": "thinking", "thinking": "Look first."},
            {"type": "text", "text": "I'll look."},
            usage={"input": 3, "output": 9},
            stopReason="toolUse",
        ),
    },
    {"type": "tool_execution_start", "toolCallId": "t-1", "toolName": "ls", "args": {"path": "."}},
    {
        "type": "tool_execution_update",
        "toolCallId": "t-1",
        "partialResult": {"content": [{"type": "text", "text": "a"}]},
    },
    {
        "type": "tool_execution_update",
        "toolCallId": "t-1",
        "partialResult": {"content": [{"type": "text", "text": "ab"}]},
    },
    {"type": "tool_execution_end", "toolCallId": "t-1", "result": {"content": [{"type": "text", "text": "ab"}]}},
    {"type": "turn_end", "message": {"stopReason": "stop"}},
    {"type": "agent_end", "messages": []},
]

EXCERPTS: dict[str, list[Json]] = {
    "anthropic": ANTHROPIC,
    "claude": CLAUDE,
    "codex": CODEX,
    "openai": OPENAI,
    "openai-responses": RESPONSES,
    "gemini": GEMINI,
    "cohere": COHERE,
    "bedrock": BEDROCK,
    "opencode": OPENCODE,
    "pi": PI,
}
