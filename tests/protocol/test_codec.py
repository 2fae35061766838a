"""The codecs and the door: what goes out comes back, and whatever comes in is decoded or refused as a ProtocolError."""

import json
import re
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.json import Decoder

from protocol.codec import MAX_DEPTH, MAX_REF_BYTES, V1, V2, Codec, Encoded, negotiate, open_json, repair_surrogates
from protocol.errors import BadUtf8, MalformedMessage, ProtocolError, TooDeep
from protocol.frames import EMPTY, Binary, Frame, raw, same_ref

CODECS: tuple[Codec, ...] = (V1, V2)
both = pytest.mark.parametrize("codec", CODECS, ids=["v1", "v2"])
few = settings(max_examples=60, deadline=None, derandomize=True)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = (
    st.integers() | st.integers(min_value=2**70, max_value=2**90) | st.floats(allow_nan=False, allow_infinity=False)
)
REFS = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
PAYLOADS = st.dictionaries(TEXT, REFS, max_size=3).map(raw)
FRAMES = st.builds(Frame, REFS, REFS, REFS, REFS, PAYLOADS)


def message(codec: Codec, **places: str) -> bytes:
    """A heartbeat with JSON texts of the test's choice in some of its places."""
    slots = {"join_ref": '"1"', "ref": '"2"', "topic": '"phoenix"', "event": '"heartbeat"', "payload": "{}"} | places
    if codec is V2:
        return f"[{','.join(slots.values())}]".encode("utf-8", "surrogateescape")
    return ("{" + ",".join(f'"{name}":{text}' for name, text in slots.items()) + "}").encode("utf-8", "surrogateescape")


PLACES = ("join_ref", "ref", "topic", "event", "payload")


def everywhere(*forms: str) -> Iterator[tuple[str, str]]:
    """Every place of a message with every form of JSON around `%s`."""
    return product(PLACES, forms)


# What goes out comes back.


@few
@given(FRAMES)
def test_v2_text_reads_what_it_writes(frame: Frame) -> None:
    encoded = V2.encode(frame)
    assert not encoded.binary
    read = V2.decode(encoded.data, binary=False)
    assert all(map(same_ref, read[:4], frame[:4]))
    assert bytes(read.payload) == bytes(frame.payload)


@few
@given(FRAMES)
def test_v1_reads_what_it_writes(frame: Frame) -> None:
    encoded = V1.encode(frame)
    read = V1.decode(encoded.data, binary=False)
    assert read.join_ref is None
    assert all(map(same_ref, read[1:4], frame[1:4]))
    assert bytes(read.payload) == bytes(frame.payload)
    assert V1.decode(encoded.data, binary=True)[:4] == read[:4]


@few
@given(TEXT, TEXT, st.dictionaries(TEXT, TEXT, max_size=3))
def test_output_is_compact_json_in_raw_utf8(ref: str, topic: str, payload: dict[str, str]) -> None:
    for codec in CODECS:
        data = codec.encode(Frame(ref, ref, topic, "e", raw(payload))).data
        assert json.dumps(json.loads(data), ensure_ascii=False, separators=(",", ":")) == data.decode()


@few
@given(st.tuples(TEXT, TEXT, TEXT, TEXT), st.binary(max_size=300))
def test_rule22_a_binary_push_is_read(slots: tuple[str, str, str, str], data: bytes) -> None:
    fields = [slot.encode() for slot in slots]
    frame = V2.decode(bytes((0, *map(len, fields))) + b"".join(fields) + data, binary=True)
    assert frame == Frame(*slots, Binary(data))


def test_rule22_binary_frames_go_out_in_three_kinds() -> None:
    assert V2.encode(Frame("1", None, "t", "ev", Binary(b"\xff"))) == Encoded(b"\x00\x01\x01\x021tev\xff", True)
    assert V2.reply("1", "22", "t", "ok", Binary(b"\xff")) == Encoded(b"\x01\x01\x02\x01\x02122tok\xff", True)
    assert V2.broadcast("t", "ev", b"\xff") == b"\x02\x01\x02tev\xff"
    # A ref that is no text stands there as JSON; a missing one is empty (rule 48).
    assert V2.reply(None, 7, "t", "ok", Binary(b"")) == Encoded(b"\x01\x00\x01\x01\x027tok", True)


