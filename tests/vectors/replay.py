"""Plays one recorded conversation to the running hub and compares every answer.

JSON is compared by structure and type, binary frames byte for byte, refusals by status. A silence is proved, not waited
for: a heartbeat is sent and its answer must be the next frame. Time passes on the hub's clock only.
"""

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.raw_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, Frame, RawSocket
from tests.support.recorded_server import PREFIX, RecordedServer
from tests.vectors.deviations import DEVIATIONS
from tests.vectors.longpolls import LongPolls, same
from tests.vectors.recording import Conversation, Expected, Message, Scenario, Step, parse, parse_binary

DISAPPEARS = {("reconnect", "a")}
"""Clients that vanish before the server is told to do something; the recording says so in its note."""


def bound(got: Any, want: Any, refs: dict[str, str]) -> Any:
    """`got` with the refs of presences, which each server makes up, as they were recorded.

    One that is new on both sides is the other's counterpart from then on.
    """
    if isinstance(got, list) and isinstance(want, list) and len(got) == len(want):
        return [bound(one, other, refs) for one, other in zip(got, want, strict=True)]
    if not isinstance(got, dict) or not isinstance(want, dict):
        return got
    for name in ("phx_ref", "phx_ref_prev"):
        if name in got and got[name] not in refs and want.get(name) not in refs.values():
            refs[got[name]] = want.get(name)
    return {
        name: refs.get(value, value) if name.startswith("phx_ref") else bound(value, want.get(name), refs)
        for name, value in got.items()
    }


def any_order(scenario: str, group: list[Expected], talk: Conversation) -> list[list[Expected]]:
    """The orders in which the real server was seen to send `group`; only these two scenarios' races can show here."""
    closes = [want for want in group if want.kind == "message" and want.value.event == "phx_close"]
    if scenario.startswith("leave_pipelined_rejoin") and closes:
        (close,) = closes
        (joined,) = (want for want in group if want is not close)
        left = _ok_reply(talk, "2")
        return [[left, close, joined], [joined, close], [joined, left, close]]
    if scenario.startswith("leave_after_server_close") and closes:
        return [group, [*group, _ok_reply(talk, "3")]]
    return [group]


def _ok_reply(talk: Conversation, ref: str) -> Expected:
    request = talk.requests[json.dumps(ref)]
    payload = {"status": "ok", "response": {}}
    return Expected("message", Message(request.join_ref, ref, request.topic, "phx_reply", payload))


class Line:
    """One connection of a scenario."""

    def __init__(self, talk: Conversation, socket: RawSocket, presence_refs: dict[str, str]) -> None:
        self.talk = talk
        self.socket = socket
        self.open = True
        self._presence_refs = presence_refs
        self._fences = 0

    async def receive(self) -> Frame | None:
        frame = await self.socket.receive()
        if frame is None or frame.opcode == CLOSE:
            if self.open and frame is not None:
                self.socket.send_frame(frame.data, CLOSE)
            self.open = False
        return frame

    def read(self, frame: Frame) -> Message:
        """A text frame as a message, its form checked: no key and no slot too many."""
        value = json.loads(frame.text)
        if self.talk.vsn == "2.0.0":
            assert isinstance(value, list), value
            assert len(value) == 5, value
            return Message(*value)
        assert isinstance(value, dict), value
        assert value.keys() == {"topic", "event", "payload", "ref"}, value
        return Message(None, value["ref"], value["topic"], value["event"], value["payload"])

    async def frames_until_fence(self) -> list[Frame]:
        """Everything the server has to say now: what comes before the answer to a heartbeat."""
        self._fences += 1
        ref = f"fence {self._fences}"
        if self.talk.vsn == "2.0.0":
            self.socket.send_text(json.dumps([None, ref, "phoenix", "heartbeat", {}]))
        else:
            self.socket.send_text(
                json.dumps({"topic": "phoenix", "event": "heartbeat", "payload": {}, "ref": ref, "join_ref": None})
            )
        frames = []
        while True:
            frame = await self.receive()
            assert frame is not None, "the connection ended"
            assert frame.opcode != CLOSE, f"closed: {frame.close_code} {frame.close_reason}"
            if frame.opcode == TEXT and self.read(frame).ref == ref:
                return frames
            frames.append(frame)

    async def still_alive(self) -> None:
        """Nothing comes, and the connection lives; asked by ping, which may stand between fragments."""
        self.socket.send_frame(b"alive?", PING)
        frame = await self.receive()
        assert frame == Frame(PONG, b"alive?"), frame

    def matches(self, frame: Frame | None, want: Expected) -> bool:
        if frame is None:
            return False
        match want.kind:
            case "message":
                wanted = want.value if self.talk.vsn == "2.0.0" else want.value._replace(join_ref=None)
                if frame.opcode != TEXT:
                    return False
                got = self.read(frame)
                return same(got._replace(payload=bound(got.payload, wanted.payload, self._presence_refs)), wanted)
            case "bytes":
                return frame == Frame(BINARY, want.value)
            case "length":
                return frame.opcode == TEXT and len(frame.data) == want.value
            case "close":
                if frame.opcode != CLOSE or frame.close_code != want.value:
                    return False
                return _reason_fits(frame.close_reason, want.reason)
        return False


