"""What an app asks is done once, whatever happens in between, and told afterwards."""

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from bridge_client import cli_parts, requests
from bridge_client.cli import cli
from bridge_client.requests import Answer, Asked, Audited, Refusal, Requests
from bridge_client.store import Stored, StoreError
from bridge_client.store.sqlite import SqliteStore
from bridge_client.store.sqlite_requests import SqliteAnswers

JSON = {"content-type": "application/json"}
ALL = ["view", "approve", "control"]


class WallClock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nothing here sleeps")


class Home:
    """Counts what it does; `held` until it may."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.answers = SqliteAnswers(store)
        self.clock = WallClock()
        self.done: list[tuple[str, str, bytes | None]] = []
        self.may = asyncio.Event()
        self.may.set()
        self.reply = Answer(201, JSON, b'{"a":1}')
        self.requests = Requests(self._act, self.answers, self.clock)

    async def _act(self, method: str, path: str, body: bytes | None) -> Answer:
        self.done.append((method, path, body))
        await self.may.wait()
        return self.reply

    async def ask(self, request_id: str = "request-0001", **more: Any) -> Answer | Refusal:
        members = {"device_id": "phone", "scopes": ALL, "method": "POST", "path": "/sessions", **more}
        return await self.requests.answer(Asked(id=request_id, call=1, **members))

    async def outcomes(self) -> list[str]:
        return [line.outcome for line in await self.answers.audited(100)]


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    store = await SqliteStore.open(tmp_path / "home.db")
    async with asyncio.timeout(20):
        yield Home(store)
    await store.close()


def body(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


async def test_it_is_done_once_and_told_as_often_as_asked(home: Home) -> None:
    answers = [await home.ask(body=body('{"x": 1}')) for _ in range(100)]
    assert answers == [home.reply] * 100
    assert home.done == [("POST", "/sessions", b'{"x": 1}')]
    assert await home.outcomes() == ["201"]


async def test_an_answer_outlives_the_home(home: Home, tmp_path: Path) -> None:
    assert await home.ask() == home.reply
    store = await SqliteStore.open(tmp_path / "home.db")
    later = Home(store)
    assert await later.ask() == home.reply
    assert later.done == []
    await store.close()


async def test_who_asks_meanwhile_waits_for_the_same(home: Home) -> None:
    home.may.clear()
    asked = [asyncio.create_task(home.ask()) for _ in range(3)]
    while not home.done:
        await asyncio.sleep(0.001)
    mismatch = await home.ask(body=body("[]"))
    assert isinstance(mismatch, Refusal)
    assert mismatch.reason == "idempotency_mismatch"
    asked[0].cancel()  # its link is lost
    home.may.set()
    assert await asyncio.gather(*asked[1:]) == [home.reply] * 2
    assert len(home.done) == 1


@pytest.mark.parametrize("other", [{"body": body("[]")}, {"path": "/sessions/s/send"}])
async def test_an_id_is_for_one_thing(home: Home, other: dict[str, Any]) -> None:
    await home.ask()
    mismatch = await home.ask(**other)
    assert isinstance(mismatch, Refusal)
    assert mismatch.reason == "idempotency_mismatch"
    assert len(home.done) == 1
    assert await home.outcomes() == ["idempotency_mismatch", "201"]


async def test_another_devices_ids_are_its_own(home: Home) -> None:
    await home.ask()
    await home.ask(device_id="tablet")
    assert len(home.done) == 2


async def test_an_id_is_remembered_for_a_day(home: Home) -> None:
    await home.ask()
    home.clock.now += requests.KEPT_SECONDS - 1
    await home.ask()
    assert len(home.done) == 1
    home.clock.now += 2
    await home.ask()
    assert len(home.done) == 2


async def test_a_device_may_use_so_many_ids_a_day(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge_client.store.sqlite_requests.MAX_KEPT", 2)
    for number in range(2):
        await home.ask(f"request-{number}")
    refused = await home.ask("request-2")
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.details["retry_after_ms"]) == ("rate_limited", requests.RETRY_MS)
    assert await home.ask("request-1") == home.reply
    assert await home.ask("request-2", device_id="tablet") == home.reply


async def test_answers_of_a_device_are_kept_up_to_so_many_bytes(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge_client.store.sqlite_requests.MAX_KEPT_BYTES", len(home.reply.body))
    await home.ask("request-0")
    assert isinstance(await home.ask("request-1"), Refusal)


async def test_a_GET_is_asked_each_time_and_kept_nowhere(home: Home) -> None:
    for _ in range(2):
        assert await home.ask(method="GET", path="/sessions?limit=5") == home.reply
    assert home.done == [("GET", "/sessions?limit=5", None)] * 2
    assert await home.outcomes() == []


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"scopes": ["view"]}, "forbidden"),
        ({"path": "/status", "method": "GET"}, "forbidden"),
        ({"path": "/sessions/../status"}, "bad_push"),
        ({"path": "//sessions"}, "bad_push"),
        ({"path": "/sessions/%2e%2e/x", "method": "GET"}, "bad_push"),
        ({"id_": "short"}, "bad_push"),
    ],
)
async def test_the_home_looks_again_and_trusts_no_hub(home: Home, more: dict[str, Any], reason: str) -> None:
    refused = await home.ask(more.pop("id_", "request-0001"), **more)
    assert isinstance(refused, Refusal)
    assert refused.reason == reason
    assert home.done == []
    assert await home.outcomes() == [reason]


async def test_an_answer_that_is_too_long_is_not_told(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.requests.MAX_ANSWER_BYTES", 3)
    refused = await home.ask(method="GET")
    assert isinstance(refused, Refusal)
    assert (refused.reason, refused.details["limit"]) == ("too_large", 3)


async def test_a_store_that_fails_lets_nothing_happen(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(*_: Any) -> Stored:
        raise StoreError("the disk is full")

    monkeypatch.setattr(home.store, "transact", full)
    answer = await home.ask()
    assert isinstance(answer, Answer)
    assert answer.status == 503
    assert b"the disk is full" in answer.body
    assert home.done == []


async def test_the_audit_shows_who_what_and_outcome_and_no_secret(home: Home, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await home.ask(body=body('{"content":"hunter2"}'))
    await home.ask("request-0002", method="GET", path="/events?session_id=hunter2", scopes=[])
    assert await home.answers.audited(10) == [
        Audited(home.clock.now, "phone", "GET", "/events", "forbidden"),
        Audited(home.clock.now, "phone", "POST", "/sessions", "201"),
    ]
    assert "device phone asked for POST /sessions: 201" in caplog.text
    assert "hunter2" not in caplog.text


async def test_looks_are_logged_at_debug_and_changes_and_refusals_at_info(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="bridge_client.requests")
    await home.ask("request-0001", method="GET", path="/sessions", scopes=["view"])
    await home.ask("request-0002")
    await home.ask("request-0003", method="GET", path="/events", scopes=[])
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "asked for" in record.getMessage()]
    assert [(level, text.split(" asked for ")[1]) for level, text in told] == [
        ("DEBUG", "GET /sessions: 201"),
        ("INFO", "POST /sessions: 201"),
        ("INFO", "GET /events: forbidden"),
    ]


def test_an_audit_with_nothing_in_it_says_so_beside_the_output(tmp_path: Path) -> None:
    shown = CliRunner().invoke(cli, ["audit", "--state-dir", str(tmp_path)])
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert shown.stderr == "no app has asked this home to do anything yet\n"
    assert CliRunner().invoke(cli, ["audit", "--state-dir", str(tmp_path), "--json"]).output == ""


def test_rows_have_heads_on_a_terminal_and_none_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("a" * 16, "my [bold]phone\x1b[2J", "view," * 30)]
    cli_parts.show_rows(("device", "name", "may"), rows)
    assert capsys.readouterr().out.split("\t") == ["a" * 16, "my [bold]phone\\e[2J", "view," * 30 + "\n"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    cli_parts.show_rows(("device", "name", "may"), rows)
    heads, row = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()  # without the bold
    assert heads.split() == ["device", "name", "may"]
    assert row.split("  ")[-1].strip() == "view," * 30
    assert "my [bold]phone\\e[2J" in row
    assert heads.index("name") == row.index("my")


def test_the_owner_sees_the_audit_the_latest_last(tmp_path: Path) -> None:
    async def ask() -> None:
        store = await SqliteStore.open(tmp_path / "home.db")
        home = Home(store)
        await home.ask()
        await home.ask("request-0002", path="/status")
        await store.close()

    asyncio.run(ask())
    runner = CliRunner()
    arguments = ["audit", "--store", str(tmp_path / "home.db"), "--state-dir", str(tmp_path)]
    shown = runner.invoke(cli, arguments)
    assert shown.exit_code == 0, shown.output
    assert shown.output.splitlines() == [
        "2027-01-15T08:00:00.000Z\tphone\t201\tPOST /sessions",
        "2027-01-15T08:00:00.000Z\tphone\tforbidden\tPOST /status",
    ]
    shown = runner.invoke(cli, [*arguments, "--json", "--limit", "1"])
    assert msgspec.json.decode(shown.output) == {
        "at": "2027-01-15T08:00:00.000Z",
        "device_id": "phone",
        "method": "POST",
        "path": "/status",
        "outcome": "forbidden",
    }


async def test_the_audit_is_bounded(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge_client.store.sqlite_requests.MAX_AUDITED", 3)
    for number in range(5):
        await home.ask(f"request-{number}")
    assert len(await home.outcomes()) == 3


async def test_a_home_that_stops_ends_what_hangs(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "GOODBYE_SECONDS", 0.01)
    home.may.clear()
    asked = asyncio.create_task(home.ask())
    while not home.done:
        await asyncio.sleep(0.001)
    await home.requests.close()
    with pytest.raises(asyncio.CancelledError):
        await asked
    answer = await home.ask()
    assert isinstance(answer, Answer)
    assert (answer.status, msgspec.json.decode(answer.body)["error"]["code"]) == (409, "unknown_outcome")


@pytest.mark.parametrize(
    ("point", "done", "status"), [("before", 0, 409), ("during", 1, 409), ("after", 1, 409), ("never", 1, 202)]
)
async def test_killed_in_the_middle_it_is_never_done_again(tmp_path: Path, point: str, done: int, status: int) -> None:
    """With -9, by itself, at the moment that matters: the same id asked again does nothing and says so."""

    async def run(where: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "tests.bridge_client.dying_home"]
        files = [str(tmp_path / "home.db"), str(tmp_path / "done")]
        child = await asyncio.create_subprocess_exec(*command, *files, where, stdout=asyncio.subprocess.PIPE)
        out, _ = await child.communicate()
        assert child.returncode is not None
        return child.returncode, out.decode()

    async with asyncio.timeout(60):
        assert (await run(point))[0] == (0 if point == "never" else -signal.SIGKILL)
        code, out = await run("never")
    assert code == 0
    assert f"status={status}" in out
    log = tmp_path / "done"
    assert (log.read_text().count("done") if log.exists() else 0) == done