@pytest.mark.parametrize("text", ["x" * 255, "é" * 127 + "x", "☃" * 85])
def test_rule47_a_field_of_255_bytes_fits(text: str) -> None:
    assert len(text.encode()) == 255
    data = V2.reply(text, text, text, text, Binary(b"d")).data
    assert data == b"\x01\xff\xff\xff\xff" + text.encode() * 4 + b"d"
    assert V2.decode(b"\0" + data[1:], binary=True) == Frame(text, text, text, text, Binary(b"d"))


@pytest.mark.parametrize("text", ["x" * 256, "é" * 128, "☃" * 86])
def test_rule47_a_longer_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="255"):
        V2.reply("1", text, "t", "ok", Binary(b""))
    with pytest.raises(ValueError, match="255"):
        V2.encode(Frame(text, None, "t", "e", Binary(b"")))
    with pytest.raises(ValueError, match="255"):
        V2.broadcast("t", text, b"")


def test_v1_has_no_binary_frames() -> None:
    with pytest.raises(ValueError, match=r"1\.0\.0"):
        V1.encode(Frame(None, None, "t", "e", Binary(b"")))
    with pytest.raises(ValueError, match=r"1\.0\.0"):
        V1.reply(None, "1", "t", "ok", Binary(b""))
    with pytest.raises(ValueError, match=r"1\.0\.0"):
        V1.broadcast("t", "e", b"")


@both
@few
@given(frame=FRAMES, topic=TEXT, event=TEXT)
def test_a_shared_tail_behind_a_head_is_the_whole_push(codec: Codec, frame: Frame, topic: str, event: str) -> None:
    payload = bytes(frame.payload)
    whole = codec.encode(Frame(frame.join_ref, None, topic, event, frame.payload)).data
    assert codec.head(frame.join_ref) + codec.tail(topic, event, payload) == whole


# Whatever comes in.


@both
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    frame=FRAMES, at=st.integers(0, 10_000), byte=st.integers(0, 255), how=st.sampled_from(["set", "drop", "insert"])
)
def test_any_damaged_byte_decodes_or_is_refused(codec: Codec, frame: Frame, at: int, byte: int, how: str) -> None:
    data = bytearray(codec.encode(frame).data)
    at %= len(data)
    if how == "set":
        data[at] = byte
    elif how == "drop":
        del data[at]
    else:
        data.insert(at, byte)
    _decodes_or_is_refused(codec, bytes(data), binary=False)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.binary(max_size=60), st.booleans())
def test_any_bytes_decode_or_are_refused(data: bytes, binary: bool) -> None:
    for codec in CODECS:
        _decodes_or_is_refused(codec, data, binary=binary)
        _decodes_or_is_refused(codec, b"\0" + data, binary=binary)


def _decodes_or_is_refused(codec: Codec, data: bytes, *, binary: bool) -> None:
    try:
        frame = codec.decode(data, binary=binary)
    except ProtocolError as error:
        refused: ProtocolError | None = error
    else:
        refused = None
    if refused is not None:
        assert refused.close_code in (1003, 1007)
        assert refused.reason
        return
    # What was let in can always be answered, and the answer is JSON.
    answer = codec.reply(frame.join_ref, frame.ref, frame.topic, "ok", EMPTY)
    json.loads(answer.data)
    if isinstance(frame.payload, Raw):
        json.loads(bytes(frame.payload))


@both
@pytest.mark.parametrize("bad", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x98", b"\x80"])
def test_bad_utf8_is_refused_at_every_place(codec: Codec, bad: bytes) -> None:
    for place, within in everywhere('"%s"', '{"%s":1}', '{"a":["%s"]}'):
        text = within.replace("%s", bad.decode("utf-8", "surrogateescape"))
        with pytest.raises(BadUtf8):
            codec.decode(message(codec, **{place: text}), binary=False)


def test_bad_utf8_in_a_binary_head_is_refused_and_in_its_data_passes() -> None:
    with pytest.raises(BadUtf8):
        V2.decode(b"\0\1\1\1\1" + b"11\xff1", binary=True)
    assert V2.decode(b"\0\1\1\1\1" + b"1111\xff", binary=True).payload == Binary(b"\xff")


@both
@pytest.mark.parametrize(
    "lone", [r"\ud800", r"\uDFFF", r"\udc00\ud800", r"\ud800\u0041", r"\\\ud83d", r"\ud83d\ud83d\udca7"]
)
def test_lone_surrogates_are_repaired_at_every_place(codec: Codec, lone: str) -> None:
    for place, within in everywhere('"%s"', '{"%s":1}', '{"a":["%s"]}', '"a%sb"'):
        text = within.replace("%s", lone)
        frame = codec.decode(message(codec, **{place: text}), binary=False)
        wanted = json.loads(re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(json.loads(text), ensure_ascii=False)))
        found = getattr(frame, place)
        assert (json.loads(bytes(found)) if place == "payload" else found) == wanted


