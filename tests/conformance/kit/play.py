"""Plays one vector to a server and says how it went: as Phoenix answers, as a known deviation, or neither."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.kit.line import Line, Server, Unreachable, octets, shown
from tests.conformance.kit.script import EXPECTS, Step, Vector
from tests.support.raw_socket import BINARY, CLOSE, PONG, TEXT, Frame

PASS, DEVIATION, FAIL, NOT_OFFERED = "pass", "deviation", "fail", "not offered"

UNMATCHED = {"status": "error", "response": {"reason": "unmatched topic"}}
OPTIONAL_TOPICS = ("presence:", "icpt:", "exact")


class NotOffered(Exception):
    """The server lacks what the vector is about; the text says what."""


@dataclass
class Outcome:
    """How a vector went. `deviations` are names; `why` explains a fail or what is not offered."""

    vector: Vector
    verdict: str = PASS
    deviations: list[str] = field(default_factory=list)
    why: str = ""


async def play(vector: Vector, server: Server) -> Outcome:
    """Play it. Raises Unreachable when the server can't be reached any more."""
    outcome = Outcome(vector)
    play = _Play(vector, server, outcome)
    try:
        await play.run()
    except NotOffered as lack:
        outcome.verdict, outcome.why = NOT_OFFERED, str(lack)
    except Unreachable:
        raise
    except (AssertionError, ValueError, EOFError, OSError) as error:
        where = f"{play.at.shown}: " if play.at else ""
        outcome.verdict, outcome.why = FAIL, f"{where}{error}"[:600]
    else:
        outcome.verdict = DEVIATION if outcome.deviations else PASS
    finally:
        await play.close()
    return outcome


