"""Every way to say no: the error tree, the close codes and the refusal reasons.

    ProtocolError                what a peer sent can't be taken; carries the close code and the reason to close with
    +-- BadUtf8                  1007  text that is not UTF-8
    +-- BadDeflate               1007  a compressed message that can't be inflated
    +-- MalformedMessage         1003  not JSON, not the shape of a frame
    |   +-- TooDeep              1003  nested deeper than MAX_DEPTH
    +-- MessageTooBig            1009  over the frame limit
    BadEventId (ValueError)      an event id or cursor that breaks the grammar of `event_id.py`
    BadTopic (ValueError)        a topic, event name or server id that some client can't take
    InvalidEvent (ValueError)    an event that may not be stored or relayed
    BadCode (ValueError)         a text that is no pairing code

The tables below are read by the hub (what to say), by the forwarder (whether to come back) and by the
documentation test (nothing may be said that docs/wire.md does not explain).
"""

from typing import NamedTuple


class ProtocolError(Exception):
    """A message the peer should not have sent. Its connection is closed with `close_code`; no other is touched."""

    close_code = 1002

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadUtf8(ProtocolError):
    """Text that is not UTF-8 (RFC 6455 section 8.1)."""

    close_code = 1007


class BadDeflate(ProtocolError):
    """A compressed message that can't be inflated (RFC 7692)."""

    close_code = 1007


class MalformedMessage(ProtocolError):
    """Valid text that is not JSON or not a frame."""

    close_code = 1003


class TooDeep(MalformedMessage):
    """Arrays and objects nested deeper than `codec.MAX_DEPTH`."""


class MessageTooBig(ProtocolError):
    """A message longer than the mount takes (RFC 6455 section 7.4.1)."""

    close_code = 1009


class BadEventId(ValueError):
    """An event id or cursor that is not a canonical decimal string up to 2^53 - 1."""


class BadTopic(ValueError):
    """A name that holds a comma, a quote, a backslash or a control character, or is longer than 255 bytes."""


class InvalidEvent(ValueError):
    """An event that the store refuses to keep and the hub refuses to relay; the text says what and where."""


class BadCode(ValueError):
    """A text that can't be a pairing code, whatever codes there are."""


class CloseCode(NamedTuple):
    """One WebSocket close code the hub may send."""

    code: int
    name: str
    meaning: str
    come_back: bool


CLOSE_CODES = {
    row.code: row
    for row in (
        CloseCode(
            1001,
            "going_away",
            "idle or mute for too long, or ended by the hub (revoked credential, disconnected by its operator)",
            True,
        ),
        CloseCode(1002, "protocol_error", "the peer broke the WebSocket protocol", True),
        CloseCode(1003, "unsupported_data", "a message that is not a Phoenix frame", True),
        CloseCode(1007, "invalid_data", "text that is not UTF-8, or a compressed message that can't be inflated", True),
        CloseCode(1009, "too_big", "a message over the frame limit", True),
        CloseCode(1011, "internal_error", "the hub failed while handling this peer", True),
        CloseCode(1012, "restart", "the hub is shutting down or restarting", True),
        CloseCode(1013, "try_again_later", "the hub is overloaded, or this peer reads too slowly", True),
    )
}
"""Codes the hub closes with; never 1000, never 4000 and above: some clients would then stay away for good."""


class Refusal(NamedTuple):
    """One machine-readable `reason`: where it is said, and whether trying again can help."""

    reason: str
    where: str
    meaning: str
    come_back: bool
    status: int = 0