@few
@given(st.text(st.characters(categories=["Cs", "Ll", "So"], include_characters='\\"u'), max_size=12))
def test_repairing_touches_nothing_but_lone_surrogates(text: str) -> None:
    written = json.dumps(text)
    wanted = re.sub("[\ud800-\udfff]", "\ufffd", json.loads(written))
    assert open_json(Decoder(str), written.encode()) == wanted
    assert json.loads(repair_surrogates(written.encode())) == wanted


@both
@pytest.mark.parametrize(
    "bad",
    ["NaN", "Infinity", "-Infinity", "01", "1.", ".5", "+1", "-", "1e", "0x1", "tru", "'a'", "[1,]", '{"a":1,}',
     "{1:1}", '{"a" 1}', '{"a":}', "[1 2]", '"\\x"', '"\\u12"', '"\x01"', '"\n"', '"', "\ufeff1",
     "\x0c1", "1 1", "/**/1"],
)  # fmt: skip
def test_what_is_no_json_is_refused_at_every_place(codec: Codec, bad: str) -> None:
    for place, within in everywhere("%s", "[%s]", '{"a":%s}'):
        with pytest.raises(MalformedMessage):
            codec.decode(message(codec, **{place: within.replace("%s", bad)}), binary=False)


@both
@pytest.mark.parametrize("place", ["join_ref", "ref", "topic", "event"])
@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5_000, "-" + "9" * 5_000])
def test_a_number_that_can_not_be_echoed_is_refused(codec: Codec, place: str, number: str) -> None:
    with pytest.raises(MalformedMessage):
        codec.decode(message(codec, **{place: number}), binary=False)


@both
@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5_000, "-0", "1E+2", "1.0", "123456789.123456789"])
def test_a_number_in_a_payload_passes_as_it_came(codec: Codec, number: str) -> None:
    frame = codec.decode(message(codec, payload=f'{{ "a" : {number} }}'), binary=False)
    assert bytes(frame.payload) == f'{{ "a" : {number} }}'.encode()


@both
def test_rule21_big_integers_are_echoed_exactly(codec: Codec) -> None:
    number = 10**4_000 + 7
    frame = codec.decode(message(codec, ref=str(number)), binary=False)
    assert frame.ref == number
    assert str(number).encode() in codec.reply(None, frame.ref, "t", "ok", EMPTY).data


@both
@pytest.mark.parametrize("place", ["join_ref", "ref"])
def test_a_ref_takes_so_much_and_no_more(codec: Codec, place: str) -> None:
    for ref in ('"%s"' % ("x" * (MAX_REF_BYTES - 2)), "1" * 4_000):
        assert getattr(codec.decode(message(codec, **{place: ref}), binary=False), place)
    for ref in ('"%s"' % ("x" * (MAX_REF_BYTES - 1)), '"%s"' % ("ż" * MAX_REF_BYTES), f"[{'1,' * MAX_REF_BYTES}1]"):
        with pytest.raises(MalformedMessage):
            codec.decode(message(codec, **{place: ref}), binary=False)


