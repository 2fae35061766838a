"""The hub's HTTP API over real sockets: how it refuses. Shapes, sites, addresses, crowds; and what its log tells."""

import asyncio
import json
import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge_server.api import MAX_BODY, MAX_WAITING, Problem
from bridge_server.app import Hub
from bridge_server.auth import Credentials
from protocol.pairing import parse_code, scrub
from tests.support.api_client import CODES, ME, REDEEM, ask, code_of, redeemed
from tests.support.pairing_desk import unknown, wrong
from tests.support.running_hub import running_hub


async def test_four_reasons(tmp_path: Path) -> None:
    async with running_hub(tmp_path) as hub:
        _, token = hub.credentials.add_server("Attic")
        issued = await code_of(hub, token, expires_in=1)
        used = await redeemed(hub, token)
        code = parse_code(issued["code"])
        assert used

        async def reason(text: object) -> tuple[int, str]:
            return (await ask(hub, "POST", REDEEM, body={"code": text, "name": "x"})).error

        for text in ("", "BCDF", "BCDF-GHJK-LMN", "BCDF-GHJK-LMNPQ", "ACDF-GHJK-LMNP", "ſCDF-GHJK-LMNP", "B" * 1000):
            assert await reason(text) == (400, "malformed")
        assert await reason(str(wrong(code))) == (403, "wrong")
        assert await reason(str(unknown())) == (403, "wrong")
        async with asyncio.timeout(20):
            while (answer := await ask(hub, "GET", f"{CODES}/{issued['pairing_id']}", token)).json["status"] == "open":
                await asyncio.sleep(0.1)
        assert answer.json == {"status": "expired"}
        assert await reason(issued["code"]) == (410, "expired")
        assert await reason(str(wrong(code))) == (403, "wrong")
        for _ in range(17):
            assert await reason(str(unknown())) == (403, "wrong")
        limited = await ask(hub, "POST", REDEEM, body={"code": str(unknown()), "name": "x"})
        assert limited.error == (429, "rate_limited")
        assert 3_500_000 < limited.json["error"]["retry_after_ms"] <= 3_600_000
        assert int(limited.headers["Retry-After"]) <= 3_600
        # Malformed texts were never counted, and are still told what they are.
        assert await reason("nonsense") == (400, "malformed")


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b"{}", b"\xff", b"[" * 4000, b'{"code": 1, "name": "x"}', b'{"code": "x"}'),
        b'{"code": "BCDF-GHJK-LMNP", "name": "' + b"x" * 513 + b'"}',
        b'{"code": "BCDF-GHJK-LMNP", "name": null}',
    ],
)
async def test_what_is_no_redemption_is_a_bad_request(hub: Hub, body: bytes) -> None:
    assert (await ask(hub, "POST", REDEEM, body=body)).error == (400, "bad_request")


@pytest.mark.parametrize("name", ["", " ", "\x00\u202e"])
async def test_a_name_nobody_can_see_is_refused_and_costs_no_attempt(hub: Hub, name: str) -> None:
    _, token = hub.credentials.add_server("Attic")
    issued = await code_of(hub, token)
    for _ in range(25):
        answer = await ask(hub, "POST", REDEEM, body={"code": issued["code"], "name": name})
        assert answer.error == (400, "bad_name")
    assert (await ask(hub, "POST", REDEEM, body={"code": issued["code"], "name": "x"})).status == 201


@pytest.mark.parametrize(
    "body",
    [
        *({"scopes": []}, {"scopes": ["root"]}, {"scopes": "view"}, {"scopes": ["view"] * 4}),
        *({"expires_in": 0}, {"expires_in": 301}, {"expires_in": "5"}, {"expires_in": 1.5}, {"expires_in": True}, []),
    ],
)
async def test_what_is_no_wish_for_a_code_is_a_bad_request(hub: Hub, body: Any) -> None:
    _, token = hub.credentials.add_server("Attic")
    assert (await ask(hub, "POST", CODES, token, body)).error == (400, "bad_request")


async def test_bodies_are_short_json(hub: Hub) -> None:
    _, token = hub.credentials.add_server("Attic")
    for path, by in ((CODES, token), (REDEEM, None)):
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
            refused = await ask(hub, "POST", path, by, b"{}", Content_Type=kind)
            assert refused.error == (415, "unsupported_media_type")
        for encoding in ("gzip", "deflate", "br", "zstd"):
            refused = await ask(hub, "POST", path, by, b"{}", Content_Encoding=encoding)
            assert refused.error == (415, "unsupported_media_type")
        assert (await ask(hub, "POST", path, by, b" " * (MAX_BODY + 1))).error == (413, "too_large")

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(1_000):
                yield b" " * 1_000

        async with aiohttp.ClientSession() as session:
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {by}"} if by else {})
            async with session.post(hub.url + path, data=endless(), headers=headers) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (413, "too_large")
    padded = json.dumps({"expires_in": 5}).encode().ljust(MAX_BODY)
    assert (await ask(hub, "POST", CODES, token, padded, Content_Type="application/json; charset=utf-8")).status == 201


