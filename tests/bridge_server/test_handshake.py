"""Whether a request becomes a socket: decided from its head alone, and answered before the upgrade."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request

from bridge_server.auth import Identity, Operator, Refused, credential
from bridge_server.channels import Router
from bridge_server.transports.handshake import Accepted, HttpRefusal, Mount, Pairs, decide, same_path
from protocol.codec import V1, V2
from protocol.errors import REFUSALS
from protocol.loopback import origin_entry
from tests.support.raw_socket import RawSocket, head
from tests.support.recorded_server import PREFIX, recorded_server

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def anybody(headers: Pairs, subprotocols: Sequence[str], query: Pairs) -> Identity | None:
    return None


def nobody(headers: Pairs, subprotocols: Sequence[str], query: Pairs) -> Identity | None:
    raise Refused("credential_invalid")


def mount(**options: object) -> Mount:
    return Mount("/socket", Router(), options.pop("authenticate", anybody), **options)  # type: ignore[arg-type]


def ask(
    *mounts: Mount,
    path: str = "/socket/websocket?vsn=2.0.0",
    hosts: frozenset[str] | None = LOOPBACK,
    without: str = "",
    **headers: str | list[str],
) -> Accepted | HttpRefusal:
    """Decide on a request that is valid but for what the test says; header names are written with underscores."""
    sent: dict[str, str | list[str]] = {
        "host": "localhost:4000",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec_websocket_version": "13",
        **headers,
    }
    found = Headers()
    for name, values in sent.items():
        for value in values if isinstance(values, list) else [values]:
            if name != without:
                found[name.replace("_", "-")] = value
    return decide(Request(path, found), mounts or (mount(),), hosts)


def accepted(answer: Accepted | HttpRefusal) -> Accepted:
    assert isinstance(answer, Accepted), answer
    return answer


def refused(answer: Accepted | HttpRefusal, status: int, reason: str) -> HttpRefusal:
    assert isinstance(answer, HttpRefusal), answer
    assert (answer.status, answer.reason) == (status, reason)
    return answer


# Path and version.


@pytest.mark.parametrize(
    "path", ["/socket/websocket", "/socket/websocket/", "//socket//websocket", "/socket/websocket?vsn=1.0.0&vsn=2.0.5"]
)
def test_rule3_doubled_and_trailing_slashes_do_not_count(path: str) -> None:
    accepted(ask(path=path))


@pytest.mark.parametrize(
    "path",
    ["/", "", "/socket", "/Socket/websocket", "/socket/WebSocket", "/socket/websocket/x", "/x/socket/websocket",
     "/socket/longpoll", "/socket/websocke%74", "*"],
)  # fmt: skip
def test_rule3_any_other_path_is_404(path: str) -> None:
    refused(ask(path=path), 404, "not_found")


def test_same_path_compares_names() -> None:
    assert same_path("/a//b/", "a/b")
    assert not same_path("/a/b", "/ab")


@pytest.mark.parametrize(
    ("query", "codec"), [("", V1), ("?vsn=1.0.9", V1), ("?x=1", V1), ("?VSN=2.0.0", V1), ("?vsn=1.0.0&vsn=2.0.0", V2)]
)
def test_rule1_the_last_vsn_wins_and_none_is_v1(query: str, codec: type) -> None:
    assert accepted(ask(path="/socket/websocket" + query)).codec is codec


@pytest.mark.parametrize(
    "query", ["vsn=", "vsn=2.0", "vsn=3.0.0", "vsn[]=2.0.0", "vsn[a]=2.0.0&vsn=2.0.0", "vsn=2.0.0+b"]
)
def test_rule1_any_other_version_is_403(query: str) -> None:
    refused(ask(path="/socket/websocket?" + query), 403, "bad_vsn")


def test_the_query_is_handed_on_and_the_last_of_two_wins() -> None:
    assert accepted(ask(path="/socket/websocket?a=1&a=2&b=%C3%A9&c=&d")).query == {"a": "2", "b": "é", "c": "", "d": ""}


@pytest.mark.parametrize("query", ["x=%ff", "&".join("a" * 101), "x=\udcff", "x=é"])
def test_a_query_that_can_not_be_read_is_400(query: str) -> None:
    refused(ask(path="/socket/websocket?" + query), 400, "bad_request")


# The handshake.


@pytest.mark.parametrize("value", ["Upgrade", "upgrade", "keep-alive, Upgrade", "UPGRADE,close", "close ,  upgrade "])
def test_connection_may_list_more_than_the_upgrade(value: str) -> None:
    """Case 101."""
    accepted(ask(connection=value))
    accepted(ask(connection=["keep-alive", value]))


@pytest.mark.parametrize("value", ["websocket", "WebSocket", "WEBSOCKET"])
def test_the_case_of_the_upgrade_does_not_matter(value: str) -> None:
    """Case 101."""
    accepted(ask(upgrade=value))


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"connection": "keep-alive"}, "connection"),
        ({"connection": "upgraded"}, "connection"),
        ({"without": "connection"}, "connection"),
        ({"upgrade": "h2c"}, "upgrade"),
        ({"without": "upgrade"}, "upgrade"),
        ({"without": "sec_websocket_key"}, "sec-websocket-key"),
        ({"sec_websocket_key": ["dGhlIHNhbXBsZSBub25jZQ=="] * 2}, "sec-websocket-key"),
        ({"without": "sec_websocket_version"}, "sec-websocket-version"),
        ({"sec_websocket_version": "8"}, "sec-websocket-version"),
        ({"sec_websocket_version": ["13", "13"]}, "sec-websocket-version"),
    ],
)
def test_rule3_a_bad_upgrade_is_400_and_names_the_header(headers: dict[str, str], named: str) -> None:
    hint = refused(ask(**headers), 400, "bad_request").hint  # type: ignore[arg-type]
    assert hint is not None
    assert f"'{named}'" in hint


# Host and origin.


@pytest.mark.parametrize(
    "origin", ["http://localhost", "http://localhost:4000", "https://localhost:1", "http://127.0.0.1"]
)
def test_rule4_the_hubs_own_host_may_connect_whatever_scheme_and_port(origin: str) -> None:
    accepted(ask(origin=origin))


@pytest.mark.parametrize(
    "origin",
    ["http://evil.test", "http://LOCALHOST", "null", "", "file://", "not a url", "http://localhost.evil.test",
     "http://evil.test/localhost", "http://xlocalhost", "http://[", "localhost"],
)  # fmt: skip
def test_rule4_any_other_origin_is_403(origin: str) -> None:
    """Case 50: `null`, `file://` and an empty origin are foreign ones."""
    refused(ask(origin=origin), 403, "bad_origin")
    refused(ask(origin=origin, hosts=None), 403, "bad_origin")


def test_rule4_no_origin_is_accepted_and_two_are_not() -> None:
    accepted(ask())
    refused(ask(origin=["http://localhost", "http://localhost"]), 403, "bad_origin")


def test_a_browser_that_says_cross_site_and_no_origin_is_refused() -> None:
    refused(ask(sec_fetch_site="cross-site"), 403, "bad_origin")
    accepted(ask(sec_fetch_site="same-origin"))


WILD = mount(origins=frozenset({"https://app.example", "http://[::2]:81", "//*.wild.test"}))


@pytest.mark.parametrize(
    "origin",
    ["https://app.example", "https://app.example:443", "http://[::2]:81", "http://wild.test", "https://a.wild.test:9",
     "http://a.b.wild.test", "http://localhost"],
)  # fmt: skip
def test_rule4_listed_origins_may_connect(origin: str) -> None:
    accepted(ask(WILD, origin=origin))


@pytest.mark.parametrize(
    "origin",
    ["http://app.example", "https://app.example:444", "https://sub.app.example", "http://xwild.test", "http://test"],
)
def test_rule4_what_only_looks_like_a_listed_origin_is_403(origin: str) -> None:
    refused(ask(WILD, origin=origin), 403, "bad_origin")


LISTED = {
    # entry: (origins it lets in, origins it keeps out)
    "https://x.test": (
        ["https://x.test", "https://x.test:443", "HTTPS://x.test"],
        ["http://x.test", "https://x.test:444", "https://a.x.test", "https://x.test.evil.test", "https://xx.test"],
    ),
    "http://x.test:81": (["http://x.test:81"], ["http://x.test", "http://x.test:80", "https://x.test:81"]),
    "//x.test": (
        ["http://x.test", "https://x.test", "https://x.test:81", "app://x.test"],
        ["http://a.x.test", "http://x.test.evil.test", "//x.test", "x.test"],
    ),
    "//x.test:81": (["http://x.test:81", "https://x.test:81"], ["http://x.test", "https://x.test:82"]),
    "//x.test:80": (["http://x.test", "http://x.test:80"], ["https://x.test"]),
    "//*.x.test": (
        ["http://x.test", "https://a.x.test:81", "http://a.b.x.test"],
        ["http://prefix-x.test", "http://x.test.evil.test", "http://test", "http://.test"],
    ),
    "https://*.x.test": (["https://x.test", "https://a.x.test:443"], ["http://a.x.test", "https://a.x.test:81"]),
    "http://*.x.test:81": (["http://a.x.test:81"], ["http://a.x.test", "https://a.x.test:81"]),
    "//[::2]": (["http://[::2]:81"], ["http://[::3]"]),
    "capacitor://localhost": (["capacitor://localhost"], ["capacitor://x.test", "ionic://localhost"]),
}


@pytest.mark.parametrize("entry", LISTED)
def test_rule4_an_entry_may_fix_scheme_host_and_port_or_leave_them_open(entry: str) -> None:
    door = mount(origins=frozenset({entry}), own_host=False)
    let_in, kept_out = LISTED[entry]
    for origin in let_in:
        accepted(ask(door, origin=origin))
    for origin in (*kept_out, "null", "", "file://", "http://localhost", "not a url"):
        refused(ask(door, origin=origin), 403, "bad_origin")
    assert origin_entry(entry) == entry


def test_rule4_an_entry_is_brought_into_one_form() -> None:
    assert origin_entry("HTTPS://X.test:443") == "https://x.test"
    assert origin_entry("//*.X.test:81") == "//*.x.test:81"
    for none in ("x.test", "null", "file://", "//", "", "//[", "//x:port"):
        assert origin_entry(none) is None


def test_rule4_a_mount_may_ask_for_scheme_and_port_of_its_own_host_too() -> None:
    """What Phoenix calls `:conn`: the hub ends no TLS and can't see its own scheme, so its origin is listed."""
    door = mount(origins=frozenset({"https://hub.example"}), own_host=False)
    accepted(ask(door, hosts=None, host="hub.example", origin="https://hub.example"))
    for origin in ("http://hub.example", "https://hub.example:444", "https://evil.test"):
        refused(ask(door, hosts=None, host="hub.example", origin=origin), 403, "bad_origin")


