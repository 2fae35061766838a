"""Whether a server can be tested at all: said at once, and not as a hundred vectors that fail."""

import json

from tests.conformance.kit.line import Line, Server, Unreachable
from tests.conformance.kit.play import same

ADVICE = "docs/conformance.md says what the server must offer"


async def reachable(server: Server) -> None:
    """Open a socket, send a heartbeat, join a topic, push to it. Raises Unreachable, saying what is missing."""
    try:
        line = await Line.ask(server, "2.0.0", "GET", "socket", "vsn=2.0.0", ())
    except AssertionError as error:
        raise Unreachable(f"{server.url} does not speak HTTP: {error}") from None
    try:
        _upgraded(server, line)
        await _answers(line, [None, "1", "phoenix", "heartbeat", {}], {}, f"{server.url} does not answer a heartbeat")
        topic = f"{server.topic}:1"
        await _answers(
            line,
            ["1", "2", topic, "phx_join", {}],
            {},
            f"{server.url} does not let {topic} be joined. {ADVICE}; --topic names another, --header a credential",
        )
        await _answers(line, ["1", "3", topic, "ping", {"n": 1}], {"n": 1}, f"{topic} does not answer `ping`. {ADVICE}")
    finally:
        line.end()


def _upgraded(server: Server, line: Line) -> None:
    status = line.answer.status
    body = line.answer.body.decode("utf-8", "replace")[:200]
    if status == 404:
        raise Unreachable(f"{server.url} is answered with 404: there is no socket at this path")
    if status != 101:
        raise Unreachable(
            f"{server.url} refuses the upgrade with {status} {body}".rstrip()
            + ". Give a credential with --header, or in the URL's query"
        )


async def _answers(line: Line, message: list[object], response: object, otherwise: str) -> None:
    line.send(json.dumps(message))
    try:
        frame = await line.receive()
        if frame is None:
            raise AssertionError("the connection ended")
        said = json.loads(frame.text)
    except (AssertionError, ValueError, OSError, EOFError) as error:
        raise Unreachable(f"{otherwise} ({error})") from None
    wanted = [message[0], message[1], message[2], "phx_reply", {"status": "ok", "response": response}]
    if not same(said, wanted):
        raise Unreachable(f"{otherwise} (it said {frame.text[:200]})")
