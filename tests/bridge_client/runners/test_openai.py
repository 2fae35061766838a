"""The runner for chat completion endpoints, against one that replays, cuts, stalls and refuses."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bridge_client.clock import SystemClock
from bridge_client.runners import Message, chat_stream
from bridge_client.runners.chat_history import to_chat
from bridge_client.runners.chat_stream import Endpoint, retry_after
from bridge_client.runners.openai import Model, OpenAIRunner
from bridge_client.runners.tools import ListFiles, ReadFile, Tool
from protocol.events.session_manager import TYPES, Event
from tests.bridge_client.runners import excerpts
from tests.bridge_client.runners.running import (
    Person,
    answer,
    asking,
    cut_behind,
    endpoint,
    refusing,
    sse,
    stalling_behind,
    streaming,
)
from tests.bridge_client.runners.test_recorded import STREAMS

Json = dict[str, Any]


class Waiting(SystemClock):
    """A clock on which waiting takes no time, and is remembered."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def chunk(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def calling(name: str, arguments: str, identity: str | None = "t-1") -> list[Json]:
    call = {"index": 0, "id": identity, "function": {"name": name, "arguments": arguments}}
    return [chunk({"tool_calls": [call]}), chunk({}, "tool_calls")]


HELLO = [chunk({"content": "Hel"}), chunk({"content": "lo 👋"}), chunk({}, "stop")]
USED = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def runner(url: str, *tools: Tool, silence: float = 20.0, **options: Any) -> OpenAIRunner:
    clock = options.pop("clock", None) or Waiting()
    model = Model("small", **{"system": "Be brief.", **options.pop("model", {})})
    return OpenAIRunner(Endpoint(url, "k-secret", silence), model, tools, clock=clock, **options)


async def test_A15_a_reply_is_streamed_and_then_whole() -> None:
    async with endpoint(streaming([*HELLO, USED])) as served:
        answered = await answer(runner(served.url), "hi")
    assert answered.error is None
    assert answered.text == "Hello 👋"
    assert answered.types == [
        *("assistant_message", "partial", "assistant_message", "final"),
        *("turn_completed", "token_usage_updated", "Checkpoint"),
    ]
    assert [(message.role, message.content) for message in answered.messages] == [("assistant", "Hello 👋")]
    assert answered.of("token_usage_updated")[0]["data"] == {"input_tokens": 3, "output_tokens": 2}
    body = served.bodies[0]
    assert (body["model"], body["stream"], body["stream_options"]) == ("small", True, {"include_usage": True})
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert served.headers[0]["Authorization"] == "Bearer k-secret"


async def test_B110_to_B116_a_callback_gets_canonical_events_from_beginning_to_end() -> None:
    seen: list[Event] = []
    async with endpoint(streaming([*HELLO, USED])) as served:
        await answer(runner(served.url, on_event=seen.append), "hi")
        await answer(runner(served.url + "/nowhere", on_event=seen.append), "hi")
    assert {event.type for event in seen} <= set(TYPES)
    types = [event.type for event in seen]
    assert types == [
        *("run_started", "message_streamed", "message_streamed", "message_received"),
        *("turn_completed", "token_usage_updated", "run_completed", "run_started", "run_failed"),
    ]
    assert [event.data["delta"] for event in seen if event.type == "message_streamed"] == ["Hel", "lo 👋"]
    assert seen[-1].data["provider_error"]["provider"] == "unknown"
    assert seen[-1].data["error_message"].endswith("answers 404: 404: Not Found")


