"""Log records of both sides: one line each, and no credential in any of them, however it got there."""

import io
import json
import logging
from base64 import b64encode
from collections.abc import Iterator
from types import ModuleType

import pytest

import bridge_client.logs
import bridge_server.logs

TOKEN = "sbd" + "_0123456789abcdefghijABCDEFGHIJ-_0123456789a"  # in two, so that no scanner takes it for a real one
OPAQUE = "eyJhbGciOiJFZERTQSJ9.e30.c2ln"


@pytest.fixture(params=[bridge_server.logs, bridge_client.logs], ids=["server", "client"])
def logs(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield request.param
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(False)
    for name in ("websockets", "aiohttp", "asyncio"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def said(logs: ModuleType, as_json: bool) -> io.StringIO:
    stream = io.StringIO()
    logs.set_up("DEBUG", stream, as_json=as_json)
    return stream


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "leak",
    [
        TOKEN,
        f"x{TOKEN}",
        f"GET /socket/websocket?vsn=2.0.0&token={TOKEN} HTTP/1.1",
        f"GET /socket/websocket?api_key={OPAQUE}&vsn=2.0.0",
        f"< Authorization: Bearer {OPAQUE}",
        f"{{'authorization': 'bearer {OPAQUE}'}}",
        f"b'X-Api-Key: {OPAQUE}'",
        f"(b'X-API-Key', b'{OPAQUE}')",
        f"phoenix, base64url.bearer.phx.{b64encode(TOKEN.encode()).decode()}",
    ],
)
def test_no_credential_is_written_at_any_level(logs: ModuleType, as_json: bool, leak: str) -> None:
    stream = said(logs, as_json)
    log = logging.getLogger("anything")
    log.debug("in the text " + leak)  # noqa: G003
    log.info("as an argument %s %r", leak, leak.encode())
    log.warning("in a structure %s", {"deep": [leak]})
    try:
        raise ValueError(leak)
    except ValueError:
        log.exception("in a traceback")
    log.error("with a stack", stack_info=True)
    text = stream.getvalue()
    assert text.count("[redacted]") >= 4
    for secret in (TOKEN, TOKEN[4:], OPAQUE, b64encode(TOKEN.encode()).decode()):
        assert secret not in text


@pytest.mark.parametrize("as_json", [False, True])
def test_a_record_is_one_line_whatever_a_peer_sent(logs: ModuleType, as_json: bool) -> None:
    stream = said(logs, as_json)
    logging.getLogger("x").info("peer said %s", "a\nERROR forged: b\r\x1b[2J\u2028\ud800")
    lines = stream.getvalue().split("\n")
    assert lines[1:] == [""]
    assert "\x1b" not in lines[0]


def test_json_records_are_objects(logs: ModuleType) -> None:
    stream = said(logs, True)
    logging.getLogger("a.b").warning("é %d", 1)
    record = json.loads(stream.getvalue())
    assert (record["level"], record["logger"], record["message"]) == ("WARNING", "a.b", "é 1")
    assert record["time"].endswith("Z")


def test_the_libraries_do_not_write_request_heads(logs: ModuleType) -> None:
    stream = said(logs, False)
    for name in ("websockets.server", "websockets.client", "aiohttp.access", "asyncio"):
        logging.getLogger(name).debug("< GET / HTTP/1.1")
    assert stream.getvalue() == ""
    logging.getLogger("bridge_server.hub").debug("seen")
    assert "seen" in stream.getvalue()