async def test_other_methods_and_paths(hub: Hub) -> None:
    assert (await ask(hub, "GET", REDEEM)).error == (405, "method_not_allowed")
    assert (await ask(hub, "PUT", ME)).error == (405, "method_not_allowed")
    assert (await ask(hub, "GET", "/api/pairing/nothing")).error == (404, "not_found")


# Cross-site.

SITES = [
    ({}, True),
    ({"Sec_Fetch_Site": "same-origin"}, True),
    ({"Sec_Fetch_Site": "none"}, True),
    ({"Sec_Fetch_Site": "cross-site"}, False),
    ({"Origin": "{own}"}, True),
    ({"Origin": "https://app.example"}, True),
    ({"Origin": "https://app.example", "Sec_Fetch_Site": "cross-site"}, True),
    ({"Origin": "https://evil.example"}, False),
    ({"Origin": "https://evil.example", "Sec_Fetch_Site": "same-origin"}, False),
    ({"Origin": "null"}, False),
    ({"Origin": "http://127.0.0.1:1"}, False),
]


HOSTS = [
    ("127.0.0.1", True),
    ("localhost", True),
    ("evil.example", False),
    ("127.0.0.1.evil.example", False),
    ("user@127.0.0.1", False),
]


@pytest.mark.parametrize(("host", "known"), HOSTS)
async def test_only_own_hosts_and_listed_origins_get_through(tmp_path: Path, host: str, known: bool) -> None:
    async with running_hub(tmp_path, origins=("https://app.example",)) as hub:
        _, token = hub.credentials.add_server("Attic")
        for site, allowed in SITES:
            headers = {name: value.replace("{own}", hub.url) for name, value in site.items()}
            listed = headers.get("Origin") == "https://app.example"
            for kind in ("application/json", "text/plain"):
                headers |= {"Host": f"{host}:{hub.port}"}
                answers = [
                    await ask(hub, "POST", CODES, token, b"{}", Content_Type=kind, **headers),
                    await ask(hub, "POST", REDEEM, None, b"{}", Content_Type=kind, **headers),
                    await ask(hub, "GET", ME, token, **headers),
                ]
                for answer in answers:
                    assert (answer.headers.get("Access-Control-Allow-Origin") == "https://app.example") == listed
                    assert answer.headers["Vary"] == "Origin"
                if not (known and allowed):
                    assert {answer.error for answer in answers} == {(403, "bad_origin" if known else "bad_host")}
                elif kind == "text/plain":
                    assert [answer.status for answer in answers] == [415, 415, 200]
                else:
                    assert [answer.status for answer in answers] == [201, 400, 200]
                    await ask(hub, "DELETE", f"{CODES}/{answers[0].json['pairing_id']}", token)


async def test_a_listed_origin_gets_its_preflight_and_no_other(tmp_path: Path) -> None:
    async with running_hub(tmp_path, origins=("https://app.example",)) as hub:
        for path in (CODES, CODES + "/a", REDEEM, "/api/servers/a/devices", "/api/servers/a/devices/b", ME):
            answer = await ask(hub, "OPTIONS", path, Origin="https://app.example", Access_Control_Request_Method="POST")
            assert answer.status == 204
            assert answer.headers["Access-Control-Allow-Origin"] == "https://app.example"
            refused = await ask(
                hub, "OPTIONS", path, Origin="https://evil.example", Access_Control_Request_Method="POST"
            )
            assert refused.error == (403, "bad_origin")
            assert "Access-Control-Allow-Origin" not in refused.headers


async def test_a_hub_that_listens_for_everybody_serves_its_own_pages_under_any_name(tmp_path: Path) -> None:
    async with running_hub(tmp_path, host="0.0.0.0") as hub:
        _, token = hub.credentials.add_server("Attic")
        answer = await ask(hub, "POST", CODES, token, Host="hub.example:4000", Origin="http://hub.example:4000")
        assert answer.json["link"].startswith("http://hub.example:4000/#pair=")
        other = await ask(hub, "POST", CODES, token, Host="hub.example:4000", Origin="http://evil.example")
        assert other.error == (403, "bad_origin")


# Addresses, load, logs.