@both
@pytest.mark.parametrize(("opens", "closes"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_deep_nesting_is_refused_at_every_place(codec: Codec, opens: str, closes: str) -> None:
    for place in PLACES:
        with pytest.raises(TooDeep):
            codec.decode(message(codec, **{place: opens * 100_000 + "1" + closes * 100_000}), binary=False)
        with pytest.raises(ProtocolError):
            codec.decode(message(codec, **{place: opens * 100_000}), binary=False)


@both
def test_nesting_of_exactly_the_limit_passes(codec: Codec) -> None:
    inside = MAX_DEPTH - 1
    frame = codec.decode(message(codec, payload="[" * inside + "]" * inside), binary=False)
    assert len(bytes(frame.payload)) == 2 * inside
    with pytest.raises(TooDeep):
        codec.decode(message(codec, payload="[" * MAX_DEPTH + "]" * MAX_DEPTH), binary=False)


@both
@pytest.mark.parametrize("text", ["[" * 1_000, "{" * 1_000, '\\"[' * 500, "\\\\", '\\\\\\"' + "[" * 500])
def test_brackets_in_strings_are_no_nesting(codec: Codec, text: str) -> None:
    flat = "[]," * 200
    frame = codec.decode(message(codec, payload=f'["{text}",{flat}"{text}"]'), binary=False)
    assert json.loads(bytes(frame.payload))[0] == json.loads(f'"{text}"')


@pytest.mark.parametrize(
    "hostile",
    [
        b"[" * 200 + b'"' + b'\\"' * 300_000,
        b"[" * 200 + b'"' + b"\\\\\\" * 200_000,
        b"[" * 200 + b'"' * 600_000,
        b"[]" * 300_000,
        b'"' + b"\\\\" * 300_000 + rb"\ud800",
        rb'"\ud800' * 90_000,
    ],
    ids=["quotes", "backslashes", "strings", "brackets", "escapes", "surrogates"],
)
def test_the_door_takes_time_in_proportion_to_the_length(hostile: bytes) -> None:
    started = time.process_time()
    with pytest.raises(ProtocolError):
        V2.decode(b'["1","1","t","e",' + hostile, binary=False)
    assert time.process_time() - started < 2.0


@both
@pytest.mark.parametrize(
    "data", [b"", b" ", b"null", b"1", b'"x"', b"true", b"[]", b"{}", b"\xef\xbb\xbf[]", b"\0\1\2"]
)
def test_rule20_what_is_no_message_is_refused(codec: Codec, data: bytes) -> None:
    with pytest.raises(MalformedMessage) as caught:
        codec.decode(data, binary=False)
    assert caught.value.close_code == 1003


def test_rule18_a_v2_array_may_be_longer_and_never_shorter() -> None:
    assert V2.decode(b' ["1","2","t","e",{},"more",[7]]\n', binary=False) == V2.decode(
        b'["1","2","t","e",{}]', binary=False
    )
    with pytest.raises(MalformedMessage):
        V2.decode(b'["1","2","t","e"]', binary=False)


@pytest.mark.parametrize("missing", ["topic", "event", "payload", "ref"])
def test_rule18_a_v1_object_needs_its_four_keys(missing: str) -> None:
    whole: dict[str, Any] = {"topic": "t", "event": "e", "payload": {}, "ref": None, "more": 1}
    assert V1.decode(json.dumps(whole).encode(), binary=False)[:4] == (None, None, "t", "e")
    del whole[missing]
    with pytest.raises(MalformedMessage):
        V1.decode(json.dumps(whole).encode(), binary=False)


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\0", b"\2\1\1tev", b"\0\1\0\0\0", b"\0\1\1\1\5" + b"1" * 7]
)
def test_rule22_a_binary_frame_of_another_kind_or_too_short_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        V2.decode(data, binary=True)


def test_an_empty_ref_of_a_binary_frame_is_not_null() -> None:
    assert V2.decode(b"\0\0\0\1\1te", binary=True)[:4] == ("", "", "t", "e")


@pytest.mark.parametrize("vsn", ["1.0.0", "1.0.1", "1.0.9", "1.0.0+b.2", None])
def test_rule1_versions_that_mean_v1(vsn: str | None) -> None:
    assert negotiate(vsn) is V1


@pytest.mark.parametrize("vsn", ["2.0.0", "2.0.5", "2.0.0+build"])
def test_rule1_versions_that_mean_v2(vsn: str) -> None:
    assert negotiate(vsn) is V2


@pytest.mark.parametrize(
    "vsn",
    ["", "1.1.0", "2.1.0", "3.0.0", "0.9.0", "2.0", "2", "~> 2.0", "abc", "2.0.0-rc.1", "v2.0.0", "02.0.0", "2.0.0 ",
     "2.0.00", "2.0.0+", "2.0.0\n", "٢.0.0", "2.0." + "1" * 50],
)  # fmt: skip
def test_rule1_versions_that_are_refused(vsn: str) -> None:
    assert negotiate(vsn) is None


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ("1", 1), (0, False), (None, False), (0.0, 0)])
def test_refs_of_different_types_differ(one: object, other: object) -> None:
    assert not same_ref(one, other)
    assert same_ref(one, one)