async def test_A17_A60_to_A69_a_tool_is_run_with_approval_and_its_result_goes_back(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("milk\n")
    person = Person()
    replies = streaming([chunk({"content": "I'll look."}), *calling("read_file", '{"path":"notes.txt"}')])
    async with endpoint(replies, streaming(HELLO)) as served:
        tools = ReadFile(tmp_path), ListFiles(tmp_path)
        answered = await answer(runner(served.url, *tools), asking("what's there?", stream_tools=True), person)
    assert answered.error is None
    assert answered.types == [
        *("assistant_message", "partial", "assistant_message", "final", "tool_calls", "tool_partial", "tool_results"),
        *("Checkpoint", "assistant_message", "partial", "assistant_message", "final", "turn_completed", "Checkpoint"),
    ]
    (call,) = answered.of("tool_calls")[0]["tool_calls"]
    assert (call["id"], call["function"]) == ("t-1", {"name": "read_file", "arguments": '{"path":"notes.txt"}'})
    assert [asked["id"] for asked in person.asked] == ["t-1"]
    phases = [(event["phase"], event["payload"]) for event in answered.of("tool_partial")]
    (result,) = answered.of("tool_results")[0]["messages"]
    assert phases == [
        ("start", {"part": "", "tool_name": "read_file"}),
        ("stream", {"part": "milk\n"}),
        ("end", {"result": result}),
    ]
    assert (result["role"], result["content"]) == ("tool", "milk\n")
    assert result["metadata"]["tool_call_id"] == "t-1"
    assert result["metadata"]["tool_name"] == "read_file"
    assert served.bodies[1]["messages"][1:] == [
        {"role": "user", "content": "what's there?"},
        {
            "role": "assistant",
            "content": "I'll look.",
            "tool_calls": [{"id": "t-1", "type": "function", "function": call["function"]}],
        },
        {"role": "tool", "tool_call_id": "t-1", "content": "milk\n"},
    ]
    assert [tool["function"]["name"] for tool in served.bodies[0]["tools"]] == ["read_file", "list_files"]
    # The session can be continued from what was persisted.
    assert to_chat(answered.messages) == [
        *served.bodies[1]["messages"][2:],
        {"role": "assistant", "content": "Hello 👋"},
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "allows", "said"),
    [
        ("read_file", '{"path":"notes.txt"}', False, "the user did not allow this call"),
        ("read_file", '{"path":"../secret"}', True, "../secret: is outside the project's folder"),
        ("read_file", '{"path":"nothing"}', True, "nothing: No such file or directory"),
        ("read_file", '{"path', True, "the arguments are not a whole JSON object"),
        ("rm", "{}", True, "there is no tool 'rm'; there are: read_file"),
    ],
)
async def test_a_call_that_can_not_be_run_is_a_result_that_says_so(
    tmp_path: Path, name: str, arguments: str, allows: bool, said: str
) -> None:
    (tmp_path / "notes.txt").write_text("milk\n")
    async with endpoint(streaming(calling(name, arguments)), streaming(HELLO)) as served:
        answered = await answer(runner(served.url, ReadFile(tmp_path)), "go on", Person(allows))
    (result,) = answered.of("tool_results")[0]["messages"]
    assert (result["content"], result["metadata"]["is_error"]) == (said, True)
    assert (answered.text, answered.error) == ("Hello 👋", None)


async def test_calls_without_an_id_get_one_and_a_model_that_never_answers_is_stopped(tmp_path: Path) -> None:
    async with endpoint(streaming(calling("list_files", '{"path":"."}', None))) as served:
        answered = await answer(runner(served.url, ListFiles(tmp_path, ask=False)), "go on")
    assert str(answered.error) == "after 50 rounds the model still calls tools"
    ids = [call["id"] for event in answered.of("tool_calls") for call in event["tool_calls"]]
    assert len(set(ids)) == len(served.bodies) == 50
    assert "" not in ids


async def test_A61_a_slow_tool_is_given_up() -> None:
    class Sleeper:
        name, description, ask, parameters = "sleep", "Sleeps.", False, {"type": "object"}
        stopped = False

        async def run(self, given: Any) -> Any:
            try:
                yield "snoring "
                await asyncio.Event().wait()
            finally:
                self.stopped = True

    sleeper = Sleeper()
    async with endpoint(streaming(calling("sleep", "{}")), streaming(HELLO)) as served:
        answered = await answer(runner(served.url, sleeper, model={"tool_seconds": 0.05}), "go on")
    assert answered.of("tool_results")[0]["messages"][0]["content"] == "the tool took more than 0.05 s"
    assert sleeper.stopped
    assert answered.error is None


async def test_A64_nothing_is_streamed_where_nobody_wants_that() -> None:
    async with endpoint(streaming(HELLO)) as served:
        answered = await answer(runner(served.url), asking("hi", stream=False))
    assert answered.types == ["final", "turn_completed", "Checkpoint"]


@pytest.mark.parametrize("keep", range(0, 1000, 97))
async def test_a_stream_that_is_cut_loses_nothing_of_what_came(keep: int) -> None:
    data = b"".join(sse([*HELLO, USED]))
    whole = len(b"".join(sse(HELLO)))
    async with endpoint(cut_behind(data[:keep])) as served:
        answered = await answer(runner(served.url), "hi")
    assert "Hello 👋".startswith(answered.text)
    assert answered.error is not None
    assert "the stream was cut" in str(answered.error)
    if answered.text and keep < whole:
        assert answered.of("final")[0]["messages"][0]["metadata"]["incomplete"] is True
        assert [message.content for message in answered.messages] == [answered.text]


