"""A channel that shows how channels end: it records why, says a last word, and fails in every way a channel can."""

import asyncio
from typing import Any

from bridge_server.channels import Channel, Handled, Joined, Ok, Refuse, Reply, Socket, Stop
from protocol.frames import Payload


class Probe(Channel):
    """Says and records what happens to it."""

    def __init__(self, socket: Socket, log: list[str]) -> None:
        super().__init__(socket)
        self._log = log

    def join(self, payload: Payload) -> Joined:
        return Refuse({"reason": "no"}) if self.socket.topic == "probe:no" else Ok()

    def joined(self) -> None:
        if self.socket.topic == "probe:joined":
            raise RuntimeError("crashes after its join was accepted")

    def handle_in(self, event: str, payload: Payload, ref: Any) -> Handled:
        match event:
            case "stop":
                return Stop(Reply("ok", {"bye": 1}))
            case "unsendable":
                return Reply("ok", object())
            case "badname":
                self.socket.push('a"b', {})
            case "task":
                self.socket.spawn(self._fail())
            case "forever":
                self.socket.spawn(self._forever())
            case "fail":
                self.socket.fail("epoch_changed")
                self.socket.push("never", {})
                self.socket.reply(ref, Reply())
                self.socket.close()
        return None

    async def _fail(self) -> None:
        raise RuntimeError("a task that crashes on purpose")

    async def _forever(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self._log.append("task ended")

    def terminate(self, reason: str) -> None:
        self._log.append(reason)
        self.socket.push("last", {"reason": reason})
        if self.socket.topic == "probe:raises":
            raise RuntimeError("a terminate that crashes on purpose")
