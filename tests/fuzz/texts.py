"""Targets that read one text: messages, events, ids, codes, names, the headers of a request."""

import json
import math
from contextlib import suppress
from typing import Any

from msgspec import Raw
from msgspec.json import Decoder

from protocol import envelope, event_id, loopback, pairing, topics
from protocol.codec import MAX_DEPTH, MAX_EVENT_DEPTH, V1, V2, Codec, check_text, negotiate, open_json
from protocol.errors import BadCode, BadEventId, BadTopic, InvalidEvent, ProtocolError
from protocol.frames import Binary

JSON_TOKENS = (
    *(b'"', b"\\", b"\\u", b"\\ud800", b"\\udc00", b"\\ud83d\\ude00", b"\\ufffd", b"\\u0000", b"\\n", b"{", b"}", b"["),
    *(b"]", b",", b":", b"null", b"true", b"false", b"1e400", b"-0.0", b"1.5", b"9007199254740993", b"NaN", b"{}"),
    *(b'"topic"', b'"event"', b'"payload"', b'"ref"', b'"join_ref"', b'"phx_join"', b'"phx_leave"', b'"phoenix"'),
    *(
        b'"heartbeat"',
        b'"room:1"',
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xe2\x82",
        b"\xef\xbb\xbf",
        b"\xf0\x9f\x98\x80",
    ),
    *(b"[" * 64, b"]" * 64, b'{"a":' * 32, b'{"a":1}', b'"x"', b"[1,2]"),
)

CODEC_SEEDS = (
    b'\x02["1","1","room:1","phx_join",{"a":[1,null,"\xc3\xa9"]}]',
    b'\x02[null,7,"phoenix","heartbeat",{}]',
    b'\x02[1.5,{"a":true},["x"],7,"\\ud83d \\ude00"]',
    b'\x02["1","2","room:1","ping",' + b"[" * 120 + b"]" * 120 + b"]",
    b'\x01{"topic":"room:1","event":"ping","payload":{"b":"\\u0000"},"ref":null,"join_ref":"1","x":1}',
    b"\x06\x00\x01\x01\x06\x0412room:1ping\x00\xff",
    b"\x06\x01\x00\xff\xff\xff",
    b"\x05{}",
    # One of each refusal: what is one step away from them is where mistakes are.
    b'\x02["1","1","room:1","ping",{"x":"\xe2\x98"}]',
    b'\x02["1","1","room:1","ping",' + b"[" * 128 + b"]" * 128 + b"]",
    b"\x06\x00\x01\x01\x06\x0512room:1ping",
    b'\x01{"topic":"room:1","event":"ping","payload":{}}',
)


def _codec(data: bytes) -> tuple[Codec, bool, bytes]:
    """The first byte chooses the version and the kind of frame."""
    first = data[0] if data else 0
    return (V2 if first & 2 else V1), bool(first & 4), data[1:]


def codec(data: bytes) -> None:
    """What decodes goes out again as JSON that any reader takes, and decodes to the same."""
    version, binary, message = _codec(data)
    try:
        frame = version.decode(message, binary=binary)
    except ProtocolError:
        return
    try:
        encoded = version.encode(frame)
    except ValueError:
        assert isinstance(frame.payload, Binary), "only a binary message may have no form"
        return
    if encoded.binary:
        slots = [slot.encode() for slot in frame[:4]]
        assert list(message[:5]) == [0, *map(len, slots)]
        assert b"".join(slots) + frame.payload.data == message[5:]
        return
    value = json.loads(encoded.data, parse_constant=_no_constant)
    again = version.decode(encoded.data, binary=False)
    if version is V1:
        assert value.keys() == {"topic", "event", "payload", "ref"}
        frame = frame._replace(join_ref=None)
    else:
        assert len(value) == 5
    assert again._replace(payload=Raw()) == frame._replace(payload=Raw())
    assert bytes(again.payload) == bytes(frame.payload)
    version.reply(frame.join_ref, frame.ref, frame.topic, "ok", frame.payload)


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


_ANYTHING = Decoder(Any)


def door(data: bytes) -> None:
    """What passes the door is text, is JSON, and nests no deeper than it says."""
    deepest = MAX_EVENT_DEPTH if data[:1] == b"\x00" else MAX_DEPTH
    text = data[1:]
    negotiate(text.decode("utf-8", "replace"))
    with suppress(ProtocolError):
        check_text(text, deepest)
        value = open_json(_ANYTHING, text, deepest)
        assert text.decode() is not None
        assert _depth(value) <= deepest
        json.dumps(value).encode()


def _depth(value: Any) -> int:
    deepest, todo = 0, [(value, 1)]
    while todo:
        item, depth = todo.pop()
        if isinstance(item, dict | list):
            deepest = max(deepest, depth)
            todo += [(inner, depth + 1) for inner in (item.values() if isinstance(item, dict) else item)]
    return deepest


EVENT_TOKENS = (
    b'"event_id"',
    b'"type"',
    b'"session_id"',
    b'"partial"',
    b'"final"',
    b'"0"',
    b'"1"',
    b'"9007199254740991"',
)
EVENT_SEEDS = (
    b'{"event_id":"1","type":"note","session_id":"s","data":{"a":[1]}}',
    b'{"type":"note","event_id":7}',
    b'{"type":"","event_id":"9007199254740991","session_id":null}',
    b'{"type":"x","event_id":"9007199254740992","session_id":7}',
    b'{"event_id":"01","type":"x","type":"y"}',
)

_RAW = Decoder(Raw)