async def test_a_stream_that_ends_before_the_reply_does_was_cut() -> None:
    async with endpoint(streaming(HELLO[:2], done=False)) as served:
        answered = await answer(runner(served.url), "hi")
    assert (answered.text, str(answered.error)) == ("Hello 👋", "the stream was cut: it ended before the reply did")


async def test_B19_a_stream_that_stalls_is_given_up() -> None:
    async with endpoint(stalling_behind(sse(HELLO)[0])) as served:
        answered = await answer(runner(served.url, silence=0.1), "hi")
    assert answered.text == "Hel"
    assert answered.error is not None
    assert answered.error.provider_error is not None
    assert answered.error.provider_error["kind"] == "timeout"
    assert "stalled" in str(answered.error)


async def test_429_is_tried_again_when_the_endpoint_says() -> None:
    clock = Waiting()
    async with endpoint(refusing(429, "slow down", Retry_After="7"), streaming(HELLO)) as served:
        answered = await answer(runner(served.url, clock=clock), "hi")
    assert answered.text == "Hello 👋"
    assert len(clock.waits) == 1
    assert 7 <= clock.waits[0] <= 9


@pytest.mark.parametrize(
    ("status", "wait", "tries", "said"),
    [
        (429, "3600", 1, "answers 429: no; it asks to wait for 3600 s"),
        (429, "Thu, 31 Dec 2099 12:00:00 GMT", 1, "answers 429: no; it asks to wait until 2099-12-31 12:00 UTC"),
        (503, "0", 4, "answers 503: no"),
        (401, "0", 1, "answers 401: no"),
    ],
)
async def test_a_refusal_ends_the_request_and_says_why(status: int, wait: str, tries: int, said: str) -> None:
    async with endpoint(refusing(status, "no", Retry_After=wait)) as served:
        answered = await answer(runner(served.url), "hi")
    assert len(served.bodies) == tries
    assert str(answered.error).endswith(said)
    assert answered.error is not None
    assert answered.error.details == {"provider": "openai", "status": status}
    assert "k-secret" not in repr(answered.error.__dict__)


KEY = "sk-live/0123456789abcdef"


@pytest.mark.parametrize("status", [401, 500])
@pytest.mark.parametrize("before", ["Bearer ", "", "x" * 465])
async def test_a_key_that_the_endpoint_repeats_in_its_refusal_is_told_to_nobody(
    status: int, before: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Event] = []
    async with endpoint(refusing(status, f"Incorrect API key provided: {before}{KEY}")) as served:
        refused = OpenAIRunner(Endpoint(served.url, KEY), Model("m"), clock=Waiting(), on_event=seen.append)
        answered = await answer(refused, "hi")
    assert answered.error is not None
    told = repr([answered.events, str(answered.error), answered.error.__dict__, seen, caplog.text])
    assert KEY[:5] not in told
    if len(before) < 400:
        assert str(answered.error).endswith(f"answers {status}: Incorrect API key provided: {before}[redacted]")
        assert answered.error.provider_error is not None
        assert answered.error.provider_error["message"] == str(answered.error)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"error":{"message":"bad key sk-live\\/0123456789abcdef"}}', "bad key [redacted]"),
        (f'{{"error":"bad key {KEY}"}}', "bad key [redacted]"),
        (f"bad key {KEY}", "the endpoint answers with something else than chat completions"),
    ],
)
async def test_a_key_that_the_endpoint_repeats_in_its_stream_is_told_to_nobody(line: str, said: str) -> None:
    async with endpoint(streaming([line])) as served:
        answered = await answer(OpenAIRunner(Endpoint(served.url, KEY), Model("m"), clock=Waiting()), "hi")
    assert answered.error is not None
    assert str(answered.error) == said
    assert KEY[:7] not in repr([answered.events, answered.error.__dict__])
    assert "[redacted]" in repr([answered.events, answered.error.__dict__])


