"""The hub's HTTP API over real sockets: what each route answers, and to whom."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from bridge_server.app import REVOCATION_SECONDS, Hub
from protocol.pairing import parse_code
from tests.support.api_client import CODES, ME, REDEEM, TIME, ask, code_of, redeemed
from tests.support.running_hub import running_hub
from tests.support.scripted_home import scripted_home


@asynccontextmanager
async def socket_of(hub: Hub, token: str) -> AsyncIterator[Any]:
    url = hub.url.replace("http", "ws", 1) + "/socket/websocket?vsn=2.0.0"
    async with connect(url, additional_headers={"Authorization": f"Bearer {token}"}, proxy=None) as socket:
        yield socket


# The way it goes.


async def test_a_home_asks_for_a_code_and_an_app_redeems_it(hub: Hub) -> None:
    home, token = hub.credentials.add_server("Attic")
    issued = await code_of(hub, token)
    assert set(issued) == {"pairing_id", "code", "expires_at", "scopes", "link"}
    assert str(parse_code(issued["code"])) == issued["code"]
    assert issued["link"] == f"{hub.url}/#pair={issued['code']}"
    assert issued["scopes"] == ["view", "approve"]
    assert TIME.fullmatch(issued["expires_at"])
    state = f"{CODES}/{issued['pairing_id']}"
    assert (await ask(hub, "GET", state, token)).json == {"status": "open"}

    sloppy = issued["code"].lower().replace("-", " ")
    answer = await ask(hub, "POST", REDEEM, body={"code": sloppy, "name": "My\tphone"})
    assert answer.status == 201
    made = answer.json
    device = hub.credentials.authenticate(made.pop("credential"))
    assert made == {
        "device_id": device.device_id,  # type: ignore[union-attr]
        "server_id": home.server_id,
        "server_name": "Attic",
        "scopes": ["view", "approve"],
    }
    shown = {"device_id": made["device_id"], "name": "My phone", "scopes": ["view", "approve"]}
    assert (await ask(hub, "GET", state, token)).json == {"status": "redeemed", "device": shown}
    again = await ask(hub, "POST", REDEEM, body={"code": issued["code"], "name": "x"})
    assert again.error == (410, "reused")
    assert again.headers["Cache-Control"] == answer.headers["Cache-Control"] == "no-store"
    assert again.headers["Connection"] == "close"


async def test_a_body_is_optional_where_everything_in_it_is(hub: Hub) -> None:
    _, token = hub.credentials.add_server("Attic")
    assert (await ask(hub, "POST", CODES, token)).status == 201
    issued = await code_of(hub, token, scopes=["control", "view"], expires_in=7)
    assert issued["scopes"] == ["view", "control"]


async def test_the_link_names_the_public_url(tmp_path: Path) -> None:
    async with running_hub(tmp_path, public_url="https://hub.example/base/") as hub:
        _, token = hub.credentials.add_server("Attic")
        issued = await code_of(hub, token)
        assert issued["link"] == f"https://hub.example/base/#pair={issued['code']}"


async def test_a_closed_code_no_longer_serves(hub: Hub) -> None:
    _, token = hub.credentials.add_server("Attic")
    issued = await code_of(hub, token)
    for _ in range(2):
        gone = await ask(hub, "DELETE", f"{CODES}/{issued['pairing_id']}", token)
        assert (gone.status, gone.body) == (204, b"")
    assert (await ask(hub, "GET", f"{CODES}/{issued['pairing_id']}", token)).json == {"status": "closed"}
    assert (await ask(hub, "POST", REDEEM, body={"code": issued["code"], "name": "x"})).error == (410, "expired")


async def test_at_most_three_codes_are_open(hub: Hub) -> None:
    _, token = hub.credentials.add_server("Attic")
    for _ in range(3):
        await code_of(hub, token)
    refused = await ask(hub, "POST", CODES, token)
    assert refused.error == (429, "rate_limited")
    wait = refused.json["error"]["retry_after_ms"]
    assert 290_000 < wait <= 300_000
    assert int(refused.headers["Retry-After"]) == -(-wait // 1000)


async def test_who_am_i(hub: Hub) -> None:
    home, token = hub.credentials.add_server("Attic")
    made = await redeemed(hub, token)
    assert (await ask(hub, "GET", ME, token)).json == {"kind": "server", "server_id": home.server_id, "name": "Attic"}
    about = (await ask(hub, "GET", ME, made["credential"])).json
    assert TIME.fullmatch(about["server"].pop("since"))
    assert about == {
        "kind": "device",
        "device_id": made["device_id"],
        "name": "Phone",
        "server_id": home.server_id,
        "server_name": "Attic",
        "scopes": ["view", "approve"],
        "server": {"online": False},
    }
    async with scripted_home(hub.url, home.server_id, token):
        about = (await ask(hub, "GET", ME, made["credential"])).json
        assert (about["server"]["online"], about["server_name"]) == (True, "a scripted home")
    _, operator = hub.credentials.add_operator("ops")
    assert (await ask(hub, "GET", ME, operator)).json == {"kind": "operator", "name": "ops"}


async def test_a_device_whose_homes_credentials_were_revoked_singly_still_learns_who_it_is(hub: Hub) -> None:
    home, token = hub.credentials.add_server("Attic")
    made = await redeemed(hub, token)
    hub.credentials.revoke_credential(home.credential_id)
    assert (await ask(hub, "GET", ME, made["credential"])).json["server_name"] == home.server_id


async def test_devices_are_listed_with_their_state_and_revoked_within_a_second(hub: Hub) -> None:
    home, token = hub.credentials.add_server("Attic")
    phone, tablet = await redeemed(hub, token, "Phone"), await redeemed(hub, token, "Tablet")
    path = f"/api/servers/{home.server_id}/devices"
    async with socket_of(hub, phone["credential"]) as socket, socket_of(hub, tablet["credential"]) as other:
        listed = (await ask(hub, "GET", path, token)).json
        assert [set(device) for device in listed["devices"]] == [
            {"device_id", "name", "scopes", "created_at", "revoked_at", "online"}
        ] * 2
        assert [(device["name"], device["online"]) for device in listed["devices"]] == [
            ("Phone", True),
            ("Tablet", True),
        ]
        assert TIME.fullmatch(listed["devices"][0]["created_at"])
        assert listed["devices"][0]["revoked_at"] is None
        for _ in range(2):
            assert (await ask(hub, "DELETE", f"{path}/{phone['device_id']}", token)).status == 204
        assert REVOCATION_SECONDS <= 0.2, "revocation ends a socket within a second, this much of it for the look"
        async with asyncio.timeout(20):
            await socket.wait_closed()
        assert (socket.close_code, socket.close_reason) == (1001, "credential_revoked")
        assert (await ask(hub, "GET", ME, phone["credential"])).error == (403, "credential_revoked")
        assert (await ask(hub, "GET", ME, tablet["credential"])).status == 200
        assert other.close_code is None
        listed = (await ask(hub, "GET", path, token)).json
        assert [(bool(d["revoked_at"]), d["online"]) for d in listed["devices"]] == [(True, False), (False, True)]
        assert TIME.fullmatch(listed["devices"][0]["revoked_at"])


# Who may.

ROUTES = [
    ("POST", CODES),
    ("GET", CODES + "/abc"),
    ("DELETE", CODES + "/abc"),
    ("GET", "/api/servers/{home}/devices"),
    ("DELETE", "/api/servers/{home}/devices/{device}"),
]


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", ME)])
async def test_without_a_good_credential_nothing(hub: Hub, method: str, path: str) -> None:
    home, token = hub.credentials.add_server("Attic")
    device, _ = hub.credentials.add_device(home.server_id, "x")
    path = path.format(home=home.server_id, device=device.device_id)
    assert (await ask(hub, method, path)).error == (403, "credential_missing")
    assert (await ask(hub, method, path, "sbs_" + "A" * 43)).error == (403, "credential_invalid")
    assert (await ask(hub, method, f"{path}?token={token}")).error == (403, "credential_in_query")
    hub.credentials.revoke_server(home.server_id)
    assert (await ask(hub, method, path, token)).error == (403, "credential_revoked")


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_apps_and_operators_are_refused_before_anything_is_looked_up(hub: Hub, method: str, path: str) -> None:
    home, _ = hub.credentials.add_server("Attic")
    device, token = hub.credentials.add_device(home.server_id, "x", ("view", "approve", "control"))
    _, operator = hub.credentials.add_operator("ops")
    real = path.format(home=home.server_id, device=device.device_id)
    absent = path.format(home="a" * 26, device="a" * 16)
    answers = [await ask(hub, method, each, by) for each in (real, absent) for by in (token, operator)]
    assert {answer.error for answer in answers} == {(403, "unauthorized")}
    assert [answer for answer in answers if answer != answers[0]] == []
    assert hub.credentials.devices()[0].revoked_at is None


@pytest.mark.parametrize(("method", "path"), ROUTES[1:])
async def test_what_belongs_to_another_home_is_answered_like_what_does_not_exist(
    hub: Hub, method: str, path: str
) -> None:
    mine, token = hub.credentials.add_server("A")
    theirs, their_token = hub.credentials.add_server("B")
    device, device_token = hub.credentials.add_device(theirs.server_id, "x")
    issued = await code_of(hub, their_token)
    path = path.replace("/abc", "/{pairing}")
    there = path.format(home=theirs.server_id, device=device.device_id, pairing=issued["pairing_id"])
    absent = path.format(home="a" * 26, device="a" * 16, pairing="0" * 32)
    # An own home with another's device, and ids that are none at all.
    crossed = path.format(home=mine.server_id, device=device.device_id, pairing=issued["pairing_id"])
    odd = path.format(home="A..%20", device="..", pairing="%00")
    answers = [await ask(hub, method, each, token) for each in (there, absent, odd)]
    if "{device}" in path or "{pairing}" in path:
        answers.append(await ask(hub, method, crossed, token))
    assert answers[0].error == (404, "not_found")
    assert [answer for answer in answers if answer != answers[0]] == []
    assert (await ask(hub, "GET", ME, device_token)).status == 200
    assert (await ask(hub, "GET", f"{CODES}/{issued['pairing_id']}", their_token)).json == {"status": "open"}