async def test_limits_count_the_address_behind_trusted_proxies_only(tmp_path: Path) -> None:
    body = {"code": str(unknown()), "name": "x"}
    async with running_hub(tmp_path / "a", trusted_proxies=("127.0.0.0/8",)) as hub:
        for number in range(21):
            answer = await ask(hub, "POST", REDEEM, body=body, X_Forwarded_For=f"10.9.8.7, 2001:db8::{number:x}")
            assert answer.error == ((403, "wrong") if number < 20 else (429, "rate_limited"))
        other = await ask(hub, "POST", REDEEM, body=body, X_Forwarded_For="2001:db8:0:1::1")
        assert other.error == (403, "wrong")
    async with running_hub(tmp_path / "b") as hub:
        for number in range(21):
            answer = await ask(hub, "POST", REDEEM, body=body, X_Forwarded_For=f"198.51.100.{number}")
            assert answer.error == ((403, "wrong") if number < 20 else (429, "rate_limited"))


async def test_limits_outlive_the_hub(tmp_path: Path) -> None:
    body = {"code": str(unknown()), "name": "x"}
    answers = []
    for _ in range(3):
        async with running_hub(tmp_path) as hub:
            answers += [(await ask(hub, "POST", REDEEM, body=body)).error[1] for _ in range(8)]
    assert answers == ["wrong"] * 20 + ["rate_limited"] * 4


async def test_strangers_that_crowd_in_are_turned_away_and_homes_still_served(hub: Hub) -> None:
    _, token = hub.credentials.add_server("Attic")
    api, held = hub._api, asyncio.Event()
    assert api is not None
    loop = asyncio.get_running_loop()
    blocked = [
        asyncio.ensure_future(
            api._run(lambda *_: asyncio.run_coroutine_threadsafe(held.wait(), loop).result(10), most=MAX_WAITING // 4)
        )
        for _ in range(MAX_WAITING // 4)
    ]
    await asyncio.sleep(0)
    refused = await ask(hub, "POST", REDEEM, body={"code": str(unknown()), "name": "x"})
    assert refused.error == (503, "overloaded")
    assert refused.headers["Retry-After"] == "1"
    waiting = asyncio.ensure_future(ask(hub, "POST", CODES, token))
    assert (await ask(hub, "GET", ME, token)).status == 200
    held.set()
    await asyncio.gather(*blocked)
    assert (await waiting).status == 201
    with pytest.raises(Problem, match="overloaded"):
        await api._run(lambda *_: None, most=0)


async def test_neither_code_nor_credential_is_logged(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    home, token = hub.credentials.add_server("Attic")
    issued = await code_of(hub, token)
    code = parse_code(issued["code"])
    for turn in range(4):
        await ask(hub, "POST", REDEEM, body={"code": str(wrong(code, turn)), "name": "x"})
    made = (await ask(hub, "POST", REDEEM, body={"code": issued["code"], "name": "Phone"})).json
    await ask(hub, "DELETE", f"/api/servers/{home.server_id}/devices/{made['device_id']}", token)
    dead = parse_code((await code_of(hub, token))["code"])
    for turn in range(6):
        await ask(hub, "POST", REDEEM, body={"code": str(wrong(dead, turn)), "name": "x"})
    text = caplog.text
    for said in (f"app {made['device_id']}", f"revoked app {made['device_id']}", "is dead"):
        assert said in text
    for secret in (token, made["credential"], str(code), code.secret, str(dead), dead.secret, str(wrong(dead, 0))):
        assert secret not in text


def test_the_log_scrubber_knows_codes_and_links() -> None:
    assert scrub("try BCDF-GHJK-LMNP now") == "try BCDF-[redacted] now"
    assert scrub("GET https://hub.example/#pair=BCDF-GHJK-LMNP HTTP") == "GET https://hub.example/#pair=[redacted] HTTP"
    assert scrub("a well-known e-mail of 2026-01-02") == "a well-known e-mail of 2026-01-02"


async def test_a_redemption_while_another_process_writes_is_503_and_the_code_still_serves(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, token = hub.credentials.add_server("Attic")
    issued = await code_of(hub, token)
    api = hub._api
    assert api is not None

    def impatient(_: object, credentials: Credentials) -> None:
        credentials.database.wait_at_most(0.01)

    await api._run(impatient)
    other = sqlite3.connect(hub.credentials.database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    answer = await ask(hub, "POST", REDEEM, body={"code": issued["code"], "name": "x"})
    assert answer.error == (503, "overloaded")
    assert answer.headers["Retry-After"] == "1"
    other.execute("ROLLBACK")
    other.close()
    assert (await ask(hub, "POST", REDEEM, body={"code": issued["code"], "name": "x"})).status == 201
