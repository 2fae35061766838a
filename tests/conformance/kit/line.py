"""One connection of a vector: opens it, sends messages in its version, and hands out frames one by one."""

import asyncio
import json
import ssl
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Frame, RawSocket, Response, head

OPCODES = {"continuation": CONTINUATION, "text": TEXT, "binary": BINARY, "close": CLOSE, "ping": PING, "pong": PONG}
SLOTS = ("join_ref", "ref", "topic", "event", "payload")
BARRED = {TEXT: "text", BINARY: "binary", CLOSE: "close", PING: "ping", PONG: "pong"}


class Unreachable(Exception):
    """The server can't be talked to at all; the text says why and what to do."""


class Server(NamedTuple):
    """Where a server is. `prefix` is the path before the mounts, `mount` what the default one is called there."""

    host: str
    port: int
    tls: bool
    prefix: str
    mount: str
    query: str = ""
    headers: tuple[str, ...] = ()
    topic: str = "room"
    patience: float = 5.0
    settle: float = 0.0
    """Seconds to wait for what a server may still send on its own, where nothing should come."""

    @staticmethod
    def at(url: str, **options: Any) -> "Server":
        """From a socket's URL, with or without `/websocket`. Raises Unreachable for one that is none."""
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise Unreachable(f"{url!r} is no URL: {error}") from None
        if parts.scheme not in ("ws", "wss", "http", "https") or not host:
            raise Unreachable(f"{url!r} is no WebSocket URL: write it like ws://127.0.0.1:4000/socket")
        path = parts.path.rstrip("/").removesuffix("/websocket")
        prefix, slash, mount = path.rpartition("/")
        if not slash or not mount:
            raise Unreachable(f"{url!r} names no socket: write its path too, like ws://127.0.0.1:4000/socket")
        tls = parts.scheme in ("wss", "https")
        return Server(host, port or (443 if tls else 80), tls, prefix, mount, parts.query, **options)

    @property
    def url(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{shown}:{self.port}{self.prefix}/{self.mount}"

    def path(self, mount: str, query: str) -> str:
        """The path and query of a request. `mount` with a slash is a path of its own, behind the prefix."""
        name = self.mount if mount == "socket" else mount
        path = mount.replace("socket", self.mount, 1) if mount.startswith("/") else f"/{name}/websocket"
        query = "&".join(filter(None, (query, self.query)))
        return f"{self.prefix}{path}" + (f"?{query}" if query else "")

    async def connect(self) -> RawSocket:
        """Raises Unreachable."""
        socket = RawSocket(self.port, self.host, ssl.create_default_context() if self.tls else None)
        try:
            async with asyncio.timeout(self.patience):
                return await socket.__aenter__()
        except TimeoutError:
            why = f"no answer in {self.patience:g} s"
        except (OSError, ssl.SSLError) as error:
            why = error.strerror or str(error)
        raise Unreachable(f"{self.url} can't be reached: {why}. Is the server running, and is this its address?")

    def head(self, method: str, path: str, headers: tuple[str, ...], *, upgrade: bool) -> bytes:
        host = self.host if self.port in (80, 443) else f"{self.host}:{self.port}"
        whole = head(path, *self.headers, *headers, host=host)
        first, *rest = whole.split(b"\r\n")
        kept = [line for line in rest if upgrade or line.split(b":")[0].lower() not in _UPGRADE]
        return b"\r\n".join((first.replace(b"GET", method.encode(), 1), *kept))


_FENCE = "kit-fence-"
_UPGRADE = (b"upgrade", b"connection", b"sec-websocket-key", b"sec-websocket-version")


class Line:
    """One request, and the socket it became if it was answered with 101."""

    def __init__(self, server: Server, vsn: str, socket: RawSocket, answer: Response) -> None:
        self.server = server
        self.vsn = vsn
        self.answer = answer
        self.open = answer.status == 101
        self.ended = False
        self._socket = socket
        self._kept: list[Frame | None] = []
        self._fences = 0

    @staticmethod
    async def ask(
        server: Server, vsn: str, method: str, mount: str, query: str, headers: tuple[str, ...], *, upgrade: bool = True
    ) -> "Line":
        """Send a request and take its answer. Raises Unreachable, and AssertionError for an answer that is none."""
        socket = await server.connect()
        socket.send(server.head(method, server.path(mount, query), headers, upgrade=upgrade))
        try:
            async with asyncio.timeout(server.patience):
                answer = await socket.response()
        except (TimeoutError, EOFError, OSError, ValueError) as error:
            socket.abort()
            raise AssertionError(f"no HTTP answer to {method} {server.path(mount, query)}: {error!r}") from None
        return Line(server, vsn, socket, answer)

    def end(self) -> None:
        """End it without a goodbye."""
        self.open = False
        self._socket.abort()

    # Out.

    def send(self, text: str) -> None:
        """A message of five slots in this line's version; what is no array goes as it stands."""
        if text.startswith("[") and self.vsn == "1.0.0":
            slots = dict(zip(SLOTS, json.loads(text), strict=True))
            text = json.dumps(slots, ensure_ascii=False)
        self.send_text(text)

    def send_text(self, text: str) -> None:
        self._socket.send_text(text)

    def send_binary(self, data: bytes) -> None:
        self._socket.send_frame(data, BINARY)

    def send_frame(self, body: str) -> None:
        """`OPCODE [!fin] [!mask] [rsv] data`."""
        name, _, rest = body.partition(" ")
        flags = {"!fin": True, "!mask": True, "rsv": False}
        while (word := rest.partition(" ")[0]) in flags:
            flags[word] = not flags[word]
            rest = rest[len(word) :].lstrip()
        opcode = OPCODES[name] if name in OPCODES else int(name)
        rsv = 4 if flags["rsv"] else 0
        self._socket.send_frame(octets(rest), opcode, fin=flags["!fin"], rsv=rsv, masked=flags["!mask"])

    # In.

    def keep(self, frame: Frame | None) -> None:
        """Hand out this frame again."""
        self._kept.insert(0, frame)

    async def receive(self, *, fence: bool = False) -> Frame | None:
        """The next frame; None at the end.

        With `fence` a heartbeat is sent too, and its answer reads as a frame without opcode (-1): nothing else came.
        Raises AssertionError when nothing comes.
        """
        if self._kept:
            return self._kept.pop(0)
        if fence and not self.ended:
            if self.server.settle:
                await asyncio.sleep(self.server.settle)
            self._fences += 1
            self.send(f'[null,"{_FENCE}{self._fences}","phoenix","heartbeat",{{}}]')
        while True:
            try:
                async with asyncio.timeout(self.server.patience):
                    frame = await self._socket.receive()
            except TimeoutError:
                raise AssertionError(f"nothing came in {self.server.patience:g} s") from None
            if frame is None or frame.opcode != TEXT or _FENCE not in frame.text:
                break
            if fence and f'"{_FENCE}{self._fences}"' in frame.text:
                return Frame(-1, b"")
            # The answer to a fence of before, which something overtook.
        if frame is None or frame.opcode == CLOSE:
            if frame is not None and not self.ended:
                self._socket.send_frame(frame.data[:2], CLOSE)
            self.ended = True
        return frame

    def read(self, frame: Frame) -> Any:
        """A text frame: the message's five slots, join_ref null in version 1.0.0; or, there, its object."""
        return json.loads(frame.text)


def octets(text: str) -> bytes:
    """`"text"` or hex."""
    return json.loads(text).encode() if text.startswith('"') else bytes.fromhex(text)


def shown(frame: Frame | None) -> str:
    """A frame as people read it."""
    if frame is None:
        return "the connection ended"
    if frame.opcode == -1:
        return "nothing came"
    if frame.opcode == TEXT:
        return f"{frame.text[:300]}"
    if frame.opcode == CLOSE:
        return f"close {frame.close_code} {frame.close_reason!r}" if frame.data else "close without a code"
    return f"{BARRED.get(frame.opcode, frame.opcode)} {frame.data[:100].hex()}"
