"""Ingest: what other programs wrote becomes events, byte for byte."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge_client.ingest import IngestStopped, Problem, Report, Value, ValueReader, ingest, read_chunks
from bridge_client.store import Stored, StoreError
from bridge_client.store.memory import MemoryStore

STREAMS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "streams"
FILES = sorted(path for path in STREAMS.glob("*/*") if path.parent.name != "licenses")

needs_streams = pytest.mark.skipif(
    not FILES, reason="the recorded streams are not on this machine: they are no part of the repository"
)


async def pieces(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def ingested(data: bytes, **options: Any) -> tuple[list[bytes], Report]:
    """The `data` members as stored, and the report."""
    store = MemoryStore()
    report = await ingest(store, pieces(data), **options)
    stored = await store.list(limit=100_000)
    assert len(stored) == report.published
    return [data_of(one.data) for one in stored], report


def data_of(event: bytes) -> bytes:
    head = re.match(rb'\{"event_id":"\d+","type":"(?:[^"\\]|\\.)*",(?:"session_id":"(?:[^"\\]|\\.)*",)?"data":', event)
    assert head
    return event[head.end() : -1]


def read(data: bytes, *cuts: int, max_line: int = 1000) -> list[Value | Problem]:
    reader, found, start = ValueReader(max_line), list[Value | Problem](), 0
    for cut in [*sorted(cuts), len(data)]:
        found += reader.feed(data[start:cut])
        start = cut
    return [*found, *reader.end()]


# --- the recorded streams


def expected(path: Path) -> tuple[list[bytes], list[int]]:
    """An independent reading of one file: its values' texts, and the numbers of its broken lines."""
    text = path.read_bytes().decode()
    if path.suffix == ".json":
        return [text.strip().encode()], []
    if path.parent.name == "anthropic-sse":
        return [line[5:].strip().encode() for line in text.split("\n") if line.startswith("data:")], []
    values, broken = [], []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                json.loads(line)
                values.append(line.strip().encode())
            except ValueError:
                broken.append(number)
    return values, broken


@needs_streams
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
async def test_every_recorded_stream_goes_through_byte_for_byte(path: Path) -> None:
    store = MemoryStore()
    file = os.open(path, os.O_RDONLY)
    report = await ingest(store, read_chunks(file), session_id="s")
    os.close(file)
    values, broken = expected(path)
    stored = await store.list(limit=100_000)
    assert [data_of(one.data) for one in stored] == values
    assert report.published == len(values) > 0
    assert [problem.line for problem in report.problems] == broken
    assert report.broken == len(broken)
    for one, value in zip(stored, map(json.loads, values), strict=True):
        own = value.get("type")
        members = json.loads(one.data)
        assert members["type"] == (own if isinstance(own, str) and own else "provider_event")
        assert members["session_id"] == "s"


@needs_streams
def test_the_recorded_streams_hold_what_they_are_there_for() -> None:
    assert len(FILES) == 45
    broken = {path.name: expected(path)[1] for path in FILES}
    assert {name: lines for name, lines in broken.items() if lines} == {
        "parallel-tool-call-wrapper.1.chunks.txt": [1, 6]
    }
    large = expected(STREAMS / "spotter" / "transcript-large-8463c716.jsonl")[0]
    assert len(large) == 1593
    assert max(map(len, large)) > 178_000


# --- which format it is


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        (b'{"a":1}\r\n\r\n  {"b":2}', [b'{"a":1}', b'{"b":2}']),
        (b"\xef\xbb\xbf1\n[2]\nnull\n", [b"1", b"[2]", b"null"]),
        (b'\n\n{\n  "a": 1\n}\n', [b'{\n  "a": 1\n}']),
        (b"[\n1,\n2\n]", [b"[\n1,\n2\n]"]),
        (b'[\n{"a":1}\n]', [b'{"a":1}']),
        (b'{"a":\r\n{"b":2}\r\n}', [b'{"a":\r\n{"b":2}\r\n}']),
        (b'data: {"a":1}\n\ndata:{"b":2}\n\n', [b'{"a":1}', b'{"b":2}']),
        (b'event: x\r\ndata: {"a":1}\r\n\r\n: ping\r\n\r\nid: 4\r\ndata: 2\r\n\r\n', [b'{"a":1}', b"2"]),
        (b'data: {"a":1}\r\rdata: 2\r\r', [b'{"a":1}', b"2"]),
        (b': hello\n\nretry: 10\ndata: {"a":\ndata:  1}\ndata\n\ndata: [DONE]\n\n', [b'{"a":\n 1}']),
        (b"event: x\ndata: 7", [b"7"]),
        (b"data:\n\ndata: [DONE]\n\n", []),
        (b"", []),
        (b" \n\t\r\n", []),
    ],
)
async def test_the_format_is_known_by_its_content(data: bytes, values: list[bytes]) -> None:
    got, report = await ingested(data)
    got = [value.replace(b"\r\n", b"\n") for value in got]
    assert got == [value.replace(b"\r\n", b"\n") for value in values]
    assert report.problems == []