def test_rule4_the_policy_is_the_mounts_even_for_the_same_channels() -> None:
    router = Router()
    closed = Mount("/closed", router, anybody, origins=frozenset())
    open_ = Mount("/open", router, anybody, origins=None)
    refused(ask(closed, open_, path="/closed/websocket", origin="http://evil.test"), 403, "bad_origin")
    accepted(ask(closed, open_, path="/open/websocket", origin="http://evil.test"))


@pytest.mark.parametrize("origin", ["http://evil.test", "null", "", "file://", "not a url"])
def test_rule4_a_mount_that_asks_nobody_takes_any_origin(origin: str) -> None:
    """Case 50: with the check off."""
    accepted(ask(mount(origins=None), origin=origin))


@pytest.mark.parametrize("host", ["evil.test", "evil.test:4000", "localhost@evil.test", "", "[::1", "localhost/x"])
def test_on_loopback_a_foreign_host_is_403_on_every_mount(host: str) -> None:
    refused(ask(host=host), 403, "bad_host")
    refused(ask(mount(origins=None), host=host), 403, "bad_host")


def test_on_loopback_exactly_one_host_must_be_sent() -> None:
    refused(ask(without="host"), 403, "bad_host")
    refused(ask(host=["localhost", "localhost"]), 403, "bad_host")
    accepted(ask(host="[::1]:4000"))


