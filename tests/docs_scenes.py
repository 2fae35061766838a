"""Plays the example conversations of the documentation against a real hub, so that no page shows what does not happen.

A scene is one fenced block. Its lines:

    > [...]            the app sends this frame            home > [...]    the home sends it
    < [...]            the app receives this frame next    home < [...]    the home receives it next
    = some words       something happens (`_happenings`)
    ~ some words       a remark for the reader

A line that starts with a space goes on where the line before it ended. `SERVER_ID` stands for the home's id and
`DEVICE_ID` for the app's; in what is received `"<time>"` stands for a time in RFC 3339 and any other `"<name>"` for
some text, the same text wherever the scene names it again. JSON is compared by value. At the end of a scene nothing
more may have come than it shows.
"""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bridge_server.app import Hub
from tests.support.processes import PATIENCE
from tests.support.running_hub import running_hub

EPOCH = "e-7f3a"

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_NAME = re.compile(r"<[a-z ]+>")


class Scene(NamedTuple):
    """One block: where it stands, the settings its info string gives the hub, and its text."""

    place: str
    settings: dict[str, Any]
    text: str


class Step(NamedTuple):
    line: int
    mark: str
    text: str


def scenes(page: Path, language: str = "frames") -> list[Scene]:
    """Every fenced block of a page in `language`; what follows the language in its info string are settings."""
    text = page.read_text("utf-8")
    found = []
    for block in re.finditer(rf"^```{language}([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        settings = {name: json.loads(value) for name, value in (word.split("=") for word in block[1].split())}
        line = text.count("\n", 0, block.start()) + 1
        found.append(Scene(f"{page.name}:{line}", settings, block[2]))
    return found


def steps(text: str) -> list[Step]:
    """The lines of a scene, joined where one goes on with the next. Raises ValueError for a line of no known kind."""
    found: list[Step] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(" ") and found:
            found[-1] = found[-1]._replace(text=f"{found[-1].text}{line.strip()}")
        elif line and (marked := re.fullmatch(r"((?:home )?[<>]|[=~]) (.*)", line)):
            found.append(Step(number, marked[1], marked[2]))
        elif line:
            raise ValueError(f"line {number} of a scene is none of its kinds: {line!r}")
    return found


def matches(shown: Any, got: Any, bound: dict[str, str]) -> bool:
    """Whether `got` is what the page shows; placeholders bind in `bound`."""
    if isinstance(shown, str) and isinstance(got, str) and shown == "<time>":
        return _TIME.fullmatch(got) is not None
    if isinstance(shown, str) and isinstance(got, str) and _NAME.fullmatch(shown):
        return bound.setdefault(shown, got) == got
    if isinstance(shown, dict) and isinstance(got, dict):
        return shown.keys() == got.keys() and all(matches(shown[key], got[key], bound) for key in shown)
    if isinstance(shown, list) and isinstance(got, list):
        return len(shown) == len(got) and all(matches(one, other, bound) for one, other in zip(shown, got, strict=True))
    return type(shown) is type(got) and bool(shown == got)


def event(number: int) -> dict[str, Any]:
    """The event that a home of these scenes has under an id."""
    return {"event_id": str(number), "type": "partial", "session_id": "s-1", "content": f"word {number}"}


class Line:
    """One side's socket. What the hub's messages say is kept in order, nothing is skipped."""

    def __init__(self, socket: ClientConnection, vsn: str) -> None:
        self.socket = socket
        self.vsn = vsn

    async def send(self, frame: Any) -> None:
        await self.socket.send(json.dumps(frame))

    async def receive(self) -> Any:
        async with asyncio.timeout(PATIENCE):
            return json.loads(await self.socket.recv())

    async def nothing_more(self) -> None:
        """The next message is the answer to a heartbeat: nothing came before it that the scene does not show."""
        beat = ["phoenix", "heartbeat"]
        if self.vsn == "1.0.0":
            await self.send({"topic": beat[0], "event": beat[1], "payload": {}, "ref": "the end"})
        else:
            await self.send([None, "the end", *beat, {}])
        got = await self.receive()
        ref = got["ref"] if isinstance(got, dict) else got[1]
        assert ref == "the end", f"the scene does not show this frame: {json.dumps(got)}"

    async def closed(self) -> tuple[int, str]:
        """The close that must come next."""
        with suppress(ConnectionClosed):
            got = await self.receive()
            raise AssertionError(f"a close was expected, this came: {json.dumps(got)}")
        assert self.socket.close_code is not None
        return self.socket.close_code, self.socket.close_reason or ""


class Stage:
    """A hub, a home and an app of it, and the sockets they have open now."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        server, self._home_token = hub.credentials.add_server("Living room")
        self.device, self._app_token = hub.credentials.add_device(server.server_id, "Phone")
        self.server_id = server.server_id
        self.lines: dict[str, Line] = {}
        self.bound: dict[str, str] = {}
        self._refs = 100
        self._last_id = 0

    async def play(self, text: str) -> None:
        """Act a scene out. Raises AssertionError where something else happens than it shows."""
        for step in steps(text):
            try:
                await self._act(step)
            except Exception as error:
                raise AssertionError(f"line {step.line} of the scene ({step.mark} {step.text}): {error!r}") from error
        for line in self.lines.values():
            await line.nothing_more()

    async def _act(self, step: Step) -> None:
        if step.mark == "=":
            for pattern, happening in self._happenings.items():
                if said := re.fullmatch(pattern, step.text):
                    await happening(self, *said.groups())
                    return
            raise AssertionError(f"nothing happens like this; what can: {', '.join(self._happenings)}")
        if step.mark == "~":
            return
        line = self.lines["home" if step.mark.startswith("home") else "app"]
        frame = json.loads(step.text.replace("SERVER_ID", self.server_id).replace("DEVICE_ID", self.device.device_id))
        if step.mark.endswith(">"):
            await line.send(frame)
        else:
            got = await line.receive()
            assert matches(frame, got, self.bound), f"this came instead: {json.dumps(got)}"

    # What may happen.

    async def _app_connects(self, vsn: str | None) -> None:
        await self._connect("app", self._app_token, vsn or "2.0.0")

    async def _home_connects(self) -> None:
        await self._connect("home", self._home_token, "2.0.0")

    async def _connect(self, who: str, token: str, vsn: str) -> None:
        url = f"{self.hub.url.replace('http', 'ws', 1)}/socket/websocket?vsn={vsn}"
        self.lines[who] = Line(await connect(url, additional_headers={"X-API-Key": token}, proxy=None), vsn)

    async def _drops(self, who: str) -> None:
        socket = self.lines.pop(who).socket
        socket.transport.abort()
        await socket.wait_closed()

    async def _home_is_there(self, first: str | None, last: str | None) -> None:
        await self._home_connects()
        payload = {"protocol": 1, "epoch": EPOCH, "head_id": None, "name": "Living room", "instance": "pi:412"}
        await self._home_says("phx_join", payload)
        if first is not None and last is not None:
            await self._home_pushes(first, last)

    async def _home_pushes(self, first: str, last: str | None) -> None:
        for number in range(int(first), int(last or first) + 1):
            previous = str(self._last_id) if self._last_id else None
            await self._home_says("session_event", {"event": event(number), "prev_id": previous})
            self._last_id = number

    async def _home_says(self, name: str, payload: Any) -> None:
        self._refs += 1
        ref = str(self._refs)
        home = self.lines["home"]
        join_ref = self._home_join_ref = ref if name == "phx_join" else self._home_join_ref
        await home.send([join_ref, ref, f"server:{self.server_id}", name, payload])
        got = await home.receive()
        assert got[1] == ref, got
        assert got[4]["status"] == "ok", got

    _home_join_ref = "1"

    async def _hub_closes(self, who: str, code: str, reason: str) -> None:
        got = await self.lines.pop(who).closed()
        assert got == (int(code), reason), f"closed with {got}"

    async def _app_sends_text(self, text: str) -> None:
        await self.lines["app"].socket.send(text)

    async def _taken_over(self, instance: str) -> None:
        url = f"{self.hub.url.replace('http', 'ws', 1)}/socket/websocket?vsn=2.0.0"
        other = await connect(url, additional_headers={"X-API-Key": self._home_token}, proxy=None)
        self.lines["the other home"] = Line(other, "2.0.0")
        join = {"epoch": EPOCH, "head_id": None, "instance": instance}
        await self.lines["the other home"].send(["1", "1", f"server:{self.server_id}", "phx_join", join])
        assert (await self.lines["the other home"].receive())[4]["status"] == "ok"

    async def _revoked(self) -> None:
        self.hub.credentials.revoke_device(self.device.device_id)

    async def _time_passes(self) -> None:
        """How long something takes is for the reader; the next frame is waited for."""

    _happenings: ClassVar[dict[str, Callable[..., Awaitable[None]]]] = {
        r"the app connects(?: with vsn (\S+))?": _app_connects,
        r"the home connects": _home_connects,
        r"the (app|home)'s connection drops": _drops,
        r"the home is online(?:, and has pushed events (\d+) to (\d+))?": _home_is_there,
        r"the home pushes events? (\d+)(?: to (\d+))?": _home_pushes,
        r"the hub closes the (app|home)'s socket with (\d+) \((.*)\)": _hub_closes,
        r"the app sends (\{.*)": _app_sends_text,
        r'another process of the home joins as "(.*)"': _taken_over,
        r"the app's credential is revoked": _revoked,
        r"\d+ seconds pass": _time_passes,
    }


@asynccontextmanager
async def stage(folder: Path, settings: dict[str, Any]) -> AsyncIterator[Stage]:
    """A stage with a hub of its own, whose sockets are closed at the end."""
    async with running_hub(folder, **settings) as hub:
        set_up = Stage(hub)
        try:
            yield set_up
        finally:
            for line in set_up.lines.values():
                await line.socket.close()


async def answer(hub: Hub, request: str, token: str) -> tuple[int, Any]:
    """The status and the JSON body of the hub's answer to a request head, given as its lines."""
    lines = request.strip().splitlines()
    names = {line.partition(":")[0].lower() for line in lines[1:]}
    port = hub.port
    standard = {
        "host": f"127.0.0.1:{port}",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-version": "13",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    lines += [f"{name}: {value}" for name, value in standard.items() if name not in names]
    head = "\r\n".join([*lines, "", ""])
    in_base64 = b64encode(token.encode()).decode().rstrip("=")
    head = head.replace("CREDENTIAL_IN_BASE64", in_base64).replace("CREDENTIAL", token)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode())
        async with asyncio.timeout(PATIENCE):
            got = await reader.readuntil(b"\r\n\r\n")
            status = int(got.split(b" ")[1])
            length = re.search(rb"(?i)content-length: (\d+)", got)
            body = await reader.readexactly(int(length[1])) if length else b""
        return status, json.loads(body) if body else None
    finally:
        writer.transport.abort()
