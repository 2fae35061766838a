"""The lifecycle of notifications, without a store (rows A120, A121, A134 to A148, A166, A167)."""

import json
from itertools import product
from typing import Any

import msgspec
import pytest

from bridge_client import notification_rules as rules
from bridge_client.notification_rules import (
    BadNotification,
    Ending,
    InvalidTransition,
    NotificationsFull,
    Outcome,
    Record,
    StaleRevision,
)
from protocol.events import agent_app

NOW, LATER = "2026-01-02T03:04:05.000Z", "2026-01-02T03:05:00.000Z"
TERMINAL = ("dismissed", "resolved", "expired")


def made(active: Record | None = None, *, session_id: str | None = None, now: str = NOW, **said: Any) -> Outcome:
    draft = rules.draft({"title": "t", **said})
    return rules.create(draft, active, session_id=session_id, now=now, new_id=lambda: "id-1")


def ended(record: Record, into: str = "dismissed", **said: Any) -> Outcome:
    return rules.end(record, into, Ending(**said), LATER)


def test_A137_to_A142_a_new_record_has_all_its_members() -> None:
    record, verb = made(body="b", severity="error", key="k", source={"kind": "tool", "name": "ls"})
    assert verb == "created"
    assert record == {
        "id": "id-1", "key": "k", "revision": 1, "status": "pending", "severity": "error", "title": "t", "body": "b",
        "created_at": NOW, "updated_at": NOW, "source": {"kind": "tool", "name": "ls"},
        "display": {"presentation": "banner", "owner": "connection"}, "model_visibility": "hidden",
    }  # fmt: skip
    assert made().record["key"] == "id-1"  # A137: it has one, also when nobody named it
    of_session = made(session_id="s").record
    assert of_session["display"] == {"presentation": "inline", "owner": "session", "session_id": "s"}


def test_A139_every_status_and_every_ending() -> None:
    assert set(rules.TRANSITIONS) == {"pending", *TERMINAL}
    for before, into in product(rules.TRANSITIONS, TERMINAL):
        record = made().record if before == "pending" else ended(made().record, before).record
        if before == "pending":  # A146
            outcome = ended(record, into, reason="seen")
            changed = {"status": into, "revision": 2, "updated_at": LATER, "ended_at": LATER, "reason": "seen"}
            assert outcome == (record | changed, into)
        elif before == into:  # [2.13]: nothing happens
            assert ended(record, into) == (record, None)
        else:  # A167
            with pytest.raises(InvalidTransition, match=f"is {before} already") as refused:
                ended(record, into)
            assert refused.value.record == record


def test_rule_13_a_stale_revision_is_refused_also_of_what_is_dismissed_already() -> None:
    record = made().record
    dismissed = ended(record, expected_revision=1).record
    assert ended(dismissed, expected_revision=2).verb is None
    for expected in (1, 3, 0, "2", NOW):
        with pytest.raises(StaleRevision) as refused:
            ended(dismissed, expected_revision=expected)
        assert refused.value.record == dismissed  # A166
    with pytest.raises(StaleRevision):
        ended(made(record, key="k").record, expected_revision=1)


def test_A144_the_key_of_an_active_one_updates_it_in_place() -> None:
    first = made(key="k", title="one").record | {"theirs": 1}
    second, verb = made(first, key="k", title="two", severity="success", now=LATER)
    assert verb == "updated"
    assert (second["id"], second["key"], second["revision"]) == ("id-1", "k", 2)
    assert (second["title"], second["severity"], second["body"]) == ("two", "success", "")
    assert (second["created_at"], second["updated_at"], second["theirs"]) == (NOW, LATER, 1)


@pytest.mark.parametrize("revision", [None, "3", True, 2.0])
def test_A147_A148_a_record_without_a_revision_is_known_by_its_time_and_gains_one(revision: Any) -> None:
    old = {"id": "old", "key": "k", "status": "pending", "title": "t", "updated_at": NOW, "revision": revision}
    if revision is None:
        del old["revision"]
    assert rules.token(old) == NOW
    for stale in (LATER, 1, 0):
        with pytest.raises(StaleRevision):
            ended(old, expected_revision=stale)
    record = ended(old, expected_revision=NOW).record
    assert (record["revision"], record["status"]) == (1, "dismissed")
    with pytest.raises(StaleRevision):  # its time names it no more
        ended(record, expected_revision=LATER)
    assert made(old, key="k").record["revision"] == 1
    nameless = {"id": "n"}
    assert ended(nameless).record["status"] == "dismissed"
    with pytest.raises(StaleRevision):
        ended(nameless, expected_revision=NOW)


def test_A120_A121_A122_each_change_has_its_event_and_each_event_its_model() -> None:
    verbs = {"created", "updated", "dismissed", "resolved", "expired"}
    assert {owner: set(types) for owner, types in rules.EVENTS.items()} == {"application": verbs, "session": verbs}
    assert rules.EVENTS["application"]["resolved"] == "application_notification_updated"  # [2.13]
    known = {type for type in agent_app.VOCABULARY.types if "_notification_" in type}
    assert {type for types in rules.EVENTS.values() for type in types.values()} == known
    record = made(body="b", display={"presentation": "modal", "actions": ["go"]}).record
    event = rules.event("application", "created", record)
    assert event["notification"] == record
    assert event["display"] == {
        "title": "t", "body": "b", "severity": "info",
        "presentation": "modal", "owner": "connection", "actions": ["go"],
    }  # fmt: skip
    assert "session_id" not in event
    assert isinstance(agent_app.VOCABULARY.read(event), agent_app.ApplicationNotificationCreated)


