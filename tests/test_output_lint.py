"""The lint of what the hub sends: each rule is broken here by a message, and a hub that breaks one is caught."""

import json
from typing import Any

import pytest

from bridge_server.app import Hub
from bridge_server.channels import Channel, Handled, Reply
from protocol.frames import Payload
from tests.support import lint, lint_seam
from tests.support.raw_socket import RawSocket

JOIN = ("1", "1", "app:x", "phx_join")
JOINED = b'["1","1","app:x","phx_reply",{"status":"ok","response":{}}]'
JOINED_V1 = b'{"event":"phx_reply","payload":{"status":"ok","response":{}},"ref":"1","topic":"app:x"}'
EVENT = b'["1",null,"app:x","session_event",{"event":{"event_id":"%d"}}]'
CLOSE = b'["1","1","app:x","phx_close",{}]'

BREAKS: list[tuple[str, list[bytes]]] = [
    ("utf8", [b'["1","1","app:x","phx_reply",{"status":"ok","response":{"x":"\xff"}}]']),
    ("utf8", [b'["1","1","app:x","phx_reply",{"status":"ok","response":{"x":"\\ud800"}}]']),
    ("json", [b'["1","1","app:x","phx_reply",{"status":"ok","response":{"x":NaN}}]']),
    ("json", [b'["1","1","app:x","phx_reply",{"status":"ok","response":{"x":-Infinity}}]']),
    ("json", [b'["1","1","app:x",']),
    ("json", [b""]),
    ("shape", [b'["1","1","app:x","phx_reply",{"status":"ok","response":{}},1]']),
    ("shape", [b'["1","1","app:x","phx_reply"]']),
    ("shape", [b'{"topic":"app:x"}']),
    ("compact", [b'["1", "1","app:x","phx_reply",{"status":"ok","response":{}}]']),
    ("compact", [b' ["1","1","app:x","phx_reply",{"status":"ok","response":{}}]']),
    ("compact", [JOINED, b'["1",null,"app:\\u0078","moved",{}]']),
    ("name", [JOINED, b'["1",null,"app:x","a,b",{}]']),
    ("name", [JOINED, b'["1",null,"app:x","",{}]']),
    ("name", [JOINED, b'["1",null,"app:x",7,{}]']),
    ("name", [JOINED, b'["1",null,"app:x","%b",{}]' % (b"e" * 256)]),
    ("name", [JOINED, b'["1",null,"app:x,y","moved",{}]']),
    ("ref", [JOINED, b'["1",7,"app:x","moved",{}]']),
    ("payload", [JOINED, b'["1",null,"app:x","moved",null]']),
    ("payload", [JOINED, b'["1",null,"app:x","moved",[1]]']),
    ("number", [JOINED, b'["1",null,"app:x","moved",{"at":[{"n":9007199254740992}]}]']),
    ("reply", [b'["1","1","app:x","phx_reply",{"status":"ok"}]']),
    ("reply", [b'["1","1","app:x","phx_reply",{"status":"ok","response":{},"more":1}]']),
    ("reply", [b'["1","2","app:x","phx_reply",{"status":"ok","response":{}}]']),
    ("reply", [b'["1",1,"app:x","phx_reply",{"status":"ok","response":{}}]']),
    ("reply", [b'["1","1","app:y","phx_reply",{"status":"ok","response":{}}]']),
    ("status", [b'["1","1","app:x","phx_reply",{"status":"fine","response":{}}]']),
    ("status", [b'["1","1","app:x","phx_reply",{"status":null,"response":{}}]']),
    ("response", [b'["1","1","app:x","phx_reply",{"status":"ok","response":null}]']),
    ("response", [b'["1","1","app:x","phx_reply",{"status":"ok","response":[]}]']),
    ("heartbeat", [b'["1","h","phoenix","phx_reply",{"status":"ok","response":{}}]']),
    ("heartbeat", [b'[null,"h","phoenix","phx_reply",{"status":"ok","response":{"at":1}}]']),
    ("join_ref", [JOINED, b'[null,null,"app:x","moved",{}]']),
    ("join_ref", [JOINED, b'["2",null,"app:x","moved",{}]']),
    ("join_ref", [JOINED, b'[1,null,"app:x","moved",{}]']),
    ("join_ref", [JOINED, b'["1",null,"app:y","moved",{}]']),
    ("end", [JOINED, b'["1",null,"app:x","phx_close",{}]']),
    ("end", [JOINED, b'["1","1","app:x","phx_close",{"reason":"left"}]']),
    ("end", [JOINED, b'["1","2","app:x","phx_error",{}]']),
    ("early", [EVENT % 1]),
    ("early", [CLOSE]),
    ("late", [JOINED, CLOSE, EVENT % 1]),
    ("late", [JOINED, CLOSE, CLOSE]),
    ("late", [b'["1","1","app:x","phx_reply",{"status":"error","response":{}}]', EVENT % 1]),
    ("id", [JOINED, EVENT % 2, EVENT % 2]),
    ("id", [JOINED, EVENT % 10, EVENT % 9]),
    ("id", [JOINED, b'["1",null,"app:x","session_event",{"event":{"event_id":1}}]']),
    ("id", [JOINED, b'["1",null,"app:x","session_event",{"event":{"event_id":"01"}}]']),
    ("id", [JOINED, b'["1",null,"app:x","session_event",{"event":{"event_id":"9007199254740992"}}]']),
]

