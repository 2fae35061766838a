"""No credential stands in anything that our programs write, whatever is logged and whoever sends it however."""

import base64
import json
from pathlib import Path
from urllib.parse import quote

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from bridge_client import keys
from bridge_server.auth import BEARER_SUBPROTOCOL, Credentials
from tests.support.ports import free_port
from tests.support.processes import IMPATIENT, HomeProgram, HubProgram, Program, until
from tests.support.raw_socket import RawSocket, head

# Whatever a logger can be made to say: our own setting keeps the libraries at INFO, here they say all.
TALKATIVE = """
import logging, bridge_{side}.logs as logs
set_up = logs.set_up
def all_of_it(*args, **options):
    set_up(*args, **options)
    for name in ("", "websockets", "websockets.client", "websockets.server", "aiohttp", "aiohttp.server",
                 "aiohttp.access", "aiohttp.client", "asyncio", "tenacity"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    logging.getLogger("websockets").debug("from here on all is logged")
logs.set_up = all_of_it
"""

# The formatters remove what looks like a credential. That is the second line of defence: the first must hold alone.
UNSCRUBBED = "logs.scrub = lambda text: text\n"


def forms(token: str) -> dict[str, bytes]:
    """How a credential can look in a log, by name. The secret part alone counts too."""
    raw = token.encode()
    secret = token[4:] if token[:4] in ("sbs_", "sbd_", "sbo_") else token
    found = {
        "plain": secret.encode(),
        "hex": raw.hex().encode(),
        "url": quote(token, safe="").encode(),
        "every byte quoted": "".join(f"%{byte:02X}" for byte in raw).encode(),
    }
    for shift in range(3):  # inside a longer text it starts at any of three offsets of a base64 group
        for name, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
            encoded = encode(b"x" * shift + raw)
            found[f"{name}+{shift}"] = encoded[4 if shift else 0 : len(encoded) // 4 * 4 - 4]
    return found


def assert_clean(output: bytes, tokens: dict[str, str], whose: str) -> None:
    folded = output.lower()
    for name, token in tokens.items():
        for form, text in forms(token).items():
            assert text not in output, f"{whose} wrote the credential {name} as {form}"
            assert form != "plain" or text.lower() not in folded, f"{whose} wrote the credential {name} in another case"


async def upgrade(port: int, *lines: str, query: str = "vsn=2.0.0") -> int:
    async with RawSocket(port) as raw:
        answer = await raw.upgrade(f"/socket/websocket?{query}", *lines, host=f"127.0.0.1:{port}")
        return answer.status


async def shout(port: int, data: bytes) -> None:
    """Send bytes that are no good request, and wait for the end the hub puts to it."""
    async with RawSocket(port) as raw:
        raw.send(data)
        await raw.ended()


def subprotocol(token: str) -> str:
    return BEARER_SUBPROTOCOL + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


async def every_refusal(port: int, token: str) -> None:
    """Everything a request can do wrong while it carries this credential."""
    host = f"Host: 127.0.0.1:{port}\r\n".encode()
    secret = token.encode()
    for name in ("token", "api_key", "apikey"):
        assert await upgrade(port, query=f"vsn=2.0.0&{name}={token}") == 403
    good = f"Authorization: Bearer {token}"
    assert await upgrade(port, good, query="vsn=9.9.9") == 403
    assert await upgrade(port, good, good) == 403
    assert await upgrade(port, good, "Origin: https://evil.example") == 403
    assert await upgrade(port, good, "Sec-WebSocket-Key: again") == 400
    assert await upgrade(port, f"Sec-WebSocket-Protocol: {BEARER_SUBPROTOCOL}!{token}") == 403
    whole = head("/socket/websocket?vsn=2.0.0", good, host=f"127.0.0.1:{port}")
    for bad in (
        whole.replace(b"Authorization: ", b"Authorization "),
        whole.replace(b"Bearer ", b"Bearer \xff\xfe"),
        whole.replace(b"Bearer ", b"Bearer \r\n "),
        whole.replace(b"Bearer ", b"Bearer \0"),
        whole.replace(b"HTTP/1.1", b"HTTP/9.7 " + secret),
        whole.replace(b"GET ", b"POST "),
        whole.replace(b"GET ", b"G\x01T "),
        whole.replace(b"/socket", b"/" + secret),
        whole.replace(b"Upgrade: websocket", b"Upgrade: h2c"),
        b"GET /socket/websocket HTTP/1.1\r\n" + host + b"X: " + secret * 500 + b"\r\n\r\n",
        b"GET /health?token=" + secret + b" HTTP/1.1\r\n" + host + b"Authorization Bearer " + secret + b"\r\n\r\n",
        b"GET /health?token=" + secret + b" HTTP/9.9\r\n" + host + b"\r\n",
        b"GET /" + secret + b" HTTP/1.1\r\n" + host + b"\r\n",
        b"GET /metrics HTTP/1.1\r\n"
        + host
        + b"X-Forwarded-For: 1.2.3.4\r\nAuthorization: Bearer "
        + secret
        + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: " + secret + b"\r\n\r\n",
        b"POST /api/servers/local/enrol HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n{%b" % (len(secret) + 1, secret),
        b"POST /api/servers/local/enrol HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n" + secret + b"\r\n",
        secret + b"\r\n\r\n",
        b"\x16\x03\x01" + secret + b"\r\n\r\n",
    ):
        await shout(port, bad)


async def good_life(hub_url: str, server_id: str, token: str) -> None:
    """The three ways to show a credential, then messages that the hub refuses, with the credential in them."""
    url = hub_url.replace("http", "ws", 1) + "/socket/websocket?vsn=2.0.0"
    ways: list[tuple[dict[str, str], list[Subprotocol] | None]] = [
        ({"Authorization": f"Bearer {token}"}, None),
        ({"X-API-Key": token}, None),
        ({}, [Subprotocol("phoenix"), Subprotocol(subprotocol(token))]),
    ]
    for headers, subprotocols in ways:
        async with connect(url, additional_headers=headers, subprotocols=subprotocols, proxy=None) as socket:
            for topic, event, payload in (
                (f"app:{server_id}", "phx_join", {"token": token}),
                (f"app:{token}", "phx_join", {}),
                (f"app:{server_id}", token, {"token": token}),
                (f"app:{server_id}", "phx_join", {"since_id": token}),
                (f"app:{server_id}", "phx_join", {"types": token}),
            ):
                await socket.send(json.dumps(["1", "1", topic, event, payload]))
                while json.loads(await socket.recv())[3] != "phx_reply":
                    pass
            await socket.send(f"no frame, but {token}")
            await socket.wait_closed()


@pytest.mark.parametrize(("as_json", "more"), [(True, ""), (False, UNSCRUBBED)], ids=["json", "text, unscrubbed"])
async def test_no_credential_in_anything_our_programs_write(tmp_path: Path, as_json: bool, more: str) -> None:
    folder, port = tmp_path / "state", free_port()
    debug = {"log_level": "DEBUG", "log_json": as_json}
    talkative = {side: TALKATIVE.replace("{side}", side) + more for side in ("server", "client")}
    hub = HubProgram(folder, port, code=talkative["server"], **debug)
    home = HomeProgram(folder, code=talkative["client"], hub_url=hub.url, **debug)
    async with hub:
        key = next(folder.glob("local-*.key")).read_bytes()
        async with home:  # it has no credential: it enrols itself
            kept = folder / "home-credential.json"
            await until(kept.exists, "the home has enrolled")
            mine = keys.load(kept)
            assert mine is not None
            keep = Credentials(folder / "hub.db")
            device, app_token = keep.add_device(mine.server_id, "App")
            doomed, doomed_token = keep.add_device(mine.server_id, "Doomed")
            tokens = {
                "of the home": mine.credential,
                "of the app": app_token,
                "of a revoked app": doomed_token,
                "of an operator": keep.add_operator("Operator")[1],
                "that nobody has": "sbd_" + "Zq8-" * 10 + "abc",
                "of another make": "0123456789abcdefABCDEF0123456789abcdef",
            }
            keys.save(folder / "app-credential.json", keys.Credential(hub.url, mine.server_id, app_token, "device"))
            watch = Program(
                IMPATIENT + talkative["client"] + "from bridge_client.cli import main; main()",
                *("watch", "--state-dir", str(folder), "--log-level", "DEBUG"),
                output=tmp_path / "watch.log",
                environment={"SESSION_BRIDGE_LOG_JSON": str(as_json)},
            )
            async with watch:
                await until(lambda: "connected to" in watch.text, "the app is connected")
                keep.revoke_device(doomed.device_id)
                for token in tokens.values():
                    await every_refusal(port, token)
                await good_life(hub.url, mine.server_id, app_token)
                for name, token in tokens.items():
                    stands = name in ("of the home", "of the app", "of an operator")
                    assert await upgrade(port, f"X-API-Key: {token}") == (101 if stands else 403), name
                keep.revoke_device(device.device_id)
                assert await watch.ended() == 3, watch.text
                keep.revoke_server(mine.server_id)
                assert await home.ended() == 3, home.text
            keep.close()
    for program in (hub, home, watch):
        written = program.output.read_bytes()
        assert_clean(written, tokens, program.output.name)
        for form in (key, key.strip(), key.hex().encode(), base64.b64encode(key)[:40]):
            assert form not in written, f"{program.output.name} holds the key of local enrolment"
        assert b"all is logged" in written, f"{program.output.name} was to be at DEBUG"
    assert "credential_revoked" in watch.text
