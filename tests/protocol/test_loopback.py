"""Which requests reach a port on this machine, and whose address counts as the client's."""

import pytest

from protocol.loopback import (
    check_request,
    client_address,
    expected_hosts,
    forwarded,
    is_loopback,
    normal_origin,
    own_origins,
)

HOSTS = expected_hosts()
ORIGINS = own_origins(4000)


@pytest.mark.parametrize("host", ["127.0.0.1:4000", "localhost", "LOCALHOST:1", "[::1]:4000"])
def test_the_names_of_this_machine_are_served(host: str) -> None:
    assert check_request([("Host", host)], HOSTS, ORIGINS) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "x@localhost",
        "",
        "localhost:x",
        "localhost/",
        "[::1",
    ],
)
def test_a_foreign_host_is_refused(host: str) -> None:
    assert check_request([("Host", host)], HOSTS, ORIGINS) == "bad_host"


def test_exactly_one_host_is_needed() -> None:
    assert check_request([], HOSTS, ORIGINS) == "bad_host"
    assert check_request([("Host", "localhost"), ("host", "localhost")], HOSTS, ORIGINS) == "bad_host"
    assert check_request([], None, ORIGINS) is None


def test_the_public_url_is_an_expected_name_and_origin() -> None:
    hosts, origins = expected_hosts("https://Hub.example/x"), own_origins(4000, "https://Hub.example:443/x")
    assert check_request([("Host", "hub.example"), ("Origin", "https://hub.example")], hosts, origins) is None
    assert check_request([("Host", "hub.example"), ("Origin", "http://hub.example")], hosts, origins) == "bad_origin"


@pytest.mark.parametrize("origin", ["http://127.0.0.1:4000", "HTTP://localhost:4000", "http://[::1]:4000"])
def test_own_pages_may_connect(origin: str) -> None:
    assert check_request([("Host", "localhost:4000"), ("Origin", origin)], HOSTS, ORIGINS) is None


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "file://",
        "http://localhost:5173",
        "https://localhost:4000",
        "http://evil.example",
        "http://localhost:x",
    ],
)
def test_rule_4_other_origins_are_refused(origin: str) -> None:
    assert check_request([("Host", "localhost:4000"), ("Origin", origin)], HOSTS, ORIGINS) == "bad_origin"


def test_a_cross_site_request_needs_a_listed_origin() -> None:
    host, cross = ("Host", "localhost:4000"), ("Sec-Fetch-Site", "Cross-Site")
    assert check_request([host, cross], HOSTS, ORIGINS) == "bad_origin"
    assert check_request([host, ("Sec-Fetch-Site", "same-origin")], HOSTS, ORIGINS) is None
    listed = normal_origin("https://app.example:443/")
    assert listed == "https://app.example"
    assert check_request([host, cross, ("Origin", "https://app.example")], HOSTS, [listed]) is None


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-For", "x-forwarded-anything", "X-Real-IP", "Via"])
def test_forwarding_headers_are_seen(name: str) -> None:
    assert forwarded([("Host", "localhost"), (name, "")])
    assert not forwarded([("Host", "localhost"), ("X-Forwardable", "")])


@pytest.mark.parametrize(
    ("peer", "chain", "trusted", "client"),
    [
        ("203.0.113.9", ["1.2.3.4"], (), "203.0.113.9"),
        ("203.0.113.9", ["1.2.3.4"], ("10.0.0.0/8",), "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4"], ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6", "1.2.3.4, 10.0.0.7"], ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.1", ["10.0.0.2, 10.0.0.3"], ("10.0.0.0/8",), "10.0.0.2"),
        ("10.0.0.1", [], ("10.0.0.0/8",), "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4, junk"], ("10.0.0.0/8",), "10.0.0.1"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4:5678, 10.0.0.2:1"], ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6, [2001:db8::1]:1"], ("10.0.0.0/8",), "2001:db8::1"),
        ("10.0.0.1", ["[::ffff:1.2.3.4]"], ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.1", ["1.2.3.4, 5.6.7.8:"], ("10.0.0.0/8",), "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4, [5.6.7.8]:1x"], ("10.0.0.0/8",), "10.0.0.1"),
        ("::ffff:10.0.0.1", ["2001:db8::1"], ("10.0.0.1",), "2001:db8::1"),
    ],
)
def test_the_client_address_believes_trusted_proxies_only(
    peer: str, chain: list[str], trusted: tuple[str, ...], client: str
) -> None:
    headers = [("X-Forwarded-For", value) for value in chain]
    assert client_address((peer, 1234), headers, trusted) == client


def test_a_unix_socket_is_local() -> None:
    assert client_address("", [("X-Forwarded-For", "1.2.3.4")], ("10.0.0.0/8",)) == "local"
    assert is_loopback("local")
    assert is_loopback("127.9.9.9")
    assert is_loopback("::1")
    assert not is_loopback("203.0.113.9")


@pytest.mark.parametrize(
    "text",
    [
        "http://a b",
        "http://localhost\x85",
        "http://local\thost",
        "http://l\nhost",
        "http://b\xfccher.example",
        "http://\x00",
    ],
)
def test_an_origin_that_no_browser_writes_is_none(text: str) -> None:
    """Part of such a text would be dropped on reading, and what is left could be listed."""
    assert normal_origin(text) is None
    assert normal_origin(" http://Localhost:80 ") == "http://localhost"