BREAKS_V1: list[tuple[str, list[bytes]]] = [
    ("shape", [b'["1","1","app:x","phx_reply",{"status":"ok","response":{}}]']),
    ("shape", [JOINED_V1.replace(b'"ref":"1",', b"")]),
    ("shape", [JOINED_V1.replace(b"{", b'{"join_ref":"1",', 1)]),
    ("compact", [b" " + JOINED_V1]),
    ("early", [b'{"event":"moved","payload":{},"ref":null,"topic":"app:x"}']),
    ("join_ref", [JOINED_V1, b'{"event":"moved","payload":{},"ref":null,"topic":"app:y"}']),
    ("end", [JOINED_V1, b'{"event":"phx_close","payload":{"x":1},"ref":null,"topic":"app:x"}']),
]

BREAKS_BINARY: list[tuple[str, list[bytes]]] = [
    ("binary", [JOINED]),
    ("binary", [b"\x03\x01\x01\x0511app:xok"]),
    ("binary", [b"\x00\x01\x05\x041app:xbi"]),
    ("binary", [b""]),
    ("utf8", [b"\x00\x01\x05\x021app:x\xff\xffdata"]),
    ("name", [b"\x02\x05\x03app:xa,bdata"]),
    ("reply", [b"\x01\x01\x01\x05\x0212app:xokdata"]),
    ("status", [b"\x01\x01\x01\x05\x0411app:xfinedata"]),
    ("join_ref", [b"\x00\x00\x05\x03app:xbindata"]),
]


def faults(
    messages: list[bytes], *, vsn: str = "2.0.0", binary: bool = False, joined: bool = False
) -> list[tuple[str, str]]:
    """What the lint finds in a conversation of one client that sent a join and a heartbeat."""
    conversation = lint.Conversation()
    conversation.heard(*JOIN)
    conversation.heard(None, "h", "phoenix", "heartbeat")
    if joined:
        opening = lint.read(JOINED, binary=False, vsn="2.0.0")
        assert isinstance(opening, lint.Message)
        assert not list(conversation.check(opening))
    found: list[lint.Fault] = []
    for data in messages:
        message = lint.read(data, binary=binary, vsn=vsn)
        if isinstance(message, lint.Fault):
            found.append(message)
        else:
            found += [*lint.check(message), *conversation.check(message)]
    return found  # type: ignore[return-value]


@pytest.mark.parametrize(("rule", "messages"), BREAKS)
def test_a_version_2_message_breaks(rule: str, messages: list[bytes]) -> None:
    assert rule in {name for name, _ in faults(messages)}
    assert not faults(messages[:-1])


@pytest.mark.parametrize(("rule", "messages"), BREAKS_V1)
def test_a_version_1_message_breaks(rule: str, messages: list[bytes]) -> None:
    assert rule in {name for name, _ in faults(messages, vsn="1.0.0")}
    assert not faults(messages[:-1], vsn="1.0.0")


@pytest.mark.parametrize(("rule", "messages"), BREAKS_BINARY)
def test_a_binary_frame_breaks(rule: str, messages: list[bytes]) -> None:
    assert rule in {name for name, _ in faults(messages, binary=True, joined=True)}


