"""A client of the hub's HTTP API that asks one thing at a time and keeps the whole answer."""

import json
import re
from typing import Any, NamedTuple

import aiohttp

from bridge_server.app import Hub
from protocol.errors import API_ERRORS

CODES, REDEEM, ME = "/api/pairing/codes", "/api/pairing/redeem", "/api/me"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z")


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str]:
        row = API_ERRORS[self.json["error"]["code"]]
        assert row.status == self.status
        assert self.json["error"]["message"]
        return self.status, row.code


async def ask(hub: Hub, method: str, path: str, token: str | None = None, body: Any = None, **headers: str) -> Answer:
    sent = {"Authorization": f"Bearer {token}"} if token else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    if data is not None:
        sent.setdefault("Content-Type", "application/json")
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, hub.url + path, data=data, headers=sent, skip_auto_headers=("Content-Type",)) as answer,
    ):
        names = ("Cache-Control", "Retry-After", "Vary", "Access-Control-Allow-Origin", "Content-Type", "Connection")
        kept = {name: answer.headers[name] for name in names if name in answer.headers}
        return Answer(answer.status, await answer.read(), kept)


async def code_of(hub: Hub, token: str, **wanted: Any) -> dict[str, Any]:
    answer = await ask(hub, "POST", CODES, token, wanted)
    assert answer.status == 201, answer
    issued: dict[str, Any] = answer.json
    return issued


async def redeemed(hub: Hub, token: str, name: str = "Phone") -> dict[str, Any]:
    issued = await code_of(hub, token)
    answer = await ask(hub, "POST", REDEEM, body={"code": issued["code"], "name": name})
    assert answer.status == 201, answer
    made: dict[str, Any] = answer.json
    return made