def test_where_anybody_may_reach_the_hub_its_own_host_is_what_the_request_names() -> None:
    accepted(ask(hosts=None, host="hub.example", origin="https://hub.example"))
    refused(ask(hosts=None, host="hub.example", origin="http://localhost"), 403, "bad_origin")


# Subprotocols and credentials.

CHAT = mount(subprotocols=("chat.v1", "phoenix"))


@pytest.mark.parametrize(
    ("offer", "echo"),
    [
        ("chat.v1", "chat.v1"),
        ("phoenix", "phoenix"),
        ("phoenix, chat.v1", "chat.v1"),
        ("other,phoenix", "phoenix"),
        (["other", "phoenix"], "phoenix"),
        (" , phoenix,", "phoenix"),
        ([], None),
    ],
)
def test_rule5_the_first_entry_of_the_mount_that_was_offered_is_echoed(
    offer: str | list[str], echo: str | None
) -> None:
    assert accepted(ask(CHAT, sec_websocket_protocol=offer)).subprotocol == echo


@pytest.mark.parametrize("offer", ["other", "Phoenix", "chat.v2, x"])
def test_rule5_no_common_subprotocol_is_403_and_a_mount_without_any_ignores_them(offer: str) -> None:
    refused(ask(CHAT, sec_websocket_protocol=offer), 403, "bad_subprotocol")
    assert accepted(ask(sec_websocket_protocol=offer)).subprotocol is None


