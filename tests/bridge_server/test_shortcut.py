"""The short cut past the library's parser: whatever comes, however it is cut, means what the library says it means."""

import logging
import struct
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, Protocol, Side

from bridge_server.transports.shortcut import Shortcut

LIMIT = 70_000
TEXT, BINARY = 1, 2


def library() -> Protocol:
    silent = logging.getLogger("tests.shortcut")
    silent.disabled = True
    return Protocol(Side.SERVER, state=OPEN, max_size=LIMIT, logger=silent)


class Seen(NamedTuple):
    """What a driver would be told, and what it would answer."""

    messages: list[tuple[int, bytes]]
    answers: bytes
    is_open: bool


def drive(chunks: list[bytes], *, short: bool) -> Seen:
    """As the driver does: whole messages, fragments joined, until the library ends the connection."""
    protocol, shortcut = library(), Shortcut(LIMIT)
    messages: list[tuple[int, bytes]] = []
    parts: list[bytes] = []
    kind = 0
    for chunk in chunks:
        for opcode, data in shortcut.cut(chunk) if short else [(0, chunk)]:
            if opcode:
                if protocol.state is OPEN:
                    messages.append((opcode, data))
                continue
            protocol.receive_data(data)
            for event in protocol.events_received():
                assert isinstance(event, Frame)
                if event.opcode in (TEXT, BINARY):
                    kind, parts = int(event.opcode), []
                if event.opcode <= BINARY:
                    parts.append(bytes(event.data))
                    if event.fin:
                        messages.append((kind, b"".join(parts)))
    return Seen(messages, b"".join(protocol.data_to_send()), protocol.state is OPEN)


def frame(first: int, data: bytes, mask: bytes | None = b"\x01\x82\x03\x84", *, form: int = 0) -> bytes:
    """One client frame. `form` 126 or 127 writes a length longer than it has to be."""
    masked = 0x80 if mask is not None else 0
    size = len(data)
    form = form or (size if size < 126 else 126 if size < 65_536 else 127)
    lengths = struct.pack("!H", size) if form == 126 else struct.pack("!Q", size) if form == 127 else b""
    body = data if mask is None else bytes(byte ^ mask[index % 4] for index, byte in enumerate(data))
    return bytes((first, masked | form)) + lengths + (mask or b"") + body


FRAMES = st.builds(
    frame,
    st.one_of(
        st.sampled_from([0x81, 0x81, 0x82, 0x01, 0x80, 0x00, 0x89, 0x8A]),
        st.sampled_from([0x88, 0xC1, 0x91, 0x83, 0x09, 0x02]),
    ),
    st.one_of(st.binary(max_size=30), st.sampled_from([b"x" * 125, b"x" * 126, b"x" * 200])),
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=4, max_size=4), st.none()),
    form=st.sampled_from([0, 0, 0, 126, 127]),
).filter(lambda data: data[1] & 0x7F >= 126 or len(data) < 140)


@settings(max_examples=400, deadline=None)
@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(1, 40), max_size=60), st.binary(max_size=3))
def test_it_changes_nothing_but_the_way(frames: list[bytes], cuts: list[int], rest: bytes) -> None:
    """RFC 6455 section 5: the same messages, the same answers, the same end, for every cut of the stream."""
    stream = b"".join(frames) + rest
    chunks = []
    for cut in cuts:
        chunks.append(stream[:cut])
        stream = stream[cut:]
    chunks = [chunk for chunk in (*chunks, stream) if chunk]
    short, plain = drive(chunks, short=True), drive(chunks, short=False)
    assert short == plain


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, LIMIT])
@pytest.mark.parametrize("first", [0x81, 0x82])
def test_a_whole_plain_message_never_reaches_the_library(size: int, first: int) -> None:
    data = bytes(index % 251 for index in range(size))
    [piece] = Shortcut(LIMIT).cut(frame(first, data))
    assert piece == (first & 0x0F, data)


@pytest.mark.parametrize("at", range(1, 14))
def test_a_head_that_arrives_in_parts_is_kept_whole(at: int) -> None:
    data = b"x" * 65_536
    whole = frame(0x81, data)
    shortcut = Shortcut(LIMIT)
    assert shortcut.cut(whole[:at]) == []
    assert shortcut.cut(whole[at:]) == [(TEXT, data)]


@pytest.mark.parametrize(
    "start",
    [
        pytest.param(frame(0x81, b"x" * (LIMIT + 1))[:10], id="too long, by what its head says"),
        pytest.param(frame(0x81, b"hello", None)[:2], id="not masked"),
        pytest.param(frame(0xC1, b"hello"), id="a reserved bit"),
        pytest.param(frame(0x83, b"hello"), id="a reserved opcode"),
    ],
)
def test_what_is_at_fault_is_refused_at_once_and_nothing_after_it_is_heard(start: bytes) -> None:
    seen = drive([frame(0x81, b"before") + start, frame(0x81, b"after")], short=True)
    assert seen.messages == [(TEXT, b"before")]
    assert not seen.is_open
    assert seen.answers[0] == 0x80 | Opcode.CLOSE


def test_a_message_between_the_fragments_of_another_is_the_librarys_to_refuse() -> None:
    seen = drive([frame(0x01, b"one"), frame(0x89, b"ping"), frame(0x81, b"two")], short=True)
    assert (seen.messages, seen.is_open) == ([], False)