class _Play:
    def __init__(self, vector: Vector, server: Server, outcome: Outcome) -> None:
        self.at: Step | None = None
        self._vector = vector
        self._server = server
        self._outcome = outcome
        self._lines: dict[str, Line] = {}
        self._void: set[str] = set()
        """Connections that a deviation ended, or kept alive, against Phoenix: what the vector still says is void."""

    async def run(self) -> None:
        steps = self._vector.steps
        if next(step for step in steps if not step.conn).mark not in ("@", "http"):
            await self._open(Step("", "@", "socket", "@ socket", {}), status="101")
        at = 0
        while at < len(steps):
            self.at = step = steps[at]
            if step.conn in self._void and step.mark not in ("@", "http"):
                at += 1
            elif step.mark in ("@", "http"):
                at += await self._ask(steps[at:])
            elif step.mark.startswith("="):
                self._answered(step)
                at += 1
            elif step.mark == "<&":
                group = _group(steps[at:], step.conn)
                await self._expect(step.conn, group, ordered=False)
                at += len(group)
            elif step.mark in EXPECTS:
                await self._expect(step.conn, [step], ordered=True)
                at += 1
            elif step.mark == "<nothing":
                await self._silent(step.conn)
                at += 1
            else:
                self._say(step)
                at += 1
        self.at = None
        for conn in self._lines:
            await self._silent(conn)

    async def close(self) -> None:
        for line in self._lines.values():
            line.end()
        await asyncio.sleep(0)

    # Requests.

    async def _ask(self, steps: Sequence[Step]) -> int:
        step = steps[0]
        answered = next((number for number, later in enumerate(steps[1:]) if not later.mark.startswith("=")), None)
        said = steps[1:] if answered is None else steps[1 : 1 + answered]
        await self._open(step, status="" if any(later.mark == "=" for later in said) else "101")
        return 1

    async def _open(self, step: Step, *, status: str) -> None:
        if before := self._lines.pop(step.conn, None):
            if before.open and step.conn not in self._void:
                self._lines[step.conn] = before
                await self._silent(step.conn)
            before.end()
        self._void.discard(step.conn)
        what, *headers = (part.strip() for part in step.body.replace("{host}", self._server.host).split("| "))
        words = what.split()
        method, words = (words[0], words[1:]) if step.mark == "http" else ("GET", words)
        mount, query = words[0], (words[1] if len(words) > 1 else "")
        vsn = self._vector.vsn
        query = query[1:] if query.startswith("?") else f"vsn={vsn}{query}"
        if "vsn=1." in query and step.conn:
            vsn = "1.0.0"
        line = await Line.ask(self._server, vsn, method, mount, query, tuple(headers), upgrade=step.mark == "@")
        self._lines[step.conn] = line
        if line.answer.status == 404 and mount != "socket" and not mount.startswith("/"):
            raise NotOffered(f"there is no mount {self._server.prefix}/{mount}")
        if status:
            assert str(line.answer.status) == status, f"answered with {line.answer.status}, not {status}"

    def _answered(self, step: Step) -> None:
        answer = self._lines[step.conn].answer
        if _fits_answer(step, answer.status, answer.headers, answer.body):
            return
        for name, other in step.otherwise.items():
            if other is not None and _fits_answer(other, answer.status, answer.headers, answer.body):
                self._deviates(name)
                return
        raise AssertionError(f"the answer was {answer.status} {answer.headers} {answer.body[:200]!r}")

    # Messages.

    def _say(self, step: Step) -> None:
        line = self._lines[step.conn]
        body = self._topics(step.body)
        match step.mark:
            case ">":
                line.send(body)
            case ">text":
                line.send_text(body)
            case ">bin":
                line.send_binary(_pack(body))
            case ">frame":
                line.send_frame(step.body)
            case _:
                line.end()

    def _topics(self, text: str) -> str:
        return text.replace("room:", f"{self._server.topic}:") if self._server.topic != "room" else text

    async def _expect(self, conn: str, steps: list[Step], *, ordered: bool) -> None:
        remaining = list(steps)
        line = self._lines[conn]
        while remaining and conn not in self._void:
            optional = all(None in step.otherwise.values() for step in remaining)
            frame = await line.receive(fence=optional)
            if found := self._find(line, frame, remaining):
                step, name = found
                remaining.remove(step)
                if name:
                    self._deviates(name)
                    ends = line.ended or step.mark == "<close"
                    self._void |= {conn} if ends else set()
                continue
            self._lacking(frame, steps)
            silent = remaining if optional else remaining[:1] if ordered else []
            names = {name for step in silent for name, other in step.otherwise.items() if other is None}
            assert names, f"{shown(frame)}"
            for name in names:
                self._deviates(name)
            if frame is None or frame.opcode != -1:
                line.keep(frame)
            return

    def _find(self, line: Line, frame: Frame | None, steps: Iterable[Step]) -> tuple[Step, str] | None:
        for step in steps:
            if self._fits(line, frame, step):
                return step, ""
        for step in steps:
            for name, other in step.otherwise.items():
                if other is not None and self._fits(line, frame, other):
                    return step, name
        return None

    def _fits(self, line: Line, frame: Frame | None, step: Step) -> bool:
        if frame is None:
            return False
        body = self._topics(step.body)
        match step.mark:
            case "<" | "<&":
                return frame.opcode == TEXT and same(line.read(frame), _message(body, line.vsn))
            case "<bin":
                return frame == Frame(BINARY, _pack(body))
            case "<pong":
                return frame == Frame(PONG, octets(body))
            case "<close":
                return frame.opcode == CLOSE and frame.data[:2] == int(body).to_bytes(2, "big")
        return False

    def _lacking(self, frame: Frame | None, steps: list[Step]) -> None:
        """A join of a channel that a server need not offer is no failure."""
        wanted = steps[0].body
        topic = next((topic for topic in OPTIONAL_TOPICS if f'"{topic}' in wanted), None)
        if topic and frame is not None and frame.opcode == TEXT and '"unmatched topic"' in frame.text:
            raise NotOffered(f"there is no channel {topic}" + ("*" if topic.endswith(":") else ""))

    async def _silent(self, conn: str) -> None:
        line = self._lines[conn]
        if not line.open or line.ended or conn in self._void:
            return
        frame = await line.receive(fence=True)
        assert frame is not None, "the connection ended, where nothing more should come"
        assert frame.opcode == -1, f"nothing more should come: {shown(frame)}"

    def _deviates(self, name: str) -> None:
        if name not in self._outcome.deviations:
            self._outcome.deviations.append(name)


def _group(steps: Sequence[Step], conn: str) -> list[Step]:
    count = next((at for at, step in enumerate(steps) if step.mark != "<&" or step.conn != conn), len(steps))
    return list(steps[:count])


def _fits_answer(step: Step, status: int, headers: dict[str, str], body: bytes) -> bool:
    match step.mark:
        case "=":
            return str(status) == step.body
        case "=sub":
            return headers.get("sec-websocket-protocol", "-") == step.body
        case "=header":
            name, value = step.body.split(" ", 1)
            return headers.get(name, "-") == value
        case "=body":
            part = json.loads(step.body)
            return part.lower() in body.decode("utf-8", "replace").lower() if part else not body
    return False


def _pack(body: str) -> bytes:
    """`KIND [fields] hex` as a binary frame."""
    kind, _, rest = body.partition(" ")
    fields, end = json.JSONDecoder().raw_decode(rest)
    slots = [text.encode() for text in fields]
    return bytes((int(kind), *map(len, slots))) + b"".join(slots) + bytes.fromhex(rest[end:])


def _message(text: str, vsn: str) -> Any:
    value = json.loads(text)
    if vsn == "1.0.0" and isinstance(value, list):
        return dict(zip(("ref", "topic", "event", "payload"), value[1:], strict=True))
    return value


def same(one: Any, other: Any) -> bool:
    """Equal by value and type, at every depth: in Python 1 == True == 1.0, on the wire they differ."""
    if other == "<any>":
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