@pytest.mark.parametrize(
    ("said", "where"),
    [
        ({"title": ""}, "title"),
        ({"title": "\n \r\n"}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"body": "x" * 4001}, "body"),
        ({"severity": "fatal"}, "severity"),
        ({"key": ""}, "key"),
        ({"key": "x" * 201}, "key"),
        ({"status": "dismissed"}, "status"),
        ({"display": {"presentation": "inline"}}, "presentation"),  # A172
        ({"display": {"big": "x" * 17_000}}, "16384"),
        ({"source": []}, "source"),
        ({"source": {"at": {1, 2}.__iter__()}}, "JSON"),
        ({"title": "\ud800"}, "JSON"),
    ],
)
def test_what_no_notification_may_be_is_refused_and_named(said: dict[str, Any], where: str) -> None:
    with pytest.raises(BadNotification, match=where):
        made(**said)


def test_what_a_producer_gives_has_a_bounded_depth() -> None:
    deep: Any = []
    for _ in range(60):
        deep = [deep]
    with pytest.raises(BadNotification, match="nest"):
        made(source={"deep": deep})


# In a session's metadata.


def put(metadata: dict[str, Any], number: int, *, room: int = 1 << 18, status: str = "pending", pad: int = 0) -> None:
    rules.put(metadata, {"id": f"n{number}", "status": status, "body": "x" * pad}, room)


def ids(metadata: dict[str, Any], *, include_terminal: bool = False) -> list[str]:
    return [record["id"] for record in rules.listed(rules.items(metadata), include_terminal=include_terminal)]


def test_A134_records_are_kept_under_notifications_items_beside_what_others_keep_there() -> None:
    metadata: dict[str, Any] = {"title": "Roses", "notifications": {"muted": True, "items": ["odd", {"no": "id"}]}}
    for number in (1, 2, 1):
        put(metadata, number)
    assert metadata["title"] == "Roses"
    assert metadata["notifications"]["muted"] is True
    assert metadata["notifications"]["items"][:2] == ["odd", {"no": "id"}]
    assert ids(metadata) == ["n1", "n2"]  # the last changed first
    assert rules.without(metadata) == {"title": "Roses"}  # A136


@pytest.mark.parametrize("theirs", [7, [], {"items": {}}, None])
def test_A134_a_member_that_only_has_the_name_counts_for_none_and_is_not_lost(theirs: Any) -> None:
    metadata = {"notifications": theirs}
    assert rules.misshapen(metadata)
    assert rules.items(metadata) == []
    put(metadata, 1)
    put(metadata, 2)
    assert ids(metadata) == ["n2", "n1"]
    assert json.dumps(metadata["notifications"]["replaced"]) == json.dumps(theirs)


@pytest.mark.parametrize(
    "given", [5, None, "x", [], {"items": None}, {"items": {}}, {"items": ["x"]}, {"items": [{"no": "id"}]}]
)
def test_A134_a_new_session_takes_no_other_data_in_the_place_of_notifications(given: Any) -> None:
    with pytest.raises(BadNotification, match="give other data another name"):
        rules.check_given({"notifications": given})
    for good in ({}, {"notifications": {}}, {"notifications": {"items": [{"id": "x"}], "muted": True}}):
        rules.check_given(good)


def test_A129_terminal_records_of_a_session_stay_until_there_is_no_room() -> None:
    metadata: dict[str, Any] = {}
    for number in range(rules.MAX_SESSION_ENDED + 5):
        put(metadata, number, status=TERMINAL[number % 3])
    assert len(ids(metadata, include_terminal=True)) == rules.MAX_SESSION_ENDED
    assert "n4" not in ids(metadata, include_terminal=True)
    put(metadata, 99)
    put(metadata, 100, pad=500, room=1_500)
    assert set(ids(metadata)) == {"n99", "n100"}  # active ones are never forgotten
    assert "n54" in ids(metadata, include_terminal=True)
    assert len(msgspec.json.encode(metadata)) <= 1_500


def test_a_session_has_a_bounded_number_of_active_ones_and_each_of_them_can_be_ended() -> None:
    metadata: dict[str, Any] = {}
    for number in range(rules.MAX_SESSION_ACTIVE):
        put(metadata, number)
    with pytest.raises(NotificationsFull, match="dismiss some"):
        put(json.loads(json.dumps(metadata)), 99)
    size = len(msgspec.json.encode(metadata))
    with pytest.raises(NotificationsFull, match="no room"):
        put(json.loads(json.dumps(metadata)), 3, pad=100, room=size)
    put(metadata, 3, status="dismissed", pad=100, room=size)
    assert "n3" not in ids(metadata, include_terminal=True)  # there is no room to remember it, but it is over


def test_a_title_is_one_line() -> None:
    for title, line in (("a\r\n  b\n\nc\n", "a b c"), (" a  b ", " a  b "), ("a\u2028b", "a b")):
        assert rules.draft({"title": title}).title == line
    with pytest.raises(rules.BadNotification, match="a JSON body is needed"):
        rules.read_draft(b"")
