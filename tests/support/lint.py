"""What the hub sends, held against what the Phoenix clients in use can take: those of them that can't run here, too.

`check` looks at one message by itself; `Conversation` at the order of them on one connection. A rule is named by a
word and says who needs it. Refs and topics that a client made up itself may come back to it as they were: what it can't
take it would not have sent.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

RULES: Final = {
    "utf8": "text and the names in binary frames are UTF-8, without lone surrogates (every client)",
    "json": "a text frame is one JSON text, without NaN and Infinity (every client)",
    "shape": "version 2 is an array of five (Rust, PyPI phoenix-channels-python-client); version 1 is an object "
    "of exactly topic, event, payload and ref (phx-events; phxsocket, supabase-py and Firezone need all four)",
    "compact": "the head of a message has no spaces and no escapes (Kotlin's JavaPhoenixClient cuts it by hand)",
    "name": "a topic or event is a string of 1 to 255 bytes without comma, quote, backslash or control character "
    "(Kotlin's JavaPhoenixClient)",
    "ref": "a ref is a string or null, unless the client sent another one (Dart, Rust)",
    "payload": "a payload is an object (Swift, Rust, supabase, Kotlin; npm phoenix-channels throws on null)",
    "number": "no integer that a double can't hold, in what the hub itself says (JavaScript, Kotlin)",
    "reply": "a reply's payload is exactly status and response, and its ref and topic are, type and all, those of "
    "something this client sent (Rust, phxsocket, chunnel, Firezone)",
    "status": "a status is ok or error (phoenix.js knows no other hook)",
    "response": "a response is an object (supabase-py, Kotlin)",
    "heartbeat": 'a heartbeat is answered with join_ref null and payload {"status":"ok","response":{}} (Slipstream, '
    "Rust, Firezone)",
    "join_ref": "what belongs to a channel carries the join_ref of one of this client's joins of that topic (PyPI "
    "phoenix-channels-python-client, phoenix.js, Slipstream)",
    "end": "phx_close and phx_error have ref = join_ref, and phx_close the payload {} (Slipstream)",
    "binary": "a binary frame is kind 0, 1 or 2 with lengths that fit, and goes to version 2 only; JSON is text "
    "(phoenix.js, Swift, Firezone, Kotlin)",
    "early": "nothing of a channel comes before the answer to its join (PyPI phoenix-channels-python-client drops it)",
    "late": "nothing of a channel comes after its phx_close or phx_error",
    "id": "the event_id of a session_event is a decimal string, above the one before it on the same join, as long "
    "as the epoch is the same (every app that keeps a cursor)",
}

SAFE: Final = 2**53 - 1
REMEMBERED: Final = 10_000
"""What a client said that is kept; of one that says more, answers are no longer matched with questions."""

_FORBIDDEN = re.compile(r'[,"\\\x00-\x1f\x7f]')
_ID = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_ENDS = ("phx_close", "phx_error")


class Fault(NamedTuple):
    """One broken rule of `RULES`, and how."""

    rule: str
    text: str


class Message(NamedTuple):
    """What one frame says. `join_ref` is None in version 1 and in a binary broadcast, which have none."""

    join_ref: Any
    ref: Any
    topic: Any
    event: Any
    payload: Any
    kind: str
    """`1` or `2`: text of that version; `push`, `reply` or `broadcast`: a binary frame."""


def read(data: bytes, *, binary: bool, vsn: str) -> Message | Fault:
    """Take one frame apart, or say why no client could."""
    if binary:
        return _read_binary(data, vsn)
    try:
        text = data.decode()
        value = json.loads(text, parse_constant=_refuse_constant)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError as error:
        return Fault("utf8", str(error))
    except (ValueError, RecursionError) as error:
        return Fault("json", str(error))
    if vsn == "2.0.0":
        if not isinstance(value, list) or len(value) != 5:
            return Fault("shape", "not an array of five")
        message = Message(*value, kind="2")
        head = "[" + ",".join(map(_compact, value[:4])) + ","
        plain = all(ref is None or isinstance(ref, str | int) for ref in value[:2])  # a float has several spellings
        if plain and not text.startswith(head):
            return Fault("compact", f"it does not start with {head}")
        return message
    if not isinstance(value, dict) or set(value) != {"topic", "event", "payload", "ref"}:
        return Fault("shape", "not an object of topic, event, payload, ref")
    if not text.startswith('{"') or not text.endswith("}"):
        return Fault("compact", "something stands around the object")
    return Message(None, value["ref"], value["topic"], value["event"], value["payload"], kind="1")


def check(message: Message) -> Iterator[Fault]:
    """The rules that one message keeps or breaks by itself, whoever gets it."""
    event, payload = message.event, message.payload
    yield from _check_name("event", event)
    if message.kind in ("push", "reply", "broadcast"):
        if message.kind == "reply" and message.payload["status"] not in ("ok", "error"):
            yield Fault("status", repr(message.payload["status"]))
        return
    if not isinstance(payload, dict):
        yield Fault("payload", f"{type(payload).__name__}, not an object")
        return
    if event == "session_event" and isinstance(payload.get("event"), dict):
        # What the home wrote is what the app reads, numbers included; only the id is ours to vouch for.
        identity = payload["event"].get("event_id")
        if not isinstance(identity, str) or not _ID.fullmatch(identity) or int(identity) > SAFE:
            yield Fault("id", repr(identity))
    elif wrong := next(_unsafe(payload), None):
        yield Fault("number", str(wrong))
    if event == "phx_reply":
        if set(payload) != {"status", "response"}:
            yield Fault("reply", f"a payload of {sorted(payload)}")
            return
        if payload["status"] not in ("ok", "error"):
            yield Fault("status", repr(payload["status"]))
        if not isinstance(payload["response"], dict):
            yield Fault("response", f"{type(payload['response']).__name__}, not an object")
    if event in _ENDS and message.kind == "2" and not same(message.ref, message.join_ref):
        yield Fault("end", f"ref {message.ref!r} and join_ref {message.join_ref!r} differ")
    if event == "phx_close" and payload:
        yield Fault("end", f"a phx_close with {payload}")


class Conversation:
    """One connection: what the client said, and how far its channels are."""

    def __init__(self) -> None:
        self._asked: dict[str, None] = {}
        self._heartbeats: dict[str, None] = {}
        self._names: dict[str, None] = {}
        self._joins: dict[str, _Join] = {}
        self._forgot = False

    def heard(self, join_ref: Any, ref: Any, topic: Any, event: Any) -> None:
        """The client sent this."""
        self._remember(self._names, _compact(topic))
        for key in _keys(topic, ref):
            self._remember(self._asked, key)
            if event == "heartbeat" and topic == "phoenix":
                self._remember(self._heartbeats, key)
        if event == "phx_join":
            self._join((_topic_key(topic),))
            self._join(_keys(topic, join_ref))
            if join_ref is None and ref is not None:
                self._join(_keys(topic, ref))  # which then stands for it

    def _join(self, keys: tuple[str, ...]) -> None:
        join = self._joins.get(keys[0]) or _Join()
        join.waiting += 1
        self._joins.update(dict.fromkeys(keys, join))

    def _remember(self, known: dict[str, None], what: str) -> None:
        known[what] = None
        if len(known) > REMEMBERED:
            del known[next(iter(known))]
            self._forgot = True

    def check(self, message: Message) -> Iterator[Fault]:
        """The rules that depend on what this client said and was told before."""
        topic, event = message.topic, message.event
        if _compact(topic) not in self._names:
            yield from _check_name("topic", topic)
        if event == "phx_reply":
            yield from self._check_reply(message)
            return
        if not (message.ref is None or isinstance(message.ref, str)) and event not in _ENDS:
            yield Fault("ref", f"ref {message.ref!r} of {event}")
        without = message.kind in ("1", "broadcast")
        join = self._joins.get(_topic_key(topic) if without else _key(message, message.join_ref))
        if join is None:
            yield Fault("join_ref", f"{event} on {topic!r}: it never joined with {message.join_ref!r}")
            return
        if not join.open:
            rule = "late" if join.answered else "early"
            yield Fault(rule, f"{event} on {topic!r}: {'that join is over' if join.answered else 'its join is open'}")
        if event in _ENDS:
            join.open = max(0, join.open - 1)
        elif isinstance(message.payload, dict):
            yield from join.move(event, message.payload)

    def _check_reply(self, message: Message) -> Iterator[Fault]:
        topic, ref, payload = message.topic, message.ref, message.payload
        if not self._forgot and _key(message, ref) not in self._asked:
            yield Fault("reply", f"nobody asked {ref!r} on {topic!r}")
        if topic == "phoenix" and _key(message, ref) in self._heartbeats:
            if message.join_ref is not None or payload != {"status": "ok", "response": {}}:
                yield Fault("heartbeat", f"join_ref {message.join_ref!r}, payload {payload}")
            return
        if not isinstance(payload, dict):
            return
        for key in (_key(message, message.join_ref), _topic_key(topic)):
            join = self._joins.get(key)
            if join is not None and join.waiting:
                join.waiting -= 1
                join.answered = True
                if payload.get("status") == "ok":
                    join.epoch, join.last = None, -1
                    # Version 1 is not told that a join was replaced: it has one at most.
                    join.open = join.open + 1 if message.kind != "1" else 1


class _Join:
    """The joins with one topic and join_ref: how many wait, how many are open, and the last event of the newest."""

    def __init__(self) -> None:
        self.waiting = 0
        self.answered = False
        self.open = 0
        self.epoch: str | None = None
        self.last = -1

    def move(self, event: str, payload: dict[str, Any]) -> Iterator[Fault]:
        """Follow what the channel says about its events: the epoch they are of, and the events themselves."""
        if event in ("server_status", "replay_complete") and payload.get("epoch") not in (None, self.epoch):
            self.epoch, self.last = payload["epoch"], -1
        if event == "session_event":
            content = payload.get("event")
            identity = content.get("event_id") if isinstance(content, dict) else None
            if isinstance(identity, str) and _ID.fullmatch(identity):
                if int(identity) <= self.last:
                    yield Fault("id", f"{identity} after {self.last}")
                self.last = int(identity)


def same(one: Any, other: Any) -> bool:
    """Whether two refs are one."""
    return type(one) is type(other) and bool(one == other)


def _read_binary(data: bytes, vsn: str) -> Message | Fault:
    if vsn != "2.0.0":
        return Fault("binary", "version 1 has no binary frames")
    if not data or data[0] > 2:
        return Fault("binary", f"kind {data[:1].hex() or 'missing'}")
    count = (3, 4, 2)[data[0]]
    slots, start = [], 1 + count
    for length in data[1:start]:
        slots.append(data[start : start + length])
        start += length
    if len(data) < start or len(slots) < count:
        return Fault("binary", "shorter than its lengths say")
    try:
        names = [slot.decode() for slot in slots]
    except UnicodeDecodeError as error:
        return Fault("utf8", str(error))
    rest = data[start:]
    if data[0] == 0:
        return Message(names[0], None, names[1], names[2], rest, "push")
    if data[0] == 1:
        return Message(names[0], names[1], names[2], "phx_reply", {"status": names[3], "response": rest}, "reply")
    return Message(None, None, names[0], names[1], rest, "broadcast")


def _check_name(what: str, name: Any) -> Iterator[Fault]:
    if not isinstance(name, str):
        yield Fault("name", f"{what} {name!r} is no string")
    elif not name or _FORBIDDEN.search(name) or len(name.encode()) > 255:
        yield Fault("name", f"{what} {name!r}")


def _unsafe(value: Any) -> Iterator[int]:
    if isinstance(value, int) and abs(value) > SAFE:
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _unsafe(part)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _key(message: Message, ref: Any) -> str:
    """What a message names by its topic and a ref."""
    typed, written = _keys(message.topic, ref)
    return written if message.kind in ("push", "reply", "broadcast") else typed


def _keys(topic: Any, ref: Any) -> tuple[str, str]:
    """A topic and a ref as a text frame names them, and as a binary one does, where every ref is written out."""
    written = "" if ref is None else ref if isinstance(ref, str) else _compact(ref)
    return _compact([topic, ref]), _compact([topic, "written", written])


def _topic_key(topic: Any) -> str:
    return _compact([topic])