def envelope_of_an_event(data: bytes) -> None:
    """An event that came through the door is read or refused."""
    try:
        raw = bytes(open_json(_RAW, data, MAX_EVENT_DEPTH))
    except ProtocolError:
        return
    try:
        read = envelope.read(raw)
    except InvalidEvent as refused:
        _text, which = refused.args
        if which is not None and not isinstance(which, str):
            raise TypeError(f"{which!r} is neither an id's text nor None") from refused
        return
    assert 0 <= read.event_id <= event_id.MAX_EVENT_ID
    assert read.type
    assert read.session_id is None or isinstance(read.session_id, str)


ID_TOKENS = (
    b"0",
    b"9",
    b"-",
    b"+",
    b".",
    b"e",
    b"E",
    b" ",
    b"\n",
    b"\xd9\xa1",
    b'"',
    b"9007199254740991",
    b"null",
    b"[]",
    b"1e15",
)
ID_SEEDS = (b"0", b"1", b"9007199254740991", b"9007199254740992", b"007", b"7.0", b'"12"', b"1e3", b"-1", b"null")


def ids(data: bytes) -> None:
    """An id is read to what writes the same text, or is refused."""
    text = data.decode("utf-8", "replace")
    with suppress(BadEventId):
        number = event_id.parse(text)
        assert str(number) == text
        assert 0 <= number <= event_id.MAX_EVENT_ID
    value = text
    with suppress(ProtocolError):
        value = open_json(_ANYTHING, data)
    with suppress(BadEventId):
        event_id.parse(value)
    with suppress(BadEventId):
        since = event_id.parse_since(value)
        assert 0 <= since <= event_id.MAX_EVENT_ID
        assert not isinstance(value, float) or math.isfinite(value)


CODE_TOKENS = (
    b"BCDF",
    b"GHJK",
    b"LMNP",
    b"-",
    b" ",
    b"#pair=",
    b"https://",
    b"\xe2\x80\x93",
    b"\xc2\xad",
    b"\n",
    b"b",
    b"0",
    b"sbd_",
    b"Bearer ",
)
CODE_SEEDS = (
    b"BCDF-GHJK-LMNP",
    b"bcdf ghjk\xe2\x80\x93lmnp",
    b"BCDFGHJKLMNP",
    b"https://hub.example/#pair=BCDF-GHJK-LMNP",
    b"Authorization: Bearer sbd_abcdefghijklmnopqrstuvwxyz and ?token=abc",
)


def codes(data: bytes) -> None:
    """A code is read to what is read again as the same, or is refused; scrubbing takes any text."""
    text = data.decode("utf-8", "replace")
    with suppress(BadCode):
        code = pairing.parse_code(text)
        assert pairing.parse_code(str(code)) == code
        assert str(code) not in pairing.scrub(f" {code} ")
    with suppress(BadCode):
        hub, code = pairing.parse_link(text)
        assert pairing.parse_link(pairing.pairing_link(hub, code)) == (hub, code)
    assert len(pairing.scrub(text)) <= 11 * len(text)


NAME_TOKENS = (
    b"server:",
    b"app:",
    b"room:",
    b"*",
    b",",
    b'"',
    b"\\",
    b"\x00",
    b"\x7f",
    b"\xc3\xa9",
    b"a" * 26,
    b"2" * 26,
)
NAME_SEEDS = (b"room:1", b"a" * 26, b"server:" + b"2" * 26, b"x" * 255, b"x" * 256, b"\xc3\xa9" * 127)


def names(data: bytes) -> None:
    """A name is one that every client can take, or is refused."""
    text = data.decode("utf-8", "surrogateescape")
    with suppress(BadTopic):
        assert topics.check_name(text) == text
        assert 0 < len(text.encode("utf-8", "surrogatepass")) <= 255
        assert not set(text) & set(',"\\\n')
    with suppress(BadTopic):
        assert topics.matches("app:*", topics.app_topic(topics.check_server_id(text)))
    topics.matches(text, "room:1")
    topics.matches("room:*", text)


SITE_TOKENS = (
    *(b"Host", b"Origin", b"Sec-Fetch-Site", b"Sec-Fetch-Mode", b"X-Forwarded-For", b"Forwarded", b"Via", b": ", b"\n"),
    *(b"localhost", b"127.0.0.1", b"[::1]", b"[", b"]", b":80", b":99999", b"@", b"http://", b"null", b"file://"),
    *(b"cross-site", b"navigate", b"10.0.0.1", b"::ffff:1.2.3.4", b"%", b"\xff", b"%25"),
)
SITE_SEEDS = (
    b"Host: localhost:4000\nOrigin: http://localhost:4000",
    b"Host: [::1]:4000\nX-Forwarded-For: 1.2.3.4, [2001:db8::1]:443, 10.0.0.1:80",
    b"Host: a@b\nSec-Fetch-Site: cross-site\nSec-Fetch-Mode: navigate",
    b"Origin: http://[::1\nHost: [v1.x]\nX-Forwarded-For: [::1%eth0]",
)


def site(data: bytes) -> None:
    """Which names a request used, and whose address it came from: an answer for any headers."""
    pairs = [
        (name, value.strip())
        for line in data.decode("latin-1").split("\n")
        for name, _, value in (line.partition(":"),)
    ]
    own = loopback.own_origins(4000)
    for hosts in (None, loopback.expected_hosts()):
        for link in (False, True):
            assert loopback.check_request(pairs, hosts, own, link=link) in (None, "bad_host", "bad_origin")
    loopback.forwarded(pairs)
    address = loopback.client_address(("10.0.0.9", 1), pairs, ("10.0.0.0/8",))
    assert address
    loopback.is_loopback(address)
    for _, value in pairs:
        origin = loopback.normal_origin(value)
        assert origin is None or loopback.normal_origin(origin) == origin
        loopback.is_loopback(value)
