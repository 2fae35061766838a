"""The long-poll half of a recorded scenario: its HTTP requests, with this hub's tokens in place of the recorded."""

import asyncio
import json
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

import aiohttp

from tests.support.processes import PATIENCE
from tests.support.recorded_server import PREFIX, RecordedServer
from tests.vectors.recording import Conversation, Expected, Message, Step, parse


class Player(Protocol):
    """Who plays the scenario."""

    server: RecordedServer

    def deviate(self, talk: Conversation, want: Expected) -> list[Expected]:
        """What is expected of this hub."""


def same(one: Any, other: Any) -> bool:
    """Equal by value and type, at every depth: in Python 1 == True == 1.0, on the wire they differ."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class LongPolls:
    """The sessions of one scenario."""

    def __init__(self, player: Player) -> None:
        self._player = player
        self._tokens: dict[str, str] = {}
        self._talks: dict[str, Conversation] = {}

    async def request(self, recorded: Step, following: list[Step]) -> None:
        """Play one request, and hold its answer against the recorded one."""
        said = json.loads(recorded["response_body"])
        target, talk = self._aim(recorded)
        body = recorded.get("request_body")
        talk.content_type = "" if body is None else recorded["request_headers"].get("Content-Type", "")
        if body is not None:
            talk.say(parse(body, talk.vsn), body)
        happens = "a broadcast was made" in following[0].get("note", "") if following else False
        status, got = await self._ask(recorded, target, said, happens)
        (want,) = self._player.deviate(talk, Expected("http", (recorded["http_status"], said["status"])))
        assert (status, got["status"]) == want.value, f"{got}, not {want}"
        assert set(got) - {"reason"} == set(said), f"{got}, not {said}"
        if "token" in said:
            assert self._tokens.setdefault(said["token"], got["token"]) == got["token"]
            self._talks.setdefault(said["token"], talk)
        wanted = [
            new.value
            for text in said.get("messages", ())
            for new in self._player.deviate(talk, Expected("message", parse(text, talk.vsn)))
        ]
        found = [parse(text, talk.vsn) for text in got.get("messages", ())]
        assert len(found) == len(wanted), f"{found}, not {wanted}"
        for message, expected in zip(found, wanted, strict=True):
            assert same(message, _shown(expected, talk.vsn)), f"{message}, not {expected}"

    async def nobody_polls(self, seconds: float) -> None:
        """Let time pass, and wait until the sessions that this ends have ended."""
        longpoll = self._player.server.hub.longpoll
        assert longpoll is not None
        self._player.server.hands.time += seconds
        async with asyncio.timeout(PATIENCE):
            while longpoll.sessions:
                await asyncio.sleep(0.02)

    def _aim(self, recorded: Step) -> tuple[str, Conversation]:
        path, _, query = recorded["target"].partition("?")
        values = {name: found[-1] for name, found in parse_qs(query).items()}
        token = values.get("token", "")
        for theirs, ours in self._tokens.items():
            query = query.replace(theirs, ours)
        vsn = "2.0.0" if values["vsn"].startswith("2.") else "1.0.0"
        return f"{PREFIX}{path}?{query}", self._talks.get(token) or Conversation("", "", urlsplit(path).path, vsn)

    async def _ask(self, recorded: Step, target: str, said: Any, happens: bool) -> tuple[int, Any]:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{self._player.server.port}") as http:
            asking = asyncio.create_task(self._exchange(http, recorded, target))
            if said["status"] == 204 or happens:
                await self._poll_waits()
            if said["status"] == 204:
                self._player.server.hands.time += 1.0
            elif happens:
                message = parse(said["messages"][0], "2.0.0")
                assert message is not None
                self._player.server.publish(message.topic, message.event, json.dumps(message.payload).encode())
            async with asyncio.timeout(PATIENCE):
                return await asking

    async def _poll_waits(self) -> None:
        longpoll = self._player.server.hub.longpoll
        assert longpoll is not None
        async with asyncio.timeout(PATIENCE):
            while not any(session.waiting for session in longpoll.sessions.values()):
                await asyncio.sleep(0.01)

    @staticmethod
    async def _exchange(http: aiohttp.ClientSession, recorded: Step, target: str) -> tuple[int, Any]:
        skip = () if "Content-Type" in recorded["request_headers"] else ("Content-Type",)
        async with http.request(
            recorded["method"],
            target,
            data=recorded.get("request_body"),
            headers=recorded["request_headers"],
            skip_auto_headers=skip,
        ) as answer:
            head = dict(line.split(": ", 1) for line in recorded["response_head"].split("\r\n")[1:])
            for name in ("content-type", "cache-control"):
                assert answer.headers[name] == head[name]
            return answer.status, json.loads(await answer.read())


def _shown(message: Message, vsn: str) -> Message:
    return message if vsn == "2.0.0" else message._replace(join_ref=None)
