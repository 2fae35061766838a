"""How an owner names a source."""

from pathlib import Path

import pytest

from bridge_client.source_spec import HttpSpec, SqliteSpec, parse


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/events"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/events"),
        ("https://agent.example/v1/events", "https://agent.example/v1/events"),
        ("http://[::1]:8000/e/", "http://[::1]:8000/e"),
    ],
)
def test_a_server(text: str, url: str) -> None:
    assert parse(text) == HttpSpec(url)


def test_a_table() -> None:
    assert parse("sqlite:a.db?table=events") == SqliteSpec(Path("a.db"), "events")
    assert parse("sqlite:~/a b.db?table=my+log&id=rowid&body=event&type=x&dense=no") == SqliteSpec(
        Path.home() / "a b.db", "my log", "rowid", "event", type="x", dense=False
    )
    made = parse("sqlite:/a.db?table=t&map=type:kind,data:payload&json=payload")
    assert isinstance(made, SqliteSpec)
    assert dict(made.members) == {"type": "kind", "data": "payload"}
    assert made.json_columns == {"payload"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "agent.db",
        "ftp://host/events",
        "http://",
        "http://:80/",
        "http://host:x/",
        "http://user:word@host/events",
        "http://host/events?session_id=a",
        "http://host/events#x",
        "sqlite:",
        "sqlite:a.db",
        "sqlite:?table=t",
        "sqlite:a.db?table=",
        "sqlite:a.db?table=t&table=u",
        "sqlite:a.db?table=t&where=x",
        "sqlite:a.db?table",
        "sqlite:a.db?table=t&dense=perhaps",
        "sqlite:a.db?table=t&body=b&map=type:k",
        "sqlite:a.db?table=t&map=type",
        "sqlite:a.db?table=t&map=event_id:id,type:k",
        "sqlite:a.db?table=t&map=data:payload",
        "sqlite:a.db?table=t&map=type:k&json=other",
    ],
)
def test_what_names_no_source_is_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w{4}"):
        parse(text)