REFUSALS = {
    row.reason: row
    for row in (
        # Before the upgrade, over HTTP: {"reason": …} in the body.
        Refusal("credential_missing", "upgrade", "no credential was sent", False, 403),
        Refusal("credential_invalid", "upgrade", "no such credential", False, 403),
        Refusal("credential_revoked", "upgrade", "the credential was revoked", False, 403),
        Refusal(
            "credential_in_query",
            "upgrade",
            "a long-lived credential was put into the URL; send it in a header",
            False,
            403,
        ),
        Refusal("bad_origin", "upgrade", "the Origin header names a site that may not connect", False, 403),
        Refusal("bad_host", "upgrade", "the Host header names a host that this hub does not serve", False, 403),
        Refusal("bad_vsn", "upgrade", "only the Phoenix serializer versions 1.0.0 and 2.0.0 are spoken", False, 403),
        Refusal("bad_subprotocol", "upgrade", "none of the offered subprotocols is spoken", False, 403),
        Refusal("bad_request", "upgrade", "the upgrade request is not a valid WebSocket handshake", False, 400),
        Refusal(
            "too_many_attempts",
            "upgrade",
            "this address connects too often; Retry-After says when to come back",
            True,
            429,
        ),
        Refusal(
            "too_many_connections",
            "upgrade",
            "this address or credential holds as many connections as it may",
            True,
            429,
        ),
        Refusal("draining", "upgrade", "the hub is shutting down; Retry-After says when to come back", True, 503),
        Refusal("overloaded", "upgrade", "the hub holds as many connections as it may", True, 503),
        Refusal("not_found", "upgrade", "no socket is served at this path", False, 404),
        Refusal("internal", "upgrade", "the hub failed; its log says why", True, 500),
        # On a topic: in an error reply, or in phx_error.
        Refusal("unauthorized", "join", "this credential does not open this topic", False),
        Refusal("unmatched topic", "join", "no such topic, or it is not joined", False),
        Refusal("too many channels joined", "join", "this socket has joined as many topics as it may", False),
        Refusal("join crashed", "join", "the hub failed while joining", True),
        Refusal("channel_crash", "topic", "the hub failed while handling a message on this topic", True),
        Refusal("bad_join", "join", "the join payload is too large or has a wrong type in it; `field` names it", False),
        Refusal("bad_cursor", "join", "`since_id` is not an event id", False),
        Refusal("flapping", "join", "too many takeovers in a minute: two homes use one identity", True),
        Refusal("rate_limited", "join", "too much in too short a time; `retry_after_ms` says when to come back", True),
        Refusal("unknown event", "push", "this topic has no such message", False),
        Refusal("bad_push", "push", "the payload of this message has a wrong shape", False),
        Refusal("too_large", "push", "the event, or the body of a request, is longer than `limit` bytes", False),
        Refusal("invalid_event", "push", "the event has no usable event_id or type", False),
        Refusal("gap", "push", "the event does not follow the last one held; go on from `resume_from`", True),
        Refusal("stale_link", "push", "another home took over this server", False),
        # To a request of an app.
        Refusal(
            "forbidden", "request", "no such route for apps, or one that needs the scope that `scope` names", False
        ),
        Refusal("server_offline", "request", "the home is not connected; `sent`: it may have been done", True),
        Refusal("unsupported", "request", "this home answers no requests", False),
        Refusal("timeout", "request", "no answer in time; it may have been done", True),
        Refusal("idempotency_mismatch", "request", "the id was used for something else", False),
        Refusal("in_flight", "request", "a request of this id is being answered on this channel", True),
        Refusal("bad_answer", "request", "the home's answer was none; it may have been done", True),
        Refusal("gone", "request", "said to a home: nobody waits for this answer any more", False),
        Refusal("epoch_changed", "topic", "the home's store was replaced; join again", True),
        Refusal("hub_reset", "topic", "the hub had lost its memory; join again", True),
        Refusal("expired", "topic", "events were dropped before they could be sent; join again", True),
    )
}
"""Reasons the hub gives. `come_back` answers for the same request with the same credential."""


class ApiError(NamedTuple):
    """One `code` of the hub's HTTP API: {"error": {"code", "message", ...}}."""

    code: str
    status: int
    meaning: str
    come_back: bool


API_ERRORS = {
    row.code: row
    for row in (
        ApiError("bad_request", 400, "the body is not JSON of the documented shape", False),
        ApiError("bad_name", 400, "a name needs at least one visible character", False),
        ApiError("malformed", 400, "no pairing code looks like this", False),
        ApiError("credential_missing", 403, "no credential was sent", False),
        ApiError("credential_invalid", 403, "no such credential", False),
        ApiError("credential_revoked", 403, "the credential was revoked", False),
        ApiError("credential_in_query", 403, "a credential was put into the URL; send it in a header", False),
        ApiError("unauthorized", 403, "this kind of credential may not do that", False),
        ApiError("bad_host", 403, "the Host header names a host that this hub does not serve", False),
        ApiError("bad_origin", 403, "the request comes from a site that may not ask", False),
        ApiError("wrong", 403, "no code that serves now is this one; if yours is old, ask for a new one", False),
        ApiError("not_found", 404, "there is no such thing, or it belongs to another home", False),
        ApiError("method_not_allowed", 405, "this path takes other methods: the header Allow names them", False),
        ApiError("timeout", 408, "the body took too long", True),
        ApiError("too_many_devices", 409, "this home has as many apps as it may; revoke one", False),
        ApiError("expired", 410, "the code is right but no longer serves; ask for a new one", False),
        ApiError("reused", 410, "the code is right but was redeemed already; ask for a new one", False),
        ApiError("too_large", 413, "the body is longer than 4096 bytes", False),
        ApiError("unsupported_media_type", 415, "bodies are application/json, without a Content-Encoding", False),
        ApiError("rate_limited", 429, "too often; `retry_after_ms` says when to come back", True),
        ApiError("internal", 500, "the hub failed; its log says why", True),
        ApiError("overloaded", 503, "the hub has too much to do; Retry-After says when to come back", True),
    )
}
"""Codes the HTTP API answers with. `come_back` answers for the same request with the same credential."""
