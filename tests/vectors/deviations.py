"""Where this product answers otherwise than the recorded Phoenix server: every difference by name, none silent.

A deviation rewrites what is expected next. The replay fails on any difference that no deviation explains, and on a
deviation that does not show in a scenario where it is said to.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.vectors.recording import Conversation, Expected, Message

FRAME_LIMIT = 2**20 + 65_536

Rewrite = Callable[[Conversation, Expected], list[Expected]]


class Deviation(NamedTuple):
    """`rule` is a Phoenix rule or an RFC; `why` is what a client gains; `shows_in` is every scenario where it shows."""

    name: str
    rule: str
    why: str
    rewrite: Rewrite
    shows_in: frozenset[str]


DEVIATIONS: dict[str, Deviation] = {}


def deviation(rule: str, why: str, *shows_in: str) -> Callable[[Rewrite], Rewrite]:
    """Name a deviation by the function that rewrites. A scenario ending in `*` means its 1.0.0 and 2.0.0 form."""
    scenarios = [
        form for name in shows_in for form in ((name[:-1] + "v1", name[:-1] + "v2") if name[-1] == "*" else (name,))
    ]

    def register(rewrite: Rewrite) -> Rewrite:
        name = rewrite.__name__
        DEVIATIONS[name] = Deviation(name, rule, why, rewrite, frozenset(scenarios))
        return rewrite

    return register


def reply(request: Message, status: str, response: Any, join_ref: Any = None) -> Expected:
    return Expected(
        "message",
        Message(join_ref, request.ref, request.topic, "phx_reply", {"status": status, "response": response}),
    )


def _has_no_object(message: Message) -> bool:
    return message.event != "phx_reply" and not isinstance(message.payload, dict)


# Order matters: what ends or revives a channel comes before what fills in the refs of its messages.


@deviation(
    "39",
    "a message that a topic does not know is answered, and the channel lives: one newer client message must not end it",
    "terminations_*", "client_phx_events_v1", "wrong_types_v1",
)  # fmt: skip
def unknown_event_is_answered(talk: Conversation, want: Expected) -> list[Expected]:
    unknown = {"nosuchevent", "phx_reply", "phx_close", "phx_error", "heartbeat", "phx_drain", ""}
    if want.kind != "message" or talk.last is None or want.value.topic != talk.last.topic:
        return [want]
    if not isinstance(talk.last.topic, str):
        return [want]
    last, message = talk.last, want.value
    strange = not isinstance(last.event, str) or last.event in unknown
    if message.event == "phx_error" and strange:
        talk.still_joined.add(last.topic)
        return [reply(last, "error", {"reason": "unknown event"}, message.join_ref)]
    if last.topic in talk.still_joined and last.event == "ping":
        return [reply(last, "ok", last.payload, last.join_ref)]
    return [want]


@deviation(
    "42, 44",
    "a push's payload is an object in version 1.0.0 too, as typed clients need it; the channel crashes as in 2.0.0",
    "terminations_v1", "payload_types_v1",
)  # fmt: skip
def payload_is_an_object(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "message" or talk.vsn != "1.0.0" or talk.last is None:
        return [want]
    topic = talk.last.topic
    if topic != want.value.topic or not isinstance(topic, str):
        return [want]
    if topic in talk.gone and want.value.event != "phx_error":
        return [reply(talk.last, "error", {"reason": "unmatched topic"})]
    if _has_no_object(want.value):
        talk.gone.add(topic)
        error = Message(None, talk.joins[topic].join_ref, topic, "phx_error", {"reason": "channel_crash"})
        return [Expected("message", error)]
    return [want]


@deviation(
    "11",
    "version 1.0.0 matches by topic alone: the close of the replaced channel would close the new one",
    "join_twice_v1", "join_twice_pipelined_v1", "join_twice_same_refs_v1", "rejoin_then_error_v1", "no_join_ref_v1",
    "too_many_channels_v1",
)  # fmt: skip
def no_close_of_a_replaced_channel_in_v1(talk: Conversation, want: Expected) -> list[Expected]:
    closes = want.kind == "message" and want.value.event == "phx_close" and talk.vsn == "1.0.0"
    joining = talk.last is not None and talk.last.event == "phx_join"
    return [] if closes and joining and (want.value.topic, want.value.ref) in talk.replaced else [want]


@deviation(
    "14, 27",
    "a join without join_ref takes its ref: its pushes and its end are then recognised as one channel's",
    "join_ref_variants_v2",
)
def null_join_ref_is_the_ref(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "message" or talk.vsn != "2.0.0" or want.value.join_ref is not None:
        return [want]
    message = want.value
    join = talk.joins.get(message.topic) if isinstance(message.topic, str) else None
    if join is None or join.join_ref is not None:
        return [want]
    ends = message.event in ("phx_close", "phx_error")
    return [want._replace(value=message._replace(join_ref=join.ref, ref=join.ref if ends else message.ref))]


@deviation(
    "9, 14, 17",
    "every push and every reply carries its join_ref: the strictest client loses a message without",
    "phoenix_topic_other_events_v2", "join_results_v2", "rejoin_then_error_v2", "stale_join_ref_v2", "before_join_v2",
    "leave_v2", "terminations_v2", "payload_types_v2", "json_values_v2", "broadcast_topics_are_separate", "relay",
    "binary_v2", "idle_timeout_v2", "presence_v2", "longpoll_v2", "longpoll_wait",
)  # fmt: skip
def join_ref_is_always_said(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "message" or talk.vsn != "2.0.0" or want.value.join_ref is not None:
        return [want]
    message = want.value
    if message.event == "phx_reply":
        request = talk.request(message)
        if request is None or (request.event == "heartbeat" and request.topic == "phoenix"):
            return [want]
        return [want._replace(value=message._replace(join_ref=request.join_ref))]
    join = talk.joins.get(message.topic)
    return [want] if join is None else [want._replace(value=message._replace(join_ref=join.join_ref))]


@deviation(
    "24",
    "no presence is said twice: who joins gets a state with itself in it, and then what changes after that",
    "presence_v2",
)
def own_presence_is_in_the_state_only(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "message" or want.value.event != "presence_diff" or talk.told_of_itself:
        return [want]
    (uid,) = parse_qs(urlsplit(talk.path).query)["uid"]
    talk.told_of_itself = uid in want.value.payload["joins"]
    return [] if talk.told_of_itself else [want]


@deviation(
    "20",
    "what is no message closes with 1003 and says why; 1011 would blame the server",
    "malformed_*", "binary_v1", "vsn_values",
)  # fmt: skip
def malformed_closes_with_1003(talk: Conversation, want: Expected) -> list[Expected]:
    return [Expected("close", 1003, "*")] if want.kind == "close" and want.value == 1011 else [want]


@deviation(
    "20",
    "a lone surrogate escape becomes U+FFFD and the socket lives: one odd emoji must not cut a session",
    "malformed_*",
)
def lone_surrogate_is_repaired(talk: Conversation, want: Expected) -> list[Expected]:
    return _joins_all_the_same(talk, want, "\\ud800")


@deviation(
    "20",
    "a number too large for a double passes in a payload, whose bytes are not ours to read",
    "malformed_*",
)
def huge_number_passes_in_a_payload(talk: Conversation, want: Expected) -> list[Expected]:
    return _joins_all_the_same(talk, want, "1e400")


def _joins_all_the_same(talk: Conversation, want: Expected, mark: str) -> list[Expected]:
    if want.kind != "close" or mark not in talk.sent_text or talk.last is None:
        return [want]
    talk.alive = True
    return [reply(talk.last, "ok", {}, talk.last.join_ref)]


@deviation(
    "21",
    "nesting deeper than 128 is refused: what one client may send, every other must be able to read",
    "deep_nesting_*",
)
def deep_nesting_is_refused(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "length" or "[" * 129 not in talk.sent_text:
        return [want]
    talk.over = True
    return [Expected("close", 1003, "*")]


@deviation(
    "44",
    "a payload passes as it came, so of two equal keys both go on, and a reader that keeps the last sees the last",
    "json_values_v2",
)
def payload_passes_as_it_came(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "message" or talk.size or not _doubled(talk.sent_text) or talk.last is None:
        return [want]
    return [reply(talk.last, "ok", talk.last.payload, want.value.join_ref)]


def _doubled(text: str) -> bool:
    found = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found.append(len(dict(pairs)) != len(pairs))
        return dict(pairs)

    if text.endswith("]"):
        json.loads(text, object_pairs_hook=look)
    return any(found)


@deviation(
    "26",
    "a message is at most 1 MiB + 64 KiB; the recorded server took 8 MB",
    "frame_sizes",
)
def frame_limit_is_one_mebibyte(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "message" or talk.size <= FRAME_LIMIT:
        return [want]
    talk.over = True
    return [Expected("close", 1009, "*")]


@deviation(
    "RFC 6455 section 5.4",
    "an empty fragment is legal; many of them are refused by their count",
    "control_frames",
)
def empty_fragment_is_legal(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "close" or want.value != 1008:
        return [want]
    talk.alive = True
    return [Expected("alive")]


@deviation(
    "25",
    "an idle socket is closed with 1001 and says so: 1002 would blame the client",
    "idle_timeout_v2",
)
def idle_closes_with_1001(talk: Conversation, want: Expected) -> list[Expected]:
    idle = want.kind == "close" and want.value == 1002 and talk.mount == "short"
    return [Expected("close", 1001, "idle")] if idle else [want]


@deviation(
    "26, 29",
    "a close says why",
    "disconnect_*", "disconnect_other", "frame_sizes",
)  # fmt: skip
def close_says_why(talk: Conversation, want: Expected) -> list[Expected]:
    return [want._replace(reason="*")] if want.kind == "close" and want.reason == "" else [want]


@deviation(
    "6",
    "an unusable token in the subprotocol is refused like any other bad credential: no 500, no nameless socket",
    "auth_token",
)
def bad_bearer_subprotocol_is_403(talk: Conversation, want: Expected) -> list[Expected]:
    # By their numbers in the recording: no base64, empty, two of them.
    if want.kind != "status" or talk.mount != "auth" or talk.name not in ("c5", "c7", "c8"):
        return [want]
    talk.over = True
    return [Expected("status", 403, "*")]


@deviation(
    "1",
    "a query that is not UTF-8 is the client's fault: 400, no 500",
    "vsn_values",
)
def bad_query_is_400(talk: Conversation, want: Expected) -> list[Expected]:
    bad = want.kind == "status" and want.value == 500 and "%ff" in talk.path
    return [Expected("status", 400, "*")] if bad else [want]


@deviation(
    "4",
    "the hub's own pages may always connect, whatever other origins are listed",
    "origins",
)
def own_origin_is_always_allowed(talk: Conversation, want: Expected) -> list[Expected]:
    own = talk.origin in ("http://localhost", "http://localhost:4118", "https://localhost:1", "http://127.0.0.1")
    return [Expected("status", 101)] if want.kind == "status" and talk.mount == "origin" and own else [want]


@deviation(
    "4",
    "a hub on loopback answers to every name of this machine, so a page of one of them may reach it by another",
    "origins",
)
def loopback_names_are_one_host(talk: Conversation, want: Expected) -> list[Expected]:
    refused = want.kind == "status" and want.value == 403 and talk.origin == "http://127.0.0.1"
    return [Expected("status", 101)] if refused else [want]


@deviation(
    "2",
    "a mount has no error handler of its own: a refused credential is a 403 everywhere",
    "connect_refused",
)
def no_error_handler_of_a_mount(talk: Conversation, want: Expected) -> list[Expected]:
    return [] if want.kind == "status" and talk.mount == "errh" else [want]


@deviation(
    "2",
    "a refusal says why in its body: an operator reads a log, a client developer reads this",
    "connect_refused", "vsn_values", "origins", "auth_token",
)  # fmt: skip
def refusal_says_why(talk: Conversation, want: Expected) -> list[Expected]:
    refused = want.kind == "status" and want.value >= 400 and want.reason == ""
    return [want._replace(reason="*")] if refused else [want]


@deviation(
    "57",
    "a body is JSON or NDJSON: what a browser sends to any site unasked is not taken",
    "longpoll_*",
)
def plain_text_is_refused(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind == "http" and talk.content_type == "text/plain":
        if talk.last is not None:
            talk.refused.append(talk.last)
        return [Expected("http", (200, 415))]
    if want.kind == "message" and any(_follows(want.value, request) for request in talk.refused):
        return []
    return [want]


def _follows(message: Message, left: Message) -> bool:
    closed = message.event == "phx_close" and message.ref == left.join_ref
    return message.topic == left.topic and (message.ref == left.ref or closed)


@deviation(
    "-",
    "the recorded channel shows its join_ref as an Elixir term; here the reply's own join_ref slot shows it",
    "join_ref_variants_*",
)
def whoami_shows_no_elixir_term(talk: Conversation, want: Expected) -> list[Expected]:
    if want.kind != "message" or talk.last is None or talk.last.event != "whoami":
        return [want]
    response = {key: value for key, value in want.value.payload["response"].items() if key != "join_ref"}
    return [want._replace(value=want.value._replace(payload={**want.value.payload, "response": response}))]