@pytest.mark.parametrize(
    ("data", "values", "lines"),
    [
        (b'{"a":1\n{"b":2}\n{"c":3}\n', [b'{"b":2}', b'{"c":3}'], [1]),
        (b'{"a":\n{"b":2}\n{"c":3}\n{"d":4}', [b'{"b":2}', b'{"c":3}', b'{"d":4}'], [1]),
        (b'{"a":\n{"b":2}', [b'{"b":2}'], [1]),
        (b'{"a":1}\n{"b":\n{"c":3}', [b'{"a":1}', b'{"c":3}'], [2]),
        (b'oops\n{"b":NaN}\n3\n"\xff"\n"\\q"', [b"3"], [1, 2, 4, 5]),
        (b'{"a":1}}\n2', [b"2"], [1]),
        (b'{\n  "a": 1\n', [], [1, 2]),
        (b'data: {"a":\n\nevent: y\ndata: 2\n\ndata: oops\ndata: 1', [b"2"], [1, 6]),
        (b"[" * 100_000 + b"\n1", [b"1"], [1]),
    ],
)
async def test_what_is_broken_is_reported_by_line_and_the_rest_goes_through(
    data: bytes, values: list[bytes], lines: list[int]
) -> None:
    got, report = await ingested(data)
    assert got == values
    assert [problem.line for problem in report.problems] == lines
    assert all(problem.reason for problem in report.problems)


async def test_the_values_own_type_is_used_if_it_is_a_name() -> None:
    store = MemoryStore()
    lines = [b'{"type":"a\\u0062"}', b'{"type":""}', b'{"type":5}', b'{"type":"x","type":"y"}', b'["type"]', b'"type"']
    await ingest(store, pieces(b"\n".join(lines)))
    types = [json.loads(one.data)["type"] for one in await store.list()]
    assert types == ["ab", "provider_event", "provider_event", "y", "provider_event", "provider_event"]
    assert all("session_id" not in json.loads(one.data) for one in await store.list())


async def test_numbers_and_duplicates_keep_their_text() -> None:
    line = b'{"n": 1e400, "m": ' + b"123456789" * 9 + b', "z": 1.0, "z": -0, "s": "\\u00e4\\/"}'
    values, report = await ingested(b" " + line + b"\r\n")
    assert values == [line]
    assert report.broken == 0


# --- limits


async def test_what_the_store_refuses_is_a_problem_of_its_line() -> None:
    store = MemoryStore(max_event_bytes=200)
    deep = b"[" * 120 + b"]" * 120
    report = await ingest(store, pieces(b'1\n"' + b"x" * 300 + b'"\n' + deep + b"\n4\n"))
    assert report.published == 2
    assert [problem.line for problem in report.problems] == [2, 3]
    assert "at most 200" in report.problems[0].reason


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"1\n%b\n3\n", [1, 2, 3]),
        (b"%b\n2\n", [1, 2]),
        (b'{"a":\n%b\n}\n', [1, 2, 3]),
        (b"1\n%b", [1, 2]),
        (b"data: 1\n\ndata: %b\ndata: 2\n\ndata: 3\n\n", [1, 3, 6]),
        (b"data: 1\n\ndata: " + b"4" * 600 + b"\ndata: " + b"4" * 600 + b"\n\ndata: %b\n\ndata: 3\n\n", [1, 3, 6, 8]),
    ],
)
def test_a_line_over_the_limit_is_reported_and_skipped(data: bytes, found: list[int]) -> None:
    text = data.replace(b"%b", b"9" * 1001)
    for size in (1, 7, 5000):
        results = read(text, *range(0, len(text), size))
        assert [one.line for one in results] == found
        long = [one for one in results if isinstance(one, Problem) and "too long" in one.reason]
        assert long
        assert all(isinstance(one, Value) for one in results if one not in long and data[:5] != b'{"a":')


@settings(max_examples=150, deadline=None)
@given(
    data=st.sampled_from(
        [
            b'{"a":1}\n{"b":\n\n{"c":"\xc3\xa4"}\r\n[1,2]\nx',
            b'\xef\xbb\xbf{\n "a": [\n  1,\n  2\n ]\n}\n',
            b'event: a\r\ndata: {"a":\r\ndata: 1}\r\n\r\ndata: oops\r\n\r\n:c\r\ndata: 3',
            b"[1\n" + b"9" * 1100 + b"\n2]\n3",
        ]
    ),
    cuts=st.lists(st.integers(0, 60)),
)
def test_it_does_not_matter_how_the_input_is_cut(data: bytes, cuts: list[int]) -> None:
    assert read(data, *cuts) == read(data)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=80) | st.text('{}[]":,\n\r 1adt\\', max_size=60).map(str.encode))
def test_any_bytes_are_read_to_their_end(data: bytes) -> None:
    for one in read(data):
        assert one.line >= 1
        if isinstance(one, Value):
            json.loads(one.data)


async def test_lines_are_published_as_they_come() -> None:
    store = MemoryStore()
    reading, writing = os.pipe()
    running = asyncio.ensure_future(ingest(store, read_chunks(reading)))
    for n in range(3):
        os.write(writing, b"%d\n" % n)
        await asyncio.wait_for(store.wait(n), 20)
    os.close(writing)
    report = await asyncio.wait_for(running, 20)
    os.close(reading)
    assert report.published == 3


class Failing(MemoryStore):
    async def publish(self, event: Mapping[str, Any] | bytes) -> Stored:
        if (await self.head() or 0) >= 5:
            raise StoreError("disk full")
        await asyncio.sleep(0)
        return await super().publish(event)


async def test_a_store_that_fails_stops_it_with_a_report() -> None:
    with pytest.raises(IngestStopped, match="disk full") as stopped:
        await ingest(Failing(), pieces(b"x\n" + b"1\n" * 5000))
    assert 0 < stopped.value.report.published <= 260
    assert [problem.line for problem in stopped.value.report.problems] == [1]


async def test_an_input_that_fails_stops_it_with_a_report() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"1\n2\n"
        raise OSError("the pipe broke")

    store = MemoryStore()
    with pytest.raises(IngestStopped, match="the pipe broke"):
        await ingest(store, failing())
    assert len(await store.list()) <= 2
