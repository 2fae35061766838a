"""The routes of notifications over a real socket (rows A122 to A124, A132 to A136, A144 to A148, A160 to A167)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge_client import notification_rules as rules
from bridge_client.api import json_bodies
from bridge_client.runners import Context
from tests.support.running_api import TOKEN
from tests.support.running_home import Home, running_home
from tests.support.scripted_runner import ScriptedRunner, reply

APPLICATION, SESSION = "/application/notifications", "/sessions/s/notifications"
OWNERS = pytest.mark.parametrize("path", [APPLICATION, SESSION])


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with running_home(tmp_path) as home, asyncio.timeout(60):
        await home.create()
        yield home


async def make(home: Home, path: str, *, status: int = 201, **said: Any) -> Any:
    return (await home.do("POST", path, {"title": "t", **said}, status=status))["notification"]


async def ids(home: Home, path: str) -> list[str]:
    return [record["id"] for record in (await home.do("GET", path))["notifications"]]


async def conflict(home: Home, path: str, body: Any) -> tuple[str, Any]:
    """The code of a 409, and the record in it."""
    error = (await home.do("POST", path, body, status=409))["error"]
    return error["code"], error["notification"]


@OWNERS
async def test_A160_A162_A164_the_list_holds_the_active_ones_or_all(home: Home, path: str) -> None:
    made = [await make(home, path, title=f"{n}") for n in range(4)]
    for record, verb in zip(made, ("dismiss", "resolve", "expire"), strict=False):
        await home.do("POST", f"{path}/{record['id']}/{verb}")
    assert await ids(home, path) == await ids(home, path + "?include_terminal=false") == [made[3]["id"]]
    everything = (await home.do("GET", path + "?include_terminal=true"))["notifications"]
    assert {record["id"]: record["status"] for record in everything} == dict(
        zip((record["id"] for record in made), ("dismissed", "resolved", "expired", "pending"), strict=True)
    )
    assert await home.refused("GET", path + "?include_terminal=1") == (400, "bad_parameter")


@OWNERS
@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"reason":"seen","expected_revision":1}', b'{"expected_revision":null}']
)
async def test_A161_A163_A165_dismissing_with_and_without_words(home: Home, path: str, body: bytes) -> None:
    made = await make(home, path)
    answer = await home.ask(
        f"{path}/{made['id']}/dismiss", method="POST", data=body, headers={"Content-Type": "application/json"}
    )
    record = answer.json()["notification"]
    assert (answer.status, record["status"], record["revision"]) == (200, "dismissed", 2)
    assert record.get("reason") == ("seen" if b"seen" in body else None)
    assert await home.do("POST", f"{path}/{made['id']}/dismiss") == answer.json()  # [2.13]
    assert await ids(home, path) == []


@OWNERS
async def test_A166_A167_a_conflict_shows_how_it_stands(home: Home, path: str) -> None:
    made = await make(home, path)
    one = f"{path}/{made['id']}"
    assert await conflict(home, one + "/dismiss", {"expected_revision": 2}) == ("stale_revision", made)
    dismissed = (await home.do("POST", one + "/dismiss", {"expected_revision": 1}))["notification"]
    assert await conflict(home, one + "/dismiss", {"expected_revision": 1}) == ("stale_revision", dismissed)
    for verb in ("resolve", "expire"):
        assert await conflict(home, f"{one}/{verb}", {}) == ("invalid_transition", dismissed)


@OWNERS
@pytest.mark.parametrize(
    "body",
    [{}, {"title": ""}, {"title": "t", "id": "mine"}, {"title": "t", "display": {"presentation": "toast"}}, [], None],
)
async def test_what_can_not_be_made_is_refused_and_tells_nothing(home: Home, path: str, body: Any) -> None:
    before = len(await home.told())
    assert await home.refused("POST", path, body) == (400, "bad_body")
    assert len(await home.told()) == before


@OWNERS
async def test_what_is_not_there_is_not_found(home: Home, path: str) -> None:
    for id in ("none", "%FF", "..%2F", "x" * 900):
        assert await home.refused("POST", f"{path}/{id}/dismiss") == (404, "no_such_notification"), id
    made = await make(home, path)
    assert await home.refused("POST", f"{path}/{made['id']}/dismiss", {"revision": 1}) == (400, "bad_body")
    assert await home.refused("POST", f"{path}/{made['id']}/forget") == (404, "not_found")
    for verb, more in (("GET", ""), ("POST", ""), ("POST", "/n/dismiss")):
        body = {"title": "t"} if (verb, more) == ("POST", "") else None
        assert await home.refused(verb, f"/sessions/none/notifications{more}", body) == (404, "no_such_session")


async def test_A172_an_inline_notification_needs_a_session(home: Home) -> None:
    body = {"title": "t", "display": {"presentation": "inline"}}
    assert await home.refused("POST", APPLICATION, body) == (400, "bad_body")
    assert (await make(home, SESSION, display={"presentation": "inline"}))["display"]["presentation"] == "inline"


@OWNERS
async def test_A122_A123_A124_A144_A145_what_happens_is_told_in_the_event_stream(home: Home, path: str) -> None:
    since = (await home.events())["latest_event_id"]
    made = await make(home, path, key="k", body="b")
    updated = await make(home, path, key="k", title="u", status=200)
    await home.do("POST", f"{path}/{made['id']}/dismiss")
    again = await make(home, path, key="k")
    assert (updated["id"], updated["revision"]) == (made["id"], 2)
    assert (again["id"] == made["id"], again["revision"]) == (False, 1)
    query = {"since_id": since} | ({"session_id": "s"} if path == SESSION else {})
    events = [event for event in (await home.events(**query))["events"] if event["type"] != "checkpoint"]
    owner = "session" if path == SESSION else "application"
    assert [event["type"].removeprefix(f"{owner}_notification_") for event in events] == [
        *("created", "updated", "dismissed", "created"),
    ]
    assert [event.get("session_id") for event in events] == ["s" if path == SESSION else None] * 4
    assert events[0]["notification"] == made
    display = events[1]["display"]
    assert (display["title"], display["severity"], display["owner"]) == (
        "u", "info", "session" if path == SESSION else "connection",
    )  # fmt: skip


async def test_A134_A135_A148_session_notifications_are_the_sessions_metadata(tmp_path: Path) -> None:
    old = {"id": "old", "title": "from before", "updated_at": "2025-05-05T05:05:05Z"}
    async with running_home(tmp_path) as home:
        await home.create(metadata={"title": "Roses", "notifications": {"items": [old]}})
        made = await make(home, SESSION)
        before = (await home.do("GET", "/sessions/s"))["cursor_event_id"]
    async with running_home(tmp_path) as home:
        session = await home.do("GET", "/sessions/s")
        assert session["session"]["metadata"] == {"title": "Roses", "notifications": {"items": [old, made]}}
        assert session["cursor_event_id"] == before  # a reader behind the cursor is told of it
        assert await ids(home, SESSION) == [made["id"], "old"]
        one = SESSION + "/old/dismiss"
        assert (await conflict(home, one, {"expected_revision": 1}))[1] == old
        record = (await home.do("POST", one, {"expected_revision": "2025-05-05T05:05:05Z"}))["notification"]
        assert (record["revision"], record["status"], record["title"]) == (1, "dismissed", "from before")  # A147


@OWNERS
async def test_A144_an_update_by_key_gives_what_the_body_leaves_out_its_default_again(home: Home, path: str) -> None:
    bare = await make(home, path, key="other")
    said = {"body": "disk full", "severity": "error", "source": {"kind": "cron"}, "display": {"presentation": "modal"}}
    first = await make(home, path, key="backup", **said)
    again = await make(home, path, key="backup", title="u", status=200)
    stays = ("id", "key", "created_at")
    assert [again[name] for name in stays] == [first[name] for name in stays]
    assert (first["severity"], first["display"]["presentation"]) == ("error", "modal")
    reset = ("body", "severity", "source", "display")
    assert [again[name] for name in reset] == [bare[name] for name in reset]


@pytest.mark.parametrize("theirs", [5, {"items": 7}])
async def test_A134_metadata_in_the_place_of_notifications_is_refused_and_that_of_old_sessions_harmless(
    home: Home, theirs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"session_id": "new", "metadata": {"notifications": theirs}}
    error = (await home.do("POST", "/sessions", body, status=400))["error"]
    assert error["code"] == "bad_body"
    assert error["message"].startswith("$.metadata.notifications: ")
    await home.do("GET", "/sessions/new", status=404)

    await home.sessions.update_metadata("s", lambda metadata: metadata.update(notifications=theirs) or [])
    assert await ids(home, SESSION) == []
    made = await make(home, SESSION, key="k")
    again = await make(home, SESSION, key="k", title="u", status=200)
    assert (again["id"], again["revision"]) == (made["id"], 2)
    await home.do("POST", f"{SESSION}/{made['id']}/dismiss", {})
    assert await ids(home, SESSION) == []
    kept = (await home.do("GET", "/sessions/s"))["session"]["metadata"]["notifications"]
    assert kept["replaced"] == theirs
    assert len([record for record in caplog.records if "taken for none" in record.message]) == 1


async def test_A187_a_fork_has_none_of_the_notifications_of_its_source(home: Home) -> None:
    await make(home, SESSION)
    fork = await home.do("POST", "/sessions/s/fork", {"session_id": "f"}, status=201)
    assert fork["session"]["metadata"] == {}
    assert await ids(home, "/sessions/f/notifications") == []
    assert len(await ids(home, SESSION)) == 1


async def test_A136_A142_A154_what_a_runner_tells_is_shown_to_people_and_never_to_a_model(tmp_path: Path) -> None:
    async def tell(context: Context) -> None:
        await context.notify({"title": "Half way", "key": "progress"})
        await context.notify({"title": "Nearly", "key": "progress", "severity": "success"})
        await context.notify({"title": "", "no": "notification"})  # lost, and logged

    runner = ScriptedRunner(tell, *reply("Done."))
    async with running_home(tmp_path, runner) as home:
        await home.create(metadata={"title": "Roses"})
        for content in ("go", "and again"):
            await home.until("request_completed", request_id=await home.send(content))
        (record,) = (await home.do("GET", SESSION))["notifications"]
        assert (record["title"], record["revision"], record["model_visibility"]) == ("Nearly", 4, "hidden")
        assert record["source"] == {"kind": "runner"}
        history = (await home.do("GET", "/sessions/s/messages"))["messages"]
        assert [message["content"] for message in history] == ["go", "Done.", "and again", "Done."]
        seen = [(list(request.messages), dict(request.metadata)) for request in runner.requests]
        assert "Nearly" not in str(seen)
        assert [metadata for _, metadata in seen] == [{"title": "Roses"}] * 2


async def test_A132_A133_the_list_is_right_when_every_event_is_gone(home: Home) -> None:
    made = await make(home, APPLICATION)
    await home.store.transact([], lambda file, _: file.execute("DELETE FROM events"))
    assert await ids(home, APPLICATION) == [made["id"]]
    await home.do("POST", f"{APPLICATION}/{made['id']}/dismiss", {"expected_revision": 1})
    assert await ids(home, APPLICATION) == []


async def test_more_than_a_session_may_have_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MAX_SESSION_ACTIVE", 1)
    monkeypatch.setattr(rules, "MAX_ACTIVE", 1)
    for path in (APPLICATION, SESSION):
        await make(home, path, key="k")
        assert await home.refused("POST", path, {"title": "t"}) == (409, "notifications_full")
        await make(home, path, key="k", status=200)


async def test_changes_that_meet_are_all_made(home: Home) -> None:
    """Ten producers with five keys, in both places at once: each key is one notification with every change counted."""
    for path in (APPLICATION, SESSION):
        made = [home.ask(path, method="POST", json={"title": "t", "key": f"k{n % 5}"}) for n in range(10)]
        assert sorted(answer.status for answer in await asyncio.gather(*made)) == [200] * 5 + [201] * 5
        found = (await home.do("GET", path))["notifications"]
        assert sorted((record["key"], record["revision"]) for record in found) == [(f"k{n}", 2) for n in range(5)]
    told = [event for event in await home.told() if "notification" in event]
    assert len(told) == 20
    assert json.dumps(told).count('"model_visibility": "hidden"') == 20


@pytest.mark.parametrize("path", ["/sessions", APPLICATION])
async def test_a_body_that_does_not_come_ends_the_wait(home: Home, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_bodies, "BODY_SECONDS", 0.1)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    async with asyncio.timeout(20):
        for rest, told in (
            ("Content-Length: 9\r\n\r\n{", b" 408 "),
            ("Transfer-Encoding: chunked\r\n\r\nx\r\n", b" 400 "),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", home.api.port)
            writer.write(f"{head}Content-Type: application/json\r\n{rest}".encode())
            assert told in await reader.readline()
            writer.close()


@OWNERS
async def test_a_flag_given_twice_is_refused(home: Home, path: str) -> None:
    query = "include_terminal=true&include_terminal=true"
    assert await home.refused("GET", f"{path}?{query}") == (400, "bad_parameter")
