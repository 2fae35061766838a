"""A credential opens its own home's topics and nothing else, and a refusal says nothing about anybody else's home."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from bridge_server.app import Hub
from tests.support.scripted_home import scripted_home

NOBODY = "a" * 26
"""A server id of the right form that belongs to no home."""


class Cast:
    """Two homes with an app each, an operator, and the credentials of a home and an app that were revoked."""

    def __init__(self, hub: Hub) -> None:
        keep = hub.credentials
        server_a, self.home_a = keep.add_server("A")
        server_b, self.home_b = keep.add_server("B")
        self.a, self.b = server_a.server_id, server_b.server_id
        self.app_a = keep.add_device(self.a, "App of A")[1]
        self.operator = keep.add_operator("Operator")[1]
        gone, self.revoked_home = keep.add_server("Gone")
        device, self.revoked_app = keep.add_device(self.a, "Gone")
        keep.revoke_server(gone.server_id)
        keep.revoke_device(device.device_id)

    @property
    def topics(self) -> list[str]:
        ours = [f"{kind}:{name}" for kind in ("server", "app") for name in (self.a, self.b, NOBODY)]
        near = [f"app:{self.a}x", f"app:{self.a.upper()}", f"server:{self.a} ", "app:", "server:", "app:*", "server:*"]
        return [*ours, *near, "room:x", "garbage", "", "phoenix", "events:server:" + self.a]


@asynccontextmanager
async def socket(hub: Hub, token: str | None, vsn: str) -> AsyncIterator[ClientConnection]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = hub.url.replace("http", "ws", 1) + f"/socket/websocket?vsn={vsn}"
    async with connect(url, additional_headers=headers, proxy=None) as opened:
        yield opened


_refs = count(1)


async def ask(line: ClientConnection, vsn: str, topic: str, event: str, payload: str = "{}") -> str:
    """Send one message and return the answer with its refs and its topic blotted out."""
    ref = f"ref-{next(_refs)}"
    if vsn == "1.0.0":
        await line.send(f'{{"topic":"{topic}","event":"{event}","payload":{payload},"ref":"{ref}","join_ref":"{ref}"}}')
    else:
        await line.send(f'["{ref}","{ref}","{topic}","{event}",{payload}]')
    while True:
        answer = await line.recv()
        assert isinstance(answer, str)
        if f'"{ref}"' in answer and "phx_reply" in answer:
            return answer.replace(f'"{topic}"', '"TOPIC"').replace(f'"{ref}"', '"REF"')


@pytest.mark.parametrize("vsn", ["1.0.0", "2.0.0"])
@pytest.mark.parametrize("who", ["home_a", "app_a", "operator"])
async def test_only_the_own_topic_opens_and_every_other_refusal_is_the_same(hub: Hub, vsn: str, who: str) -> None:
    cast = Cast(hub)
    own = {"home_a": f"server:{cast.a}", "app_a": f"app:{cast.a}", "operator": None}[who]
    ours: dict[str, str] = {}
    others: dict[str, str] = {}
    async with scripted_home(hub.url, cast.b, cast.home_b) as home_b:
        await home_b.publish(3)
        known = {home.server_id for home in hub.homes}
        async with socket(hub, getattr(cast, who), vsn) as line:
            for topic in cast.topics:
                if topic == own:
                    continue
                answer = await ask(line, vsn, topic, "phx_join", '{"since_id":"0"}')
                assert '"status":"error"' in answer, (topic, answer)
                (ours if re.match("(app|server):", topic) else others)[topic] = answer
                # What was not joined takes no push either, and says nothing else.
                event = '{"event":{"event_id":"4","type":"note"},"prev_id":"3"}'
                pushed = await ask(line, vsn, topic, "session_event", event)
                assert '"reason":"unmatched topic"' in pushed, (topic, pushed)
            assert {home.server_id for home in hub.homes} == known, "a refusal looks nobody up"
            if own is not None:
                assert '"status":"ok"' in await ask(line, vsn, own, "phx_join")
        assert hub.homes.get(cast.b).head == 3
        assert hub.homes.get(cast.b).link == 1, "nobody took B over"
    assert len(set(ours.values())) == 1, ours
    assert '"reason":"unauthorized"' in next(iter(ours.values()))
    assert len(set(others.values())) == 1, others


@pytest.mark.parametrize("vsn", ["1.0.0", "2.0.0"])
@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ("nobody", "credential_missing"),
        ("stranger", "credential_invalid"),
        ("revoked_home", "credential_revoked"),
        ("revoked_app", "credential_revoked"),
    ],
)
async def test_without_a_credential_that_stands_there_is_no_socket(hub: Hub, vsn: str, who: str, reason: str) -> None:
    cast = Cast(hub)
    token = {"nobody": None, "stranger": "sbs_" + "x" * 43}.get(who, getattr(cast, who, None))
    with pytest.raises(InvalidStatus) as refused:
        async with socket(hub, token, vsn):
            pass
    assert refused.value.response.status_code == 403
    assert refused.value.response.body == b'{"reason":"%b"}' % reason.encode()