def test_version_1_has_no_binary_frames() -> None:
    assert [name for name, _ in faults([b"\x02\x05\x03app:xbindata"], vsn="1.0.0", binary=True)] == ["binary"]


def test_every_rule_is_broken_somewhere() -> None:
    assert {rule for rule, _ in BREAKS + BREAKS_V1 + BREAKS_BINARY} == set(lint.RULES)


def test_a_whole_conversation_that_every_client_can_take() -> None:
    heartbeat = b'[null,"h","phoenix","phx_reply",{"status":"ok","response":{}}]'
    moved = b'["1",null,"app:x","server_status",{"epoch":"e2","head_id":"1"}]'
    error = b'["1","1","app:x","phx_error",{"reason":"channel_crash"}]'
    big = b'["1",null,"app:x","session_event",{"event":{"event_id":"9","n": 9007199254740993}}]'
    assert not faults([heartbeat, JOINED, EVENT % 7, EVENT % 8, big, moved, EVENT % 1, error])
    assert not faults([b"\x00\x01\x05\x031app:xbindata", b"\x02\x05\x03app:xbindata"], binary=True, joined=True)
    assert not faults([b"\x01\x01\x01\x05\x0211app:xokdata"], binary=True)
    v1 = [JOINED_V1, b'{"event":"moved","payload":{},"ref":null,"topic":"app:x"}']
    assert not faults([*v1, b'{"event":"phx_close","payload":{},"ref":null,"topic":"app:x"}'], vsn="1.0.0")


def test_what_a_client_made_up_may_come_back_to_it() -> None:
    conversation = lint.Conversation()
    said: list[tuple[Any, Any, Any, str]] = [
        (0, 0, "a,b", "phx_join"),
        (None, None, 7, "x"),
        (3, 1.5, "a,b", "phx_leave"),
    ]
    for slots in said:
        conversation.heard(*slots)
        status = {"status": "error", "response": {"reason": "unmatched topic"}}
        text = json.dumps([*slots[:3], "phx_reply", status], separators=(",", ":"))
        message = lint.read(text.encode(), binary=False, vsn="2.0.0")
        assert isinstance(message, lint.Message)
        assert not [*lint.check(message), *conversation.check(message)]


class Careless(Channel):
    """Answers with what no client asked for."""

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        return Reply("splendid", [1])


@pytest.mark.parametrize("vsn", ["1.0.0", "2.0.0"])
async def test_a_hub_that_sends_such_a_message_is_caught(hub: Hub, vsn: str) -> None:
    hub.router.add("careless", Careless)
    _, token = hub.credentials.add_server("home")
    before = lint_seam.frames_seen
    async with RawSocket(hub.port) as socket:
        answer = await socket.upgrade(f"/socket/websocket?vsn={vsn}", f"X-API-Key: {token}")
        assert answer.status == 101
        for ref, event in (("1", "phx_join"), ("2", "hello")):
            if vsn == "2.0.0":
                socket.send_text(json.dumps(["1", ref, "careless", event, {}]))
            else:
                socket.send_text(json.dumps({"topic": "careless", "event": event, "payload": {}, "ref": ref}))
            await socket.text()
    assert lint_seam.frames_seen == before + 2
    assert [fault.rule for fault in lint_seam.take_faults()] == ["status", "response"]


def test_the_messages_of_every_transport_are_told_apart() -> None:
    text, binary = b'["\xc3\xa9"]', b"\x02\x01\x01ab" + b"x" * 70_000
    websocket = b"\x81\x06" + text + b"\x8a\x02hi" + b"\x82\x7f" + len(binary).to_bytes(8) + binary
    assert list(lint_seam.messages(websocket)) == [(text, False), (binary, True)]
    memory = b"\x00\x00\x00\x00\x06" + text + b"\x01\x00\x00\x00\x02ab"
    assert list(lint_seam.messages(memory)) == [(text, False), (b"ab", True)]
    polled = '"[\\"é\\"]","AgEBYWI=",'.encode()
    assert list(lint_seam.messages(polled)) == [(text, False), (b"\x02\x01\x01ab", True)]
    with pytest.raises(ValueError, match="not the bytes"):
        list(lint_seam.messages(b"HTTP/1.1 200 OK"))