@pytest.mark.parametrize("token", ["dG9rZW4", "dG9rZW4=", "a-_b", "a+/b"])
def test_rule6_a_token_in_the_subprotocol_lets_phoenix_be_echoed(token: str) -> None:
    bearer = f"base64url.bearer.phx.{token}"
    assert accepted(ask(sec_websocket_protocol=f"phoenix, {bearer}")).subprotocol == "phoenix"
    assert accepted(ask(sec_websocket_protocol=f"{bearer},phoenix")).subprotocol == "phoenix"
    assert accepted(ask(sec_websocket_protocol=bearer)).subprotocol is None
    refused(ask(sec_websocket_protocol=f"other, {bearer}"), 403, "bad_subprotocol")


def test_rule6_two_tokens_are_as_good_as_none() -> None:
    offer = "phoenix, base64url.bearer.phx.YQ, base64url.bearer.phx.Yg"

    def authenticate(headers: Pairs, subprotocols: Sequence[str], query: Pairs) -> Identity | None:
        credential(headers, subprotocols)
        return None

    refused(ask(mount(authenticate=authenticate), sec_websocket_protocol=offer), 403, "credential_invalid")


def test_authentication_is_given_everything_and_comes_last() -> None:
    asked = []

    def authenticate(headers: Pairs, subprotocols: Sequence[str], query: Pairs) -> Identity | None:
        asked.append((dict(headers)["x-one"], list(subprotocols), query))
        return Operator(1, "ann")

    door = mount(authenticate=authenticate)
    answer = ask(door, path="/socket/websocket?a=1&a=2&vsn=2.0.0", x_one="1", sec_websocket_protocol="p, q")
    assert accepted(answer).identity == Operator(1, "ann")
    assert asked == [("1", ["p", "q"], [("a", "1"), ("a", "2"), ("vsn", "2.0.0")])]
    for bad in (
        ask(door, path="/x"),
        ask(door, connection="close"),
        ask(door, origin="http://evil.test"),
        ask(door, path="/socket/websocket?vsn=9"),
        ask(door, host="evil.test"),
    ):
        assert isinstance(bad, HttpRefusal)
    assert len(asked) == 1, "whoever is refused for something else is not asked for a credential"


def test_rule2_a_refused_credential_is_403() -> None:
    refused(ask(mount(authenticate=nobody)), 403, "credential_invalid")


def test_the_first_mount_of_a_path_serves_it() -> None:
    first, second = mount(), mount()
    assert accepted(ask(first, second)).mount is first


# On the wire.