def _reason_fits(said: str, wanted: str | None) -> bool:
    return wanted is None or (bool(said) if wanted == "*" else said == wanted)


class Replay:
    """One scenario. `used` is the names of the deviations that showed in it."""

    def __init__(self, scenario: Scenario, server: RecordedServer) -> None:
        self.scenario = scenario
        self.server = server
        self.used: set[str] = set()
        self._lines: dict[str, Line] = {}
        self._presence_refs: dict[str, str] = {}
        self._polls = LongPolls(self)

    async def run(self) -> None:
        try:
            at = 0
            while at < len(self.scenario.steps):
                at += await self._step(at)
            for line in self._lines.values():
                if line.open and not line.talk.alive and not line.talk.over:
                    assert await line.frames_until_fence() == [], "more came than was recorded"
        except (AssertionError, TimeoutError) as error:
            raise AssertionError(
                f"{self.scenario.name}, step {at}: {self.scenario.steps[at : at + 1]}: {error!r}"
            ) from None
        finally:
            for line in self._lines.values():
                line.socket.abort()

    async def _step(self, at: int) -> int:
        """Play step `at`; how many steps that took."""
        step = self.scenario.steps[at]
        line = self._lines.get(step.get("conn", ""))
        if "open" in step:
            await self._open(step)
        elif "http" in step:
            await self._polls.request(step["http"], self.scenario.steps[at + 1 : at + 2])
        elif "do" in step:
            return await self._do(at)
        elif line is None or line.talk.over:
            pass
        elif "recv" in step or "recv_hex" in step:
            return await self._receive(at, line)
        else:
            await self._other(step, line)
        return 1

    def deviate(self, talk: Conversation, want: Expected) -> list[Expected]:
        wanted = [want]
        for deviation in DEVIATIONS.values():
            rewritten = [new for old in wanted for new in deviation.rewrite(talk, old)]
            if rewritten != wanted:
                self.used.add(deviation.name)
            wanted = rewritten
        return wanted

    # What the client does.

    async def _open(self, step: Step) -> None:
        path, name = step["open"], step["conn"]
        query = parse_qs(urlsplit(path).query)
        vsn = query.get("vsn", ["1.0.0"])[-1]
        talk = Conversation(self.scenario.name, name, path, "2.0.0" if vsn.startswith("2.") else "1.0.0")
        lines = [] if talk.origin is None else [f"Origin: {talk.origin}"]
        for recorded in step.get("request_head", "").split("\r\n"):
            if recorded.lower().startswith("sec-websocket-protocol:"):
                lines.append(recorded)
        for want in self.deviate(talk, Expected("status", step["http_status"], "" if "body" in step else None)):
            socket = await RawSocket(self.server.port).__aenter__()
            self._lines[name] = line = Line(talk, socket, self._presence_refs)
            answer = await socket.upgrade(PREFIX + path, *lines)
            assert answer.status == want.value, f"{answer}, not {want}"
            if answer.status != 101:
                line.open = False
                said = json.loads(answer.body)
                assert _reason_fits(said.get("reason", ""), want.reason), f"{said}, not {want}"
                assert await socket.receive() is None
            elif not talk.over:
                self._same_subprotocol(step, answer.headers.get("sec-websocket-protocol"))

    @staticmethod
    def _same_subprotocol(step: Step, echoed: str | None) -> None:
        recorded = [
            line for line in step.get("response_head", "").split("\r\n") if "websocket-protocol" in line.lower()
        ]
        assert echoed == (recorded[0].split(": ")[1] if recorded else None), f"{echoed} echoed, not {recorded}"

    async def _other(self, step: Step, line: Line) -> None:
        talk = line.talk
        if talk.mount == "short" and ("send" in step or "send_frame" in step) and talk.requests:
            self.server.hands.time += 1.0
        if "send" in step:
            talk.say(parse(step["send"], talk.vsn), step["send"])
            line.socket.send_text(step["send"])
        elif "send_hex" in step:
            data = bytes.fromhex(step["send_hex"])
            talk.say(parse_binary(data) if talk.vsn == "2.0.0" else parse(_text(data), talk.vsn))
            line.socket.send_frame(data, BINARY)
        elif "send_large" in step:
            self._send_large(step["send_large"], line)
            await line.socket.sent()
        elif "send_frame" in step:
            self._send_frame(step["send_frame"], line)
            await line.socket.sent()
        elif "recv_close" in step:
            if talk.mount == "short":
                self.server.hands.time += 1.6
            await self._closes(step, line)
        elif "recv_pong_hex" in step:
            assert await line.receive() == Frame(PONG, bytes.fromhex(step["recv_pong_hex"]))
        elif "eof" in step:
            if not talk.alive:
                assert await line.receive() is None
        elif "silence_ms" in step:
            assert await line.frames_until_fence() == [], "silence was recorded"
        else:
            assert step.keys() <= {"conn", "note", "after_ms_rounded", "send_failed"}, f"an unknown step {step}"

    def _send_large(self, described: str, line: Line) -> None:
        count = next(int(word) for word in described.split() if word.isdigit())
        topic, event = ("phoenix", "heartbeat") if described.startswith("heartbeat text") else ("room:1", "ping")
        payload = "%s" if event == "heartbeat" else "[" * count + "]" * count
        if line.talk.vsn == "2.0.0":
            message = f'[null,"1","{topic}","{event}",{payload}]'
        else:
            message = f'{{"topic":"{topic}","event":"{event}","payload":{payload},"ref":"1"}}'
        if event == "heartbeat":
            message = message.replace("%s", '{"x":"' + "x" * (count - len(message) - 6) + '"}')
            assert len(message) == count, "the recording says how long it was"
        line.talk.say(Message(None, "1", topic, event, None), message[:1000])
        line.talk.size = len(message)
        line.socket.send_text(message)

    @staticmethod
    def _send_frame(step: Step, line: Line) -> None:
        described = step["hex"].startswith("(")
        data = b" " * int(step["hex"][1:].split()[0]) if described else bytes.fromhex(step["hex"])
        if step["opcode"] in (TEXT, CONTINUATION) and data.startswith(b"["):
            line.talk.requests.setdefault("frame", Message(None, None, None, None, None))
        line.socket.send_frame(
            data, step["opcode"], fin=step["fin"], rsv=4 if step["rsv1"] else 0, masked=step["masked"]
        )

    # What the server does.

    async def _closes(self, step: Step, line: Line) -> None:
        recorded = step["recv_close"]
        for want in self.deviate(line.talk, Expected("close", recorded["code"], recorded["reason"])):
            if want.kind == "alive":
                await line.still_alive()
                continue
            frame = await line.receive()
            assert line.matches(frame, want), f"{frame}, not {want}"

    async def _receive(self, at: int, line: Line) -> int:
        group: list[Expected] = []
        count = 0
        while at + count < len(self.scenario.steps) and _receives(step := self.scenario.steps[at + count], line):
            group += self.deviate(line.talk, _expected(step, line.talk.vsn))
            count += 1
        allowed = any_order(self.scenario.name, group, line.talk)
        if len(allowed) == 1:
            for want in group:
                frame = await line.receive()
                assert line.matches(frame, want), f"{frame}, not {want}"
        else:
            frames = await line.frames_until_fence()
            fits: Callable[[list[Expected]], bool] = lambda order: (  # noqa: E731
                len(order) == len(frames) and all(map(line.matches, frames, order))
            )
            assert any(map(fits, allowed)), f"{frames}, none of {allowed}"
        return count

    async def _do(self, at: int) -> int:
        if self.scenario.steps[at]["do"] == "tcp close":
            self._lines.pop(self.scenario.steps[at]["conn"]).socket.abort()
            return 1
        url = urlsplit(self.scenario.steps[at]["do"])
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        for name in {name for scenario, name in DISAPPEARS if scenario == self.scenario.name}:
            self._lines.pop(name).socket.abort()
        if url.path.startswith("sleep"):
            await self._polls.nobody_polls(int(url.path.split()[1]))
            return 1
        if url.path == "/ctl/disconnect":
            self.server.disconnect(query["id"].removeprefix("user:"))
            return 1
        assert url.path == "/ctl/broadcast"
        following = self.scenario.steps[at + 1]
        played = 1
        if self.scenario.name.startswith("idle_timeout"):
            self.server.hands.time += 0.6
            if "recv_close" in following:  # this broadcast came too late: the socket was idle by then
                await self._closes(following, self._lines[following["conn"]])
                played = 2
        self.server.publish(query["topic"], query["event"], query["payload"].encode())
        return played


def _receives(step: Step, line: Line) -> bool:
    return step.get("conn") == line.talk.name and ("recv" in step or "recv_hex" in step)


def _expected(step: Step, vsn: str) -> Expected:
    if "recv_hex" in step:
        return Expected("bytes", bytes.fromhex(step["recv_hex"]))
    text = step["recv"]
    if text.startswith("("):
        return Expected("length", int(text[1:].split()[0]))
    return Expected("message", parse(text, vsn))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
