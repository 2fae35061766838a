"""`serve` with its API, `status`, `doctor`: the commands that look after a home, as processes against a real hub."""

import asyncio
import json
import re
import socket
import stat
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bridge_client import app, doctor, keys, local_token
from bridge_client.api import address
from bridge_client.config import Config
from bridge_client.keys import Credential
from bridge_server.app import Hub
from tests.support.home_commands import run, serving
from tests.support.listening import listening
from tests.support.ports import free_port

DEADLINE = 100


class Home:
    """A home's state directory with a credential of a hub."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub = hub
        self.state = folder / "state"
        server, token = hub.credentials.add_server("a home")
        self.server_id = server.server_id
        keys.save(self.state / "home-credential.json", Credential(hub.url, server.server_id, token))

    def words(self, command: str, *more: str) -> tuple[str, ...]:
        return (command, *more, "--state-dir", str(self.state))

    async def facts(self) -> dict[str, Any]:
        code, out, err = await run(*self.words("status", "--json"))
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    async def ingest(self, folder: Path, count: int) -> None:
        file = folder / "in.jsonl"
        file.write_text('{"type":"note"}\n' * count)
        code, _, err = await run(*self.words("ingest", str(file), "--session", "s"))
        assert code == 0, err

    async def doctor(self, *more: str) -> tuple[int, dict[str, dict[str, str]]]:
        code, out, err = await run(*self.words("doctor", "--json", *more))
        assert "Traceback" not in err
        said = json.loads(out)
        assert said["ok"] == (code == 0)
        return code, {check["check"]: check for check in said["checks"]}


@pytest.fixture
async def home(hub: Hub, tmp_path: Path) -> AsyncIterator[Home]:
    async with asyncio.timeout(DEADLINE):
        yield Home(hub, tmp_path)


async def test_serve_answers_programs_on_this_machine(home: Home, tmp_path: Path) -> None:
    async with serving(*home.words("serve", "--api-port", "0")) as (_, about), aiohttp.ClientSession() as session:
        token = local_token.load(home.state)
        headers = {"Authorization": f"Bearer {token}"}
        url = about["api_url"] + "/events"
        async with session.get(url) as answer:
            assert answer.status == 401
        query = {"since_id": "0", "wait_timeout_ms": "30000"}
        waiting = asyncio.create_task(session.get(url, params=query, headers=headers))
        await home.ingest(tmp_path, 1)  # another process publishes through the store's file
        async with await waiting as answer:
            body = await answer.json()
        assert [event["event_id"] for event in body["events"]] == ["1"]
        async with session.get(about["api_url"] + "/status", headers=headers) as answer:
            facts = await answer.json()
        assert facts["server_id"] == home.server_id
        assert set(facts["lag"]) == {"events", "seconds"}
    assert address.find(home.state / "home.db.api") is None
    assert not (home.state / "home.db.api").exists()
    for file in home.state.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


async def test_serve_keeps_sessions_over_restarts(home: Home) -> None:
    for status in (201, 409):
        async with serving(*home.words("serve", "--api-port", "0")) as (_, about), aiohttp.ClientSession() as session:
            headers = {"Authorization": f"Bearer {local_token.obtain(home.state)}"}
            url = about["api_url"] + "/sessions"
            async with session.post(url, headers=headers, json={"session_id": "s"}) as answer:
                assert answer.status == status
            async with session.post(url + "/s/send", headers=headers, json={"content": "hi"}) as answer:
                assert (await answer.json())["error"]["code"] == "no_runner"
            async with session.get(url + "/s/messages", headers=headers) as answer:
                assert (await answer.json())["cursor_event_id"] == "2"


async def test_events_are_served_while_there_is_no_hub(tmp_path: Path) -> None:
    """Nothing is printed before the home forwards: where it answers stands in the file."""
    state = tmp_path / "state"
    words = ("serve", "--state-dir", str(state), "--hub-url", "http://127.0.0.1:1", "--api-port", "0")

    async def serve() -> None:
        async with serving(*words):
            raise AssertionError("it forwards to no hub")

    task = asyncio.create_task(serve())
    async with asyncio.timeout(DEADLINE), aiohttp.ClientSession() as session:
        while (url := address.find(state / "home.db.api")) is None:
            await asyncio.sleep(0.02)
        headers = {"Authorization": f"Bearer {local_token.load(state)}"}
        async with session.get(url + "/events", headers=headers) as answer:
            assert (await answer.json())["latest_event_id"] == "0"
        async with session.get(url + "/status", headers=headers) as answer:
            facts = await answer.json()
        assert (facts["connected"], facts["server_id"]) == (False, None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_taken_port_is_one_sentence_with_two_ways_out(home: Home) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        code, out, err = await run(*home.words("serve", "--api-port", port))
        assert (code, out) == (1, "")
        assert f"can't listen on 127.0.0.1:{port}" in err
        assert "--api-port" in err
        assert "--no-api" in err
        async with serving(*home.words("serve", "--api-port", port, "--no-api")) as (_, about):
            assert about["api_url"] is None


async def test_a_second_home_on_the_same_state_directory_is_refused_and_the_first_goes_on(home: Home) -> None:
    source = f"sqlite:{home.state / 'agent.db'}?table=events"
    async with serving(*home.words("serve", "--api-port", "0")) as (first, about):
        for words in (("serve", "--api-port", "0"), ("serve", "--no-api"), ("forward", "--source", source)):
            code, out, err = await run(*home.words(*words))
            assert (code, out) == (1, "")
            assert f"a home already runs here: process {first.pid} has the state directory {home.state}" in err
            assert f"bridge-client status --state-dir {home.state}\n" in err
            assert "SESSION_BRIDGE_STATE_DIR" in err
            assert "Traceback" not in err
        facts = await home.facts()
        assert (facts["running"], facts["pid"], facts["connected"]) == (True, first.pid, True)
        port = about["api_url"].rpartition(":")[2]
        other = str(home.state.with_name("other"))
        code, out, err = await run("serve", "--state-dir", other, "--api-port", port)
        assert (code, out) == (1, "")
        assert f"another home, with a state directory of its own, answers on 127.0.0.1:{port}" in err
    async with serving(*home.words("serve", "--api-port", "0")) as (killed, _):
        killed.kill()
        await killed.wait()
    async with serving(*home.words("serve", "--api-port", "0")):  # a crash leaves nothing to clean up
        assert (await home.facts())["running"]


async def test_status_shows_age_and_lag_not_just_connected(home: Home, tmp_path: Path) -> None:
    await home.ingest(tmp_path, 3)
    facts = await home.facts()
    assert (facts["running"], facts["head_id"], facts["acked_id"], facts["waiting"]) == (False, "3", None, 3)
    assert facts["last_ack_age_seconds"] is None
    async with serving(*home.words("serve", "--api-port", "0")):
        while (facts := await home.facts())["acked_id"] != "3":
            pass
        assert (facts["running"], facts["connected"], facts["hub"]) == (True, True, "ready")
        assert facts["lag"] == {"events": 0, "seconds": 0.0}
        age = facts["last_ack_age_seconds"]
        await home.hub.close()
        while (facts := await home.facts())["connected"]:
            pass
        assert facts["last_error"]
        await home.ingest(tmp_path, 2)
        while (facts := await home.facts())["lag"]["seconds"] == 0:
            pass
        assert facts["lag"]["events"] == 2
        assert facts["last_ack_age_seconds"] > age
        _, text, _ = await run(*home.words("status"))
        assert re.search(r"^lag +2 events, the oldest for \d+\.\d s$", text, re.MULTILINE)
        assert re.search(r"^last ack +\d+\.\d s ago$", text, re.MULTILINE)
        assert re.search(r"^connected +no: ", text, re.MULTILINE)


async def test_retention_is_that_of_the_home_that_runs_and_said_to_be_ours_where_none_does(
    home: Home, tmp_path: Path
) -> None:
    await home.ingest(tmp_path, 1)
    async with serving(*home.words("serve", "--api-port", "0"), RETAIN_DAYS="7", RETAIN_BYTES="5242880"):
        assert "keeps 7 days and at most 5.0 MiB" in (text := (await run(*home.words("status")))[1])
        assert "as configured here" not in text
        stored = (await home.facts())["stored"]
        assert (stored["retain_days"], stored["retain_bytes"]) == (7.0, 5_242_880)
        assert (await home.doctor())[1]["retention"]["text"].startswith("keeps 7 days and at most 5.0 MiB; ")
    assert "keeps everything, as configured here" in (await run(*home.words("status")))[1]
    assert (await home.facts())["stored"]["retain_days"] is None


# doctor


async def test_a_home_in_order(home: Home, tmp_path: Path) -> None:
    async with serving(*home.words("serve", "--api-port", "0")):
        await home.ingest(tmp_path, 1)
        while (await home.facts())["acked_id"] != "1":
            pass
    code, checks = await home.doctor()
    assert code == 0
    states = {
        name: check["status"] for name, check in checks.items() if name not in ("disk space", "hub: credential", "home")
    }
    assert states == dict.fromkeys(
        [
            "state directory",
            "credential",
            "event store",
            "retention",
            "cursor",
            "lag",
            "dead letters",
            "runner",
            "hub: name",
            "hub: port",
            "hub: answer",
            "clock",
        ],
        "ok",
    )
    assert checks["hub: credential"]["status"] != "failed"
    assert checks["cursor"]["text"] == "acknowledged up to event 1"
    assert (checks["home"]["status"], checks["home"]["remedy"]) == ("warning", "start it: bridge-client serve")
    assert checks["lag"]["text"].startswith("no event waits; the last acknowledgement came ")
    code, out, _ = await run(*home.words("doctor"))
    assert code == 0
    assert "event store" in out


async def test_a_home_that_is_down_while_events_wait_and_a_dead_letter_lies_there_is_not_all_ok(
    home: Home, tmp_path: Path
) -> None:
    await home.ingest(tmp_path, 2)
    config = Config(state_dir=home.state)
    async with app.open_store(config) as store, app.open_letters(config) as letters:
        event = await store.list(since_id=0, limit=1)
        assert await letters.bury(store.epoch, event[0].event_id, event[0].data, "too_large")
    code, checks = await home.doctor()
    assert code == 0, "warnings"
    assert checks["home"]["status"] == checks["lag"]["status"] == checks["dead letters"]["status"] == "warning"
    assert checks["lag"]["text"] == "2 events wait for the hub; nothing was acknowledged yet"
    assert checks["dead letters"]["text"] == "1 event the hub would not take is set aside"
    assert checks["dead letters"]["remedy"].endswith("bridge-client dead-letters list")
    async with serving(*home.words("serve", "--no-api")) as (process, _):
        found = (await home.doctor())[1]["home"]
        assert (found["status"], found["text"]) == (
            "ok",
            f"process {process.pid} runs here and answers no programs (--no-api)",
        )
        facts = await home.facts()
        assert (facts["running"], facts["pid"], facts["connected"]) == (True, process.pid, None)
    assert not (await home.facts())["running"]


async def test_a_runner_that_is_not_installed_is_told_at_the_start_by_doctor_and_by_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    config = Config(state_dir=tmp_path, hub_url="http://127.0.0.1:1", api_port=0)
    ours = "there is no program 'claude': install it, or put its folder into the PATH of the home"
    theirs = "there is no program './agent': install it, or correct the setting runner_command"
    cases = ((replace(config, runner="claude"), ours), (replace(config, runner="command", **AGENT), theirs))
    for told, said in cases:
        async with app.open_source(told) as opened, app.answering(told, opened, app.runner(told)):
            assert f"messages can't be answered yet: {said}" in caplog.messages
            asked = config if told.runner == "claude" else told  # the home that runs knows, whoever asks
            checks = {check.check: check async for check in doctor.examine(asked, *LOOKS)}
            found, _, remedy = said.partition(": ")
            assert checks["runner"] == ("runner", "warning", f"{told.runner} can't answer: {found}", remedy)
            facts = await app.status(asked)
            assert (facts["runner"], facts["runner_problem"]) == (told.runner, said)
    (tmp_path / "agent").touch(mode=0o755)
    assert app.runner_problem(replace(told, runner_dir=tmp_path)) is None
    assert "runner_dir" in (app.runner_problem(replace(told, runner_dir=tmp_path / "gone")) or "")
    assert app.runner_problem(replace(told, runner_command="{text}")) is None, "known once it is asked"


AGENT = {"runner_command": "./agent --json"}
LOOKS = (app.open_store, app.outlook, app.standing)


def test_what_waits_is_worth_a_warning_when_nothing_was_acknowledged_for_long() -> None:
    stands = {"running": True, "waiting": 1, "last_ack_age_seconds": 3_700.0, "connected": True, "last_error": None}
    for seconds, more, status, remedy in (
        (90.0, {}, "warning", "bridge-server doctor"),
        (1.0, {}, "ok", ""),  # it has only just come, after a quiet hour
        (1.0, {"connected": False, "last_error": "refused"}, "warning", "(refused)"),
        (1.0, {"connected": False, "last_ack_age_seconds": 5.0}, "ok", ""),
        (None, {"connected": None}, "warning", "its log"),
        (None, {"running": False, "connected": None, "last_ack_age_seconds": 5.0}, "warning", "start the home"),
    ):
        found = doctor._lag({**stands, "lag": {"seconds": seconds}, **more})
        assert (found.status, remedy in (found.remedy or "")) == (status, True), found


async def test_looking_makes_nothing(tmp_path: Path) -> None:
    state = tmp_path / "state"
    code, out, err = await run("doctor", "--state-dir", str(state), "--hub-url", "http://127.0.0.1:1", "--json")
    checks = {check["check"]: check for check in json.loads(out)["checks"]}
    assert (code, checks["hub: port"]["status"]) == (1, "failed")
    assert "bridge-server serve" in checks["hub: port"]["remedy"]
    assert err.startswith("Error: 1 of ")
    assert not state.exists()


async def test_everything_that_is_wrong_is_found_with_a_remedy(home: Home, tmp_path: Path) -> None:
    credential = home.state / "home-credential.json"
    credential.chmod(0o644)
    (home.state / "home.db").write_text("this is no database, it is a letter to somebody" * 100)
    (home.state / "home.db").chmod(0o600)
    (home.state / "home.db.cursor").write_text("{")
    code, checks = await home.doctor()
    assert code == 1
    assert f"chmod 600 {credential}" in checks["credential"]["text"] + checks["state directory"]["remedy"]
    assert checks["event store"]["status"] == "failed"
    assert (checks["cursor"]["status"], "rm " in checks["cursor"]["remedy"]) == ("warning", True)
    assert all(check["remedy"] or check["text"] for check in checks.values())


async def test_a_revoked_home_is_told_so(home: Home) -> None:
    home.hub.credentials.revoke_server(home.server_id)
    code, checks = await home.doctor()
    assert (code, checks["hub: credential"]["status"]) == (1, "failed")
    assert "enrol again" in checks["hub: credential"]["remedy"]


async def test_others_who_could_write_are_a_failure(home: Home) -> None:
    home.state.chmod(0o777)
    code, checks = await home.doctor()
    assert (code, checks["state directory"]["remedy"]) == (1, f"chmod 700 {home.state}")


async def test_a_cursor_beyond_the_store_and_a_credential_for_elsewhere(home: Home, tmp_path: Path) -> None:
    async with serving(*home.words("serve", "--api-port", "0")):
        await home.ingest(tmp_path, 3)
        while (await home.facts())["acked_id"] != "3":
            pass
    cursor = home.state / "home.db.cursor"
    cursor.write_text(cursor.read_text().replace('"3"', '"9"'))
    _, checks = await home.doctor()
    assert "event 9 was acknowledged, but the last one stored is 3" in checks["cursor"]["text"]
    code, checks = await home.doctor("--hub-url", "http://127.0.0.1:1")
    assert (code, "is for" in checks["credential"]["text"]) == (1, True)


async def test_what_is_no_hub_is_found_out(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = (
            "HTTP/1.1 418 teapot",
            "Date: Thu, 01 Jan 2015 00:00:00 GMT",
            "Content-Length: 0",
            "Connection: close",
        )
        writer.write("\r\n".join([*head, "", ""]).encode())
        await writer.drain()

    async with listening(answer) as port, asyncio.timeout(DEADLINE):
        url = f"http://127.0.0.1:{port}"
        _, out, _ = await run("doctor", "--state-dir", str(tmp_path), "--hub-url", url, "--json")
        checks = {check["check"]: check for check in json.loads(out)["checks"]}
        assert (checks["hub: answer"]["status"], "418" in checks["hub: answer"]["text"]) == ("failed", True)
        assert checks["clock"]["status"] == "failed"
        assert "ahead of the hub's" in checks["clock"]["text"]
        _, out, _ = await run(
            "doctor", "--state-dir", str(tmp_path), "--hub-url", url.replace("http", "https"), "--json"
        )
        checks = {check["check"]: check for check in json.loads(out)["checks"]}
        assert checks["hub: TLS"]["status"] == "failed"


async def test_a_proxy_whose_hub_is_down_is_told_from_a_hub_that_is_not_ready(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = "<html><h1>502 Bad Gateway</h1></html>"
        head = "HTTP/1.1 502 Bad Gateway", f"Content-Length: {len(body)}", "Connection: close"
        writer.write("\r\n".join([*head, "", body]).encode())
        await writer.drain()

    async with listening(answer, free_port()) as port, asyncio.timeout(DEADLINE):
        url = f"http://127.0.0.1:{port}"
        _, out, _ = await run("doctor", "--state-dir", str(tmp_path), "--hub-url", url, "--json")
        check = next(check for check in json.loads(out)["checks"] if check["check"] == "hub: answer")
        assert (check["status"], check["text"]) == (
            "failed",
            "a proxy answers, the hub behind it does not (HTTP 502)",
        )
        assert "start `bridge-server serve` there, or check the proxy's upstream" in check["remedy"]
        _, out, _ = await run("status", "--state-dir", str(tmp_path), "--hub-url", url, "--json")
        assert "the hub behind it does not: start `bridge-server serve` there" in json.loads(out)["hub"]
    _, out, _ = await run("status", "--state-dir", str(tmp_path), "--hub-url", url, "--json")
    assert json.loads(out)["hub"] == "can't be reached: nothing listens there; start it: bridge-server serve"


async def test_serve_ends_when_its_store_is_taken_away(home: Home, tmp_path: Path) -> None:
    async with serving(*home.words("serve", "--no-api")) as (process, about):
        await home.ingest(tmp_path, 3)
        store = Path(about["store"])
        for name in store.parent.glob(store.name + "*"):
            name.unlink()
        _, err = await process.communicate()
    assert process.returncode == 1
    told = f"Error: the event store {store} was replaced or removed while it was in use; restart this program"
    assert told in err.decode()
    assert "Traceback" not in err.decode()
    async with serving(*home.words("serve", "--no-api")):  # which heals it
        await home.ingest(tmp_path, 1)


async def test_a_credential_file_that_was_named_has_to_be_there(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    code, out, err = await run(*home.words("serve", "--no-api", "--credential-file", str(path)))
    assert (code, out) == (1, "")
    assert f"Error: there is no {path}" in err
    assert not path.exists()


async def test_status_goes_on_past_a_damaged_cursor(home: Home, tmp_path: Path) -> None:
    await home.ingest(tmp_path, 3)
    path = Config(state_dir=home.state).cursor_path
    path.write_bytes(b"{nonsense")
    facts = await home.facts()
    assert (facts["head_id"], facts["acked_id"], facts["waiting"], facts["hub"]) == ("3", None, None, "ready")
    assert f"{path} is damaged" in facts["cursor_error"]
    code, out, err = await run(*home.words("status"))
    assert (code, err) == (0, "")
    assert re.search(r"^acknowledged +unknown: .* is damaged", out, re.MULTILINE)
    assert "ready" in out