async def test_a_key_is_taken_out_of_a_reply_also_in_pieces_and_a_short_one_is_not() -> None:
    pieces = [chunk({"content": piece}) for piece in ("Your key: ", KEY[:3], KEY[3:9], KEY[9:] + ", s", "k-l.")]
    async with endpoint(streaming([*pieces, chunk({"content": " sk-"}), chunk({}, "stop")])) as served:
        answered = await answer(OpenAIRunner(Endpoint(served.url, KEY), Model("m")), "hi")
        as_it_is = await answer(OpenAIRunner(Endpoint(served.url, "key"), Model("m")), "hi")
    assert (answered.text, answered.error) == ("Your key: [redacted], sk-l. sk-", None)
    assert answered.streamed == answered.text
    assert as_it_is.text == f"Your key: {KEY}, sk-l. sk-"


async def test_a_line_without_end_is_given_up_at_our_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_stream, "MAX_LINE", 1000)
    async with endpoint(stalling_behind(sse(HELLO)[0] + b"data: " + b"x" * 1000)) as served:
        answered = await answer(runner(served.url), "hi")
    assert (answered.text, str(answered.error)) == ("Hel", "a line of the stream is longer than 1000 bytes")


async def test_a_page_is_no_stream_of_events() -> None:
    def reply(request: Any, body: Json) -> web.Response:
        return web.Response(text="<html>\nWelcome\n</html>", content_type="text/html")

    async with endpoint(reply) as served:
        answered = await answer(runner(served.url), "hi")
    assert "answers with a page (text/html), not with a stream of events" in str(answered.error)
    assert answered.events == []


def test_retry_after_is_a_number_or_a_date() -> None:
    assert retry_after("12", 0.0) == 12
    assert retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 40.0) == 60
    assert retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 400.0) == 0
    assert [retry_after(odd, 0.0) for odd in (None, "", "soon", "-1", "9" * 40)] == [None] * 5


async def test_an_error_in_the_stream_fails_the_request_after_what_was_said() -> None:
    broken = {"error": {"message": "out of memory", "type": "server_error"}}
    async with endpoint(streaming([HELLO[0], broken])) as served:
        answered = await answer(runner(served.url), "hi")
    assert (answered.text, str(answered.error)) == ("Hel", "out of memory")


async def test_an_endpoint_that_does_not_stream_is_heard_too() -> None:
    whole = {"object": "chat.completion", "choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}]}

    def reply(request: Any, body: Json) -> Any:
        return web.json_response(whole)

    async with endpoint(reply) as served:
        answered = await answer(runner(served.url), "hi")
    assert (answered.text, answered.error) == ("Hi.", None)


async def test_A16_a_cancelled_request_lets_go_of_the_stream() -> None:
    began = asyncio.Event()
    async with endpoint(stalling_behind(sse(HELLO)[0])) as served:
        running = asyncio.create_task(answer(runner(served.url), "hi", seen=lambda event: began.set()))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait_for(served.left.wait(), 20)


def test_a_history_never_holds_half_a_tool_call() -> None:
    def told(role: str, content: str = "", **metadata: Any) -> Message:
        return Message(role=role, content=content, metadata=metadata)

    call = {"id": "t-1", "function": {"name": "ls", "arguments": "{}"}}
    asked, result = told("assistant", tool_calls=[call]), told("tool", "a.py", tool_call_id="t-1")
    assert [message["role"] for message in to_chat([asked, result])] == ["assistant", "tool"]
    assert to_chat([asked]) == []
    assert to_chat([result]) == []
    assert to_chat([result, asked]) == []
    assert to_chat([told("assistant", tool_calls="odd"), told("assistant", tool_calls=[None, {"id": 1}])]) == []


RECORDED = [
    path
    for path in (STREAMS / "vercel-ai").glob("*.txt")
    if path.name.startswith(("openai-text", "groq", "deepseek", "mistral"))
]


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
async def test_recorded_streams_come_through_a_real_endpoint_whole(path: Path) -> None:
    async with endpoint(streaming(path.read_text("utf-8").splitlines()), streaming(HELLO)) as served:
        answered = await answer(runner(served.url), "hi")
    assert answered.error is None
    assert ("Hello 👋" in answered.text) == bool(answered.of("tool_calls"))


async def test_our_own_excerpt_asks_for_two_tools_at_once() -> None:
    async with endpoint(streaming(excerpts.OPENAI), streaming(HELLO)) as served:
        answered = await answer(runner(served.url), "hi")
    assert answered.text == "I'll look.Hello 👋"
    assert [len(event["messages"]) for event in answered.of("tool_results")] == [1, 1]
    roles = [message["role"] for message in served.bodies[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