async def test_a_refusal_has_a_reason_a_date_and_an_end(tmp_path: Path) -> None:
    async with recorded_server(tmp_path) as server, RawSocket(server.port) as socket:
        answer = await socket.upgrade(f"{PREFIX}/socket/websocket?vsn=2.0.0&token=bad")
        assert answer.status == 403
        assert json.loads(answer.body) == {"reason": "credential_invalid"}
        assert REFUSALS["credential_invalid"].status == 403
        assert answer.headers["date"].endswith(" GMT")
        assert answer.headers["connection"] == "close"
        assert await socket.receive() is None


async def test_an_authentication_that_fails_is_500_and_the_hub_goes_on(tmp_path: Path) -> None:
    async with recorded_server(tmp_path) as server:
        async with RawSocket(server.port) as socket:
            answer = await socket.upgrade(f"{PREFIX}/socket/websocket?token=boom")
            assert answer.status == 500
            assert json.loads(answer.body) == {"reason": "internal"}
        async with RawSocket(server.port) as socket:
            assert (await socket.upgrade(f"{PREFIX}/socket/websocket")).status == 101


@pytest.mark.parametrize(
    ("name", "request_head", "hint"),
    [
        ("folded header", head(f"{PREFIX}/socket/websocket", "X-A: b", " c"), "one header a line"),
        ("space before the colon", head(f"{PREFIX}/socket/websocket", "X-A : b"), "one header a line"),
        ("POST", head(f"{PREFIX}/socket/websocket").replace(b"GET", b"POST"), "GET"),
        ("PUT", head(f"{PREFIX}/socket/websocket").replace(b"GET", b"PUT"), "GET"),
        ("HTTP/1.0", head(f"{PREFIX}/socket/websocket").replace(b"HTTP/1.1", b"HTTP/1.0"), "handshake"),
        ("two upgrades", head(f"{PREFIX}/socket/websocket", "Upgrade: h2c"), "handshake"),
        ("bad key", head(f"{PREFIX}/socket/websocket").replace(b"dGhl", b"d!hl"), "handshake"),
        ("short key", head(f"{PREFIX}/socket/websocket").replace(b"dGhl", b""), "handshake"),
        ("129 headers", head(f"{PREFIX}/socket/websocket", *["X: y"] * 129), "handshake"),
    ],
)
async def test_a_head_that_is_no_handshake_is_400(tmp_path: Path, name: str, request_head: bytes, hint: str) -> None:
    async with recorded_server(tmp_path) as server, RawSocket(server.port) as socket:
        socket.send(request_head)
        answer = await socket.response()
        assert answer.status == 400, name
        said = json.loads(answer.body)
        assert said["reason"] == "bad_request"
        assert hint in said["message"]
        assert await socket.receive() is None


async def test_rule3_without_an_upgrade_header_the_answer_is_400_and_says_what_is_missing(tmp_path: Path) -> None:
    """Case 101: some proxies strip the header."""
    async with recorded_server(tmp_path) as server:
        for request in (
            b"GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            head("/socket/websocket").replace(b"Upgrade: websocket\r\n", b""),
            b"POST /socket/websocket HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
        ):
            async with RawSocket(server.port) as socket:
                socket.send(request)
                answer = await socket.response()
                assert answer.status == 400
                said = json.loads(answer.body)
                assert said["reason"] == "bad_request"
                assert "upgrade: websocket" in said["message"]
                assert answer.headers["connection"] == "close"


async def test_a_hub_that_is_full_or_closing_says_503_and_when_to_come_back(tmp_path: Path) -> None:
    async with recorded_server(tmp_path) as server:
        port = server.hub._listener
        assert port is not None
        port.max_connections = 1
        async with RawSocket(server.port) as first, RawSocket(server.port) as second, RawSocket(server.port) as third:
            assert (await first.upgrade(f"{PREFIX}/socket/websocket")).status == 101
            for socket, reason in ((second, "overloaded"), (third, "draining")):
                port.draining = reason == "draining"
                answer = await socket.upgrade(f"{PREFIX}/socket/websocket")
                assert answer.status == 503
                assert json.loads(answer.body) == {"reason": reason}
                assert int(answer.headers["retry-after"]) > 0
